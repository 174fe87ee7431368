"""Model calls, tool calls and questions as flows: ``scope.drive(flow)`` makes them, blocking or awaited."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar
from urllib.parse import unquote

import msgspec

from stepfast.adapters.attempts import Attempt, Doubt, Stopped
from stepfast.adapters.drift import Digests, OnDrift, Request, compare, items_of
from stepfast.adapters.identity import Occurrences
from stepfast.adapters.policies import Policy
from stepfast.adapters.usage import Usage
from stepfast.codec import Codec
from stepfast.errors import StepFailed, StepfastError, Suspension, Unencodable
from stepfast.flow import Flow
from stepfast.run import AsyncScope, Scope
from stepfast.steps import Answer
from stepfast.stored_names import TOOL_RESULT_MARK

__all__ = [
    "STOPPED",
    "Conversation",
    "ask_all",
    "check_leftover",
    "model_call",
    "pack_output",
    "probing",
    "then",
    "tool_call",
    "unpack_output",
]

log = logging.getLogger("stepfast")

T = TypeVar("T")
AnyScope = Scope | AsyncScope

STOPPED = "The run has stopped here and waits; this text is never sent to a model."
"""What a framework gets as the output of a tool at which the run stopped; no model sees it."""

_TRIES = 5


class Conversation:
    """The model calls that one actor makes in order: the state between them."""

    def __init__(self, describe: Callable[[Any], str] | None = None) -> None:
        self.turn = 0  # model calls that were answered
        self.replayed = False  # whether the last one was answered from the journal
        self.digests = Digests(describe)
        self.sent: list[str] = []  # the items of the last request
        self.recorded: list[str] = []  # the items of the last request, as recorded

    @property
    def key(self) -> str:
        """The key of the next call."""
        return f"model:{self.turn}"


def model_call(
    attempt: Attempt,
    scope: AnyScope,
    *,
    key: str,
    agent: str,
    request: Request,
    ask: Callable[[], Any],
    pack: Callable[[Any], dict[str, Any]],
    unpack: Callable[[dict[str, Any]], T],
    measure: Callable[[dict[str, Any]], Usage | None] | None = None,
    conversation: Conversation | None = None,
    on_drift: OnDrift | None = None,
    remedy: Callable[[dict[str, Any]], str] | None = None,
) -> Flow[tuple[T, bool]]:
    """Make a model call, or answer it from the journal; returns the answer, and whether it was replayed.

    ``ask`` calls the model (it may return an awaitable), ``pack`` returns the answer as plain data and ``unpack`` makes
    the framework's answer of that. ``measure`` returns the usage of packed data. With a ``conversation`` only what the
    request before did not have is recorded; without one, requests may come in any order. ``remedy``: see `compare`; it
    is called with the recorded request. A call that raises records nothing.
    """
    attempt.check()
    talk = conversation or Conversation()
    asked = request.pack(talk.sent)
    live = False

    def call() -> Any:
        nonlocal live
        live = attempt.live = True
        return then(ask(), keep)

    def keep(answer: Any) -> dict[str, Any]:
        packed = {"request": asked, **pack(answer)}
        usage = None if measure is None else measure(packed)
        if usage is not None:
            packed["usage"] = msgspec.to_builtins(attempt.meter.priced(request.sections["model"], usage))
        return packed

    if scope.recorded(key) is None:
        yield from attempt.reporting(agent, "model call", talk.turn + 1)
    with attempt.guarded():
        recorded: dict[str, Any] = yield from scope.performing(
            call, key=key, name=agent, kind="model", inputs=request.summary, on_drift="accept"
        )
        items = items_of(recorded["request"], talk.recorded)
        if not live:
            policy = on_drift or attempt.settings.on_drift
            advice = "" if remedy is None else remedy(recorded["request"])
            compare(policy, recorded["request"], items, request, key=key, agent=agent, remedy=advice)
    _count(attempt, scope, key, recorded, measure)
    talk.recorded, talk.sent = items, request.items
    talk.turn += 1
    talk.replayed = not live
    return unpack(recorded), not live


def check_leftover(
    attempt: Attempt, scope: AnyScope, *, key: str, agent: str, request: Request, occurrences: Occurrences
) -> Flow[None]:
    """Compare a new model call with recorded ones of its scope that were not asked for again, as ``on_drift`` says.

    For calls that are named by their content (`Occurrences`): a changed request is not found under its key, so it
    would be made as a new call while the recorded answer is left over. For scopes in which model calls come one after
    the other; called before `model_call`.
    """
    if attempt.settings.on_drift == "accept" or scope.recorded(key) is not None:
        return
    path = scope.path
    for step in attempt.run.journal():
        own = unquote(step.key.rpartition("/")[2], errors="surrogatepass")
        if step.kind != "model" or step.scope != path or occurrences.asked(own):
            continue
        with attempt.guarded():
            recorded = (yield from scope.reading(step))["request"]
            policy = attempt.settings.on_drift
            compare(policy, recorded, items_of(recorded, []), request, key=step.key, agent=agent)
        return


def _count(attempt: Attempt, scope: AnyScope, key: str, recorded: dict[str, Any], measure: Any) -> None:
    found = recorded.get("usage")
    if isinstance(found, dict):
        usage: Usage | None = msgspec.convert(found, Usage)
    else:  # recorded before usage was
        usage = None if measure is None else measure(recorded)
    if usage is not None:
        model = str(recorded["request"].get("model", ""))
        attempt.meter.add(scope.full_key(key), attempt.meter.priced(model, usage))


def tool_call(
    attempt: Attempt,
    scope: AnyScope,
    *,
    key: str,
    name: str,
    policy: Policy,
    inputs: Any,
    arguments: Mapping[str, Any],
    effect: Callable[[], Any],
    keep_errors: bool = False,
    context: Any = None,
    agent: str = "",
    turn: int | None = None,
    pack: Callable[[Codec, Any, dict[str, Any] | None], Any] | None = None,
    unpack: Callable[[Any], tuple[Any, dict[str, Any] | None]] | None = None,
) -> Flow[tuple[Any, bool]]:
    """Make a tool call, or answer it from the journal; returns the output, and whether it was replayed.

    ``effect`` makes the call (it may return an awaitable); a probe is called with ``arguments``. Changes to ``context``
    are kept with the output. ``keep_errors``: the framework shows the tool's exceptions to the model, so they are
    recorded; otherwise one ends the run, and the call is made again when that goes on. ``StepFailed`` is raised where
    the outcome stays unknown. Whatever else stops the run is kept in the attempt, and the output is `STOPPED`.
    A *composite* tool is not made with this: an adapter enters it, with ``scope.scope(key, shared=True)`` as its place.
    """
    keeper = attempt.keeper
    packs, unpacks = pack or pack_output, unpack or unpack_output
    made: list[bool] = []

    def call() -> Any:
        attempt.live = True
        made.append(True)
        before = None if keeper is None else keeper.take(context)

        def keep(output: Any) -> Any:
            try:
                changed = None if keeper is None else keeper.changes(before, context)
                return packs(attempt.run.codec, output, changed)
            except Exception as error:
                if policy.kind == "retry":
                    raise
                raise Doubt from error  # it has happened, and its output cannot be kept

        return then(effect(), keep) if policy.on_error == "show" else _doubting(effect, keep)

    try:
        attempt.check()
        if scope.recorded(key) is None:
            yield from attempt.reporting(agent, name, turn)
        recorded = yield from _performing(
            attempt, scope, call, key, name, policy, inputs, arguments, keep_errors, made.clear
        )
    except Stopped:
        if attempt.tools_may_raise:
            raise
        return STOPPED, False
    except StepFailed:
        raise
    except (StepfastError, Suspension) as error:
        attempt.stop(error)
        if attempt.tools_may_raise:
            raise Stopped from error
        return STOPPED, False
    output, changed = unpacks(recorded)
    if not made and keeper is not None:
        keeper.apply(changed, context)
    return output, not made


def _performing(
    attempt: Attempt,
    scope: AnyScope,
    call: Callable[[], Any],
    key: str,
    name: str,
    policy: Policy,
    inputs: Any,
    arguments: Mapping[str, Any],
    keep_errors: bool,
    forget: Callable[[], None],
) -> Flow[Any]:
    options: dict[str, Any] = {"key": key, "name": name, "inputs": inputs}
    if policy.kind == "retry":
        return (yield from scope.performing(call, kind="tool", record_errors=keep_errors, **options))
    options["on_in_doubt"] = probing(policy, arguments)
    options["retry_on"] = () if keep_errors else (Exception,)
    for left in reversed(range(_TRIES)):
        try:
            return (yield from scope.performing(call, once=True, **options))
        except Doubt as doubt:
            cause = doubt.__cause__ or doubt
            if not attempt.tools_may_raise:
                attempt.doubt(cause)
                raise Stopped from cause
            if not left:
                raise cause from None
            forget()
            # Only this call: others may be under way in other threads.
            yield from scope.settling(key)
    raise AssertionError("the last try returns or raises")


def _doubting(effect: Callable[[], Any], keep: Callable[[Any], Any]) -> Any:
    """Make the call, and leave it in doubt if it raises."""
    try:
        output = effect()
    except Exception as error:
        raise Doubt from error
    if not inspect.isawaitable(output):
        return keep(output)

    async def wait() -> Any:
        try:
            value = await output
        except Exception as error:
            raise Doubt from error
        return keep(value)

    return wait()


def then(value: Any, function: Callable[[Any], Any]) -> Any:
    """Return ``function(value)``; an awaitable of it if ``value`` is one."""
    if not inspect.isawaitable(value):
        return function(value)

    async def wait() -> Any:
        return function(await value)

    return wait()


def probing(policy: Policy, arguments: Mapping[str, Any]) -> Any:
    """Return a policy as ``on_in_doubt`` of a one-shot step; a probe is called with the tool's arguments."""
    if policy.kind != "probe":
        return policy.kind
    probe = policy.probe
    assert probe is not None  # noqa: S101
    return lambda: probe(**arguments)


