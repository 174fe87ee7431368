"""A durable run from its opening to its end, or to where it waits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from agents import RunState

from stepfast import AsyncRun, AsyncScope, AsyncStepfast, InvalidInput, Suspended, Suspension, current_run
from stepfast.adapters import OpenStore, StoreLike, adrive, open_any, plain, run_name

from ._attempt import AgentAttempt, AgentSettings
from ._conduct import Play, conduct, question, with_originals
from ._values import result_of

_FRAMEWORK = "openai-agents"


class Execution:
    """One call of a durable runner: the run it is about, where that is kept, and how it behaves."""

    def __init__(
        self,
        run_id: str | None = None,
        store: StoreLike | Callable[[], OpenStore] = None,
        run: AsyncRun | None = None,
        *,
        settings: AgentSettings,
    ) -> None:
        if run is not None and (run_id is not None or store is not None):
            raise InvalidInput("run: an open run has its name and store already; leave run_id and store out.")
        self.run_id = run_id
        self.given = run
        self.settings = settings
        self.attempt: AgentAttempt | None = None  # the latest pass
        self._store = store

    @property
    def unnamed(self) -> bool:
        return self.given is None and self.run_id is None

    @property
    def owns(self) -> bool:
        """Whether the run is this call's own, to be completed with its result."""
        return self.given is None and self.run_id is not None

    def client(self) -> AsyncStepfast:
        opened = self._store() if callable(self._store) else open_any(self._store, shared=True)
        return opened.aclient()

    async def execute(
        self, agent: Any, given: Any, options: dict[str, Any], play: Play, *, return_doubts: bool = True
    ) -> Any:
        """Drive the run to its end; or to where it waits, which is raised or returned as the caller wants."""

        def make(run: AsyncRun) -> AgentAttempt:
            self.attempt = AgentAttempt(run, self.settings)
            return self.attempt

        try:
            async with _Opened(self, agent, given) as (run, scope, start):
                result = await adrive(
                    run, lambda attempt: conduct(attempt, scope, agent, start, options, play), make=make
                )
                if self.owns and not run.replaying:
                    run.complete(await self.summary(result))
                return result
        except (Suspended, Suspension) as waits:
            settings, attempt = self.settings, self.attempt
            if settings.on_wait == "return" and attempt is not None and attempt.pending is not None:
                return with_originals(attempt, attempt.pending)
            wanted = settings.returns_doubts and return_doubts
            if wanted and isinstance(waits, Suspended) and settings.returns(waits, self.run_id):
                return await self.client().waiting(waits)
            raise

    async def summary(self, result: Any) -> dict[str, Any]:
        """Return what is seen of a finished run from outside."""
        attempt = self.attempt
        assert attempt is not None  # noqa: S101
        usage = await attempt.run.drive(attempt.meter.complete(attempt.run))
        return {
            "final_output": result_of(result.final_output),
            "last_agent": result.last_agent.name,
            "turns": len(result.raw_responses),
            "usage": usage.as_dict(),
        }


class _Opened:
    """A run open for one call of the runner. A class, because the SDK's ``run_sync`` shuts generators down."""

    def __init__(self, execution: Execution, agent: Any, given: Any) -> None:
        self._execution, self._agent, self._given = execution, agent, given
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> tuple[AsyncRun, AsyncScope, Any]:
        execution, agent, given = self._execution, self._agent, self._given
        run = execution.given
        if execution.unnamed:
            found = current_run()
            run = found if isinstance(found, AsyncRun) else None
        if run is not None:
            return run, run.scope(f"{agent.name}.{_next(run, agent.name)}", shared=True), given
        name = run_name(execution.run_id, None)
        client = execution.client()
        if isinstance(given, RunState):
            await _answer(client, name, given)
            given = None
        payload = None if given is None else {"agent": agent.name, "input": plain(given)}
        options = execution.settings.run_options(_FRAMEWORK, agent=agent.name)
        run = await self._stack.enter_async_context(client.run(name, payload=payload, **options))
        if given is None:
            recorded = run.payload
            if not isinstance(recorded, dict) or "input" not in recorded:
                missing = InvalidInput(f"input: run {name} has none recorded; pass it.")
                await self._stack.__aexit__(InvalidInput, missing, None)
                raise missing
            given = recorded["input"]
        return run, run, given

    async def __aexit__(self, *error: Any) -> None:
        await self._stack.__aexit__(*error)


def _next(run: AsyncRun, name: str) -> int:
    """How often this agent was started in a run that is open anyway, counted per opening."""
    counts: dict[str, int] = run.__dict__.setdefault("_openai_agents_loops", {})
    counts[name] = counts.get(name, 0) + 1
    return counts[name]


async def _answer(client: AsyncStepfast, run_id: str, state: Any) -> None:
    """Approvals that were given in the SDK's own way, to a state, count as answers to the run's questions."""
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
