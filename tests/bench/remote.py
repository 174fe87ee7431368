"""The remote store, measured: a step over HTTP, many runs at once, hand-over after a kill, idle listeners."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from importlib import util
from pathlib import Path
from typing import Any

from stepfast import AsyncRun, AsyncStepfast, Stepfast
from stepfast.stores.remote_http import Endpoint
from tests.bench.ours import Lone, noop
from tests.bench.rounds import Contender
from tests.bench.sections import BARE, DBOS, Figure, Workshop
from tests.server.live import Live, settings_for

HTTP = "bare HTTP round trip"
REMOTE = "remote step"
SAVER = "PostgresSaver.put"
ADDRESS = "agent://bench/remote/standby"
ROOT = Path(__file__).parents[2]
_GIB = 1 << 30


class Server:
    """A server process for a section; its access log is off, as it would be in a benchmark of anything."""

    def __init__(self, store: str, **limits: Any) -> None:
        self._live = Live(settings_for(store, access_log=False, limits=limits)).start()
        self.url = self._live.url

    def resident(self) -> int:
        """Bytes of memory that the process has in use."""
        pages = int(Path(f"/proc/{self._live.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    def close(self) -> None:
        self._live.stop()


class Bare:
    """The smallest question an HTTP server answers, on one connection that stays open."""

    def __init__(self, url: str) -> None:
        endpoint = Endpoint(url, api_key=None, verify=None, connect_timeout=5)
        self._head = endpoint.head("GET", "/health", "application/json")
        self._connection = endpoint.dial(10)

    def block(self, number: int) -> float:
        began = time.perf_counter()
        for _ in range(number):
            self._connection.ask(self._head, b"")
        return (time.perf_counter() - began) / number

    def close(self) -> None:
        self._connection.close()


class Saver:
    """LangGraph's own PostgreSQL checkpointer, writing one small checkpoint after the other."""

    def __init__(self, url: str) -> None:
        from langgraph.checkpoint.base import empty_checkpoint
        from langgraph.checkpoint.postgres import PostgresSaver

        self._context = PostgresSaver.from_conn_string(url)
        self._saver = self._context.__enter__()
        self._saver.setup()
        self._empty = empty_checkpoint
        self._number = 0

    def block(self, number: int) -> float:
        config: Any = {"configurable": {"thread_id": "bench", "checkpoint_ns": ""}}
        taken = 0.0
        for _ in range(number):
            self._number += 1
            version = f"{self._number:032}.0"
            checkpoint: Any = {
                **self._empty(),
                "channel_values": {"n": self._number},
                "channel_versions": {"n": version},
            }
            began = time.perf_counter()
            self._saver.put(config, checkpoint, {"step": self._number}, {"n": version})
            taken += time.perf_counter() - began
        return taken / number

    def close(self) -> None:
        self._context.__exit__(None, None, None)


def remote(shop: Workshop) -> list[Figure]:
    """One run, one caller, through a server; beside what it cannot do without: a round trip and a commit."""
    if shop.place.store != "PostgreSQL":
        return []
    place, scale = shop.place, shop.scale
    server = shop.keep(Server(place.url("remote")))
    bare, floor = shop.keep(Bare(server.url)), shop.keep(place.floor("remote_floor"))
    step = shop.keep(Lone(server.url))
    shop.tell("warming up")
    shop.warm_up(floor.single, scale.warm_up)
    shop.warm_up(step.steps, scale.warm_up)
    shop.warm_up(bare.block, scale.warm_up)
    size = scale.lone_block
    contenders = [
        Contender(HTTP, lambda: bare.block(size), units=size),
        Contender(BARE, lambda: floor.single(size), units=size),
        Contender(REMOTE, lambda: step.steps(size), units=size),
    ]
    if util.find_spec("langgraph") is not None:
        saver = shop.keep(Saver(place.url("remote_saver")))
        saver.block(50)
        contenders.append(Contender(SAVER, lambda: saver.block(size), units=size))
    if (dbos := shop.dbos) is not None:
        dbos.lone(size)
        contenders.append(Contender(DBOS, lambda: dbos.lone(size)))
    samples = shop.alternate(contenders, scale.lone_rounds)
    figures = shop.figures("remote", samples, BARE)
    beyond = [
        taken[REMOTE] - taken[HTTP] - taken[BARE]  # type: ignore[operator]
        for taken in samples.rounds
    ]
    note = "of the same round, beyond a bare round trip and a bare commit"
    figures.append(shop.figure("remote", BEYOND, statistics.median(beyond), "s", note))
    return figures


