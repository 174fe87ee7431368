"""Lifecycle hooks: they report what happens now, and not again what an earlier attempt has done."""

from __future__ import annotations

from typing import Any

from agents import AgentHooks, RunHooks

from ._attempt import AgentAttempt, place


class _Filter:
    """Passes a hook on to the user's own, unless the step that it is about is answered from the journal."""

    def __init__(self, attempt: AgentAttempt, inner: Any) -> None:
        self._attempt = attempt
        self._inner = inner
        self._tools: dict[str, bool] = {}

    async def _pass(self, tells: bool, name: str, *args: Any) -> None:
        if self._inner is not None and tells:
            await getattr(self._inner, name)(*args)

    def _is_new(self, key: str) -> bool:
        at = place.here()
        if at is None or self._attempt.settings.replay_hooks:
            return True
        # Once the next model call is recorded, all of the turn before it is history.
        return at.scope.recorded(key) is None and at.loop.scope.recorded(at.loop.talk.key) is None

    def _before_model(self) -> bool:
        at = place.here()
        return at is None or self._is_new(at.loop.talk.key)

    def _after_model(self) -> bool:
        at = place.here()
        return at is None or self._attempt.settings.replay_hooks or not at.loop.talk.replayed

    async def on_llm_start(self, context: Any, agent: Any, system_prompt: Any, input_items: Any) -> None:
        at = place.here()
        if at is not None:
            at.loop.agent = agent.name
        await self._pass(self._before_model(), "on_llm_start", context, agent, system_prompt, input_items)

    async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
        await self._pass(self._after_model(), "on_llm_end", context, agent, response)

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        key = _key_of(context)
        self._tools[key] = self._is_new(key)
        await self._pass(self._tools[key], "on_tool_start", context, agent, tool)

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
        await self._pass(self._tools.pop(_key_of(context), True), "on_tool_end", context, agent, tool, result)

    async def on_handoff(self, *args: Any, **kwargs: Any) -> None:
        # The SDK passes them by name.
        if self._inner is not None and self._before_model():
            await self._inner.on_handoff(*args, **kwargs)


def _key_of(context: Any) -> str:
    return f"tool:{getattr(context, 'tool_call_id', '')}"


class DurableRunHooks(_Filter, RunHooks[Any]):
    """The user's hooks of a run; they also report which agent is at work."""

    async def on_agent_start(self, context: Any, agent: Any) -> None:
        at = place.here()
        if at is not None:
            at.loop.agent = agent.name
        await self._pass(self._before_model(), "on_agent_start", context, agent)

    async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
        await self._pass(not self._attempt.run.replaying, "on_agent_end", context, agent, output)


class DurableAgentHooks(_Filter, AgentHooks[Any]):
    """The user's hooks of one agent."""

    async def on_start(self, context: Any, agent: Any) -> None:
        await self._pass(self._before_model(), "on_start", context, agent)

    async def on_end(self, context: Any, agent: Any, output: Any) -> None:
        await self._pass(not self._attempt.run.replaying, "on_end", context, agent, output)


def run_hooks(attempt: AgentAttempt, inner: Any) -> RunHooks[Any]:
    if isinstance(inner, DurableRunHooks):
        inner = inner._inner  # a nested run is given those of the run around it
    return DurableRunHooks(attempt, inner)


def agent_hooks(attempt: AgentAttempt, inner: Any) -> Any:
    return inner if isinstance(inner, DurableAgentHooks) else DurableAgentHooks(attempt, inner)
