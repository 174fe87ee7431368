"""Lifecycle hooks: they tell of what happens now, not again of what an earlier attempt has done."""

from __future__ import annotations

from typing import Any

from agents import AgentHooks, RunHooks

from ._current import Drive, here


class _Filter:
    """Whether the step that a hook is about answers from the journal."""

    def __init__(self, drive: Drive, inner: Any) -> None:
        self._drive = drive
        self._inner = inner

    def _tells(self, key: str | None) -> bool:
        """``key``: the step that decides; None: the model call that came last."""
        at = here()
        if at is None or self._drive.settings.replay_hooks:
            return True
        if key is None:
            return not at.loop.replayed
        # Once the next model call is recorded, all of the turn before it is history.
        return at.scope.recorded(key) is None and at.loop.scope.recorded(f"model:{at.loop.turn}") is None

    def _before_model(self) -> bool:
        at = here()
        return at is None or self._tells(f"model:{at.loop.turn}")

    def _of_tool(self, context: Any) -> str:
        return f"tool:{getattr(context, 'tool_call_id', '')}"


class DurableRunHooks(_Filter, RunHooks[Any]):
    """The user's hooks of a run; also how we learn which agent is at work."""

    def __init__(self, drive: Drive, inner: Any) -> None:
        super().__init__(drive, inner)
        self._calls: dict[str, bool] = {}

    async def on_agent_start(self, context: Any, agent: Any) -> None:
        at = here()
        if at is not None:
            at.loop.agent = agent.name
        if self._inner is not None and self._before_model():
            await self._inner.on_agent_start(context, agent)

    async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
        if self._inner is not None and not self._drive.run.replaying:
            await self._inner.on_agent_end(context, agent, output)

    async def on_handoff(self, context: Any, from_agent: Any, to_agent: Any) -> None:
        at = here()
        if self._inner is not None and (at is None or self._before_model()):
            await self._inner.on_handoff(context, from_agent, to_agent)

    async def on_llm_start(self, context: Any, agent: Any, system_prompt: Any, input_items: Any) -> None:
        at = here()
        if at is not None:
            at.loop.agent = agent.name
        if self._inner is not None and self._before_model():
            await self._inner.on_llm_start(context, agent, system_prompt, input_items)

    async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
        if self._inner is not None and self._tells(None):
            await self._inner.on_llm_end(context, agent, response)

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        key = self._of_tool(context)
        self._calls[key] = self._tells(key)
        if self._inner is not None and self._calls[key]:
            await self._inner.on_tool_start(context, agent, tool)

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
        if self._calls.pop(self._of_tool(context), True) and self._inner is not None:
            await self._inner.on_tool_end(context, agent, tool, result)


class DurableAgentHooks(_Filter, AgentHooks[Any]):
    """The user's hooks of one agent."""

    def __init__(self, drive: Drive, inner: Any) -> None:
        super().__init__(drive, inner)
        self._calls: dict[str, bool] = {}

    async def on_start(self, context: Any, agent: Any) -> None:
        if self._before_model():
            await self._inner.on_start(context, agent)

    async def on_end(self, context: Any, agent: Any, output: Any) -> None:
        if not self._drive.run.replaying:
            await self._inner.on_end(context, agent, output)

    async def on_handoff(self, context: Any, agent: Any, source: Any) -> None:
        if self._before_model():
            await self._inner.on_handoff(context, agent, source)

    async def on_llm_start(self, context: Any, agent: Any, system_prompt: Any, input_items: Any) -> None:
        if self._before_model():
            await self._inner.on_llm_start(context, agent, system_prompt, input_items)

    async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
        if self._tells(None):
            await self._inner.on_llm_end(context, agent, response)

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        key = self._of_tool(context)
        self._calls[key] = self._tells(key)
        if self._calls[key]:
            await self._inner.on_tool_start(context, agent, tool)

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
        if self._calls.pop(self._of_tool(context), True):
            await self._inner.on_tool_end(context, agent, tool, result)


def run_hooks(drive: Drive, inner: Any) -> RunHooks[Any]:
    if isinstance(inner, DurableRunHooks):
        inner = inner._inner  # a nested run is given those of the run around it
    return DurableRunHooks(drive, inner)


def agent_hooks(drive: Drive, inner: Any) -> Any:
    return inner if isinstance(inner, DurableAgentHooks) else DurableAgentHooks(drive, inner)
