"""``durable``: the runs of one agent, with the words that every adapter shares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from agents import Agent, RunResult, RunResultStreaming
from agents.run import RunOptions
from typing_extensions import Unpack

from stepfast import AsyncStepfast, AsyncWorker, InvalidInput
from stepfast.adapters import (
    LazyStore,
    OnDrift,
    OnInDoubt,
    PolicyLike,
    Prices,
    RunName,
    StoreLike,
    StoreOwner,
    naming,
    run_name,
)

from ._attempt import AgentSettings, OnWait
from ._execution import Execution
from ._runner import install
from ._streaming import stream
from .runner import Blocking, DurableRunner, playing
from .worker import serving

TContext = TypeVar("TContext")


def durable(
    agent: Agent[TContext],
    run_id: RunName = None,
    store: StoreLike = None,
    *,
    on_in_doubt: OnInDoubt = "ask",
    policies: Mapping[str, PolicyLike] | None = None,
    on_drift: OnDrift = "raise",
    on_wait: OnWait = "suspend",
    labels: Mapping[str, str] | None = None,
    prices: Prices | None = None,
    restore_context: bool = True,
    replay_hooks: bool = False,
    replay_events: bool = True,
    max_delivery_attempts: int | None = None,
    wait: float | None = None,
) -> DurableAgent[TContext]:
    """Make the runs of an agent durable: each has a name, and started again it goes on where it stopped.

    ``run_id`` is the name where a call gets none, or a function of the input. The shared options are described in
    ``docs/adapters.md``, those of this adapter in its README.
    """
    if not isinstance(agent, Agent):
        raise InvalidInput(f"agent: must be an Agent of the SDK, not {type(agent).__name__}.")
    settings = AgentSettings(
        on_in_doubt=on_in_doubt,
        policies=policies,
        on_drift=on_drift,
        on_wait=on_wait,
        labels=labels,
        prices=prices,
        restore_context=restore_context,
        replay_hooks=replay_hooks,
        replay_events=replay_events,
        max_delivery_attempts=max_delivery_attempts,
        wait=wait,
    )
    return DurableAgent(agent, naming(run_id), LazyStore(store), settings)


class DurableAgent(StoreOwner, Generic[TContext]):
    """An agent whose runs outlive their process. Made by `durable`; options of its methods are those of ``Runner``."""

    def __init__(self, agent: Agent[TContext], run_id: RunName, store: LazyStore, settings: AgentSettings) -> None:
        self.agent = agent
        self._run_id = run_id
        self._store = store
        self._settings = settings

    def _execution(self, given: Any, run_id: str | None) -> Execution:
        return Execution(run_name(run_id, self._run_id, given), self._store.get, settings=self._settings)

    async def run(
        self,
        input: Any = None,  # noqa: A002 - the SDK's name
        run_id: str | None = None,
        **options: Unpack[RunOptions[TContext]],
    ) -> RunResult:
        """Start a run, go on with it, or return its finished result."""
        play = playing(install().inner)
        return await self._execution(input, run_id).execute(self.agent, input, dict(options), play)  # type: ignore[no-any-return]

    def run_sync(
        self,
        input: Any = None,  # noqa: A002 - the SDK's name
        run_id: str | None = None,
        **options: Unpack[RunOptions[TContext]],
    ) -> RunResult:
        """`run` where no event loop is running."""
        install()
        return Blocking(lambda: self.run(input, run_id, **options)).run_sync(self.agent, "")

    def run_streamed(
        self,
        input: Any = None,  # noqa: A002 - the SDK's name
        run_id: str | None = None,
        **options: Unpack[RunOptions[TContext]],
    ) -> RunResultStreaming:
        """`run` as a stream; ``replayed(event)`` finds out which events are of finished turns."""
        return stream(self._execution(input, run_id), install().inner, self.agent, input, dict(options))

    async def resume(self, run_id: str | None = None, **options: Unpack[RunOptions[TContext]]) -> RunResult:
        """Go on with a run, from the input that it began with."""
        return await self.run(None, run_id, **options)

    async def rewind(self, step: str, run_id: str | None = None, *, include_once: bool = False) -> int:
        """Set a step of a run and all after it aside, so that they are done again: see ``DurableRunner.rewind``."""
        store = self._store.get().aclient()
        return await DurableRunner.rewind(run_name(run_id, self._run_id), step, store=store, include_once=include_once)

    def worker(self, client: AsyncStepfast, address: str, **options: Any) -> AsyncWorker:
        """Serve an address with this agent; ``options`` are those of ``sf.worker``."""
        return serving(client, address, self.agent, self._settings, {}, **options)
