"""One pass of Swarm's loop over a durable run: finished calls answer from the journal, others are recorded."""

from __future__ import annotations

import dis
import inspect
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from types import CodeType
from typing import Any, Literal, NamedTuple

from swarm import Agent, Response

from stepfast import Diverged, InvalidInput, Run, Scope, StepFailed, StepfastError, Unencodable

from ._context import ContextKeeper
from ._policies import RETRY, Policy, declared
from ._request import Known, differences, input_of
from ._swarm_agents import Agents
from ._swarm_model import ChatRequest, pack, tell_message, unpack, unpack_piece

log = logging.getLogger("stepfast")

_MARK = "stepfast_swarm"


class Doubt(BaseException):
    """Leaves a one-shot step open: what it did is not known."""


class Settings(NamedTuple):
    """How durable runs behave in this process; none of it is stored."""

    policy: Policy
    policies: Mapping[str, Policy]
    on_drift: Literal["raise", "warn", "accept"] = "raise"
    on_wait: Literal["suspend", "block"] = "suspend"
    replay_events: bool = True


class Here(NamedTuple):
    """Where a run inside a tool belongs."""

    run: Run
    scope: Scope


here: ContextVar[Here | None] = ContextVar("stepfast_swarm", default=None)


@contextmanager
def standing(place: Here) -> Iterator[None]:
    token = here.set(place)
    try:
        yield
    finally:
        here.reset(token)


