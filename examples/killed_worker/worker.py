"""A worker process: takes deliveries of one address from a server and works through them, step by step.

    python worker.py --url http://127.0.0.1:8100 --effects effects.jsonl

The tools are scripted, so it needs no key and no network. Every step writes a line to the effects file, which lies
outside the store and is the evidence of what was really done.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

from stepfast import Run, Stepfast

ADDRESS = "agent://acme/prod/pipeline"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", required=True, help="the server, or any store")
    parser.add_argument("--effects", required=True, help="the file that counts what was done")
    parser.add_argument("--pace", type=float, default=0.15, help="seconds a step takes")
    parser.add_argument(
        "--stall-at", type=int, help="a step in whose middle to stand still, for whoever wants to kill it"
    )
    options = parser.parse_args()

    sf = Stepfast(options.url)
    effects = os.open(options.effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def tell(what: str, step: int) -> None:
        line = {"what": what, "step": step, "pid": os.getpid(), "at": time.time()}
        os.write(effects, json.dumps(line).encode() + b"\n")

    def process(step: int) -> int:
        tell("begun", step)
        time.sleep(3600 if step == options.stall_at else options.pace)
        tell("done", step)
        return step * step

    @sf.worker(ADDRESS)
    def pipeline(run: Run, payload: Any) -> int:
        return sum(run.step(process, step) for step in range(1, payload["steps"] + 1))

    print("ready", flush=True)
    pipeline.run()
    sf.close()


if __name__ == "__main__":
    main()
