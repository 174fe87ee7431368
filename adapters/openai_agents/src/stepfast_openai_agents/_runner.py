"""The SDK's default runner, replaced by one that finds the durable run it is called in.

That is how runs inside tools (``agent.as_tool()``) and guardrails are seen. Outside of a durable run it does what the
runner before it does.
"""

from __future__ import annotations

import threading
from typing import Any

from agents.run import AgentRunner, get_default_agent_runner, set_default_agent_runner

from ._attempt import place
from ._conduct import nested, nested_streamed

_lock = threading.Lock()


class StepfastAgentRunner(AgentRunner):
    """``outside`` handles runs that begin outside of any durable run; None leaves them to the runner before."""

    def __init__(self, inner: AgentRunner) -> None:
        self.inner = inner
        self.outside: Any = None

    async def run(self, starting_agent: Any, input: Any, **kwargs: Any) -> Any:  # noqa: A002 - the SDK's name
        at = place.here()
        if at is not None:
            return await nested(self.inner, at, starting_agent, input, kwargs)
        if self.outside is not None:
            return await self.outside.run(starting_agent, input, **kwargs)
        return await self.inner.run(starting_agent, input, **kwargs)

    def run_sync(self, starting_agent: Any, input: Any, **kwargs: Any) -> Any:  # noqa: A002
        if place.here() is None and self.outside is None:
            return self.inner.run_sync(starting_agent, input, **kwargs)
        return super().run_sync(starting_agent, input, **kwargs)

    def run_streamed(self, starting_agent: Any, input: Any, **kwargs: Any) -> Any:  # noqa: A002
        at = place.here()
        if at is not None:
            return nested_streamed(self.inner, at, starting_agent, input, kwargs)
        if self.outside is not None:
            return self.outside.run_streamed(starting_agent, input, **kwargs)
        return self.inner.run_streamed(starting_agent, input, **kwargs)


def install() -> StepfastAgentRunner:
    """Put our runner in the place of the default one, once."""
    with _lock:
        current = get_default_agent_runner()
        if isinstance(current, StepfastAgentRunner):
            return current
        ours = StepfastAgentRunner(current)
        set_default_agent_runner(ours)
        return ours


def uninstall() -> None:
    """Put the runner back that was there before."""
    with _lock:
        current = get_default_agent_runner()
        if isinstance(current, StepfastAgentRunner):
            set_default_agent_runner(current.inner)
