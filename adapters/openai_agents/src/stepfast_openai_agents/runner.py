"""DurableRunner: the SDK's Runner, whose runs have a name and outlive their process."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from typing import Any, Literal

from agents import RunResult, RunResultStreaming, RunState
from agents.run import AgentRunner

from stepfast import (
    AsyncRun,
    AsyncScope,
    AsyncStepfast,
    InvalidInput,
    NotFound,
    RunFinished,
    Suspended,
    Suspension,
    current_run,
)

from ._clients import StoreLike, client_of
from ._conduct import conduct, question, with_originals
from ._current import Drive, OnDrift, OnWait, Settings, Stopped, here
from ._plain import plain
from ._policies import OnInDoubt, policy_from
from ._runner import install
from ._streaming import stream
from ._values import result_of
from .session import StepfastSession

_WAYS = ("return", "suspend", "block")
# As a view, so that each call is driven up to the question and returns the same result.
_OPENED: dict[OnWait | None, Literal["view", "suspend", "block"]] = {
    None: "view",
    "return": "view",
    "suspend": "suspend",
    "block": "block",
}


class _Opened:
    """A run open for one call of the runner. A class, because the SDK's ``run_sync`` shuts generators down."""

    def __init__(self, durable: Durable, agent: Any, given: Any) -> None:
        self._durable, self._agent, self._given = durable, agent, given
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> tuple[AsyncRun, AsyncScope, Any]:
        durable, agent, given = self._durable, self._agent, self._given
        run = durable.given
        if durable.unnamed:
            found = current_run()
            run = found if isinstance(found, AsyncRun) else None
        if run is not None:
            return run, run.scope(f"{agent.name}.{_next(run, agent.name)}", shared=True), given
        if durable.run_id is None:
            raise InvalidInput("run_id: a durable run needs a name, by which it is found again; pass run_id=….")
        client = client_of(durable.store)
        if isinstance(given, RunState):
            await _answer(client, durable.run_id, given)
            given = None
        payload = None if given is None else {"agent": agent.name, "input": plain(given)}
        run = await self._stack.enter_async_context(
            client.run(
                durable.run_id,
                payload=payload,
                labels={"framework": "openai-agents", "agent": agent.name[:100], **(durable.labels or {})},
                max_delivery_attempts=durable.max_delivery_attempts,
                on_wait=_OPENED[durable.settings.on_wait],
                wait=durable.wait,
            )
        )
        if given is None:
            found = run.payload
            if not isinstance(found, dict) or "input" not in found:
                missing = InvalidInput(f"input: run {durable.run_id} has none recorded; pass it.")
                await self._stack.__aexit__(InvalidInput, missing, None)
                raise missing
            given = found["input"]
        return run, run, given

    async def __aexit__(self, *error: Any) -> None:
        await self._stack.__aexit__(*error)


