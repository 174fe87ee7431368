"""Hooks, reply functions and other functions of the user as steps of the run, so that they are not repeated."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from autogen import Agent

from stepfast.adapters import RETRY, Policy, digest, plain, tool_call
from stepfast.codec import Codec
from stepfast.flow import Flow

from . import _models
from ._code import Executor
from ._place import Place, here, standing

_OWN = "_stepfast_own"


def is_autogens(function: Any) -> bool:
    """Whether a function is AutoGen's own. Those are entered: what they call are steps by themselves."""
    return _module(inspect.unwrap(function, stop=lambda each: _module(each) == "autogen")) == "autogen"


def _module(function: Any) -> str:
    found = getattr(function, "__globals__", None)
    name = found.get("__name__") if found is not None else type(function).__module__
    return str(name).partition(".")[0]


def stepped(function: Any, kind: str, owner: str) -> Any:
    """Return a function that is a step of the run in which it is called; without a run it is called as it is.

    ``owner`` is the name of the agent. A function that runs agents itself is entered again when the run goes on, so
    that these have their messages; what is finished inside it is answered from the journal.
    """
    if not callable(function) or hasattr(function, _OWN) or is_autogens(function):
        return function
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def step_async(*args: Any, **kwargs: Any) -> Any:
            place = here()
            if place is None:
                return await function(*args, **kwargs)
            call = _Call(place, function, kind, owner, [*args, *kwargs.values()])

            async def effect() -> Any:
                with standing.standing(call.inner):
                    return await function(*args, **kwargs)

            return await effect() if call.enters else call.returned(*await place.adrive(call.flow(effect)))

        setattr(step_async, _OWN, function)
        return step_async

    @functools.wraps(function)
    def step(*args: Any, **kwargs: Any) -> Any:
        place = here()
        if place is None:
            return function(*args, **kwargs)
        call = _Call(place, function, kind, owner, [*args, *kwargs.values()])

        def effect() -> Any:
            with standing.standing(call.inner):
                return function(*args, **kwargs)

        return effect() if call.enters else call.returned(*place.drive(call.flow(effect)))

    setattr(step, _OWN, function)
    return step


class _Call:
    """One call of a function of the user."""

    def __init__(self, place: Place, function: Any, kind: str, owner: str, given: list[Any]) -> None:
        place.attempt.check()
        self.place = place
        self.name = getattr(function, "__name__", type(function).__name__)
        self.policy: Policy = place.attempt.settings.policies.of(self.name, function, RETRY)
        self.key = place.occurrences.key(kind, f"{owner}.{self.name}")
        self.inner = place.inner(self.key)
        self.enters = self.policy.kind == "composite" or self.inner.known
        self.given = given  # its arguments: lists and dictionaries of messages may be changed in place
        self.output: Any = None

    def flow(self, effect: Callable[[], Any]) -> Flow[tuple[Any, bool]]:
        self._before = [digest(each) if isinstance(each, list | dict) else None for each in self.given]
        return tool_call(
            self.place.attempt,
            self.place.scope,
            key=self.key,
            name=self.name,
            policy=self.policy,
            inputs=[self.name],
            arguments={},
            effect=effect,
            pack=self._pack,
            unpack=lambda recorded: (recorded, None),
        )

    def _pack(self, codec: Codec, output: Any, changed: Any) -> dict[str, Any]:
        self.output = output
        packed: dict[str, Any] = {}
        for number, before in enumerate(self._before):
            if before is not None and digest(self.given[number]) != before:
                packed.setdefault("changed", {})[str(number)] = plain(self.given[number])
        same = next((number for number, each in enumerate(self.given) if each is output and output is not None), None)
        if isinstance(output, Agent):
            return packed | {"agent": output.name}
        return packed | ({"value": output} if same is None else {"same": same})

    def returned(self, recorded: Any, replayed: bool) -> Any:
        """Return what the function has returned, and make the changes to its arguments that it has made."""
        if not replayed:
            return self.output
        if not isinstance(recorded, dict):  # what a person or a probe said
            return recorded
        for number, messages in recorded.get("changed", {}).items():
            _change(self.given[int(number)], messages)
        if "same" in recorded:
            return self.given[recorded["same"]]
        if "agent" in recorded:
            return next(each.agent_by_name(recorded["agent"]) for each in self.given if hasattr(each, "agent_by_name"))
        return recorded.get("value", recorded)


