"""The seam around a tool call: a step of the run, by the tool's policy."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from crewai.tools import BaseTool
from crewai.tools.agent_tools.base_agent_tools import BaseAgentTool
from crewai.tools.agent_tools.read_file_tool import ReadFileTool
from crewai.tools.memory_tools import RecallMemoryTool, RememberTool
from crewai.tools.tool_failure import ToolFailure
from crewai.utilities.string_utils import sanitize_tool_name
from pydantic import BaseModel

from stepfast import Codec, Diverged
from stepfast.adapters import COMPOSITE, RETRY, Policy, declared, digest, pack_output, plain, tool_call, unpack_output
from stepfast.flow import Flow

from ._place import Place, standing

try:
    from crewai.tools.agent_tools.deferred_tool_result_reader import DeferredToolResultReader
except ImportError:  # older: large results stay in the conversation
    READS: tuple[type, ...] = (ReadFileTool,)
else:
    READS = (ReadFileTool, DeferredToolResultReader)

DEFERS = len(READS) > 1
"""Whether this CrewAI keeps large results of tools in files."""

_ERROR = "stepfast_crewai_error"
_MODEL = "stepfast_crewai_model"
_FAILURE = "stepfast_crewai_failure"


class ToolError(Exception):
    """What a tool raised in an earlier attempt; its text is that of the tool's own exception."""


def run(place: Place, original: Callable[..., Any], tool: Any, *args: Any, **kwargs: Any) -> Any:
    """Take the place of ``BaseTool.run``, which native tool calls use."""
    return _blocking(place, tool, _named(tool, args, kwargs), lambda: original(tool, *args, **kwargs))


async def arun(place: Place, original: Callable[..., Any], tool: Any, *args: Any, **kwargs: Any) -> Any:
    """Take the place of ``BaseTool.arun``."""
    return await _awaited(place, tool, _named(tool, args, kwargs), lambda: original(tool, *args, **kwargs))


