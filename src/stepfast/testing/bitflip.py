"""One flipped bit at a time, all over a file: what is served must be exact, older but valid, or an error."""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from stepfast.testing.processes import CrashTestFailed, Note, in_shards, scratch, story_of

__all__ = ["BitFlipsExplored", "Flip", "explore_bit_flips", "flips"]


@dataclass(frozen=True)
class Flip:
    """A file's content with one bit turned over."""

    offset: int
    bit: int
    data: bytes

    def __str__(self) -> str:
        return f"bit {self.bit} of byte {self.offset}"


@dataclass(frozen=True)
class BitFlipsExplored:
    """How often the check gave each verdict."""

    verdicts: Counter[str]
    seconds: float

    def __str__(self) -> str:
        counts = ", ".join(f"{verdict} {count}" for verdict, count in self.verdicts.most_common())
        return f"{self.verdicts.total()} flips: {counts}, {self.seconds:.1f} s"


def flips(path: Path, n: int, seed: int, *, page: int = 4096) -> Iterator[Flip]:
    """``n`` copies with one flipped bit each, no bit twice.

    The pages take turns, in an order drawn from the seed, so that each is hit before any is hit again; every
    fourth flip falls into a page's first 128 bytes, where databases keep what holds the rest together.
    """
    original = path.read_bytes()
    n = min(n, len(original) * 8)
    dice = random.Random(seed)
    starts = list(range(0, len(original), page))
    done: set[tuple[int, int]] = set()
    turn = 0
    while len(done) < n:
        if turn % len(starts) == 0:
            dice.shuffle(starts)
        start = starts[turn % len(starts)]
        reach = min(128 if turn % 4 == 3 else page, len(original) - start)
        place = (start + dice.randrange(reach), dice.randrange(8))
        turn += 1
        if place in done:
            continue
        done.add(place)
        offset, bit = place
        data = bytearray(original)
        data[offset] ^= 1 << bit
        yield Flip(offset, bit, bytes(data))


def explore_bit_flips(
    path: Path,
    check: Callable[[Path], str],
    n: int,
    seed: int,
    *,
    page: int = 4096,
    jobs: int = 2,
    folder: Path | None = None,
) -> BitFlipsExplored:
    """Copy the file's folder, flip a bit of the file, call ``check`` with the copy's path; for each flip.

    The check returns a verdict (``"exact"``, ``"older"``, ``"refused"``, …) or raises, which fails the test
    and keeps that copy.
    """
    started = time.monotonic()
    base = scratch(folder, "flips")

    def work(shard: int, tell: Note) -> None:
        verdicts: Counter[str] = Counter()
        for number, flip in enumerate(flips(path, n, seed, page=page)):
            if number % jobs != shard:
                continue
            home = base / f"flip-{number:06d}"
            shutil.copytree(path.parent, home, ignore=shutil.ignore_patterns(f"{base.name}*"))
            copy = home / path.name
            copy.write_bytes(flip.data)
            try:
                verdicts[check(copy)] += 1
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                copy.write_bytes(flip.data)
                why = story_of(error)
                tell({"number": number, "where": str(flip), "why": why, "folder": str(home)})
                return
            shutil.rmtree(home)
        tell({"verdicts": verdicts})

    notes = in_shards(jobs, work)
    broken = sorted((note for note in notes if "why" in note), key=lambda note: int(note["number"]))
    if broken:
        first = broken[0]
        raise CrashTestFailed(
            f"{path.name} with {first['where']} flipped\n\n{first['why']}\nkept: {first['folder']}",
            where=first["where"],
            stage="bit flip",
            folder=Path(first["folder"]),
        )
    shutil.rmtree(base, ignore_errors=True)
    verdicts: Counter[str] = Counter()
    for note in notes:
        verdicts.update(note["verdicts"])
    return BitFlipsExplored(verdicts, time.monotonic() - started)