BEYOND = "remote step, the rest"


def remote_many(shop: Workshop) -> list[Figure]:
    """Runs side by side through one server, as tasks of one client: steps a second, opening and ending included."""
    if shop.place.store != "PostgreSQL":
        return []
    scale = shop.scale
    server = shop.keep(Server(shop.place.url("remote_many")))
    counts = (1, scale.concurrency, scale.concurrency * 4)
    runner = asyncio.Runner()
    client = AsyncStepfast(server.url)
    numbers = iter(range(10**9))

    async def block(runs: int, steps: int) -> float:
        async def one(name: str) -> None:
            async with client.run(name) as run:
                for n in range(steps):
                    await run.step(noop, n)

        names = [f"remote-{next(numbers)}" for _ in range(runs)]
        began = time.perf_counter()
        await asyncio.gather(*map(one, names))
        return (time.perf_counter() - began) / (runs * steps)

    try:
        steps = scale.steps * 4
        runner.run(block(scale.concurrency, steps))
        contenders = [
            Contender(f"{runs} at once", partial(lambda n: runner.run(block(n, steps)), runs), units=runs * steps)
            for runs in counts
        ]
        return shop.figures("remote_many", shop.alternate(contenders, scale.many_rounds))
    finally:
        runner.run(client.close())
        runner.close()


class Standbys:
    """Worker processes of one address: the one that has the intent is killed, and the next one says when it began."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._waiting: list[subprocess.Popen[str]] = []

    def start(self) -> None:
        self._waiting.append(
            subprocess.Popen(
                [sys.executable, "-m", "tests.bench.standby", self._url, ADDRESS],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
            )
        )

    def ready(self) -> None:
        for process in self._waiting:
            if not hasattr(process, "is_ready"):
                _hear(process, "ready")
                process.is_ready = True  # type: ignore[attr-defined]

    def holder(self, seconds: float = 60.0) -> tuple[subprocess.Popen[str], int]:
        """The process that has the intent now, and when it began, in nanoseconds of the wall clock."""
        import selectors

        with selectors.DefaultSelector() as chosen:
            for process in self._waiting:
                assert process.stdout is not None
                chosen.register(process.stdout, selectors.EVENT_READ, process)
            found = chosen.select(seconds)
        if not found:
            raise AssertionError("nobody took the intent")
        process = found[0][0].data
        return process, int(_hear(process, "began"))

    def kill(self, process: subprocess.Popen[str]) -> int:
        os.kill(process.pid, signal.SIGKILL)
        now = time.time_ns()
        self._waiting.remove(process)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        return now

    def close(self) -> None:
        for process in list(self._waiting):
            self.kill(process)


def _hear(process: subprocess.Popen[str], word: str) -> str:
    assert process.stdout is not None
    said = process.stdout.readline().split()
    if not said or said[0] != word:
        raise AssertionError(f"a standby said {said!r}, not {word!r}")
    return said[-1]


def handover(shop: Workshop) -> list[Figure]:
    """kill -9 of the worker that holds an intent, until another worker on this host runs its handler."""
    if shop.place.store != "PostgreSQL":
        return []
    kills = shop.scale.kills
    server = shop.keep(Server(shop.place.url("handover")))
    standbys = shop.keep(Standbys(server.url))
    with Stepfast(server.url) as client:
        for _ in range(2):
            standbys.start()
        standbys.ready()
        client.send_intent(
            {"intent_type": "bench.v1", "to_agent": ADDRESS, "payload": {}, "max_delivery_attempts": kills + 10}
        )
        holder, _ = standbys.holder()
        taken = []
        for number in range(kills):
            shop.tell(f"kill {number + 1} of {kills}")
            standbys.start()
            standbys.ready()
            killed = standbys.kill(holder)
            holder, began = standbys.holder()
            taken.append((began - killed) / 1e9)
    ordered = sorted(taken)
    at_99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return [
        Figure("handover", shop.place.medium, shop.place.store, P50, statistics.median(taken), rounds=taken),
        shop.figure("handover", P99, at_99, "s", f"over {kills} kills"),
    ]


P50, P99 = "kill to resume, p50", "kill to resume, p99"


def listeners(shop: Workshop) -> list[Figure]:
    """Idle agents' streams on one server process: its memory, and how long a request takes beside them."""
    if shop.place.store != "PostgreSQL" or sys.platform != "linux":
        return []
    wanted = shop.scale.listeners
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = min(hard, max(soft, wanted + 500))
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    count = min(wanted, most - 200)
    server = shop.keep(Server(shop.place.url("listeners"), streams_per_key=count + 100))
    bare = shop.keep(Bare(server.url))
    bare.block(100)
    host, port = "127.0.0.1", int(server.url.rpartition(":")[2])
    before = server.resident()
    links: list[socket.socket] = []
    try:
        for number in range(count):
            link = socket.create_connection((host, port), 30)
            link.sendall(
                f"GET /v1/agents/agent-{number}/intents/stream?since=0&wait_seconds=60 HTTP/1.1\r\n"
                f"Host: {host}\r\nx-api-key: bench\r\n\r\n".encode()
            )
            links.append(link)
            if number % 500 == 499:
                shop.tell(f"{number + 1} listeners")
                link.settimeout(30)
                if not link.recv(100).startswith(b"HTTP/1.1 200"):
                    raise AssertionError("a listener was not accepted")
        links[-1].settimeout(30)
        links[-1].recv(100)
        used = server.resident() - before
        beside = statistics.median(bare.block(1) for _ in range(200))
    finally:
        for link in links:
            link.close()
    each = used / count
    note = f"{count:,} idle streams, {each / 1024:.1f} KiB each; a request beside them takes {beside * 1e3:.2f} ms"
    return [
        shop.figure("listeners", PER_GIB, _GIB / each, "listeners/GiB", note),
        shop.figure("listeners", HELD, count, "listeners"),
    ]


