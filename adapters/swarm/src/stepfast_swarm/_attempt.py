"""One pass of Swarm's loop over a durable run: finished calls are answered from the journal, others are recorded."""

from __future__ import annotations

import dis
import inspect
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from types import CodeType
from typing import Any, NamedTuple

from swarm import Agent, Response

from stepfast import Codec, InvalidInput, Run, Scope, StepFailed, Unencodable
from stepfast.adapters import RETRY, Attempt, Conversation, Occurrences, Settings, Standing, model_call, tool_call
from stepfast.stored_names import SWARM_RESULT_MARK

from ._agents import Agents
from ._model import describe_message, pack, request_of, unpack, usage_of

log = logging.getLogger("stepfast")

Function = Callable[..., Any]


class Here(NamedTuple):
    """Where a run inside a tool belongs."""

    run: Run
    scope: Scope


place: Standing[Here] = Standing("stepfast_swarm")


class SwarmAttempt(Attempt):
    """Swarm works strictly in order (one model call, then its tool calls one by one) and lets BaseExceptions pass."""

    def __init__(self, run: Run, scope: Scope, settings: Settings, complete: Function, agents: Agents) -> None:
        super().__init__(run, settings, tools_may_raise=True)
        self.scope = scope
        self.complete = complete
        self.agents = agents
        self.agent = ""
        self.talk = Conversation(describe_message)
        self.replays = False  # the present turn is answered from the journal
        self.occurrences = Occurrences()

    def begin_turn(self, agent: Agent) -> None:
        self.agent = agent.name
        self.settings.policies.announce(
            (function.__name__, function, RETRY if _has_no_effect(function) else None) for function in agent.functions
        )

    # --- model calls -----------------------------------------------------------------------------

    def create(self, **params: Any) -> Any:
        """Take the place of the client's method: return a completion, or an iterator over the pieces of one."""
        request = request_of(params, self.talk.digests)
        self.replays = self.scope.recorded(self.talk.key) is not None
        if request.sections["stream"] and not self.replays:
            self.check()
            return self._listen(request, self.complete(**params))
        return self._call(request, lambda: self.complete(**params), lambda answer: {"response": pack(answer)})

    def _listen(self, request: Any, pieces: Iterable[Any]) -> Iterator[Any]:
        """Yield each piece as it comes; the last only once all of them are recorded."""
        packed, held = [], None
        try:
            for piece in pieces:
                packed.append(pack(piece))
                if held is not None:
                    yield held
                held = piece
        finally:
            close = getattr(pieces, "close", None)
            if close is not None:
                close()
        self._call(request, lambda: packed, lambda answer: {"pieces": answer})
        if held is not None:
            yield held

    def _call(self, request: Any, ask: Callable[[], Any], packs: Callable[[Any], dict[str, Any]]) -> Any:
        def remedy(recorded: dict[str, Any]) -> str:
            """Pieces cannot stand for the whole, nor it for them."""
            same = recorded["stream"] == request.sections["stream"]
            return "" if same else f"Pass stream={recorded['stream']} again."

        flow = model_call(
            self,
            self.scope,
            key=self.talk.key,
            agent=self.agent,
            request=request,
            ask=ask,
            pack=packs,
            unpack=unpack,
            measure=usage_of,
            conversation=self.talk,
            remedy=remedy,
        )
        return self.scope.drive(flow)[0]

    # --- tool calls ------------------------------------------------------------------------------

    def tool(self, call: Any, function: Function, context: dict[str, Any], effect: Callable[[], Any]) -> Any:
        """Make one tool call as a step. ``effect`` is Swarm's own way to make it; returns a Response for it alone."""
        name = call.function.name
        try:
            arguments = json.loads(call.function.arguments)
        except ValueError:
            return effect()  # raises as Swarm does: the tool's own code does not run
        policy = self.settings.policies.of(name, function, RETRY if _has_no_effect(function) else None)
        # Some providers number the calls of each answer anew, so an id alone is not one call's.
        key = self.occurrences.key("tool", call.id or "call")
        if policy.kind == "composite":
            with place.standing(Here(self.run, self.scope.scope(key, shared=True))):
                return effect()
        if not _fits(function, arguments):
            return effect()  # likewise
        done: list[Any] = []

        def act() -> Any:
            done.append(effect())
            return done[-1]

        def packed(codec: Codec, response: Any, changed: Any) -> dict[str, Any]:
            return self._pack(codec, response, function, changed)

        flow = tool_call(
            self,
            self.scope,
            key=key,
            name=name,
            policy=policy,
            inputs=[name, arguments],
            arguments=arguments,
            effect=act,
            context=context,
            agent=self.agent,
            turn=self.talk.turn + 1,
            pack=packed,
            unpack=_unpack,
        )
        try:
            recorded, replayed = self.scope.drive(flow)
        except StepFailed as error:  # its outcome stays unknown, and the model is told so
            return Response(messages=[_message(call, f"Error: {error}")])
        if not replayed:
            return done[-1]
        if policy.kind == "retry" and recorded["agent"] and not recorded["found"]:
            return effect()  # its agent was made by the function, and the function may be called again
        agent = recorded["agent"]
        return Response(
            messages=[_message(call, recorded["content"])],
            agent=None if agent is None else self._agent(agent, function, recorded["found"]),
            context_variables=dict(recorded["context"]),
        )

    def _pack(self, codec: Codec, response: Any, function: Function, changed: Any) -> dict[str, Any]:
        agent, name = response.agent, function.__name__
        found = agent is not None and self.agents.find(agent.name, function) is agent
        if agent is not None and not found:
            log.warning(
                "%s handed over to agent %r, which another process cannot find by that name; pass agents=[…]",
                name,
                agent.name,
            )
        context = {}
        for variable, value in response.context_variables.items():
            try:
                codec.encode(value)
            except Unencodable as error:
                log.warning("context variable %r of %s cannot be stored and is not kept: %s", variable, name, error)
            else:
                context[variable] = value
        return {
            SWARM_RESULT_MARK: 1,
            "content": response.messages[0]["content"],
            "agent": None if agent is None else agent.name,
            "found": found,
            "context": context,
            "changed": changed,
        }

    def _agent(self, name: str, function: Function, findable: bool) -> Agent:
        agent = self.agents.find(name, function) if findable else None
        if agent is None:
            raise InvalidInput(
                f"agents: {function.__name__} handed over to agent {name!r}, and no function of the agents refers to "
                "one of that name; pass agents=[…], or mark the function idempotent."
            )
        return agent


