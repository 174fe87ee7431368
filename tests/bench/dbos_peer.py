"""DBOS doing the same no-op steps, in a process of its own: ``python -m tests.bench.dbos_peer URL``.

Reads a JSON list per line, ``[what, number, …]``, and answers each with one JSON line. The process is
stopped while others have their turn (see `peers`), so that its pollers disturb nobody.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

from dbos import DBOS, SetWorkflowID

_orders: queue.Queue[int] = queue.Queue()
_answers: queue.Queue[float] = queue.Queue()
_numbers = count(1)


@DBOS.step()
def noop(number: int) -> int:
    return number


@DBOS.workflow()
def lone() -> None:
    """One workflow, open from the first block to the last; it ends with the process."""
    while True:
        number = _orders.get()
        began = time.perf_counter()
        for n in range(number):
            noop(n)
        _answers.put((time.perf_counter() - began) / number)


@DBOS.workflow()
def several(steps: int) -> None:
    for n in range(steps):
        noop(n)


@DBOS.workflow()
def replayed(steps: int) -> float:
    began = time.perf_counter()
    for n in range(steps):
        noop(n)
    return time.perf_counter() - began


class Peer:
    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._pools: dict[int, ThreadPoolExecutor] = {}

    def lone(self, steps: int) -> float:
        if self._thread is None:
            self._thread = threading.Thread(target=lone, daemon=True)
            self._thread.start()
        _orders.put(steps)
        return _answers.get()

    def many(self, runs: int, steps: int, concurrency: int) -> float:
        """Called straight from a pool of threads: measured here, faster than its queues and than its tasks."""
        pool = self._pools.setdefault(concurrency, ThreadPoolExecutor(concurrency))

        def one(name: str) -> None:
            with SetWorkflowID(name):
                several(steps)

        names = [f"many-{os.getpid()}-{next(_numbers)}" for _ in range(runs)]
        began = time.perf_counter()
        list(pool.map(one, names))
        return (time.perf_counter() - began) / (runs * steps)

    def record(self, steps: int) -> float:
        with SetWorkflowID("replayed"):
            return replayed(steps)

    def replay(self, steps: int) -> float:
        """A fork keeps the recorded steps and goes through them again; timed inside, so its queue does not count."""
        return float(DBOS.fork_workflow("replayed", steps + 1).get_result())


def main(url: str) -> None:
    # Whatever the library prints must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    DBOS(
        config={
            "name": "bench",
            "system_database_url": url,
            "log_level": "ERROR",
            "enable_otlp": False,
        }
    )
    DBOS.launch()
    peer = Peer()
    known: dict[str, Callable[..., Any]] = {
        "lone": peer.lone,
        "many": peer.many,
        "record": peer.record,
        "replay": peer.replay,
    }
    print("0", file=answers, flush=True)
    for line in sys.stdin:
        what, *numbers = json.loads(line)
        print(json.dumps(known[what](*numbers)), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
