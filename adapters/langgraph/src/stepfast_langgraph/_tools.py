"""``step`` and ``once`` for nodes, and ``durable_tool`` for what a model calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import cache, wraps
from typing import Any, TypeVar, overload

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, ToolException
from langchain_core.tools import tool as make_tool

from stepfast import InvalidInput, Retry, StepFailed
from stepfast.adapters import StoreLike
from stepfast.stored_names import UNKNOWN_OUTCOME_TYPE

from ._calls import Call, check_policy, perform, perform_awaited
from ._journals import short

T = TypeVar("T")

__all__ = ["durable_tool", "once", "step"]


@overload
def step(function: Callable[..., Awaitable[T]], /, *args: Any, **options: Any) -> Awaitable[T]: ...
@overload
def step(function: Callable[..., T], /, *args: Any, **options: Any) -> T: ...
def step(
    function: Callable[..., Any],
    /,
    *args: Any,
    key: str | None = None,
    name: str | None = None,
    inputs: Any = None,
    retry: Retry | int | None = None,
    record_errors: bool | tuple[type[Exception], ...] = False,
    on_drift: str | None = None,
    store: StoreLike = None,
    **kwargs: Any,
) -> Any:
    """Call ``function`` inside a node; when the node is run again, a finished call gives its recorded result.

    Await it if ``function`` is a coroutine function. Calls are told apart by name and order; ``key`` names one
    yourself. The journal is on ``store``, the graph's StepfastSaver, or the default store.
    """
    options = {"retry": retry, "record_errors": record_errors, "on_drift": on_drift}
    call = Call(function, args, kwargs, False, name or _name_of(function), key, inputs, "ask", store, options)
    return perform_awaited(call) if call.awaits else perform(call)


@overload
def once(function: Callable[..., Awaitable[T]], /, *args: Any, **options: Any) -> Awaitable[T]: ...
@overload
def once(function: Callable[..., T], /, *args: Any, **options: Any) -> T: ...
def once(
    function: Callable[..., Any],
    /,
    *args: Any,
    key: str | None = None,
    name: str | None = None,
    inputs: Any = None,
    on_in_doubt: str | Callable[..., Any] = "ask",
    retry_on: tuple[type[Exception], ...] = (),
    on_drift: str | None = None,
    store: StoreLike = None,
    **kwargs: Any,
) -> Any:
    """Call ``function`` at most once. If it started and was never confirmed, the graph is interrupted and asks.

    Answer with ``Command(resume={interrupt.id: "done" | "retry" | "fail"})``, or by ``stepfast tasks``.
    """
    options = {"retry_on": retry_on, "on_drift": on_drift}
    call = Call(function, args, kwargs, True, name or _name_of(function), key, inputs, on_in_doubt, store, options)
    return perform_awaited(call) if call.awaits else perform(call)


def _name_of(function: Any) -> str:
    while hasattr(function, "func") and hasattr(function, "keywords"):  # a partial
        function = function.func
    name = getattr(function, "__name__", None) or type(function).__name__
    return "lambda" if name == "<lambda>" else str(name)


_call_id: ContextVar[tuple[str | None, Any] | None] = ContextVar("stepfast_langgraph_call", default=None)
_inside: ContextVar[object] = ContextVar("stepfast_langgraph_inside", default=None)


def durable_tool(
    tool: BaseTool | Callable[..., Any],
    *,
    once: bool = False,
    on_in_doubt: str | Callable[..., Any] = "ask",
    retry: Retry | int | None = None,
    retry_on: tuple[type[Exception], ...] = (),
    record_errors: bool | tuple[type[Exception], ...] = (ToolException,),
    on_drift: str | None = None,
    store: StoreLike = None,
) -> BaseTool:
    """The same tool, with its calls journaled: a finished call is not made again when its node is.

    ``once``: at most one call; one in doubt is settled as ``on_in_doubt`` says. A probe gets the model's arguments.
    What a one-shot tool raises is recorded, except ``retry_on``; of another, what ``record_errors`` names.
    """
    if once and retry is not None:
        raise InvalidInput(
            "retry: a one-shot tool is not retried. Name errors that prove nothing happened in retry_on."
        )
    if not once and (retry_on or on_in_doubt != "ask"):
        raise InvalidInput("retry_on, on_in_doubt: they are for one-shot tools; pass once=True, or leave them out.")
    if once:
        check_policy(on_in_doubt)
    original = tool if isinstance(tool, BaseTool) else make_tool(tool)
    options: dict[str, Any] = {"on_drift": on_drift}
    if once:
        options["retry_on"] = retry_on
    else:
        options |= {"retry": retry, "record_errors": record_errors, "kind": "tool"}
    return _wrapped(original, once, on_in_doubt, options, store)


def _wrapped(
    original: BaseTool, once: bool, on_in_doubt: str | Callable[..., Any], options: dict[str, Any], store: StoreLike
) -> BaseTool:
    """A copy whose class differs in how it runs, and in nothing that a framework asks it about."""
    kind: type[BaseTool] = type(original)
    mark = object()

    @cache
    def names() -> frozenset[str]:
        return _names_for_model(original)

    def given_by_model(tool_input: Any) -> Any:
        """Without what the graph injects: state, store and runtime change by themselves."""
        if not isinstance(tool_input, dict):
            return tool_input
        return {name: value for name, value in tool_input.items() if name in names()}

    def plan(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        call_id, given = _call_id.get() or (None, None)
        key = f"{short(original.name)}={short(call_id)}" if call_id else None
        probe = _on_given(on_in_doubt, given) if callable(on_in_doubt) else on_in_doubt
        return Call(function, args, kwargs, once, original.name, key, given, probe, store, dict(options))

    @wraps(kind._run)
    def _run(self: BaseTool, *args: Any, **kwargs: Any) -> Any:
        if _inside.get() is mark:
            return kind._run(self, *args, **kwargs)
        return perform(plan(kind._run, (self, *args), kwargs))

    @wraps(kind._arun)
    async def _arun(self: BaseTool, *args: Any, **kwargs: Any) -> Any:
        token = _inside.set(mark)  # where it ends in a thread that calls _run
        try:
            return await perform_awaited(plan(kind._arun, (self, *args), kwargs))
        finally:
            _inside.reset(token)

    @wraps(kind.run)
    def run(self: BaseTool, tool_input: Any, *args: Any, **kwargs: Any) -> Any:
        token = _call_id.set((kwargs.get("tool_call_id"), given_by_model(tool_input)))
        outer = _inside.set(None)
        try:
            return kind.run(self, tool_input, *args, **kwargs)
        except StepFailed as failed:
            return _tell(self, failed, kwargs.get("tool_call_id"))
        finally:
            _inside.reset(outer)
            _call_id.reset(token)

    @wraps(kind.arun)
    async def arun(self: BaseTool, tool_input: Any, *args: Any, **kwargs: Any) -> Any:
        token = _call_id.set((kwargs.get("tool_call_id"), given_by_model(tool_input)))
        outer = _inside.set(None)
        try:
            return await kind.arun(self, tool_input, *args, **kwargs)
        except StepFailed as failed:
            return _tell(self, failed, kwargs.get("tool_call_id"))
        finally:
            _inside.reset(outer)
            _call_id.reset(token)

    body = {"_run": _run, "_arun": _arun, "run": run, "arun": arun, "__module__": kind.__module__}
    durable: type[BaseTool] = type(kind.__name__, (kind,), body)
    copy = original.model_copy()
    object.__setattr__(copy, "__class__", durable)
    return copy


def _names_for_model(tool: BaseTool) -> frozenset[str]:
    """The arguments that a model gives, by name and by alias."""
    schema: Any = tool.tool_call_schema
    if isinstance(schema, dict):
        return frozenset(schema.get("properties", {}))
    fields = getattr(schema, "model_fields", None) or getattr(schema, "__fields__", {})
    aliases = (getattr(info, "alias", None) for info in fields.values())
    return frozenset((*fields, *(alias for alias in aliases if alias)))


def _on_given(probe: Callable[..., Any], given: Any) -> Callable[..., Any]:
    from inspect import iscoroutinefunction

    if iscoroutinefunction(probe):

        async def ask_awaited(*_args: Any, **_kwargs: Any) -> Any:
            return await (probe(**given) if isinstance(given, dict) else probe(given))

        return ask_awaited

    def ask(*_args: Any, **_kwargs: Any) -> Any:
        return probe(**given) if isinstance(given, dict) else probe(given)

    return ask


def _tell(tool: BaseTool, failed: StepFailed, call_id: str | None) -> ToolMessage:
    """That a call's outcome is unknown is for the model to know; what the tool raised is raised."""
    recorded = failed.details.get("error") or {}
    if call_id is None or recorded.get("type") != UNKNOWN_OUTCOME_TYPE:
        raise failed
    text = f"{recorded['message']}. It was not repeated."
    return ToolMessage(content=text, name=tool.name, tool_call_id=call_id, status="error")
