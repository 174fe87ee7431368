"""What was promised, and whether it holds: judged on the disk, never rounded in our favour."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from tests.bench import agents as a
from tests.bench import crews as c
from tests.bench import remote as r
from tests.bench import savers as g
from tests.bench import sections as s
from tests.bench.sections import Figure, Scale

Bound = Literal["<=", ">="]
_MEDIA = ("disk", "tmpfs")
_STORES = ("SQLite", "PostgreSQL")


@dataclass
class Verdict:
    """``value`` must be at most (or at least) ``limit``; None where it was not measured."""

    target: str
    bound: Bound
    limit: float
    unit: str
    value: float | None
    on_tmpfs: float | None
    remark: str = ""

    @property
    def met(self) -> bool | None:
        if self.value is None:
            return None
        return self.value <= self.limit if self.bound == "<=" else self.value >= self.limit

    @property
    def word(self) -> str:
        return {True: "pass", False: "MISS", None: "not measured"}[self.met]


class Book:
    """The figures of a run, by what they are about."""

    def __init__(self, figures: Iterable[Figure]) -> None:
        self._figures = list(figures)

    def find(self, section: str, medium: str, store: str, contender: str) -> Figure | None:
        wanted = (section, medium, store, contender)
        return next((f for f in self._figures if (f.section, f.medium, f.store, f.contender) == wanted), None)

    def ratio(self, section: str, medium: str, store: str, contender: str) -> float | None:
        figure = self.find(section, medium, store, contender)
        return None if figure is None else figure.ratio

    def value(self, section: str, medium: str, store: str, contender: str) -> float | None:
        figure = self.find(section, medium, store, contender)
        return None if figure is None else figure.value

    def better(self, medium: str, store: str) -> Figure | None:
        """Threads or asyncio, whichever was quicker there."""
        pair = [f for name in (s.THREADS, s.ASYNCIO) if (f := self.find("many", medium, store, name)) is not None]
        return min(pair, key=lambda f: f.value, default=None)


def judge(figures: Sequence[Figure], scale: Scale) -> list[Verdict]:
    book = Book(figures)
    library = [*_lone(book), *_many(book, scale), *_others(book, scale), *_remote(book, scale)]
    return [*library, *_savers(book, scale), *_agents(book), *_crews(book), *_teams(book)]


def _lone(book: Book) -> Iterable[Verdict]:
    wanted = (
        ("SQLite", s.STEP, 1.3, "a step"),
        ("SQLite", s.ONCE, 2.3, "a step with its intent recorded first (once)"),
        ("SQLite", s.INTENT, 2.3, "an intent created, and a step"),
        ("PostgreSQL", s.STEP, 1.4, "a step"),
    )
    for store, contender, limit, text in wanted:
        disk, memory = (book.ratio("lone", medium, store, contender) for medium in _MEDIA)
        yield Verdict(f"{store}: {text}, one caller", "<=", limit, "x bare commit", disk, memory)


def _many(book: Book, scale: Scale) -> Iterable[Verdict]:
    for store, limit in (("SQLite", 3.0), ("PostgreSQL", 2.0)):
        text = f"{store}: {scale.runs} runs x {scale.steps} steps at {scale.concurrency}"
        disk, memory = (book.better(medium, store) for medium in _MEDIA)
        names = [f.contender for f in (disk, memory) if f is not None]
        remark = " on disk, ".join(names) + " on tmpfs" if len(set(names)) == 2 else "".join(names[:1])

        def verdict(
            bound: Bound,
            wanted: float,
            unit: str,
            look: Callable[[Figure], float | None],
            pair: tuple[Figure | None, Figure | None] = (disk, memory),
            text: str = text,
            remark: str = remark,
        ) -> Verdict:
            on_disk, in_memory = (None if f is None else look(f) for f in pair)
            return Verdict(text, bound, wanted, unit, on_disk, in_memory, remark)

        yield verdict("<=", limit, "x group floor", lambda f: f.ratio)
        yield verdict(">=", 10_000, "steps/s", lambda f: 1 / f.value)
        yield verdict(">=", 40, "x DBOS", lambda f: f.dbos)


def _others(book: Book, scale: Scale) -> Iterable[Verdict]:
    for store in _STORES:
        disk, memory = (_times(1000, book.value("reopen", medium, store, s.REPLAY)) for medium in _MEDIA)
        text = f"{store}: reopening a run of {scale.reopened_steps:,} finished steps"
        yield Verdict(text, "<=", 30, "ms", disk, memory)
    disk, memory = (book.value("map", medium, "SQLite", s.ONE_BY_ONE) for medium in _MEDIA)
    yield Verdict(f"SQLite: run.map over {scale.map_items:,} items", ">=", 5_000, "items/s", disk, memory)
    for store in _STORES:
        lots = f"{scale.many_intents:,} finished"
        disk, memory = (book.ratio("claim", medium, store, lots) for medium in _MEDIA)
        yield Verdict(f"{store}: claim with {lots} intents", "<=", 1.5, f"x with {scale.few_intents:,}", disk, memory)
    for store in _STORES:
        parts = (f"step, {part} tenth of {scale.long_run:,}" for part in ("first", "last"))
        first, last = (book.value("ceilings", "disk", store, part) for part in parts)
        drift = None if first is None or last is None else last / first
        text = f"{store}: no ceiling at {scale.long_run:,} steps and {scale.large_value >> 20} MiB"
        yield Verdict(text, "<=", math.inf, "x last/first tenth", drift, None, "" if drift is None else "both done")


def _remote(book: Book, scale: Scale) -> Iterable[Verdict]:
    store = "PostgreSQL"
    step = book.find("remote", "disk", store, r.REMOTE), book.find("remote", "tmpfs", store, r.REMOTE)
    disk, memory = (_times(1000, book.value("remote", medium, store, r.BEYOND)) for medium in _MEDIA)
    yield Verdict("remote step, beyond a round trip and a commit", "<=", 0.3, "ms", disk, memory)
    disk, memory = (None if f is None else _times(1000, f.processor) for f in step)
    yield Verdict("remote step, processor time of the client", "<=", 0.2, "ms", disk, memory)
    runs = f"{scale.concurrency} at once"
    disk, memory = (_inverse(book.value("remote_many", medium, store, runs)) for medium in _MEDIA)
    yield Verdict(f"remote steps, {scale.concurrency} runs at once", ">=", 3_000, "steps/s", disk, memory)
    yield Verdict(
        "kill -9 to resume elsewhere, p99", "<=", 1.0, "s", book.value("handover", "disk", store, r.P99), None
    )
    held = book.value("listeners", "disk", store, r.HELD)
    yield Verdict("idle listeners in one process", ">=", 5_000, "listeners", held, None)
    text = f"false take-overs while a handler blocks its loop for {scale.blocked_seconds:g} s"
    yield Verdict(text, "<=", 0, "take-overs", book.value("blocked", "disk", store, r.TAKEOVERS), None)


def _savers(book: Book, scale: Scale) -> Iterable[Verdict]:
    steps = max(scale.chat_steps)
    label = g.at_steps(steps)
    wall = f"LangGraph chat of {steps:,} steps"

    def over(section: str, store: str, above: str, below: str) -> float | None:
        top, bottom = (book.find(section, "disk", store, name) for name in (above, below))
        return None if top is None or bottom is None else g.median_ratio(top.rounds, bottom.rounds)

    ours, http = g.OURS + label, g.OURS_HTTP + label
    yield Verdict(f"{wall}, SQLite", "<=", 1.2, "x MemorySaver", over("chat", "SQLite", ours, g.MEMORY + label), None)
    postgres = g.POSTGRES + label
    faster = over("chat", "PostgreSQL", postgres, ours)
    yield Verdict(f"{wall}, PostgreSQL: PostgresSaver takes", ">=", 5.0, "x ours", faster, None)
    through = over("chat", "PostgreSQL", http, postgres)
    yield Verdict(f"{wall}, over HTTP", "<=", 1.0, "x PostgresSaver", through, None)
    size = book.value("chat_bytes", "disk", "SQLite", ours)
    yield Verdict(f"{wall}: bytes at rest, SQLite", "<=", 3.0 * steps / 1000, "MB", size, None)
    for store, peer in (("SQLite", g.SQLITE), ("PostgreSQL", g.POSTGRES)):
        fewer = over("chat_bytes", store, peer + label, ours)
        yield Verdict(f"{wall}: {peer} takes", ">=", 100, "x our bytes", fewer, None)
    for store, peers in (
        ("SQLite", (g.MEMORY, g.SQLITE, g.SQLITE_DELTA)),
        ("PostgreSQL", (g.POSTGRES, g.POSTGRES_DELTA)),
    ):
        for section, what, at in (("chat_read", "get_state", steps), ("chat_history", "history", min(300, steps))):
            found = [over(section, store, g.OURS + g.at_steps(at), peer + g.at_steps(at)) for peer in peers]
            known = [ratio for ratio in found if ratio is not None]
            text = f"LangGraph {what} after {at:,} steps, {store}"
            yield Verdict(text, "<=", 1.0, "x best peer", max(known, default=None), None)
    for store in _STORES:
        one, most = (book.find("pair", "disk", store, f"{g.OURS}, {n} at once") for n in (1, max(scale.pair_workers)))
        rise = None if one is None or most is None else g.median_ratio(one.rounds, most.rounds)
        text = f"LangGraph pairs a second, {max(scale.pair_workers)} at once, {store}"
        yield Verdict(text, ">=", 1.2, "x one at a time", rise, None)


def _agents(book: Book) -> Iterable[Verdict]:
    for call in (a.MODEL, a.TOOL, a.ONCE_TOOL):
        found = [book.value("agent_added", medium, "SQLite", f"{a.OURS}, {call}") for medium in _MEDIA]
        disk, memory = (None if added is None else added * 1e3 for added in found)
        yield Verdict(f"OpenAI Agents, added to {call}, SQLite", "<=", 1.0, "ms", disk, memory)
    for store in _STORES:
        for what in (a.AGAIN, a.TWICE):
            value = book.value("agent_kills", "disk", store, f"{a.OURS}, {what}")
            yield Verdict(f"OpenAI Agents, {what} over all kills, {store}", "<=", 0, "calls", value, None)
        resumed = book.ratio("agent_resume", "disk", store, a.RESUMED)
        yield Verdict(f"OpenAI Agents, a long run resumed, {store}", "<=", 1.0, "x bare", resumed, None)


def _crews(book: Book) -> Iterable[Verdict]:
    for call in c.CALLS:
        found = [book.value("crew_added", medium, "SQLite", f"{a.OURS}, {call}") for medium in _MEDIA]
        disk, memory = (None if added is None else added * 1e3 for added in found)
        yield Verdict(f"CrewAI, added to {call}, SQLite", "<=", 1.0, "ms", disk, memory)
    ours, theirs = (book.value("crew_stored", "disk", "SQLite", f"{who}, {c.STORED}") for who in (a.OURS, c.THEIRS))
    share = None if ours is None or theirs is None else theirs / ours
    yield Verdict("CrewAI, stored for two small tasks: its checkpoints take", ">=", 5.0, "x our bytes", share, None)
    for store in _STORES:
        for what in (a.AGAIN, a.TWICE):
            value = book.value("crew_kills", "disk", store, f"{a.OURS}, {what}")
            yield Verdict(f"CrewAI, {what} over all kills, {store}", "<=", 0, "calls", value, None)


def _teams(book: Book) -> Iterable[Verdict]:
    for call in c.CALLS:
        found = [book.value("team_added", medium, "SQLite", f"{a.OURS}, {call}") for medium in _MEDIA]
        disk, memory = (None if added is None else added * 1e3 for added in found)
        yield Verdict(f"AutoGen, added to {call}, SQLite", "<=", 1.0, "ms", disk, memory)
    value = book.value("team_replay", "disk", "SQLite", a.OURS)
    yield Verdict("AutoGen, a conversation of 600 messages gone on with, SQLite", "<=", 0.5, "s", value, None)


def _inverse(value: float | None) -> float | None:
    return None if value is None else 1 / value


def _times(factor: float, value: float | None) -> float | None:
    return None if value is None else factor * value