class Durable:
    """What makes a run durable, apart from what the SDK takes: where it is kept and how it behaves."""

    def __init__(
        self,
        run_id: str | None = None,
        store: StoreLike = None,
        run: AsyncRun | None = None,
        *,
        on_in_doubt: OnInDoubt = "ask",
        policies: Mapping[str, OnInDoubt] | None = None,
        on_drift: OnDrift = "raise",
        on_wait: OnWait | None = None,
        restore_context: bool = True,
        replay_hooks: bool = False,
        replay_events: bool = True,
        labels: Mapping[str, str] | None = None,
        max_delivery_attempts: int | None = None,
        wait: float | None = None,
    ) -> None:
        if on_drift not in ("raise", "warn", "accept"):
            raise InvalidInput(f"on_drift: must be 'raise', 'warn' or 'accept', not {on_drift!r}.")
        if on_wait is not None and on_wait not in _WAYS:
            raise InvalidInput(f"on_wait: must be one of {', '.join(_WAYS)}, not {on_wait!r}.")
        if run is not None and (run_id is not None or store is not None):
            raise InvalidInput("run: an open run has its name and store already; leave run_id and store out.")
        self.run_id = run_id
        self.store = store
        self.given = run
        self.settings = Settings(
            policy=policy_from("on_in_doubt", on_in_doubt),
            policies={name: policy_from(f"policies[{name!r}]", word) for name, word in (policies or {}).items()},
            on_drift=on_drift,
            on_wait=on_wait,
            restore_context=restore_context,
            replay_hooks=replay_hooks,
            replay_events=replay_events,
        )
        self.labels = labels
        self.max_delivery_attempts = max_delivery_attempts
        self.wait = wait

    @classmethod
    def of(cls, options: dict[str, Any]) -> tuple[Durable, dict[str, Any]]:
        """Our options and the SDK's, from what a caller passed together."""
        ours = {name: value for name, value in options.items() if name in _OURS}
        return cls(**ours), {name: value for name, value in options.items() if name not in _OURS}

    @property
    def unnamed(self) -> bool:
        return self.given is None and self.run_id is None

    @property
    def owns(self) -> bool:
        """Whether the run is this call's own, to be completed with its result."""
        return self.given is None and self.run_id is not None

    def opened(self, agent: Any, given: Any) -> _Opened:
        """The open run, the scope of its outermost loop, and the input it began with."""
        return _Opened(self, agent, given)

    async def execute(self, base: AgentRunner, agent: Any, given: Any, options: dict[str, Any]) -> Any:
        """Drive the run to its end; or to where it waits, which is raised or returned as the caller wants."""
        drive: Drive | None = None
        result: RunResult | None = None
        try:
            async with self.opened(agent, given) as (run, scope, start):
                passes = 0
                while result is None:
                    passes += 1
                    drive = Drive(run, self.settings)
                    try:
                        result = await conduct(base, drive, scope, agent, start, options)
                    except BaseException as error:
                        await after(drive, error, passes)
                if self.owns and not run.replaying:
                    run.complete(summary(result))
                return result
        except (Suspended, Suspension) as waits:
            return await self.waiting(drive, waits)

    async def waiting(self, drive: Drive | None, waits: Suspended | Suspension) -> Any:
        """What a call returns of a run that waits: the SDK's result with its interruptions, else the questions.

        Raises ``waits`` where that is what the caller wants, and where the run is not this call's own.
        """
        way = self.settings.on_wait
        if way in (None, "return") and drive is not None and drive.pending is not None:
            return with_originals(drive, drive.pending)
        if way == "return" and self.owns and isinstance(waits, Suspended):
            with suppress(NotFound):  # of a run in another store, which a tool had opened
                return await client_of(self.store).waiting(waits)
        raise waits


_OURS = frozenset(inspect.signature(Durable).parameters)


_PASSES = 5


async def after(drive: Drive, error: BaseException, passes: int) -> None:
    """Why a pass ended: where a one-shot call was left in doubt it is settled, and there is another pass.

    Not for ever: a probe that says each time that nothing happened, of a tool that fails each time, gets no further.
    """
    if drive.why is not None:
        raise drive.why from None
    if drive.in_doubt is not None:
        if passes >= _PASSES:
            raise drive.in_doubt
        await drive.run.settle()
        return
    if isinstance(error, Stopped):
        raise AssertionError("stopped without a reason") from error
    raise error


def summary(result: Any) -> dict[str, Any]:
    """What is seen of a finished run from outside."""
    usage = result.context_wrapper.usage
    return {
        "final_output": result_of(result.final_output),
        "last_agent": result.last_agent.name,
        "turns": len(result.raw_responses),
        "usage": {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens},
    }


def _next(run: AsyncRun, name: str) -> int:
    """How often this agent was started in a run that is open anyway, counted per opening."""
    counts: dict[str, int] = run.__dict__.setdefault("_openai_agents_loops", {})
    counts[name] = counts.get(name, 0) + 1
    return counts[name]


async def _answer(client: AsyncStepfast, run_id: str, state: Any) -> None:
    """Approvals that were given in the SDK's own way, to a state: they count as answers to the run's questions."""
    waiting = {d["key"]: d for d in await client.decisions(run_id)}
    context = state._context
    for item in state.get_interruptions():
        about = question(item)
        key = f"ask:{about['key']}"
        name, call_id = about["evidence"]["tool"], about["evidence"]["call_id"]
        said = context.is_tool_approved(name, call_id) if context is not None else None
        if key not in waiting or said is None:
            continue
        message = context.get_rejection_message(name, call_id) if not said else None
        await client.answer(run_id, "approved" if said else "rejected", key, comment=message, actor="RunState")