def _change(given: Any, recorded: Any) -> None:
    """Change a message or a list of messages in place, since others hold the same objects."""
    if isinstance(given, dict):
        given.clear()
        given.update(recorded)
        return
    for number, each in enumerate(recorded[: len(given)]):
        if isinstance(given[number], dict) and isinstance(each, dict):
            if given[number] != each:
                _change(given[number], each)
        else:
            given[number] = each
    given[len(recorded) :] = recorded[len(given) :]


# --- hooks -------------------------------------------------------------------------------------------


def hooked(which: str) -> Callable[..., Any]:
    """Return what takes the place of the method that calls the hooks of a list: each hook is a step."""

    def around(place: Place, original: Callable[..., Any], agent: Any, *args: Any, **kwargs: Any) -> Any:
        hooks = agent.hook_lists[which]
        if not hooks:
            return original(agent, *args, **kwargs)
        agent.hook_lists[which] = [stepped(getattr(hook, _OWN, hook), "hook", agent.name) for hook in hooks]
        try:
            return original(agent, *args, **kwargs)
        finally:
            agent.hook_lists[which] = hooks

    return around


# --- replies -----------------------------------------------------------------------------------------


class _Reply(dict[str, Any]):
    """An entry of an agent's list of reply functions, with a step in place of the function."""

    def __init__(self, entry: dict[str, Any], agent: Any) -> None:
        function = entry["reply_func"]
        if is_autogens(function) and getattr(function, "__name__", "") == "a_generate_oai_reply":
            self.step = _in_thread(function)
        else:
            self.step = stepped(function, "reply", agent.name)
        super().__init__(entry, reply_func=self.step)
        self.entry = entry

    def own(self) -> dict[str, Any]:
        """Return the agent's own entry, with changes that were made meanwhile."""
        function = self.entry["reply_func"] if self["reply_func"] is self.step else self["reply_func"]
        self.entry.update(self, reply_func=function)
        return self.entry


def _in_thread(function: Any) -> Any:
    @functools.wraps(function)
    async def generate(agent: Any, *args: Any, **kwargs: Any) -> Any:
        place = here()
        if place is None:
            return await function(agent, *args, **kwargs)
        return await _models.generate_in_thread(place, function, agent, *args, **kwargs)

    return generate


def generate_reply(
    place: Place,
    original: Callable[..., Any],
    agent: Any,
    messages: Any = None,
    sender: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Take the place of ``ConversableAgent.generate_reply``."""
    with _replying(place, agent, messages, sender, kwargs):
        return original(agent, messages, sender, *args, **kwargs)


async def generate_reply_async(
    place: Place,
    original: Callable[..., Any],
    agent: Any,
    messages: Any = None,
    sender: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Take the place of ``ConversableAgent.a_generate_reply``."""
    with _replying(place, agent, messages, sender, kwargs):
        return await original(agent, messages, sender, *args, **kwargs)


@contextmanager
def _replying(place: Place, agent: Any, messages: Any, sender: Any, kwargs: dict[str, Any]) -> Iterator[None]:
    """Put steps in place of an agent's reply functions and code executor while it replies.

    Two chats may let the same agent reply at the same time, so each has a list of its own, and leaves AutoGen's.
    """
    place.attempt.check()
    said = messages if messages is not None else agent._oai_messages[sender]
    if said:
        place.heard[agent.name] = {"from": getattr(sender, "name", None), "message": plain(said[-1].get("content"))}
    replies = [_Reply(_own(entry), agent) for entry in agent._reply_func_list]
    agent._reply_func_list = replies
    excluded = kwargs.get("exclude")
    if excluded:
        kwargs["exclude"] = [*excluded, *(each.step for each in replies if each.entry["reply_func"] in excluded)]
    executor = getattr(agent, "_code_executor", None)
    if executor is not None and not isinstance(executor, Executor):
        agent._code_executor = Executor(executor, agent)
    try:
        yield
    finally:
        agent._reply_func_list = [_own(entry) for entry in agent._reply_func_list]
        if isinstance(getattr(agent, "_code_executor", None), Executor):
            agent._code_executor = agent._code_executor.own


def _own(entry: Any) -> Any:
    return entry.own() if isinstance(entry, _Reply) else entry