_RESULT = frozenset({"value", "agent", "context_variables"})


def _unpack(recorded: Any) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return a record and its changes; what a person or a probe said is a text, or has the fields of a Result."""
    if isinstance(recorded, dict) and recorded.get(SWARM_RESULT_MARK) == 1:
        return recorded, recorded["changed"]
    fields = recorded if isinstance(recorded, dict) and recorded.keys() <= _RESULT else {"value": recorded}
    said = {
        "content": str(fields.get("value", json.dumps({"assistant": fields.get("agent")}))),
        "agent": fields.get("agent"),
        "found": True,
        "context": fields.get("context_variables") or {},
    }
    return said, None


# Names of instructions that only fetch and return; any other, known or new, might do something.
_FETCHING = frozenset(
    {
        *("CACHE", "COPY_FREE_VARS", "EXTENDED_ARG", "NOP", "RESUME", "RETURN_CONST", "RETURN_VALUE"),
        *("LOAD_ATTR", "LOAD_CONST", "LOAD_DEREF", "LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_GLOBAL", "LOAD_SMALL_INT"),
    }
)


def _has_no_effect(function: Function) -> bool:
    """Whether a function calls nothing and sets nothing, as ``return other_agent``: it is always safe to repeat."""
    code = getattr(function, "__code__", None)
    return code is not None and _only_fetches(code)


@cache
def _only_fetches(code: CodeType) -> bool:
    return all(instruction.opname in _FETCHING for instruction in dis.get_instructions(code))


def _message(call: Any, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call.id, "tool_name": call.function.name, "content": content}


def _fits(function: Function, arguments: Any) -> bool:
    if not isinstance(arguments, dict):
        return False
    signature = inspect.signature(function)
    given = dict(arguments)
    if "context_variables" in signature.parameters:
        given["context_variables"] = {}
    try:
        signature.bind(**given)
    except TypeError:
        return False
    return True
