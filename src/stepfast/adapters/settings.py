"""The options that every adapter's ``durable`` shares, checked where they are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from stepfast import inputs as check
from stepfast.adapters.drift import OnDrift
from stepfast.adapters.policies import OnInDoubt, Policies, PolicyLike
from stepfast.adapters.usage import Prices, check_prices
from stepfast.errors import InvalidInput, Suspended
from stepfast.inputs import choice, flag

__all__ = ["OnWait", "RunName", "Settings", "choice", "flag", "naming", "run_name"]

OnWait = Literal["suspend", "block", "return"]
RunName = str | Callable[[Any], str] | None
"""How ``durable`` names its runs: a name, a function of the input, or None if each call brings one."""


class Settings:
    """How the durable runs of one user behave in this process; none of it is stored, except the labels.

    ``on_in_doubt`` and ``policies``: see `Policies`. ``on_drift``: a request that differs from the recorded one is
    *raise*d as ``Diverged``, logged (*warn*) or *accept*ed. ``on_wait``: where a person must decide, *suspend* raises
    ``Suspended``, *block* waits in this process, *return* returns what is asked: the framework's own result, or a
    `stepfast.Waiting`. ``prices``: see `usage`. The others are options of ``sf.run``.
    """

    def __init__(
        self,
        *,
        on_in_doubt: OnInDoubt = "ask",
        policies: Mapping[str, PolicyLike] | None = None,
        on_drift: OnDrift = "raise",
        on_wait: OnWait = "suspend",
        labels: Mapping[str, str] | None = None,
        prices: Prices | None = None,
        max_delivery_attempts: int | None = None,
        wait: float | None = None,
    ) -> None:
        self.policies = Policies(policies, on_in_doubt)
        self.on_drift: OnDrift = choice("on_drift", on_drift, ("raise", "warn", "accept"))
        self.on_wait: OnWait = choice("on_wait", on_wait, ("suspend", "block", "return"))
        self.labels = check.labels(labels)
        self.prices = check_prices(prices)
        self.max_delivery_attempts = check.whole("max_delivery_attempts", max_delivery_attempts, least=1, optional=True)
        self.wait = check.seconds("wait", wait)

    def returns(self, waits: Suspended, run_id: str | None) -> bool:
        """Whether a call returns what its run waits for; a run that a tool has opened by itself is not its own."""
        return self.on_wait == "return" and run_id is not None and waits.run_id == run_id

    def run_options(self, framework: str, **labels: str) -> dict[str, Any]:
        """Return the options with which an adapter opens a run: ``client.run(run_id, payload=…, **options)``."""
        shown = {name: text[:100] for name, text in labels.items() if text}
        return {
            "labels": {"framework": framework, **shown, **self.labels},
            "max_delivery_attempts": self.max_delivery_attempts,
            # As a view, so that a call that waits is driven up to the question again and returns the same result.
            "on_wait": "view" if self.on_wait == "return" else self.on_wait,
            "wait": self.wait,
        }


def naming(run_id: Any) -> Any:
    """Return ``run_id`` of a ``durable`` as it is, if it can name runs: a name, a function of the input, or None."""
    return run_id if callable(run_id) else check.name("run_id", run_id, optional=True)


def run_name(run_id: str | None, named: RunName, given: Any = None) -> str:
    """Return the name of a run: that of the call, or what ``durable`` was told. `InvalidInput` if there is neither."""
    found = run_id or (named(given) if callable(named) else named)
    if not found:
        raise InvalidInput("run_id: a durable run needs a name, by which it is found again; pass run_id=….")
    return found