def pack_output(codec: Codec, output: Any, changed: dict[str, Any] | None) -> dict[str, Any]:
    """Return a tool's output as it is recorded, with the changes to the context.

    An output that cannot be stored is kept as its text, which is what a model sees of it.
    """
    try:
        codec.encode(output)
    except Unencodable as error:
        kind = type(output).__name__
        log.warning("a tool returned a %s, which cannot be stored; its text is kept and used instead (%s)", kind, error)
        output = str(output)
    packed = {TOOL_RESULT_MARK: 1, "output": output}
    if changed is not None:
        packed["context"] = changed
    return packed


def unpack_output(recorded: Any) -> tuple[Any, dict[str, Any] | None]:
    """Return a recorded output and changes; or what a person or a probe said the output was, which is not wrapped."""
    if isinstance(recorded, dict) and recorded.get(TOOL_RESULT_MARK) == 1:
        return recorded["output"], recorded.get("context")
    return recorded, None


def ask_all(
    scope: AnyScope, questions: Iterable[Mapping[str, Any]], on_pending: Callable[[], None] | None = None
) -> Flow[list[Answer]]:
    """Ask several questions at once, and return all answers: all of them or none.

    Each is the keywords of ``run.ask``, with a ``key``. All are on record before the run waits for the first, and it
    goes on when the last is answered, so that every attempt takes the same way. ``on_pending`` is called before a wait.
    """
    asked = [dict(each) for each in questions]
    known: list[Answer | None] = []
    for each in asked:
        known += [(yield from scope.posing(**each))]
    if on_pending is not None and None in known:
        on_pending()
    answers: list[Answer] = []
    for each in asked:
        answers += [(yield from scope.asking(**each))]
    return answers
