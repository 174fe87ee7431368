"""A worker process: python -m tests.remote.worker_program URL EFFECTS STEPS PAUSE [KEY]."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from stepfast import Run, Stepfast

ADDRESS = "agent://acme/prod/pipeline"


def main(url: str, effects: str, steps: int, pause: float, key: str | None) -> None:
    # Longer than any outage of a test: what is handed on before is handed on by mistake.
    sf = Stepfast(url, api_key=key, lease_seconds=600)
    log = os.open(effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def effect(name: str, number: int) -> int:
        os.write(log, f"{name} {number} {os.getpid()} {time.time_ns()}\n".encode())
        time.sleep(pause)
        return number

    @sf.worker(ADDRESS, concurrency=16)
    def pipeline(run: Run, payload: Any) -> int:
        return sum(run.step(effect, payload["name"], number) for number in range(steps))

    print("ready", flush=True)
    pipeline.run()
    sf.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), sys.argv[5] if len(sys.argv) > 5 else None)