class DurableRunner:
    """The SDK's ``Runner`` with its own arguments and results, and a name for each run.

    The same name again goes on where the run stopped, or gives the finished result. Besides the SDK's arguments:

    ``run_id`` names the run and ``store`` says where it is kept (a URL, a client, or nothing for the default);
    or ``run`` is a run that is open already, such as a worker's. ``on_in_doubt`` (*ask*, *retry*, *fail*, a probe) is
    for tools that say nothing themselves, ``policies`` for tools by name. ``on_drift`` (*raise*, *warn*, *accept*) is
    for a request that differs from the recorded one.

    ``on_wait`` says what a call does while its run waits for a person. *return*: it returns the SDK's result with its
    interruptions, each time; for a call in doubt, of which the SDK knows nothing, a ``stepfast.Waiting``. *suspend*
    raises ``Suspended``, *block* waits in this process. Without it approvals are returned and doubts raised.
    """

    @classmethod
    async def run(cls, starting_agent: Any, input: Any = None, **options: Any) -> RunResult:  # noqa: A002
        """Start a run, go on with it, or give its finished result. Without ``input`` the recorded one is used."""
        base = install()
        durable, theirs = Durable.of(options)
        if here() is not None and durable.unnamed:
            return await base.run(starting_agent, input, **theirs)  # type: ignore[no-any-return]
        return await durable.execute(base.inner, starting_agent, input, theirs)  # type: ignore[no-any-return]

    @classmethod
    def run_sync(cls, starting_agent: Any, input: Any = None, **options: Any) -> RunResult:  # noqa: A002
        """The same where no event loop is running."""
        install()
        return _Blocking(cls, options).run_sync(starting_agent, input)

    @classmethod
    def run_streamed(cls, starting_agent: Any, input: Any = None, **options: Any) -> RunResultStreaming:  # noqa: A002
        """The same as a stream. Finished turns are told again (`replayed` tells which events these are), or left out
        with ``replay_events=False``."""
        base = install()
        durable, theirs = Durable.of(options)
        if here() is not None and durable.unnamed:
            return base.run_streamed(starting_agent, input, **theirs)  # type: ignore[no-any-return]
        return stream(durable, base.inner, starting_agent, input, theirs)

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
        """Set a recorded step and all after it aside, so that they are done again when the run goes on.

        For an answer that breaks the run each time it is replayed. ``step`` is a key as ``sf.steps(run_id)`` shows it,
        such as ``model:3``. One-shot calls that were confirmed stay, unless ``include_once``. What the turns had added
        to a StepfastSession in the same store is taken out again. Gives how many steps went.
        """
        try:
            async with client_of(store).run(run_id, on_wait="suspend", on_failed="revive") as run:
                keys = run.steps()
                if step not in keys:
                    raise InvalidInput(f"step: run {run_id} has no {step!r}; it has {', '.join(keys) or 'none'}.")
                if run.replaying:
                    raise RunFinished(f"run {run_id} is finished; there is nothing to go on with after a rewind.")
                at = keys.index(step)
                after = keys[at - 1] if at else None
                for key in keys[at:]:
                    if key.startswith("session:add:") and isinstance(added := await _value(run, key), dict):
                        await StepfastSession(added["session"], store).forget(added["numbers"])
                raise _Rewound(await run.rewind(reason, after=after, include_once=include_once))
        except _Rewound as done:
            return done.count


async def _value(run: AsyncRun, key: str) -> Any:
    """What is recorded under a key; None of one that other sessions than ours have."""
    return await run.record(None, key=key, kind="session")


class _Rewound(Exception):
    """Leaves a run that was rewound, without completing it."""

    def __init__(self, count: int) -> None:
        super().__init__(f"{count} steps were set aside")
        self.count = count


class _Blocking(AgentRunner):
    """The SDK's own way to run an event loop for a blocking caller, around ours."""

    def __init__(self, runner: type[DurableRunner], options: dict[str, Any]) -> None:
        self._runner = runner
        self._options = options

    async def run(self, starting_agent: Any, input: Any, **_: Any) -> Any:  # noqa: A002
        return await self._runner.run(starting_agent, input, **self._options)
