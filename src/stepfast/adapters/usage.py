"""What model calls used and cost: recorded with each call, summed for the run, complete after a resume."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, overload

import msgspec

from stepfast.async_client import AsyncStepfast
from stepfast.client import Stepfast
from stepfast.errors import InvalidInput
from stepfast.flow import Flow, do
from stepfast.journal import Step, StepStatus
from stepfast.opening import find
from stepfast.ops import ReadJournal
from stepfast.run import AsyncRun, Run
from stepfast.vault import Vault

__all__ = ["Meter", "Price", "Prices", "Usage", "check_prices", "usage_of"]

_MILLION = 1_000_000


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens and requests of one model call, or of many. ``cost`` is in the currency of the prices, None if unknown."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost: float | None = None

    def __add__(self, other: Usage) -> Usage:
        costs = [each for each in (self.cost, other.cost) if each is not None]
        return Usage(
            self.requests + other.requests,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            sum(costs) if costs else None,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return all fields, as the result of a run shows them; ``cost`` only where one is known."""
        shown = msgspec.structs.asdict(self)
        if self.cost is None:
            del shown["cost"]
        return shown


class Price(msgspec.Struct, frozen=True):
    """What a million tokens cost; cached input tokens cost ``cached``, or as much as others where that is None."""

    input: float
    output: float
    cached: float | None = None

    def of(self, usage: Usage) -> float:
        """Return what a call costs."""
        cached = min(usage.cached_tokens, usage.input_tokens)
        rate = self.input if self.cached is None else self.cached
        fresh = usage.input_tokens - cached
        return (fresh * self.input + cached * rate + usage.output_tokens * self.output) / _MILLION


Prices = Mapping[str, Price] | Callable[[str, Usage], float | None]
"""Prices by model name or pattern, or a function of model name and usage that returns the cost of a call."""


def check_prices(prices: Any) -> Prices | None:
    """Return ``prices`` if it is a table of `Price` or a function."""
    if prices is None or callable(prices):
        return prices  # type: ignore[no-any-return]
    if isinstance(prices, Mapping) and all(isinstance(each, Price) for each in prices.values()):
        return prices
    raise InvalidInput(f"prices: must map model names to Price(input=…, output=…), or be a function, not {prices!r}.")


class Meter:
    """Adds up the usage of the model calls of one pass over a run; safe to share between threads."""

    def __init__(self, prices: Prices | None = None) -> None:
        self._prices = prices
        self._lock = threading.Lock()
        self._calls: dict[str, Usage] = {}

    def priced(self, model: str, usage: Usage) -> Usage:
        """Return the usage of a call with its cost, where a price is known for the model."""
        cost = usage.cost if self._prices is None or usage.cost is not None else self._cost(model, usage)
        return usage if cost is None else msgspec.structs.replace(usage, cost=float(cost))

    def _cost(self, model: str, usage: Usage) -> float | None:
        prices = self._prices
        if not isinstance(prices, Mapping):
            return None if prices is None else prices(model, usage)
        found = prices.get(model) or next((prices[name] for name in prices if fnmatchcase(model, name)), None)
        return None if found is None else found.of(usage)

    def add(self, key: str, usage: Usage) -> None:
        """Count a model call, made now or answered from the journal; ``key`` is its step's full key."""
        with self._lock:
            self._calls[key] = usage

    @property
    def total(self) -> Usage:
        """The sum of what was counted so far."""
        with self._lock:
            return sum(self._calls.values(), Usage())

    def complete(self, run: Run | AsyncRun) -> Flow[Usage]:
        """Return the sum for the whole run, with model calls inside tools that were answered from the journal."""
        return (yield from self._read(run.reading, run.journal()))

    def _read(self, reading: Callable[[Step], Flow[Any]], journal: Iterable[Step]) -> Flow[Usage]:
        for step in journal:
            known = step.voided or step.key in self._calls
            if known or step.kind != "model" or step.status is not StepStatus.FINISHED:
                continue
            recorded = yield from reading(step)
            found = recorded.get("usage") if isinstance(recorded, dict) else None
            if isinstance(found, dict):
                self.add(step.key, msgspec.convert(found, Usage))
        return self.total


@overload
def usage_of(client: Stepfast, run_id: str) -> Usage: ...
@overload
def usage_of(client: AsyncStepfast, run_id: str) -> Coroutine[Any, Any, Usage]: ...
def usage_of(client: Stepfast | AsyncStepfast, run_id: str) -> Any:
    """Return what the model calls of a run have used and cost so far, finished or not; awaited with `AsyncStepfast`."""

    def flow() -> Flow[Usage]:
        intent = yield from find(run_id)
        journal = yield from do(ReadJournal(journal_id=intent.journal_id))
        values = Vault(intent, None, client.codec, client.store.tenant)
        return (yield from Meter()._read(values.result_of, journal))

    return client._drive(flow())
