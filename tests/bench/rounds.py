"""Contenders in turn, in small blocks; what is reported is the median of same-round ratios.

On a shared machine the cost of a flush changes by the second. Two figures are comparable only if
they were taken next to each other, so every round gives each contender a block, and a ratio is
taken within a round before the median is taken over the rounds.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Watcher = Callable[[str], None]
AT_LEAST = 3


def warm_up(work: Callable[[int], object], number: int, patience: float) -> None:
    """Do up to ``number`` units, in small blocks, as long as patience lasts."""
    ends = time.monotonic() + patience
    while number > 0 and time.monotonic() < ends:
        work(min(number, 50))
        number -= 50


@dataclass
class Contender:
    """``block`` does a block of work and gives the seconds that one unit of it took."""

    name: str
    block: Callable[[], float]
    every: int = 1  # takes part in each n-th round: for contenders that are slow by orders
    units: int = 0  # in a block; if told, the processor time of this process is taken too


@dataclass
class Samples:
    """Seconds per unit, by contender and round; None where a contender sat the round out."""

    names: list[str]
    rounds: list[dict[str, float | None]] = field(default_factory=list)
    processor: dict[str, list[float]] = field(default_factory=dict)

    def of(self, name: str) -> list[float]:
        taken = [r.get(name) for r in self.rounds]
        return [s for s in taken if s is not None]

    def median(self, name: str) -> float:
        return statistics.median(self.of(name))

    def busy(self, name: str) -> float | None:
        """Processor time per unit: it tells the software's own cost even where others keep the machine busy."""
        return statistics.median(self.processor[name]) if name in self.processor else None

    def ratios(self, name: str, base: str) -> list[float]:
        """One for each round in which both took part."""
        found = []
        for taken in self.rounds:
            above, below = taken.get(name), taken.get(base)
            if above is not None and below is not None:
                found.append(above / below)
        return found

    def ratio(self, name: str, base: str) -> float:
        return statistics.median(self.ratios(name, base))


def alternate(
    contenders: Sequence[Contender], rounds: int, tell: Watcher = lambda _: None, patience: float = math.inf
) -> Samples:
    """Every contender once per round. The order turns with the rounds, so that nobody always follows the same one.

    Once ``patience`` seconds are over no further round is begun, but a few are always done.
    """
    samples = Samples([c.name for c in contenders])
    ends = time.monotonic() + patience
    for number in range(rounds):
        if number >= AT_LEAST and time.monotonic() > ends:
            break
        taken: dict[str, float | None] = {}
        turn = number % len(contenders)
        for contender in (*contenders[turn:], *contenders[:turn]):
            tell(f"round {number + 1}/{rounds} {contender.name}")
            if number % contender.every:
                taken[contender.name] = None
                continue
            before = time.process_time()
            taken[contender.name] = contender.block()
            if contender.units:
                spent = (time.process_time() - before) / contender.units
                samples.processor.setdefault(contender.name, []).append(spent)
        samples.rounds.append(taken)
    return samples
