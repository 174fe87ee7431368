"""DurableRunner: the SDK's Runner, whose runs have a name and outlive their process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from agents import Agent, RunConfig, RunErrorHandlers, RunHooks, RunResult, RunResultStreaming, RunState, Session
from agents.items import TResponseInputItem
from agents.run import DEFAULT_MAX_TURNS, AgentRunner

from stepfast import AsyncRun
from stepfast.adapters import OnDrift, OnInDoubt, PolicyLike, Prices, StoreLike, open_any

from ._attempt import AgentAttempt, AgentSettings, OnWait, place
from ._conduct import Play
from ._execution import Execution
from ._runner import install
from ._streaming import stream
from .session import StepfastSession

TContext = TypeVar("TContext")

_SDK: dict[str, Any] = {
    "context": None,
    "max_turns": DEFAULT_MAX_TURNS,
    "hooks": None,
    "run_config": None,
    "error_handlers": None,
    "previous_response_id": None,
    "auto_previous_response_id": False,
    "conversation_id": None,
    "session": None,
}
_EXECUTION = ("run_id", "store", "run")
_NOT_OPTIONS = ("cls", "starting_agent", "input")


def divided(options: Mapping[str, Any]) -> tuple[Execution, dict[str, Any]]:
    """Return our part of a call's options, and the SDK's: only those that were given, as not every version has all."""
    theirs = {name: options[name] for name, default in _SDK.items() if options[name] is not default}
    where = {name: options[name] for name in _EXECUTION}
    ours = {name: value for name, value in options.items() if name not in {*_SDK, *_EXECUTION, *_NOT_OPTIONS}}
    return Execution(**where, settings=AgentSettings(**ours)), theirs


def playing(base: AgentRunner) -> Play:
    async def play(_attempt: AgentAttempt, view: Any, given: Any, options: dict[str, Any]) -> Any:
        return await base.run(view, given, **options)

    return play


class DurableRunner:
    """The SDK's ``Runner`` with its own arguments and results, and a name for each run.

    The same name again goes on where the run stopped, or returns the finished result. ``run_id`` names the run and
    ``store`` says where it is kept (a URL, a client, or nothing for the default); or ``run`` is a run that is open
    already, such as a worker's. Without ``input`` the recorded one is used.

    ``on_wait`` says what a call does while its run waits for a person. *return*: it returns the SDK's result with its
    interruptions, each time; for a call in doubt, of which the SDK knows nothing, a ``stepfast.Waiting``. *suspend*
    raises ``Suspended``, *block* waits in this process. Without it approvals are returned and doubts raised. The other
    options are described in ``docs/adapters.md`` and in the adapter's README.
    """

    @classmethod
    async def run(
        cls,
        starting_agent: Agent[TContext],
        input: str | list[TResponseInputItem] | RunState[TContext] | None = None,  # noqa: A002 - the SDK's name
        *,
        context: TContext | None = None,
        max_turns: int | None = DEFAULT_MAX_TURNS,
        hooks: RunHooks[TContext] | None = None,
        run_config: RunConfig | dict[str, Any] | None = None,
        error_handlers: RunErrorHandlers[TContext] | None = None,
        previous_response_id: str | None = None,
        auto_previous_response_id: bool = False,
        conversation_id: str | None = None,
        session: Session | None = None,
        run_id: str | None = None,
        store: StoreLike = None,
        run: AsyncRun | None = None,
        on_in_doubt: OnInDoubt = "ask",
        policies: Mapping[str, PolicyLike] | None = None,
        on_drift: OnDrift = "raise",
        on_wait: OnWait | None = None,
        labels: Mapping[str, str] | None = None,
        prices: Prices | None = None,
        restore_context: bool = True,
        replay_hooks: bool = False,
        replay_events: bool = True,
        max_delivery_attempts: int | None = None,
        wait: float | None = None,
    ) -> RunResult:
        """Start a run, go on with it, or return its finished result."""
        return await _run(*divided(locals()), starting_agent, input)

    @classmethod
    def run_sync(
        cls,
        starting_agent: Agent[TContext],
        input: str | list[TResponseInputItem] | RunState[TContext] | None = None,  # noqa: A002
        *,
        context: TContext | None = None,
        max_turns: int | None = DEFAULT_MAX_TURNS,
        hooks: RunHooks[TContext] | None = None,
        run_config: RunConfig | dict[str, Any] | None = None,
        error_handlers: RunErrorHandlers[TContext] | None = None,
        previous_response_id: str | None = None,
        auto_previous_response_id: bool = False,
        conversation_id: str | None = None,
        session: Session | None = None,
        run_id: str | None = None,
        store: StoreLike = None,
        run: AsyncRun | None = None,
        on_in_doubt: OnInDoubt = "ask",
        policies: Mapping[str, PolicyLike] | None = None,
        on_drift: OnDrift = "raise",
        on_wait: OnWait | None = None,
        labels: Mapping[str, str] | None = None,
        prices: Prices | None = None,
        restore_context: bool = True,
        replay_hooks: bool = False,
        replay_events: bool = True,
        max_delivery_attempts: int | None = None,
        wait: float | None = None,
    ) -> RunResult:
        """`run` where no event loop is running."""
        execution, theirs = divided(locals())
        install()
        return Blocking(lambda: _run(execution, theirs, starting_agent, input)).run_sync(starting_agent, "")

    @classmethod
    def run_streamed(
        cls,
        starting_agent: Agent[TContext],
        input: str | list[TResponseInputItem] | RunState[TContext] | None = None,  # noqa: A002
        *,
        context: TContext | None = None,
        max_turns: int | None = DEFAULT_MAX_TURNS,
        hooks: RunHooks[TContext] | None = None,
        run_config: RunConfig | dict[str, Any] | None = None,
        error_handlers: RunErrorHandlers[TContext] | None = None,
        previous_response_id: str | None = None,
        auto_previous_response_id: bool = False,
        conversation_id: str | None = None,
        session: Session | None = None,
        run_id: str | None = None,
        store: StoreLike = None,
        run: AsyncRun | None = None,
        on_in_doubt: OnInDoubt = "ask",
        policies: Mapping[str, PolicyLike] | None = None,
        on_drift: OnDrift = "raise",
        on_wait: OnWait | None = None,
        labels: Mapping[str, str] | None = None,
        prices: Prices | None = None,
        restore_context: bool = True,
        replay_hooks: bool = False,
        replay_events: bool = True,
        max_delivery_attempts: int | None = None,
        wait: float | None = None,
    ) -> RunResultStreaming:
        """`run` as a stream. Events of finished turns come first (`replayed` finds out which these are), or are left
        out with ``replay_events=False``."""
        execution, theirs = divided(locals())
        base = install()
        if place.here() is not None and execution.unnamed:
            return base.run_streamed(starting_agent, input, **theirs)  # type: ignore[no-any-return]
        return stream(execution, base.inner, starting_agent, input, theirs)

    @classmethod
    async def rewind(
        cls,
        run_id: str,
        step: str,
        *,
        store: StoreLike = None,
        include_once: bool = False,
        reason: str = "rewound",
    ) -> int:
        """``sf.rewind``: set a recorded step and all after it aside, so that they are done again when the run goes on.

        What the turns had added to a StepfastSession in the same store is taken out again. Returns how many steps went.
        """

        async def take_out(values: dict[str, Any]) -> None:
            for key, added in values.items():
                if key.rpartition("/")[2].startswith("session:add:") and isinstance(added, dict):
                    await StepfastSession(added["session"], store).forget(added["numbers"])

        client = open_any(store, shared=True).aclient()
        return await client.rewind(run_id, step, include_once=include_once, reason=reason, also={"session": take_out})


async def _run(execution: Execution, theirs: dict[str, Any], agent: Any, given: Any) -> RunResult:
    base = install()
    if place.here() is not None and execution.unnamed:
        return await base.run(agent, given, **theirs)  # type: ignore[no-any-return]
    return await execution.execute(agent, given, theirs, playing(base.inner))  # type: ignore[no-any-return]


class Blocking(AgentRunner):
    """The SDK's own way to run an event loop for a blocking caller, around a coroutine of ours."""

    def __init__(self, function: Any) -> None:
        self._function = function

    async def run(self, starting_agent: Any, input: Any, **_: Any) -> Any:  # noqa: A002
        return await self._function()
