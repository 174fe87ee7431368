"""LangGraph's checkpointers side by side: StepfastSaver beside the stock ones, on the same graphs and the same disk."""

from __future__ import annotations

import random
import sqlite3
import statistics
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import util
from pathlib import Path
from typing import Any

from tests.bench.places import Place
from tests.bench.remote import Server
from tests.bench.rounds import Contender
from tests.bench.sections import Figure, Workshop

MEMORY = "MemorySaver"
SQLITE = "SqliteSaver"
SQLITE_DELTA = "SqliteSaver + DeltaChannel"
POSTGRES = "PostgresSaver"
POSTGRES_DELTA = "PostgresSaver + DeltaChannel"
OURS = "StepfastSaver"
OURS_HTTP = "StepfastSaver over HTTP"
_WORDS = 500  # bytes of text in a message
_MEASURED_ELSEWHERE = "DeltaChannel: the graph's author opts in"


def installed() -> bool:
    return all(util.find_spec(name) for name in ("langgraph", "stepfast_langgraph"))


def base_of(place: Place) -> str:
    """The peer that a user of this store would have taken."""
    return MEMORY if place.store == "SQLite" else POSTGRES


class Rival:
    """A checkpointer on a fresh database, with the graphs that run on it."""

    def __init__(self, name: str, place: Place, database: str) -> None:
        self.name = name
        self.delta = "DeltaChannel" in name
        self._open = ExitStack()
        self._url = "" if name == MEMORY else place.url(database)
        self.saver = self._open_saver()
        self._chat = chat_graph(self.saver, self.delta)
        self._counter = counting_graph(self.saver)

    def _open_saver(self) -> Any:
        if self.name == MEMORY:
            from langgraph.checkpoint.memory import InMemorySaver

            return InMemorySaver()
        if self.name in (SQLITE, SQLITE_DELTA):
            from langgraph.checkpoint.sqlite import SqliteSaver

            path = self._url.removeprefix("sqlite:///")
            connection = sqlite3.connect(path, check_same_thread=False)
            self._open.callback(connection.close)
            saver: Any = SqliteSaver(connection)
            saver.setup()
            # It sets WAL; with it comes synchronous=FULL unless told otherwise, as ours has.
            return saver
        if self.name in (POSTGRES, POSTGRES_DELTA):
            from langgraph.checkpoint.postgres import PostgresSaver
            from psycopg.rows import dict_row
            from psycopg_pool import ConnectionPool

            options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
            pool: Any = ConnectionPool(self._url, min_size=1, max_size=16, kwargs=options, open=True)
            self._open.callback(pool.close)
            saver = PostgresSaver(pool)
            saver.setup()
            return saver
        from stepfast_langgraph import StepfastSaver

        store = self._url
        if self.name == OURS_HTTP:
            server = Server(self._url)
            self._open.callback(server.close)
            store = server.url
        return self._open.enter_context(StepfastSaver(store))

    def chat(self, steps: int, thread: str) -> float:
        """One invocation of so many supersteps, each adding one message; seconds."""
        began = time.perf_counter()
        self._chat.invoke({"left": steps, "messages": []}, config_of(thread, steps))
        return time.perf_counter() - began

    def count(self, steps: int, thread: str) -> float:
        """The same with a state that stays small."""
        began = time.perf_counter()
        self._counter.invoke({"left": steps, "done": 0}, config_of(thread, steps))
        return time.perf_counter() - began

    def read(self, thread: str) -> float:
        """The last state of a thread, whole: what a resumed run, or a chat's next turn, begins with."""
        began = time.perf_counter()
        state = self._chat.get_state({"configurable": {"thread_id": thread}})
        taken = time.perf_counter() - began
        if len(state.values["messages"]) < 2:
            raise AssertionError(f"{self.name} gave {len(state.values['messages'])} messages back")
        return taken

    def history(self, thread: str) -> float:
        began = time.perf_counter()
        number = sum(1 for _ in self._chat.get_state_history({"configurable": {"thread_id": thread}}))
        taken = time.perf_counter() - began
        if number < 2:
            raise AssertionError(f"{self.name} gave {number} checkpoints back")
        return taken

    def pairs(self, number: int, thread: str) -> float:
        """put and put_writes straight, one message each; seconds for a pair."""
        from langgraph.checkpoint.base import empty_checkpoint

        saver = self.saver
        config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
        taken = 0.0
        version = None
        for step in range(number):
            version = saver.get_next_version(version, None)
            message = a_message()
            checkpoint = {
                **empty_checkpoint(),
                "channel_values": {"message": message},
                "channel_versions": {"message": version},
            }
            began = time.perf_counter()
            config = saver.put(config, checkpoint, {"source": "loop", "step": step}, {"message": version})
            saver.put_writes(config, [("message", message)], str(uuid.uuid4()), "")
            taken += time.perf_counter() - began
        return taken / number

    def stored(self) -> int:
        """Bytes at rest, once what the engine defers has been done."""
        if self._url.startswith("sqlite:///"):
            path = Path(self._url.removeprefix("sqlite:///"))
            with sqlite3.connect(path, timeout=30) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            connection.close()
            return sum(p.stat().st_size for p in (path, path.with_name(path.name + "-wal")) if p.exists())
        import psycopg

        with psycopg.connect(self._url, autocommit=True) as server:
            row = server.execute(
                "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c "
                "JOIN pg_namespace n ON n.oid = c.relnamespace "
                "WHERE c.relkind = 'r' AND n.nspname NOT IN ('pg_catalog', 'information_schema')"
            ).fetchone()
        return int(row[0]) if row else 0

    def close(self) -> None:
        self._open.close()