class Drive:
    """Swarm works strictly in order: one model call, then its tool calls one by one."""

    def __init__(
        self, run: Run, scope: Scope, settings: Settings, complete: Callable[..., Any], agents: Agents
    ) -> None:
        self.run, self.scope, self.settings = run, scope, settings
        self.complete = complete
        self.agents = agents
        self.agent = ""
        self.turn = 0  # model calls that were answered
        self.replayed = False  # whether the last one was, from the journal
        self.known = Known(tell_message)
        self.sent: list[str] = []  # what the last request's messages were
        self.recorded: list[str] = []  # and what the journal says they were
        self.calls: Counter[str] = Counter()
        self.keeper = ContextKeeper(run.codec)

    # --- model calls -----------------------------------------------------------------------------

    def create(self, **params: Any) -> Any:
        """In place of the client's own: a completion, or the pieces of one."""
        request = ChatRequest(params, self.known)
        key = f"model:{self.turn}"
        asked = request.pack(self.sent)
        streamed = request.sections["stream"]
        self.replayed = self.scope.recorded(key) is not None
        if streamed and not self.replayed:
            return self._listen(key, request, asked, self.complete(**params))

        def ask() -> dict[str, Any]:
            return {"request": asked, "response": pack(self.complete(**params))}

        recorded = self._step(ask, key, request)
        self._accept(key, request, recorded)
        if not streamed:
            return unpack(recorded["response"])
        return (unpack_piece(piece) for piece in recorded["pieces"])

    def _listen(self, key: str, request: ChatRequest, asked: dict[str, Any], pieces: Iterable[Any]) -> Iterator[Any]:
        """Each piece as it comes; the last only once all of them are recorded."""
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
        recorded = self._step(lambda: {"request": asked, "pieces": packed}, key, request)
        self._accept(key, request, recorded)
        if held is not None:
            yield held

    def _step(self, function: Callable[[], dict[str, Any]], key: str, request: ChatRequest) -> dict[str, Any]:
        inputs = request.summary
        return self.scope.options(key=key, name=self.agent, kind="model", inputs=inputs, on_drift="accept").step(
            function
        )

    def _accept(self, key: str, request: ChatRequest, recorded: dict[str, Any]) -> None:
        """Compare what was recorded with what would be asked now, and go on to the next turn."""
        items = input_of(recorded["request"], self.recorded)
        if self.replayed:
            self._compare(key, request, recorded["request"], items)
        self.recorded, self.sent = items, request.items
        self.turn += 1

    def _compare(self, key: str, request: ChatRequest, recorded: dict[str, Any], items: list[str]) -> None:
        policy = self.settings.on_drift
        other_form = (
            recorded["stream"] != request.sections["stream"]
        )  # pieces cannot stand for the whole, nor it for them
        found = differences(recorded, items, request) if policy != "accept" or other_form else []
        if not found:
            return
        text = f"model call {key} of agent {self.agent} was recorded for another request:\n  " + "\n  ".join(found)
        if other_form:
            remedy = f"Pass stream={recorded['stream']} again."
        elif policy == "warn":
            log.warning("%s", text)
            return
        else:
            remedy = (
                "Put the agent back as it was, pass on_drift='warn' or 'accept' to go on with the recorded answer, "
                f"or rewind the run to {key}."
            )
        raise Diverged(f"{text}\n{remedy}", key=key, differences=found)

    # --- tool calls ------------------------------------------------------------------------------

    def tool(self, call: Any, function: Callable[..., Any], context: dict[str, Any], effect: Callable[[], Any]) -> Any:
        """One tool call as a step. ``effect`` is Swarm's own way to make it; gives a Response for this call alone."""
        name = call.function.name
        try:
            arguments = json.loads(call.function.arguments)
        except ValueError:
            return effect()  # raises as Swarm does: the tool's own code does not run
        policy = self.settings.policies.get(name) or declared(function) or self._default(function)
        key = self._key(call.id)
        if policy.kind == "composite":
            with standing(Here(self.run, self.scope.scope(key, shared=True))):
                return effect()
        done: list[Any] = []

        def act() -> dict[str, Any]:
            before = self.keeper.take(context)
            response = self._tried(effect, function, arguments) if policy.on_error == "ask" else effect()
            done.append(response)
            return self._packed(response, function, name, self.keeper.changes(before, context))

        try:
            recorded = self._perform(act, key, name, policy, arguments)
        except StepFailed as error:  # its outcome stays unknown, and the model is told so
            return Response(messages=[_message(call, f"Error: {error}")])
        if done:
            return done[-1]
        if policy.kind == "retry" and _marked(recorded) and recorded["agent"] and not recorded["found"]:
            return effect()  # its agent was made by the function, and the function may be called again
        return self._response(call, function, recorded, context)

    def _default(self, function: Callable[..., Any]) -> Policy:
        code = getattr(function, "__code__", None)
        return RETRY if code is not None and has_no_effect(code) else self.settings.policy

    def _key(self, call_id: str | None) -> str:
        """Some providers number the calls of each answer anew, so an id alone is not one call's."""
        name = f"tool:{call_id or 'call'}"
        self.calls[name] += 1
        number = self.calls[name]
        return name if number == 1 else f"{name}.{number}"

    def _perform(self, act: Callable[[], Any], key: str, name: str, policy: Policy, arguments: dict[str, Any]) -> Any:
        inputs = [name, arguments]
        if policy.kind == "retry":
            return self.scope.options(key=key, name=name, kind="tool", inputs=inputs).step(act)
        in_doubt: Any = policy.kind
        probe = policy.probe
        if probe is not None:
            in_doubt = lambda: probe(**arguments)  # noqa: E731
        while True:
            try:
                # An exception ends the run, as in Swarm; when it goes on, the call is made again.
                return self.scope.options(
                    key=key, name=name, inputs=inputs, on_in_doubt=in_doubt, retry_on=(Exception,)
                ).once(act)
            except Doubt:
                self.run.settle()

    def _tried(self, effect: Callable[[], Any], function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        try:
            return effect()
        except StepfastError:
            raise
        except Exception as error:
            if not _fits(function, arguments):
                raise  # the tool's own code has not run
            raise Doubt from error

    def _packed(self, response: Any, function: Callable[..., Any], name: str, changed: Any) -> dict[str, Any]:
        agent = response.agent
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
                self.run.codec.encode(value)
            except Unencodable as error:
                log.warning("context variable %r of %s cannot be stored and is not kept: %s", variable, name, error)
            else:
                context[variable] = value
        return {
            _MARK: 1,
            "content": response.messages[0]["content"],
            "agent": None if agent is None else agent.name,
            "found": found,
            "context": context,
            "changed": changed,
        }

    def _response(self, call: Any, function: Callable[..., Any], recorded: Any, context: dict[str, Any]) -> Any:
        """From the journal; or from what a person or a probe said, which is a text or has the fields of a Result."""
        if not _marked(recorded):
            fields = recorded if isinstance(recorded, dict) and recorded.keys() <= _RESULT else {"value": recorded}
            recorded = {
                "content": str(fields.get("value", json.dumps({"assistant": fields.get("agent")}))),
                "agent": fields.get("agent"),
                "context": fields.get("context_variables") or {},
                "changed": None,
            }
        self.keeper.apply(recorded["changed"], context)
        name = recorded["agent"]
        agent = None if name is None else self._agent(name, function, recorded.get("found", True))
        return Response(
            messages=[_message(call, recorded["content"])], agent=agent, context_variables=dict(recorded["context"])
        )

    def _agent(self, name: str, function: Callable[..., Any], findable: bool) -> Agent:
        agent = self.agents.find(name, function) if findable else None
        if agent is None:
            raise InvalidInput(
                f"agents: {function.__name__} handed over to agent {name!r}, and no function of the agents refers to "
                "one of that name; pass DurableSwarm(…, agents=[…]), or mark the function idempotent."
            )
        return agent


# Names of instructions that only fetch and give; any other, known or new, might do something.
_FETCHING = frozenset(
    {
        *("CACHE", "COPY_FREE_VARS", "EXTENDED_ARG", "NOP", "RESUME", "RETURN_CONST", "RETURN_VALUE"),
        *("LOAD_ATTR", "LOAD_CONST", "LOAD_DEREF", "LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_GLOBAL", "LOAD_SMALL_INT"),
    }
)


@cache
def has_no_effect(code: CodeType) -> bool:
    """Whether a function calls nothing and sets nothing, as ``return other_agent``: nobody need be asked about it."""
    return all(instruction.opname in _FETCHING for instruction in dis.get_instructions(code))


_RESULT = frozenset({"value", "agent", "context_variables"})


def _marked(recorded: Any) -> bool:
    return isinstance(recorded, dict) and recorded.get(_MARK) == 1


def _message(call: Any, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call.id, "tool_name": call.function.name, "content": content}


def _fits(function: Callable[..., Any], arguments: dict[str, Any]) -> bool:
    signature = inspect.signature(function)
    given = dict(arguments)
    if "context_variables" in signature.parameters:
        given["context_variables"] = {}
    try:
        signature.bind(**given)
    except TypeError:
        return False
    return True
