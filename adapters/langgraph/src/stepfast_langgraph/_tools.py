"""Tools that a model calls: journaled where a tool asks for it, and in every durable graph by the tool's policy."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, ToolException
from langchain_core.tools import tool as make_tool
from langgraph.types import Command

from stepfast import Codec, InvalidInput, Retry, StepFailed, Unencodable
from stepfast import inputs as check
from stepfast.adapters import Doubt, Policy, Seam, StoreLike, check_store, declared, install, within
from stepfast.steps import OnDrift, OnInDoubt, step_options
from stepfast.stored_names import UNKNOWN_OUTCOME_TYPE

from ._calls import Call, perform
from ._carried import current_trip
from ._journals import short
from ._where import current_task

if TYPE_CHECKING:
    from ._trip import Trip

log = logging.getLogger("stepfast")

_JOURNALED = "__stepfast_journaled__"


def durable_tool(
    tool: BaseTool | Callable[..., Any],
    *,
    once: bool = False,
    on_in_doubt: OnInDoubt = "ask",
    retry: Retry | int | None = None,
    retry_on: tuple[type[Exception], ...] = (),
    record_errors: bool | tuple[type[Exception], ...] = (ToolException,),
    on_drift: OnDrift | None = None,
    store: StoreLike = None,
) -> BaseTool:
    """Return the same tool with its calls journaled, in any graph with a checkpointer: a finished call is not repeated.

    ``once``: at most one call; one in doubt is settled as ``on_in_doubt`` says. A probe gets the model's arguments.
    What a one-shot tool raises is recorded, except ``retry_on``; of another, what ``record_errors`` names.
    """
    check.flag("once", once)
    check_store(store)
    if not isinstance(tool, BaseTool) and not callable(tool):
        raise InvalidInput(f"tool: must be a tool of LangChain or a function, not {type(tool).__name__}.")
    if once and retry is not None:
        raise InvalidInput(
            "retry: a one-shot tool is not retried. Name errors that prove nothing happened in retry_on."
        )
    if not once and (retry_on or on_in_doubt != "ask"):
        raise InvalidInput("retry_on, on_in_doubt: they are for one-shot tools; pass once=True, or leave them out.")
    chosen = step_options(
        retry=retry, record_errors=record_errors, on_drift=on_drift, on_in_doubt=on_in_doubt, retry_on=retry_on
    )
    options: dict[str, Any] = {"on_drift": on_drift}
    if once:
        options["retry_on"] = retry_on
    else:
        options |= {"retry": retry, "record_errors": chosen.record_errors, "kind": "tool"}
    return _copy(tool if isinstance(tool, BaseTool) else make_tool(tool), _How(once, on_in_doubt, options, store=store))


class _How(NamedTuple):
    """How the calls of a tool are kept."""

    once: bool
    on_in_doubt: Any
    options: dict[str, Any]
    leaves_doubt: bool = False
    store: StoreLike = None
    codec: Codec | None = None  # with which the output is checked before it is recorded


def _copy(original: BaseTool, how: _How) -> BaseTool:
    """A copy whose class differs in how it runs, and in nothing that a framework asks it about."""
    kind: type[BaseTool] = type(original)

    @wraps(kind.run)
    def run(self: BaseTool, tool_input: Any, *args: Any, **kwargs: Any) -> Any:
        return _made(how, kind.run, self, tool_input, args, kwargs)

    @wraps(kind.arun)
    async def arun(self: BaseTool, tool_input: Any, *args: Any, **kwargs: Any) -> Any:
        return await _made_awaited(how, kind.arun, self, tool_input, args, kwargs)

    body = {"run": run, "arun": arun, "__module__": kind.__module__, _JOURNALED: True}
    durable: type[BaseTool] = type(kind.__name__, (kind,), body)
    copy = original.model_copy()
    object.__setattr__(copy, "__class__", durable)
    return copy


# --- tools of a durable graph ----------------------------------------------------------------------


def watch_tools() -> None:
    """Let the calls that models make of tools follow their policies, in durable graphs and nowhere else."""
    around = within(current_trip.get, _around), within(current_trip.get, _around_async)
    seams = [Seam(BaseTool, "run", around[0]), Seam(BaseTool, "arun", around[1])]
    install("langchain-core", ("1.0", "2"), seams)


def _around(trip: Trip, original: Any, tool: BaseTool, tool_input: Any, *args: Any, **kwargs: Any) -> Any:
    how = _how(trip, tool, kwargs)
    if how is None:
        return original(tool, tool_input, *args, **kwargs)
    return _made(how, original, tool, tool_input, args, kwargs)


async def _around_async(trip: Trip, original: Any, tool: BaseTool, tool_input: Any, *args: Any, **kwargs: Any) -> Any:
    how = _how(trip, tool, kwargs)
    if how is None:
        return await original(tool, tool_input, *args, **kwargs)
    return await _made_awaited(how, original, tool, tool_input, args, kwargs)


def _how(trip: Trip, tool: BaseTool, kwargs: dict[str, Any]) -> _How | None:
    """How a call is to be kept by the tool's policy; None if it is made as it is."""
    if not kwargs.get("tool_call_id") or hasattr(tool, _JOURNALED) or current_task() is None:
        return None
    trip.policies.announce([(tool.name, tool, _function_mark(tool))])
    policy = trip.policies.of(tool.name, tool, _function_mark(tool))
    if policy.kind == "composite":
        return None
    once = policy.kind != "retry"
    # An error of the tool is treated as LangGraph does: the call is over, and is made again if its node is.
    options: dict[str, Any] = {"retry_on": (Exception,)} if once else {"kind": "tool"}
    options["on_drift"] = trip.on_drift
    return _How(once, policy.probe or policy.kind, options, policy.on_error == "ask", codec=trip.codec)


