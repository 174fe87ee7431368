"""Where the SDK's own code stands while it drives a durable run: which run, which agent loop, which part of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple

from stepfast import AsyncRun, AsyncScope, StepfastError, Suspension

from ._context import ContextKeeper
from ._policies import Policy
from ._request import Known

OnDrift = Literal["raise", "warn", "accept"]
OnWait = Literal["return", "suspend", "block"]

STOPPED = "The run has stopped here and waits; this text is never sent to a model."


class Stopped(BaseException):
    """Leaves the SDK's loop at its next boundary; why is told by `Drive.why`. Never meets a caller."""


class Doubt(BaseException):
    """Leaves a one-shot step open: what it did is not known."""


class Settings(NamedTuple):
    """How a durable run behaves in this process; none of it is stored."""

    policy: Policy
    policies: Mapping[str, Policy]
    on_drift: OnDrift = "raise"
    on_wait: OnWait | None = None
    restore_context: bool = True
    replay_hooks: bool = False
    replay_events: bool = True


class Drive:
    """One pass of the SDK over a durable run, from its beginning.

    Nothing may be raised inside a tool: the SDK would cancel the tools beside it or show the error to the model. So
    what stops a run is kept in ``why``, and each boundary (a model call, a session's write, a new tool) looks at it.
    """

    def __init__(self, run: AsyncRun, settings: Settings) -> None:
        self.run = run
        self.settings = settings
        self.why: BaseException | None = None
        self.in_doubt: BaseException | None = None  # what a one-shot call left behind instead of an answer
        self.pending: Any = None  # the SDK's result while its approvals wait for a person
        self.keeper = ContextKeeper(run.codec) if settings.restore_context else None
        self.views: dict[int, tuple[Any, Any]] = {}  # by the id of the user's agent: it and its view
        self.originals: dict[int, Any] = {}  # by the id of the view
        self.tools: dict[int, tuple[Any, Any]] = {}
        self.loops: dict[tuple[str, str], Loop] = {}  # the latest loop of an agent in a part of the run
        self.names: Counter[tuple[str, str]] = Counter()
        self.old_ids: set[str] = set()  # of the items and calls that answered from the journal
        self.replays = False  # this pass begins with what is recorded
        self.live = False  # this pass has made a call that no earlier one had recorded

    def check(self) -> None:
        """A boundary: go no further once the run has stopped."""
        if self.why is not None or self.in_doubt is not None:
            raise Stopped

    def stop(self, why: BaseException) -> None:
        if self.why is None or isinstance(self.why, Suspension):
            self.why = why

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """An error of the journal stops the run, however the SDK would treat one at this place."""
        try:
            yield
        except (StepfastError, Suspension) as error:
            self.stop(error)
            raise Stopped from error

    async def report(self, loop: Loop, doing: str) -> None:
        """Let those who look in from outside see the turn, the agent and what it is at."""
        if not self.run.replaying:
            with self.guarded():
                await self.run.report(f"{loop.agent}: {doing}", step=loop.turn + 1)

    def policy_of(self, name: str, declared: Policy | None) -> Policy:
        return self.settings.policies.get(name) or declared or self.settings.policy

    def loop(self, scope: AsyncScope, agent_name: str) -> Loop:
        made = self.loops[(scope.path, agent_name)] = Loop(self, scope, agent_name)
        return made

    def nested(self, parent: AsyncScope, agent_name: str, digest: str, *, again: bool) -> Loop:
        """The loop of an agent inside a tool or guardrail; ``again``: the one that was interrupted goes on."""
        if again:
            known = self.loops.get((parent.path, agent_name))
            if known is not None:
                return known
        name = f"{agent_name}.{digest}"
        self.names[(parent.path, name)] += 1
        made = Loop(self, parent.scope(f"{name}.{self.names[(parent.path, name)]}", shared=True), agent_name)
        self.loops[(parent.path, agent_name)] = made
        return made

    def original(self, agent: Any) -> Any:
        return self.originals.get(id(agent), agent)


class Loop:
    """One agent loop: a call of Runner.run, with handoffs. Its model calls come strictly one after the other."""

    def __init__(self, drive: Drive, scope: AsyncScope, agent: str) -> None:
        self.drive = drive
        self.scope = scope
        self.agent = agent
        self.turn = 0  # model calls that were answered
        self.replayed = False  # whether the last one was, from the journal
        self.sent: list[str] = []  # what the last request's input was made of
        self.recorded: list[str] = []  # and what the journal says it was
        self.known = Known()
        self.ordinals: Counter[str] = Counter()

    def ordinal(self, name: str) -> int:
        self.ordinals[name] += 1
        return self.ordinals[name]


class Here(NamedTuple):
    """``scope`` is the loop's, or inside a tool that runs agents that tool's own."""

    drive: Drive
    loop: Loop
    scope: AsyncScope


_here: ContextVar[Here | None] = ContextVar("stepfast_openai_agents", default=None)


def here() -> Here | None:
    """Where the caller stands; None outside of a durable run."""
    return _here.get()


@contextmanager
def standing(place: Here | None) -> Iterator[None]:
    token = _here.set(place)
    try:
        yield
    finally:
        _here.reset(token)


def set_place(place: Here) -> None:
    """Stand there for the rest of this task."""
    _here.set(place)
