"""What happens to a tool call that started and was never confirmed: ask, retry, fail, or ask a probe."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

from stepfast import InvalidInput

if TYPE_CHECKING:  # Swarm's adapter has the same policies, without the SDK
    from agents import FunctionTool

OnInDoubt = Literal["ask", "retry", "fail"] | Callable[..., Any]
OnError = Literal["ask", "show"]

_MARK = "_stepfast_policy"


class Policy(NamedTuple):
    """``kind``: *ask*, *retry*, *fail*, *probe*, or *composite* for a tool that runs agents and is entered again.

    ``on_error``: whether an exception of the tool is shown to the model as the SDK does, or leaves the call in doubt.
    """

    kind: Literal["ask", "retry", "fail", "probe", "composite"] = "ask"
    probe: Callable[..., Any] | None = None
    on_error: OnError = "show"


ASK = Policy()
RETRY = Policy("retry")
COMPOSITE = Policy("composite")


def policy_from(name: str, given: OnInDoubt | Policy) -> Policy:
    """A policy from the words that callers use."""
    if isinstance(given, Policy):
        return given
    if callable(given):
        return Policy("probe", given)
    words = {
        "ask": ASK,
        "once": Policy(on_error="ask"),
        "retry": RETRY,
        "idempotent": RETRY,
        "fail": Policy("fail"),
        "composite": COMPOSITE,
    }
    if given not in words:
        raise InvalidInput(f"{name}: must be one of {', '.join(words)} or a probe, not {given!r}.")
    return words[given]


def declared(tool: Any) -> Policy | None:
    """What `once`, `idempotent` or `composite` said about a tool."""
    found = getattr(tool, _MARK, None)
    return found if isinstance(found, Policy) else None


def _marked(tool: Any, policy: Policy) -> Any:
    if callable(tool) and not hasattr(tool, "on_invoke_tool"):
        from agents import function_tool

        tool = function_tool(tool)
    if not hasattr(tool, "name"):
        raise InvalidInput(f"tool: takes a tool of the SDK or a function, not {type(tool).__name__}.")
    marked = copy.copy(tool)
    object.__setattr__(marked, _MARK, policy)
    return marked


@overload
def once(tool: FunctionTool | Callable[..., Any], /) -> FunctionTool: ...
@overload
def once(
    *, reconcile: Callable[..., Any] | None = None, on_error: OnError = "ask"
) -> Callable[[FunctionTool | Callable[..., Any]], FunctionTool]: ...
@overload
def once(
    tool: FunctionTool | Callable[..., Any],
    /,
    *,
    reconcile: Callable[..., Any] | None = None,
    on_error: OnError = "ask",
) -> FunctionTool: ...
def once(tool: Any = None, /, *, reconcile: Callable[..., Any] | None = None, on_error: OnError = "ask") -> Any:
    """A copy of a tool whose effect must not happen twice: started and unconfirmed, it waits for a decision.

    ``reconcile`` is a probe: called with the tool's arguments, it gives ``Happened(output)``, ``DID_NOT_HAPPEN``, or
    anything else to ask a person. An exception or a time-out leaves the call in doubt, because the model would try
    again; with ``on_error="show"`` the model sees it, as in the bare SDK.
    """
    if on_error not in ("ask", "show"):
        raise InvalidInput(f"on_error: must be 'ask' or 'show', not {on_error!r}.")
    policy = Policy("ask" if reconcile is None else "probe", reconcile, on_error)
    return (lambda given: _marked(given, policy)) if tool is None else _marked(tool, policy)


def idempotent(tool: FunctionTool | Callable[..., Any], /) -> FunctionTool:
    """A copy of a tool that is safe to repeat: if it was cut short, it is called again with the same
    ``idempotency_key()``. One commit a call instead of two."""
    return _marked(tool, RETRY)  # type: ignore[no-any-return]


def composite(tool: FunctionTool | Callable[..., Any], /) -> FunctionTool:
    """A copy of a tool that runs agents (or durable steps) inside: it is entered again on resume, and what is finished
    in it answers from the journal. Tools made by ``agent.as_tool()`` are treated so already."""
    return _marked(tool, COMPOSITE)  # type: ignore[no-any-return]