def _function_mark(tool: BaseTool) -> Policy | None:
    """The mark on the function that a tool was made of."""
    return declared(getattr(tool, "func", None)) or declared(getattr(tool, "coroutine", None))


def _has_run(error: BaseException, tool: BaseTool) -> bool:
    """Whether the tool's own code was entered: arguments that do not fit are refused before that."""
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code.co_name in ("_run", "_arun") and frame.f_locals.get("self") is tool:
            return True
        trace = trace.tb_next
    return False


def tools_of(graph: Any) -> Iterator[tuple[str, BaseTool, Policy | None]]:
    """The tools of a graph's tool nodes, and of graphs that are nodes in it, for `Policies.announce`."""
    for node in graph.nodes.values():
        waiting: list[Any] = [getattr(node, "bound", None)]
        while waiting:
            each = waiting.pop()
            waiting += getattr(each, "steps", ())
            if isinstance(getattr(each, "nodes", None), dict):
                yield from tools_of(each)
            for name, tool in (getattr(each, "tools_by_name", None) or {}).items():
                if isinstance(tool, BaseTool) and not hasattr(tool, _JOURNALED):
                    yield name, tool, _function_mark(tool)


# --- what both have in common ----------------------------------------------------------------------


def _made(
    how: _How, original: Any, tool: BaseTool, tool_input: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a tool by its ``run``, or answer the call from the journal."""
    call_id = kwargs.get("tool_call_id")

    def effect(*given: Any, **options: Any) -> Any:
        return _storable(how, original(*given, **options))

    try:
        return _as_output(tool, perform(_planned(how, effect, tool, tool_input, args, kwargs)), call_id)
    except StepFailed as failed:
        return _tell(tool, failed, call_id)


async def _made_awaited(
    how: _How, original: Any, tool: BaseTool, tool_input: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The same by its ``arun``."""
    call_id = kwargs.get("tool_call_id")

    async def effect(*given: Any, **options: Any) -> Any:
        return _storable(how, await original(*given, **options))

    try:
        return _as_output(tool, await perform(_planned(how, effect, tool, tool_input, args, kwargs)), call_id)
    except StepFailed as failed:
        return _tell(tool, failed, call_id)


def _planned(
    how: _How, effect: Any, tool: BaseTool, tool_input: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Call:
    call_id, given = kwargs.get("tool_call_id"), _given_by_model(tool, tool_input)
    return Call(
        effect,
        (tool, tool_input, *args),
        kwargs,
        how.once,
        tool.name,
        f"{short(tool.name)}={short(call_id)}" if call_id else None,
        given,
        _on_given(how.on_in_doubt, given) if callable(how.on_in_doubt) else how.on_in_doubt,
        how.store,
        how.options,
        lambda error: _has_run(error, tool),
        how.leaves_doubt,
    )


def _storable(how: _How, output: Any) -> Any:
    """An output that can be recorded; an artifact that cannot is left out."""
    try:
        if how.codec is not None:
            how.codec.encode(output)
        return output
    except Unencodable as error:
        if isinstance(output, ToolMessage) and output.artifact is not None:
            log.warning("the artifact of %s cannot be stored and is left out (%s)", output.name, error)
            return _storable(how, output.model_copy(update={"artifact": None}))
        if not how.once:
            raise
        raise Doubt from error  # it has happened, and its output cannot be kept


def _as_output(tool: BaseTool, output: Any, call_id: str | None) -> Any:
    """The output as ``run`` returns it, also where a person or a probe said what the tool's own function returned."""
    first = output[0] if isinstance(output, list) and output else output
    if call_id is None or isinstance(first, ToolMessage | Command):
        return output
    artifact = None
    if tool.response_format == "content_and_artifact" and isinstance(output, tuple) and len(output) == 2:
        output, artifact = output
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False, default=str)
    return ToolMessage(content=text, artifact=artifact, name=tool.name, tool_call_id=call_id)


def _given_by_model(tool: BaseTool, tool_input: Any) -> Any:
    """The arguments without what the graph injects: state, store and runtime change by themselves."""
    if not isinstance(tool_input, dict):
        return tool_input
    names = _names_for_model(tool)
    return {name: value for name, value in tool_input.items() if name in names}


_names: dict[int, tuple[ref[BaseTool], frozenset[str]]] = {}


def _names_for_model(tool: BaseTool) -> frozenset[str]:
    """The arguments that a model gives, by name and by alias; the schema is dear to make, so they are remembered."""
    known = _names.get(id(tool))
    if known is not None and known[0]() is tool:
        return known[1]
    schema: Any = tool.tool_call_schema
    if isinstance(schema, dict):
        names = frozenset(schema.get("properties", {}))
    else:
        fields = getattr(schema, "model_fields", None) or getattr(schema, "__fields__", {})
        aliases = (getattr(info, "alias", None) for info in fields.values())
        names = frozenset((*fields, *(alias for alias in aliases if alias)))
    number = id(tool)
    _names[number] = (ref(tool, lambda _: _names.pop(number, None)), names)
    return names


def _on_given(probe: Callable[..., Any], given: Any) -> Callable[..., Any]:
    """The probe as a function of whatever the tool's own function gets: it is called with the model's arguments."""
    return lambda *_args, **_kwargs: probe(**given) if isinstance(given, dict) else probe(given)


def _tell(tool: BaseTool, failed: StepFailed, call_id: str | None) -> ToolMessage:
    """That a call's outcome is unknown is for the model to know; what the tool raised is raised."""
    recorded = failed.details.get("error") or {}
    if call_id is None or recorded.get("type") != UNKNOWN_OUTCOME_TYPE:
        raise failed
    text = f"{recorded['message']}. It was not repeated."
    return ToolMessage(content=text, name=tool.name, tool_call_id=call_id, status="error")
