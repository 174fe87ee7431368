"""The seams around functions that a model calls: steps of the run, by their policy."""

from __future__ import annotations

import contextvars
import functools
import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from stepfast import StepFailed, StepfastError
from stepfast.adapters import Policy, Stopped, carried, declared, digest, plain, tool_call, unpack_output
from stepfast.flow import Flow

from ._place import Place, standing


class ToolError(Exception):
    """A function that must not be called twice has raised; the text is the one that AutoGen shows to the model."""


def execute(place: Place, original: Callable[..., Any], agent: Any, func_call: Any, *args: Any, **kwargs: Any) -> Any:
    """Take the place of ``ConversableAgent.execute_function``."""
    call = _Call.of(place, agent, func_call)
    if call is None:
        return original(agent, func_call, *args, **kwargs)
    if call.policy.kind == "composite":
        with standing.standing(call.inside()):
            return original(agent, func_call, *args, **kwargs)

    def effect() -> Any:
        with standing.standing(None), call.watched():
            return call.outcome(original(agent, func_call, *args, **kwargs))

    try:
        ok, shown = place.drive(call.flow(effect))[0]
    except StepFailed as error:
        return call.unknown(error)
    return ok, shown


async def execute_async(
    place: Place, original: Callable[..., Any], agent: Any, func_call: Any, *args: Any, **kwargs: Any
) -> Any:
    """Take the place of ``ConversableAgent.a_execute_function``."""
    call = _Call.of(place, agent, func_call)
    if call is None:
        return await original(agent, func_call, *args, **kwargs)
    if call.policy.kind == "composite":
        with standing.standing(call.inside()):
            return await original(agent, func_call, *args, **kwargs)

    async def effect() -> Any:
        with standing.standing(None), call.watched():
            return call.outcome(await original(agent, func_call, *args, **kwargs))

    try:
        ok, shown = (await place.adrive(call.flow(effect)))[0]
    except StepFailed as error:
        return call.unknown(error)
    return ok, shown


def run_in_thread(place: Place, original: Callable[..., Any], agent: Any, coroutine: Any) -> Any:
    """Take the place of ``_run_async_in_thread``, whose thread does not know where its caller stands.

    What is raised there is raised here; AutoGen would lose it.
    """

    async def kept() -> tuple[Any, BaseException | None]:
        try:
            return await coroutine, None
        except BaseException as error:
            return None, error

    value, error = original(agent, carried(kept)())
    if error is not None:
        raise error
    return value


_watching: contextvars.ContextVar[_Call | None] = contextvars.ContextVar("stepfast_autogen_tool", default=None)


class _Call:
    """One call of a function of an agent."""

    def __init__(self, place: Place, agent: Any, func_call: Any, function: Any, arguments: dict[str, Any]) -> None:
        self.place = place
        self.agent = agent
        self.func_call = func_call
        self.name = str(func_call["name"])
        self.function = function
        self.arguments = arguments
        self.policy: Policy = place.attempt.settings.policies.of(self.name, policy_holder(function))
        self.key = place.occurrences.key("tool", f"{agent.name}.{self.name}", digest(arguments))
        self.raised = False

    @classmethod
    def of(cls, place: Place, agent: Any, func_call: Any) -> _Call | None:
        """Return the call; None where AutoGen calls nothing: the function is unknown, or its arguments are no JSON."""
        if place.entering is func_call:  # a subclass has called its base class
            return None
        function = agent._function_map.get(func_call.get("name", ""))
        try:
            arguments = json.loads(agent._format_json_str(func_call.get("arguments", "{}")))
        except ValueError:
            return None
        if function is None or not isinstance(arguments, dict):
            return None
        return cls(place, agent, func_call, function, arguments)

    def inside(self) -> Place:
        self.place.attempt.check()
        place = self.place.inner(self.key)
        place.entering = self.func_call
        return place

    def flow(self, effect: Callable[[], Any]) -> Flow[tuple[Any, bool]]:
        return tool_call(
            self.place.attempt,
            self.place.scope,
            key=self.key,
            name=self.name,
            policy=self.policy,
            inputs=[self.name, plain(self.arguments)],
            arguments=self.arguments,
            effect=effect,
            context=getattr(self.agent, "context_variables", None),
            agent=self.agent.name,
            unpack=self._unpack,
        )

    def _unpack(self, recorded: Any) -> tuple[Any, dict[str, Any] | None]:
        output, changed = unpack_output(recorded)
        if not _is_outcome(output):  # what a person or a probe said that the function has returned
            text = output if isinstance(output, str) else json.dumps(plain(output))
            output = [True, {"name": self.name, "role": "function", "content": text}]
        return output, changed

    def outcome(self, made: Any) -> Any:
        ok, shown = made
        if self.raised and self.policy.on_error == "ask":
            raise ToolError(str(shown.get("content")))
        return [bool(ok), shown]

    def unknown(self, error: StepFailed) -> tuple[bool, dict[str, Any]]:
        """Return what AutoGen shows to the model where it stays unknown whether the call has happened."""
        return False, {"name": self.name, "role": "function", "content": f"Error: {error}"}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the function for the length of a ``with`` block: AutoGen makes a text of whatever it raises.

        The function in the agent's map is replaced from before the call until after it. Calls side by side find the
        replacement of the first, and each is watched by what stands in its own context.
        """
        functions = self.agent._function_map
        own = functions.get(self.name)
        if not hasattr(own, "_stepfast_watched"):
            functions[self.name] = _watched(own)
        token = _watching.set(self)
        try:
            yield
        finally:
            _watching.reset(token)
            if hasattr(functions.get(self.name), "_stepfast_watched"):
                functions[self.name] = functions[self.name]._stepfast_watched

    def failed(self, error: Exception) -> None:
        """Note that the function has raised; an error of Stepfast's stops the run, so that no model is shown it."""
        self.raised = True
        if isinstance(error, StepfastError):
            self.place.attempt.stop(error)
            raise Stopped from error


def _watched(function: Any) -> Any:
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            watch = _watching.get()
            try:
                return await function(*args, **kwargs)
            except Exception as error:
                if watch is not None:
                    watch.failed(error)
                raise

        call_async._stepfast_watched = function  # type: ignore[attr-defined]
        return call_async

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        watch = _watching.get()
        try:
            return function(*args, **kwargs)
        except Exception as error:
            if watch is not None:
                watch.failed(error)
            raise

    call._stepfast_watched = function  # type: ignore[attr-defined]
    return call


def policy_holder(function: Any) -> Any:
    """Return the object that carries the policy: a function, or the one that AutoGen has wrapped."""
    found, holder = function, function
    while found is not None:
        if declared(found) is not None:
            return found
        found = getattr(found, "_origin", None) or getattr(found, "__wrapped__", None)
    return holder


def _is_outcome(output: Any) -> bool:
    return isinstance(output, list) and len(output) == 2 and isinstance(output[1], dict) and "role" in output[1]
