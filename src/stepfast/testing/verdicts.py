"""What the crash matrix finds wrong with a trial, judged from its story alone, and the report of all trials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from stepfast.testing.processes import CrashTestFailed

__all__ = ["Finding", "Kind", "Report"]

Kind = Literal[
    "repeated model call",
    "repeated tool call",
    "doubled one-shot",
    "wrong result",
    "lost work",
    "changed key",
    "error",
    "hang",
]
Line = Mapping[str, Any]


@dataclass(frozen=True)
class Finding:
    """One thing that a kill brought out: what, where the process was killed, and the trial's folder as evidence."""

    kind: Kind
    at: str
    text: str
    folder: str = ""

    def __str__(self) -> str:
        return f"{self.kind}, killed at {self.at}: {self.text}" + (f"\n    kept: {self.folder}" if self.folder else "")


@dataclass(frozen=True)
class Expected:
    """What the undisturbed run did, and what a scene says of its calls."""

    calls: Counter[str]
    keys: Mapping[str, int]
    result: Any
    once: frozenset[str]
    at_once: int


def expected_of(story: Sequence[Line], result: Any, once: frozenset[str], at_once: int) -> Expected:
    calls = Counter(line["call"] for line in story if "call" in line)
    return Expected(calls, _keys(story), result, once, at_once)


def unjudged(story: Sequence[Line], expected: Expected, shown: Sequence[str]) -> list[str]:
    """The calls that would never count as finished: neither a request nor the store ever shows them."""
    finished = _finished(story, Counter(shown))
    return sorted(name for name, count in expected.calls.items() if finished[name] < count)


def judge(story: Sequence[Line], expected: Expected) -> Iterator[tuple[Kind, str]]:
    """All that is wrong with a trial. Its story holds calls, cuts (kills), and ends, in the order of time."""
    made = Counter(line["call"] for line in story if "call" in line)
    cuts = [number for number, line in enumerate(story) if "cut" in line or "end" in line]
    for number, until in zip(cuts, [*cuts[1:], len(story)], strict=False):  # none, where the first life hangs
        yield from _repeats(story, number, until, expected)
    yield from _totals(made, sum("cut" in line for line in story), expected)
    ends = [line["end"] for line in story if "end" in line]
    for result in ends:
        if result != expected.result:
            yield "wrong result", f"{result!r} instead of {expected.result!r}"
    if ends:
        for name, count in (expected.calls - made).items():
            yield "lost work", f"{name} was made {made[name]} times of {count + made[name]}, and the run ended"
    for name, count in _keys(story).items():
        if count > expected.keys.get(name, 0) and name in expected.calls:
            yield "changed key", f"{name} was repeated with another idempotency key"


def _repeats(story: Sequence[Line], number: int, until: int, expected: Expected) -> Iterator[tuple[Kind, str]]:
    """Calls made after a cut, although enough of them were finished before it."""
    before, cut = story[:number], story[number]
    finished = expected.calls if "end" in cut else _finished(before, Counter(cut["finished"]))
    made = Counter(line["call"] for line in before if "call" in line)
    for name in sorted(finished):
        if "cut" in cut and name in expected.calls and finished[name] > made[name]:
            yield "lost work", f"the store shows {finished[name]} finished calls of {name}; {made[name]} were made"
    for name, count in Counter(line["call"] for line in story[number:until] if "call" in line).items():
        if finished[name] and count > expected.calls[name] - finished[name]:
            was = "after the run had ended" if "end" in cut else f"though {finished[name]} of them were finished"
            yield _repeated(name), f"{name} was made {count} times more, {was} ({expected.calls[name]} in all)"


def _totals(made: Counter[str], kills: int, expected: Expected) -> Iterator[tuple[Kind, str]]:
    more = made - expected.calls
    for name, count in more.items():
        if name not in expected.calls:
            yield _repeated(name), f"{name} was called, which an undisturbed run never does"
        elif name in expected.once:
            yield "doubled one-shot", f"{name} happened {made[name]} times instead of {made[name] - count}"
    if more.total() > kills * expected.at_once:
        shown = ", ".join(f"{name} {count}" for name, count in more.items())
        text = f"{more.total()} calls were repeated ({shown}); at most {expected.at_once} can be under way at a kill"
        yield _repeated(next(iter(more))), text


def _finished(story: Sequence[Line], shown: Counter[str]) -> Counter[str]:
    """Per name, the calls whose answers a request has shown, or that the store shows if these are more."""
    finished = shown.copy()
    for line in story:
        finished |= Counter(line.get("got", ()))
    return finished


def _keys(story: Sequence[Line]) -> Mapping[str, int]:
    return Counter(name for name, _ in {(line["call"], line["key"]) for line in story if "key" in line})


def _repeated(name: str) -> Kind:
    return "repeated model call" if name.startswith("model:") else "repeated tool call"


@dataclass(frozen=True)
class Report:
    """What a crash matrix tried and found; ``str()`` of it is readable.

    ``points`` are the boundaries that the undisturbed run passed, ``tried`` those at which a trial was to be killed,
    ``missed`` those that its process did not meet (threads take turns as they like): these are judged as well.
    """

    scene: str
    store: str
    points: tuple[str, ...]
    tried: tuple[str, ...]
    missed: tuple[str, ...]
    kills: int
    lives: int
    calls: Mapping[str, int]
    unjudged: tuple[str, ...]
    findings: tuple[Finding, ...]
    warm: bool
    seconds: float

    def of(self, kind: Kind) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.kind == kind)

    def assert_clean(self) -> None:
        """Raises CrashTestFailed if anything was found, if nothing was killed, or if a call was never judged."""
        if self.findings or self.unjudged or not self.kills:
            raise CrashTestFailed(str(self), where=self.findings[0].at if self.findings else "")

    def __str__(self) -> str:
        kinds = Counter(finding.kind for finding in self.findings)
        found = ", ".join(f"{count} of {kind}" for kind, count in kinds.items()) or "nothing found"
        lines = [
            f"{self.scene} on {self.store}: {len(self.tried)} trials, {self.kills} kills, {self.lives} lives, "
            f"{len(self.points)} points, {len(self.missed)} not reached, {self.seconds:.1f} s: {found}"
        ]
        if not self.kills:
            lines.append("  no process was killed: nothing is proved")
        if self.unjudged:
            lines.append(
                f"  never seen as finished, so never judged: {', '.join(self.unjudged)}. Name effects and models as the"
                " steps of the journal are named, or pass finished= to the scene"
            )
        return "\n".join([*lines, *(f"  {finding}" for finding in self.findings)])
