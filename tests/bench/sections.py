"""What is measured: each section compares a few contenders at one place and says what it found."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from stepfast import Stepfast
from tests.bench import filling
from tests.bench.floors import GROUP
from tests.bench.ours import Lone, Reopened, Tasks, Threads, noop
from tests.bench.peers import Dbos
from tests.bench.places import Place
from tests.bench.rounds import Contender, Samples, Watcher, alternate, warm_up


@dataclass(frozen=True)
class Scale:
    """How much is done; only the full one gives figures to quote."""

    name: str
    patience: float = 25.0  # seconds for the rounds of a section at a place, on a disk that is slower than it should be
    warm_up: int = 1200  # commits: until the write-ahead log has wrapped round, as it has in any store that lives
    lone_block: int = 25
    lone_rounds: int = 40
    runs: int = 200
    steps: int = 10
    concurrency: int = 16
    many_rounds: int = 9
    dbos_every: int = 3  # rounds: it takes seconds where the others take milliseconds
    reopened_steps: int = 1000
    reopened_rounds: int = 9
    dbos_replays: bool = True
    map_items: int = 100_000
    side_by_side_items: int = 20_000
    few_intents: int = 1_000
    many_intents: int = 1_000_000
    claim_block: int = 25
    claim_rounds: int = 20
    long_run: int = 10_000
    large_value: int = 64 << 20
    kills: int = 100
    listeners: int = 5_000
    blocked_seconds: float = 180.0
    chat_steps: tuple[int, ...] = (100, 300, 1000)
    chat_rounds: int = 3
    small_steps: int = 1000
    pair_block: int = 160
    pair_rounds: int = 9
    pair_workers: tuple[int, ...] = (1, 4, 16)
    agent_turns: int = 10
    agent_tools: int = 8
    agent_rounds: int = 15
    agent_resumed: int = 200
    agent_resume_rounds: int = 5
    agent_kills: int = 7


FULL = Scale("full")
QUICK = Scale(
    "quick",
    patience=4.0,
    warm_up=300,
    lone_rounds=12,
    runs=64,
    many_rounds=3,
    reopened_rounds=3,
    dbos_replays=False,
    map_items=20_000,
    side_by_side_items=5_000,
    many_intents=30_000,
    claim_rounds=8,
    long_run=2_000,
    large_value=16 << 20,
    kills=10,
    listeners=500,
    blocked_seconds=6.0,
    chat_steps=(100, 300),
    small_steps=200,
    pair_block=64,
    pair_rounds=3,
    agent_rounds=5,
    agent_resumed=100,
    agent_resume_rounds=3,
    agent_kills=3,
)
SMOKE = Scale(
    "smoke",
    warm_up=5,
    lone_block=3,
    lone_rounds=2,
    runs=4,
    steps=2,
    concurrency=2,
    many_rounds=2,
    reopened_steps=10,
    reopened_rounds=2,
    map_items=200,
    side_by_side_items=100,
    few_intents=10,
    many_intents=100,
    claim_block=3,
    claim_rounds=2,
    long_run=20,
    large_value=1 << 20,
    kills=2,
    listeners=20,
    blocked_seconds=2.0,
    chat_steps=(10,),
    chat_rounds=2,
    small_steps=5,
    pair_block=8,
    pair_rounds=2,
    pair_workers=(1, 2),
    agent_turns=2,
    agent_tools=2,
    agent_rounds=2,
    agent_resumed=4,
    agent_resume_rounds=2,
    agent_kills=2,
)


@dataclass
class Figure:
    """One contender at one place: the median of its rounds, in ``unit``.

    ``ratio`` is its time over that of the section's base, ``dbos`` the time of DBOS over its own; both
    are medians of same-round ratios.
    """

    section: str
    medium: str
    store: str
    contender: str
    value: float
    unit: str = "s"
    rounds: list[float] = field(default_factory=list)
    base: str = ""
    ratio: float | None = None
    dbos: float | None = None
    processor: float | None = None  # seconds of this process, where they were taken
    note: str = ""


class _Closes(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=_Closes)
Notes = Mapping[str, str]
NO_NOTES: Notes = {}


class Workshop:
    """Opens contenders at a place, and closes them all at the end of a section."""

    def __init__(self, place: Place, scale: Scale, dbos: Dbos | None, tell: Watcher) -> None:
        self.place = place
        self.scale = scale
        self.dbos = dbos
        self.tell = tell
        self._open = ExitStack()

    def keep(self, thing: C) -> C:
        self._open.callback(thing.close)
        return thing

    def __enter__(self) -> Workshop:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._open.close()

    def warm_up(self, work: Callable[[int], object], number: int) -> None:
        warm_up(work, number, self.scale.patience / 8)

    def alternate(self, contenders: Sequence[Contender], rounds: int) -> Samples:
        return alternate(contenders, rounds, self.tell, self.scale.patience)

    def figures(self, section: str, samples: Samples, base: str = "", notes: Notes = NO_NOTES) -> list[Figure]:
        place, names = self.place, samples.names
        return [
            Figure(
                section,
                place.medium,
                place.store,
                name,
                samples.median(name),
                rounds=samples.of(name),
                base=base,
                ratio=samples.ratio(name, base) if base and name != base else None,
                dbos=samples.ratio(DBOS, name) if DBOS in names and name != DBOS else None,
                processor=samples.busy(name),
                note=notes.get(name, ""),
            )
            for name in names
        ]

    def figure(self, section: str, contender: str, value: float, unit: str, note: str = "") -> Figure:
        return Figure(section, self.place.medium, self.place.store, contender, value, unit, [value], note=note)


BARE = "bare commit"
GROUPED = f"bare commit of {GROUP} rows"
STEP = "step"
ONCE = "once"
INTENT = "intent and step"
DBOS = "DBOS"
THREADS = "threads"
ASYNCIO = "asyncio"
REPLAY = "open and replay"
ONE_BY_ONE = "one at a time"


def lone(shop: Workshop) -> list[Figure]:
    """One run, one caller: what a step costs beside one bare durable commit."""
    place, scale = shop.place, shop.scale
    floor = shop.keep(place.floor("lone_floor"))
    step, once, intent = (shop.keep(Lone(place.url(f"lone_{n}"))) for n in ("step", "once", "intent"))
    shop.tell("warming up")
    shop.warm_up(floor.single, scale.warm_up)
    shop.warm_up(step.steps, scale.warm_up)
    shop.warm_up(once.one_shots, scale.warm_up // 2)
    shop.warm_up(intent.intents_and_steps, scale.warm_up // 2)
    size = scale.lone_block
    contenders = [
        Contender(BARE, lambda: floor.single(size), units=size),
        Contender(STEP, lambda: step.steps(size), units=size),
        Contender(ONCE, lambda: once.one_shots(size), units=size),
        Contender(INTENT, lambda: intent.intents_and_steps(size), units=size),
    ]
    if (dbos := shop.dbos) is not None:
        dbos.lone(size)
        contenders.append(Contender(DBOS, lambda: dbos.lone(size)))
    notes = {ONCE: "two commits", INTENT: "two commits"}
    return shop.figures("lone", shop.alternate(contenders, scale.lone_rounds), BARE, notes)


def many(shop: Workshop) -> list[Figure]:
    """Many short runs side by side, each opened and ended: seconds per step."""
    place, scale = shop.place, shop.scale
    floor = shop.keep(place.floor("many_floor"))
    threads = shop.keep(Threads(place.url("many_threads"), scale.concurrency))
    tasks = shop.keep(Tasks(place.url("many_tasks"), scale.concurrency))
    runs, steps = scale.runs, scale.steps
    shop.tell("warming up")
    shop.warm_up(floor.grouped, scale.warm_up * 4)
    threads.block(runs, steps)
    tasks.block(runs, steps)
    contenders = [
        Contender(GROUPED, lambda: floor.grouped(runs * steps), units=runs * steps),
        Contender(THREADS, lambda: threads.block(runs, steps), units=runs * steps),
        Contender(ASYNCIO, lambda: tasks.block(runs, steps), units=runs * steps),
    ]
    if (dbos := shop.dbos) is not None:
        dbos.many(scale.concurrency, 1, scale.concurrency)
        turn = scale.dbos_every
        contenders.append(Contender(DBOS, lambda: dbos.many(runs, steps, scale.concurrency), every=turn))
    return shop.figures("many", shop.alternate(contenders, scale.many_rounds), GROUPED)


def reopen(shop: Workshop) -> list[Figure]:
    """A run of many finished steps: open it, and have every call answered from the journal."""
    place, scale = shop.place, shop.scale
    ours = shop.keep(Reopened(place.url("reopen"), scale.reopened_steps))
    contenders = [Contender(REPLAY, ours.block), Contender("open alone", ours.open_only)]
    if (dbos := shop.dbos) is not None and scale.dbos_replays:
        dbos.record(scale.reopened_steps)
        contenders.append(Contender(DBOS, lambda: dbos.replay(scale.reopened_steps), every=scale.dbos_every))
    notes = {DBOS: "the calls alone, without its opening"}
    return shop.figures("reopen", shop.alternate(contenders, scale.reopened_rounds), notes=notes)


def mapped(shop: Workshop) -> list[Figure]:
    """The durable map over many items: items a second."""
    scale = shop.scale
    client = shop.keep(Stepfast(shop.place.url("map")))
    figures = []
    for items, concurrency in ((scale.map_items, 1), (scale.side_by_side_items, 8)):
        name = f"map-{concurrency}"
        shop.tell(f"{items:,} items at {concurrency}")
        began = time.perf_counter()
        with client.run(name) as run:
            total = sum(1 for _ in run.map(noop, range(items), concurrency=concurrency, progress=False))
        taken = time.perf_counter() - began
        if total != items:
            raise AssertionError(f"{total} results for {items} items")
        commits = len(client.steps(name)) + 2
        label = ONE_BY_ONE if concurrency == 1 else f"concurrency {concurrency}"
        note = f"{items:,} items in {commits:,} commits"
        figures.append(shop.figure("map", label, items / taken, "items/s", note))
    return figures


def claim(shop: Workshop) -> list[Figure]:
    """Taking the next intent of an address, with few and with very many finished ones in the store."""
    place, scale = shop.place, shop.scale
    contenders = []
    for count in (scale.few_intents, scale.many_intents):
        shop.tell(f"filling in {count:,} finished intents")
        url = place.url(f"claim_{count}")
        client = shop.keep(Stepfast(url))
        filling.fill(client, url, count)
        contenders.append(Contender(f"{count:,} finished", _claims(client, scale.claim_block)))
    for contender in contenders:
        contender.block()
    samples = shop.alternate(contenders, scale.claim_rounds)
    return shop.figures("claim", samples, contenders[0].name)


def _claims(client: Stepfast, number: int) -> Callable[[], float]:
    def block() -> float:
        """The median of claims that each find one fresh intent; sending and ending it is not timed."""
        taken = []
        for n in range(number):
            client.send_intent({"intent_type": filling.TYPE, "to_agent": filling.ADDRESS, "payload": n})
            began = time.perf_counter()
            run = client.claim(filling.ADDRESS)
            taken.append(time.perf_counter() - began)
            if run is None or run.payload != n:
                raise AssertionError("the claim did not give the intent that was sent")
            with run:
                pass
        return statistics.median(taken)

    return block


def ceilings(shop: Workshop) -> list[Figure]:
    """A very long run and a very large value."""
    scale = shop.scale
    client = shop.keep(Stepfast(shop.place.url("ceilings")))
    return [*_long_run(shop, client, scale.long_run), *_large_value(shop, client, scale.large_value)]


def _long_run(shop: Workshop, client: Stepfast, steps: int) -> list[Figure]:
    shop.tell(f"{steps:,} steps in one run")
    tenth = steps // 10
    marks = []
    with client.run("long") as run:
        for n in range(steps):
            if n % tenth == 0:
                marks.append(time.perf_counter())
            run.step(noop, n)
        marks.append(time.perf_counter())
    with _timed() as reopened, client.run("long") as run:
        for n in range(steps):
            if run.step(noop, n) != n:
                raise AssertionError("a step gave another result than it was recorded with")
    first, last = (marks[1] - marks[0]) / tenth, (marks[-1] - marks[-2]) / tenth
    return [
        shop.figure("ceilings", f"step, first tenth of {steps:,}", first, "s"),
        shop.figure("ceilings", f"step, last tenth of {steps:,}", last, "s"),
        shop.figure("ceilings", f"reopening {steps:,} steps", reopened[0], "s"),
    ]


def _large_value(shop: Workshop, client: Stepfast, size: int) -> list[Figure]:
    label = f"{size >> 20} MiB value"
    shop.tell(label)
    value = os.urandom(size)  # compression cannot help
    with client.run("large") as run, _timed() as written:
        run.options(name="large").step(lambda: value)
    with client.run("large") as run, _timed() as read:
        back: Any = run.options(name="large").step(lambda: b"")
    if back != value:
        raise AssertionError("the large value came back changed")
    return [
        shop.figure("ceilings", f"{label}, written", written[0], "s"),
        shop.figure("ceilings", f"{label}, read back", read[0], "s"),
    ]


@contextmanager
def _timed() -> Iterator[list[float]]:
    taken: list[float] = []
    began = time.perf_counter()
    yield taken
    taken.append(time.perf_counter() - began)


CORE_SECTIONS: dict[str, Callable[[Workshop], list[Figure]]] = {
    "lone": lone,
    "many": many,
    "reopen": reopen,
    "map": mapped,
    "claim": claim,
    "ceilings": ceilings,
}