def config_of(thread: str, steps: int) -> Any:
    return {"configurable": {"thread_id": thread}, "recursion_limit": steps + 10}


def a_message() -> Any:
    from langchain_core.messages import AIMessage

    return AIMessage(content=random.randbytes(_WORDS // 2).hex(), id=str(uuid.uuid4()))


def chat_graph(saver: Any, delta: bool) -> Any:
    """A loop of one node that adds one message of 500 bytes; no thinking time."""
    from typing import Annotated, TypedDict

    from langgraph.graph import END, START, StateGraph
    from langgraph.graph.message import add_messages

    kind: Any = Annotated[list, add_messages]
    if delta:
        from langgraph.channels.delta import DeltaChannel

        def append(messages: list[Any] | None, writes: Sequence[Any]) -> list[Any]:
            together = list(messages or [])
            for write in writes:
                together.extend(write if isinstance(write, list) else [write])
            return together

        kind = Annotated[list, DeltaChannel(append)]
    schema: Any = TypedDict("schema", {"messages": kind, "left": int})

    def speak(state: Any) -> dict[str, Any]:
        return {"messages": [a_message()], "left": state["left"] - 1}

    builder: Any = StateGraph(schema)
    builder.add_node("speak", speak)
    builder.add_edge(START, "speak")
    builder.add_conditional_edges("speak", lambda s: "speak" if s["left"] > 0 else END, ["speak", END])
    return builder.compile(checkpointer=saver)


def counting_graph(saver: Any) -> Any:
    from typing import TypedDict

    from langgraph.graph import END, START, StateGraph

    schema: Any = TypedDict("schema", {"left": int, "done": int})
    builder: Any = StateGraph(schema)
    builder.add_node("count", lambda s: {"left": s["left"] - 1, "done": s["done"] + 1})
    builder.add_edge(START, "count")
    builder.add_conditional_edges("count", lambda s: "count" if s["left"] > 0 else END, ["count", END])
    return builder.compile(checkpointer=saver)


def rivals_at(place: Place) -> list[str]:
    on_sqlite = [MEMORY, SQLITE, SQLITE_DELTA, OURS]
    names = on_sqlite if place.store == "SQLite" else [MEMORY, POSTGRES, POSTGRES_DELTA, OURS, OURS_HTTP]
    return [name for name in names if has_delta() or "DeltaChannel" not in name]


def has_delta() -> bool:
    """Older releases of langgraph have no DeltaChannel."""
    return util.find_spec("langgraph.channels.delta") is not None


@contextmanager
def opened(shop: Workshop, tag: str, names: Sequence[str] | None = None) -> Iterator[dict[str, Rival]]:
    with ExitStack() as stack:
        found = {}
        for number, name in enumerate(names or rivals_at(shop.place)):
            found[name] = Rival(name, shop.place, f"lg_{tag}_{number}")
            stack.callback(found[name].close)
        yield found


def _rounds(
    shop: Workshop, section: str, work: Mapping[str, Callable[[], float]], rounds: int, label: str = ""
) -> list[Figure]:
    base = base_of(shop.place)
    samples = shop.alternate([Contender(name, block) for name, block in work.items()], rounds)
    figures = shop.figures(section, samples, base)
    for figure in figures:
        figure.contender += label
        if "DeltaChannel" in figure.contender:
            figure.note = _MEASURED_ELSEWHERE
    return figures


def chat(shop: Workshop) -> list[Figure]:
    """A chat that grows by one message a superstep: seconds, bytes, and reading it back at the end."""
    figures: list[Figure] = []
    for steps in shop.scale.chat_steps if installed() else ():
        figures += _chat_of(shop, steps)
    return figures


def _chat_of(shop: Workshop, steps: int) -> list[Figure]:
    rounds = shop.scale.chat_rounds
    label = at_steps(steps)
    with opened(shop, f"chat_{steps}") as rivals:
        threads: dict[str, list[str]] = {name: [] for name in rivals}

        def block(rival: Rival) -> float:
            threads[rival.name].append(f"{rival.name}-{len(threads[rival.name])}")
            return rival.chat(steps, threads[rival.name][-1])

        for rival in rivals.values():
            rival.chat(5, "warm-up")
        empty = {name: 0 if name == MEMORY else rival.stored() for name, rival in rivals.items()}
        figures = _rounds(shop, "chat", {n: partial(block, r) for n, r in rivals.items()}, rounds, label)
        for name, rival in rivals.items():
            if name != MEMORY:
                grown = (rival.stored() - empty[name]) / len(threads[name])
                figures.append(shop.figure("chat_bytes", name + label, grown / 1e6, "MB"))
        for name, work in (("chat_read", Rival.read), ("chat_history", Rival.history)):
            if name == "chat_read" or steps <= 300:
                reads = {n: partial(work, r, threads[n][0]) for n, r in rivals.items()}
                figures += _rounds(shop, name, reads, max(rounds, 5), label)
        return figures


def small(shop: Workshop) -> list[Figure]:
    """Many supersteps of a state that stays small: seconds per superstep."""
    if not installed():
        return []
    steps = shop.scale.small_steps
    with opened(shop, "small", [n for n in rivals_at(shop.place) if "Delta" not in n]) as rivals:
        numbers = iter(range(10**6))
        for rival in rivals.values():
            rival.count(20, "warm-up")
        work = {n: partial(lambda r: r.count(steps, f"small-{next(numbers)}") / steps, r) for n, r in rivals.items()}
        return _rounds(shop, "small", work, shop.scale.chat_rounds)


def pair(shop: Workshop) -> list[Figure]:
    """put and put_writes alone, by one thread of execution and by several at once: seconds per pair."""
    if not installed():
        return []
    figures = []
    block = shop.scale.pair_block
    with opened(shop, "pair", [n for n in rivals_at(shop.place) if "Delta" not in n]) as rivals:
        numbers = iter(range(10**6))
        for rival in rivals.values():
            rival.pairs(20, "warm-up")
        for workers in shop.scale.pair_workers:
            work = {
                n: partial(_at_once, r.pairs, workers, max(block // workers, 2), numbers) for n, r in rivals.items()
            }
            figures += _rounds(shop, "pair", work, shop.scale.pair_rounds, f", {workers} at once")
    return figures


def _at_once(work: Callable[[int, str], float], workers: int, each: int, numbers: Iterator[int]) -> float:
    """Seconds per unit while so many threads work side by side, each on a thread of its own."""
    barrier = threading.Barrier(workers + 1)
    failures: list[BaseException] = []

    def run(name: str) -> None:
        barrier.wait()
        try:
            work(each, name)
        except BaseException as error:
            failures.append(error)

    started = [threading.Thread(target=run, args=(f"pair-{next(numbers)}",)) for _ in range(workers)]
    for thread in started:
        thread.start()
    barrier.wait()
    began = time.perf_counter()
    for thread in started:
        thread.join()
    if failures:
        raise failures[0]
    return (time.perf_counter() - began) / (workers * each)


def at_steps(steps: int) -> str:
    return f", {steps:,} steps"


def median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(above, below, strict=False))


SAVER_SECTIONS: dict[str, Callable[[Workshop], list[Figure]]] = {"chat": chat, "small": small, "pair": pair}
