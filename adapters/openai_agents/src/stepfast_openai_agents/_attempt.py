"""Where the SDK's own code stands while it drives a durable run: which run, which agent loop, which part of it."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from agents.tracing import custom_span, get_current_trace

from stepfast import AsyncRun, AsyncScope
from stepfast.adapters import Attempt, Conversation, Occurrences, Ordinals, Settings, Standing, flag

from ._request import describe_item

OnWait = Literal["return", "suspend", "block"]


class AgentSettings(Settings):
    """The shared options, and those of this adapter.

    Without ``on_wait``, approvals are returned (the SDK's result has them), and a call in doubt is raised.
    """

    def __init__(
        self,
        *,
        on_wait: OnWait | None = None,
        restore_context: bool = True,
        replay_hooks: bool = False,
        replay_events: bool = True,
        **shared: Any,
    ) -> None:
        super().__init__(on_wait="return" if on_wait is None else on_wait, **shared)
        self.returns_doubts = on_wait == "return"
        self.restore_context = flag("restore_context", restore_context)
        self.replay_hooks = flag("replay_hooks", replay_hooks)
        self.replay_events = flag("replay_events", replay_events)


class AgentAttempt(Attempt):
    """One pass of the SDK over a durable run, from its beginning."""

    settings: AgentSettings

    def __init__(self, run: AsyncRun, settings: AgentSettings) -> None:
        super().__init__(run, settings)
        if not settings.restore_context:
            self.keeper = None
        self.views: dict[int, tuple[Any, Any]] = {}  # by the id of the user's agent: it and its view
        self.originals: dict[int, Any] = {}  # by the id of the view
        self.tools: dict[int, tuple[Any, Any]] = {}
        self.loops: dict[tuple[str, str], Loop] = {}  # the latest loop of an agent in a part of the run
        self.nested = Occurrences()
        self.old_ids: set[str] = set()  # of the items and calls that were answered from the journal
        self.replays = False  # this pass begins with what is recorded

    def loop(self, scope: AsyncScope, agent_name: str) -> Loop:
        made = self.loops[(scope.path, agent_name)] = Loop(scope, agent_name)
        return made

    def nested_loop(self, parent: AsyncScope, agent_name: str, digest: str, *, again: bool) -> Loop:
        """The loop of an agent inside a tool or guardrail; ``again``: the one that was interrupted goes on."""
        known = self.loops.get((parent.path, agent_name)) if again else None
        if known is not None:
            return known
        name = f"{agent_name}.{digest}"
        number = self.nested.number(f"{parent.path}/{name}")
        made = Loop(parent.scope(f"{name}.{number}", shared=True), agent_name)
        self.loops[(parent.path, agent_name)] = made
        return made

    def original(self, agent: Any) -> Any:
        return self.originals.get(id(agent), agent)


class Loop:
    """One agent loop: a call of Runner.run, with handoffs. Its model calls come strictly one after the other."""

    def __init__(self, scope: AsyncScope, agent: str) -> None:
        self.scope = scope
        self.agent = agent
        self.talk = Conversation(describe_item)
        self.ordinals = Ordinals(first=1)


class Here(NamedTuple):
    """``scope`` is the loop's, or inside a tool that runs agents that tool's own."""

    attempt: AgentAttempt
    loop: Loop
    scope: AsyncScope


place: Standing[Here] = Standing("stepfast_openai_agents")


def show_replay(key: str) -> None:
    """Mark a replayed step in the SDK's trace, by a span of no length under the current one."""
    if get_current_trace() is not None:
        with custom_span("stepfast.replayed", {"step": key}):
            pass