def invoke(place: Place, original: Callable[..., Any], tool: Any, input: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
    """Take the place of ``CrewStructuredTool.invoke``, which calls in the text of an answer (ReAct) use."""
    return _blocking(place, tool, _parsed(input), lambda: original(tool, input, *args, **kwargs))


async def ainvoke(place: Place, original: Callable[..., Any], tool: Any, input: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
    """Take the place of ``CrewStructuredTool.ainvoke``, which calls blocking functions without their context."""

    def make() -> Any:
        if inspect.iscoroutinefunction(tool.func):
            return original(tool, input, *args, **kwargs)
        return asyncio.to_thread(tool.invoke, input, *args, **kwargs)

    return await _awaited(place, tool, _parsed(input), make)


def store_result(
    place: Place, original: Callable[..., Any], store: Any, content: str, *args: Any, **kwargs: Any
) -> Any:
    """Take the place of ``ToolResultArtifactStore.store``, which keeps a large result in a file for the model to read.

    CrewAI names the file at random. The name is in later requests and answers, so here it follows from the content.
    """
    made = original(store, content, **kwargs)
    name = f"tool-result-{digest(place.occurrences.key('artifact', digest(content)))}"
    made.file_path.parent.rename(made.directory / name)
    path = made.directory / name / made.file_path.name
    return replace(made, artifact_id=name, file_path=path, relative_path=path.relative_to(made.directory))


def announce(place: Place, tools: Any) -> None:
    """Name the tools for which no policy is known, once in a process."""
    place.attempt.settings.policies.announce((_name(tool), _policy_holder(tool), _kind(tool)) for tool in tools or ())


# --- one call ------------------------------------------------------------------------------------------


def _blocking(place: Place, tool: Any, arguments: dict[str, Any], make: Callable[[], Any]) -> Any:
    call = _Call(place, tool, arguments)
    if call.policy.kind == "composite":
        with standing.standing(call.inside()):
            return make()

    def effect() -> Any:
        with standing.standing(None):
            try:
                return call.made(make())
            except Exception as error:
                return call.raised(error)

    with place.attempt.flying():
        return call.outcome(*place.drive(call.flow(effect)))


async def _awaited(place: Place, tool: Any, arguments: dict[str, Any], make: Callable[[], Any]) -> Any:
    call = _Call(place, tool, arguments)
    if call.policy.kind == "composite":
        with standing.standing(call.inside()):
            return await make()

    async def effect() -> Any:
        with standing.standing(None):
            try:
                return call.made(await make())
            except Exception as error:
                return call.raised(error)

    with place.attempt.flying():
        return call.outcome(*await place.adrive(call.flow(effect)))


class _Call:
    def __init__(self, place: Place, tool: Any, arguments: dict[str, Any]) -> None:
        self.place = place
        self.tool = _policy_holder(tool)
        self.name = _name(tool)
        self.arguments = arguments
        self.policy: Policy = place.attempt.settings.policies.of(self.name, self.tool, _kind(tool))
        self.shown = place.attempt.redacted(plain(arguments))
        self.asked = digest([self.name, self.shown])
        self.error: Exception | None = None
        self.output: Any = None
        if self.policy.kind not in ("retry", "composite") and self.asked in place.failed:
            # CrewAI calls a tool that raised up to five times more, for one answer of the model.
            raise ToolError(place.failed[self.asked])
        self.key = place.occurrences.key("tool", self.name, self.asked)

    def inside(self) -> Place:
        self.place.attempt.check()
        self.place.last = None
        return self.place.inner(self.key)

    def flow(self, effect: Callable[[], Any]) -> Flow[tuple[Any, bool]]:
        place = self.place
        if place.hidden is not None and place.scope.recorded(self.key) is None:
            with place.attempt.guarded():
                yield from place.scope.voiding(place.hidden, "its secrets were redacted")
                raise Diverged(
                    f"tool {self.name} was to be called with what a model had answered, and redact= has taken a part "
                    "of that out of the store. The answer was set aside: start the run again, and the model is asked "
                    "again.",
                    key=place.hidden,
                )
        flow = tool_call(
            place.attempt,
            place.scope,
            key=self.key,
            name=self.name,
            policy=self.policy,
            inputs=[self.name, self.shown],
            arguments=self.arguments,
            effect=effect,
            agent="",
            pack=self._pack,
            unpack=unpack_output,
        )
        return (yield from flow)

    def made(self, output: Any) -> Any:
        self.output = output
        return output

    def raised(self, error: Exception) -> Any:
        """Return what is recorded where CrewAI shows the exception to the model; raise it where it means doubt."""
        if self.policy.on_error == "ask":
            raise error
        self.error = error
        return {_ERROR: str(error)}

    def _pack(self, codec: Codec, output: Any, changed: Any) -> dict[str, Any]:
        if isinstance(output, ToolFailure):
            output = {_FAILURE: output.model_dump(mode="json")}
        elif isinstance(output, BaseModel) and isinstance(output, self._schema() or ()):
            output = {_MODEL: output.model_dump(mode="json")}
        return self.place.attempt.redacted(pack_output(codec, output, changed))  # type: ignore[no-any-return]

    def _schema(self) -> Any:
        found = getattr(self.tool, "result_schema", None)
        return found if isinstance(found, type) else None

    def outcome(self, output: Any, replayed: bool) -> Any:
        """Return what CrewAI gets; count a call of an earlier attempt as one that was used up."""
        self.place.last = None
        if self.error is not None:
            self.place.failed[self.asked] = str(self.error)
            raise self.error
        if not replayed:
            return self.output
        if isinstance(getattr(self.tool, "current_usage_count", None), int):
            self.tool.current_usage_count += 1
        if not isinstance(output, dict):
            return output
        if _ERROR in output:
            self.place.failed[self.asked] = output[_ERROR]
            raise ToolError(output[_ERROR])
        if _FAILURE in output:
            return ToolFailure.model_validate(output[_FAILURE])
        schema = self._schema()
        return output if _MODEL not in output or schema is None else schema.model_validate(output[_MODEL])


# --- what is known of a tool ------------------------------------------------------------------------


def _name(tool: Any) -> str:
    return str(sanitize_tool_name(tool.name))


def _policy_holder(tool: Any) -> Any:
    """Return the object that carries the policy: the tool, the one it was made from, or its function."""
    original = getattr(tool, "_original_tool", None) or tool
    found = [original, getattr(original, "func", None), getattr(tool, "func", None)]
    return next((each for each in found if declared(each) is not None), original)


def _kind(tool: Any) -> Policy | None:
    """Return the policy that CrewAI's own tools have: those that run agents are entered again."""
    original = getattr(tool, "_original_tool", None) or tool
    if isinstance(original, BaseAgentTool | RecallMemoryTool | RememberTool):
        return COMPOSITE
    return RETRY if isinstance(original, READS) else None


def _named(tool: BaseTool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    if not args:
        return kwargs
    schema = getattr(tool, "args_schema", None)
    names = list(getattr(schema, "model_fields", {})) or [f"argument_{number}" for number in range(len(args))]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _parsed(given: Any) -> dict[str, Any]:
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            return {"input": given}
    return dict(given) if isinstance(given, Mapping) else {"input": given}
