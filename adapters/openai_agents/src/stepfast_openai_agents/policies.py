"""`once`, `idempotent` and `composite` for tools of the SDK, and for functions that become tools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

from agents import FunctionTool, function_tool

from stepfast import InvalidInput
from stepfast.adapters import COMPOSITE, RETRY, OnError, Policy, mark, once_policy

__all__ = ["composite", "idempotent", "once"]

Tool = FunctionTool | Callable[..., Any]


def _marked(tool: Any, policy: Policy) -> Any:
    if callable(tool) and not hasattr(tool, "on_invoke_tool"):
        tool = function_tool(tool)
    if not hasattr(tool, "name"):
        raise InvalidInput(f"tool: takes a tool of the SDK or a function, not {type(tool).__name__}.")
    return mark(tool, policy)


@overload
def once(tool: Tool, /, *, reconcile: Callable[..., Any] | None = None, on_error: OnError = "ask") -> FunctionTool: ...
@overload
def once(
    *, reconcile: Callable[..., Any] | None = None, on_error: OnError = "ask"
) -> Callable[[Tool], FunctionTool]: ...
def once(tool: Any = None, /, *, reconcile: Callable[..., Any] | None = None, on_error: OnError = "ask") -> Any:
    """Return a copy of a tool whose effect must not happen twice: started and unconfirmed, it waits for a decision.

    ``reconcile`` is a probe: called with the tool's arguments, it returns ``Happened(output)``, ``DID_NOT_HAPPEN``, or
    anything else to ask a person. An exception or a time-out leaves the call in doubt, because the model would try
    again; with ``on_error="show"`` the model sees it, as in the bare SDK.
    """
    policy = once_policy(reconcile, on_error)
    return (lambda given: _marked(given, policy)) if tool is None else _marked(tool, policy)


def idempotent(tool: Tool, /) -> FunctionTool:
    """Return a copy of a tool that is safe to repeat: cut short, it is called again with the same
    ``idempotency_key()``. It costs one commit a call instead of two."""
    return _marked(tool, RETRY)  # type: ignore[no-any-return]


def composite(tool: Tool, /) -> FunctionTool:
    """Return a copy of a tool that runs agents (or durable steps): it is entered again on resume, and what is finished
    inside it is answered from the journal. Tools made by ``agent.as_tool()`` are treated so already."""
    return _marked(tool, COMPOSITE)  # type: ignore[no-any-return]