PER_GIB, HELD = "idle listeners per GiB", "held at once"


def blocked(shop: Workshop) -> list[Figure]:
    """An async handler that blocks its event loop for long: its lease is kept, and nobody takes over."""
    if shop.place.store != "PostgreSQL":
        return []
    seconds = shop.scale.blocked_seconds
    server = shop.keep(Server(shop.place.url("blocked")))
    attempts: list[int] = []
    done = threading.Event()

    async def work() -> None:
        client = AsyncStepfast(server.url, lease_seconds=max(1.0, seconds / 6))

        @client.worker(ADDRESS)
        async def handler(run: AsyncRun, payload: Any) -> int:
            attempts.append(run.attempt)
            time.sleep(seconds)  # noqa: ASYNC251 - the point of it
            return len(attempts)

        handler.start()
        await asyncio.to_thread(done.wait)
        await handler.stop()
        await client.close()

    threads = [threading.Thread(target=asyncio.run, args=(work(),)) for _ in range(2)]
    with Stepfast(server.url) as client:
        for thread in threads:
            thread.start()
        sent = client.send_intent({"intent_type": "bench.v1", "to_agent": ADDRESS, "payload": {}})
        shop.tell(f"blocking for {seconds:.0f} s")
        client.wait_for(sent, timeout=seconds + 120)
        lost = sum(event["event_type"] == "intent.delivery_lost" for event in client.events(sent))
        done.set()
        for thread in threads:
            thread.join()
    note = f"handler blocked {seconds:.0f} s under a lease of {max(1.0, seconds / 6):.0f} s; {lost} deliveries lost"
    return [shop.figure("blocked", TAKEOVERS, len(attempts) - 1, "take-overs", note)]


TAKEOVERS = "false take-overs"

REMOTE_SECTIONS: dict[str, Callable[[Workshop], list[Figure]]] = {
    "remote": remote,
    "remote_many": remote_many,
    "handover": handover,
    "listeners": listeners,
    "blocked": blocked,
}
