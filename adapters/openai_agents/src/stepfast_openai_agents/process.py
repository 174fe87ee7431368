"""The whole process: unmodified ``Runner.run`` calls become durable runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from agents.run import AgentRunner

from stepfast import InvalidInput
from stepfast.adapters import (
    Occurrences,
    OnDrift,
    OnInDoubt,
    PolicyLike,
    Prices,
    StoreLike,
    check_store,
    digest,
    naming,
    plain,
)

from ._attempt import AgentSettings, OnWait
from ._execution import Execution
from ._runner import install
from ._streaming import stream
from .runner import playing

NameOf = Callable[[Any, Any], str]


class _Outside(AgentRunner):
    """Takes the runs that begin outside of any durable run, and makes each one durable."""

    def __init__(self, base: AgentRunner, name_of: NameOf, store: StoreLike, settings: AgentSettings) -> None:
        self._base, self._name_of = base, name_of
        self._store, self._settings = store, settings
        self._taken = Occurrences()

    def _execution(self, agent: Any, given: Any) -> Execution:
        name = self._name_of(agent, given)
        # The same call again in one process is another run, and the next process counts the same way.
        number = self._taken.number(name)
        return Execution(name if number == 1 else f"{name}#{number}", self._store, settings=self._settings)

    async def run(self, starting_agent: Any, input: Any, **kwargs: Any) -> Any:  # noqa: A002 - the SDK's name
        execution = self._execution(starting_agent, input)
        return await execution.execute(starting_agent, input, kwargs, playing(self._base))

    def run_streamed(self, starting_agent: Any, input: Any, **kwargs: Any) -> Any:  # noqa: A002
        return stream(self._execution(starting_agent, input), self._base, starting_agent, input, kwargs)


def durable_agents(
    run_id: str | NameOf | None = None,
    *,
    store: StoreLike = None,
    on_in_doubt: OnInDoubt = "ask",
    policies: Mapping[str, PolicyLike] | None = None,
    on_drift: OnDrift = "raise",
    on_wait: OnWait | None = None,
    labels: Mapping[str, str] | None = None,
    prices: Prices | None = None,
) -> Armed:
    """Make every ``Runner.run``, ``run_sync`` and ``run_streamed`` of this process durable, until ``disarm()``.

    ``run_id`` names the runs: a text that the agent's name and a mark of its input are added to, or a function of agent
    and input. Without it ``STEPFAST_RUN_ID`` is that text. A program that is started again under the same name goes on
    where it stopped; its first, second and later call with the same agent and input are told apart by their order.
    """
    prefix = naming(run_id) if run_id is not None else os.environ.get("STEPFAST_RUN_ID")
    if prefix is None:
        raise InvalidInput("run_id: runs need names to be found again; pass run_id=… or set STEPFAST_RUN_ID.")
    settings = AgentSettings(
        on_in_doubt=on_in_doubt, policies=policies, on_drift=on_drift, on_wait=on_wait, labels=labels, prices=prices
    )
    check_store(store)
    runner = install()
    if runner.outside is not None:
        raise InvalidInput("durable_agents() is armed already in this process; disarm() it first.")
    name_of: NameOf
    if callable(prefix):
        name_of = prefix
    else:
        text = prefix

        def name_of(agent: Any, given: Any) -> str:
            return f"{text}/{agent.name}.{digest(plain(given))}"

    runner.outside = _Outside(runner.inner, name_of, store, settings)
    return Armed()


class Armed:
    """What `durable_agents` gives: disarm it, or use it as a context manager."""

    def disarm(self) -> None:
        """Leave runs to the SDK again. Runs that are under way stay durable."""
        install().outside = None

    def __enter__(self) -> Armed:
        return self

    def __exit__(self, *_: Any) -> None:
        self.disarm()
