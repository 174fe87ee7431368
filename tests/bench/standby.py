"""A worker that takes an intent and keeps it: ``python -m tests.bench.standby URL ADDRESS``."""

from __future__ import annotations

import sys
import time
from typing import Any

from stepfast import Run, Stepfast


def main(url: str, address: str) -> None:
    client = Stepfast(url)

    @client.worker(address)
    def keep(run: Run, payload: Any) -> None:
        print("began", time.time_ns(), flush=True)
        time.sleep(3600)

    print("ready", flush=True)
    keep.run()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
