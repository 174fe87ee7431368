"""Where in a run a call is made: its scope, its key, and what it is to do. Nothing here waits."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from stepfast import inputs as check
from stepfast.bindings import open_payload
from stepfast.codec import Codec
from stepfast.deciding import current_actor, current_frame
from stepfast.errors import InvalidInput, StepfastError, Suspended, Suspension
from stepfast.flow import Flow
from stepfast.intents import Intent, Status
from stepfast.journal import Step, StepStatus
from stepfast.ledger import StepCall
from stepfast.mapping import MapCall
from stepfast.ops import Op
from stepfast.order import PATCH
from stepfast.recovery import Check, Checks, File, Resource, Verdict, take_stock
from stepfast.session import Session
from stepfast.steps import Answer, OnDrift, StepOptions, bound_arguments, name_of, step_options


class Place:
    """Where in a run calls are made: the part that needs no waiting."""

    def __init__(self, session: Session, path: str) -> None:
        self._session = session
        self._path = path
        self._home = current_actor()

    @property
    def path(self) -> str:
        """This scope's place in the run; empty for the run itself."""
        return self._here()[0]

    def recorded(self, key: str) -> StepStatus | None:
        """How the step with this explicit key stands in the journal; None if there is no record of it."""
        session = self._session
        check.text("key", key, optional=False)
        step = session.journal.get(session.keys_of(self._here()[0]).explicit(key))
        return None if step is None else step.status

    def generation(self, key: str) -> int:
        """How many records of the step with this explicit key were voided: it tells a repeated call from the first."""
        session = self._session
        check.text("key", key, optional=False)
        full = session.keys_of(self._here()[0]).explicit(key)
        step = session.journal.get(full)
        return session.generations.get(full, 0) if step is None else step.generation

    def full_key(self, key: str) -> str:
        """The key under which the journal has the step with this explicit key."""
        return self._session.keys_of(self._here()[0]).explicit(check.text("key", key, optional=False))

    def reading(self, step: Step) -> Flow[Any]:
        """Return the flow that reads what a step of ``run.journal()`` has recorded as its result."""
        return self._session.result_of(step)

    def voiding(self, key: str, reason: str) -> Flow[None]:
        """Return the flow that sets one recorded step aside, by its explicit key, so that it is done again."""
        check.name("reason", reason)
        step = self._session.journal.get(self.full_key(key))
        if step is not None:
            yield from self._session.void([step], reason)

    def settling(self, key: str) -> Flow[int]:
        """Return ``run.settle`` as a flow, for the one-shot step with this explicit key."""
        return self._session.settle_doubts(self.full_key(key))

    def _here(self) -> tuple[str, bool]:
        """The scope that a call belongs to, and whether calls come in order there.

        Inside a step (or an item of a map) it is that step's own scope, so that the calls it makes
        keep their keys whether or not it is answered from the journal the next time.
        """
        actor = current_actor()
        frame = current_frame.get()
        if frame is not None and frame.scope and frame.session is self._session:
            inner = frame.scope
            if not self._path or inner.startswith(self._path + "/"):
                return inner, frame.actor == actor
        return self._path, self._home == actor

    def _plan(
        self,
        kind: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: StepOptions,
    ) -> StepCall:
        session = self._session
        if not callable(function):
            raise InvalidInput(f"function: {function!r} cannot be called; pass the function and its arguments apart.")
        called = options.name or name_of(function)
        if options.inputs is None:
            fingerprint, preview = session.codec.fingerprint(bound_arguments(function, args), kwargs)
        else:
            fingerprint, preview = session.codec.fingerprint((options.inputs,), {})
        scope, in_order = self._here()
        if options.by is not None:
            in_order = options.by == "order"
        label = "once" if kind.startswith("once") else kind
        place, position = session.take_place(
            scope, label, called, options.key, fingerprint, in_order, options.renamed_from
        )
        call = StepCall(
            place,
            position,
            kind,
            called,
            scope,
            function,
            args,
            kwargs,
            fingerprint,
            preview,
            options.on_drift or session.on_drift,
            options.retry,
            options.record_errors,
            options.on_in_doubt,
            options.retry_on,
        )
        if session.earlier is not None and in_order and options.key is None:
            session.check_order(call)
        return call

    def _plan_step(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: StepOptions
    ) -> StepCall:
        return self._plan(options.kind, function, args, kwargs, options)

    def _plan_once(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: StepOptions
    ) -> StepCall:
        policy = options.on_in_doubt
        kind = "once-probe" if callable(policy) else _ONCE_KINDS[policy]
        return self._plan(kind, function, args, kwargs, options)

    def performing(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] = MappingProxyType({}),
        *,
        once: bool = False,
        **options: Any,
    ) -> Flow[Any]:
        """Return the call as a flow, for code that is written once for blocking and async callers.

        The call takes its place in the run now; ``drive`` makes it. Options are those of ``options()``.
        """
        chosen = step_options(**options)
        if check.flag("once", once):
            call = self._plan_once(function, args, dict(kwargs), chosen.for_once())
        else:
            call = self._plan_step(function, args, dict(kwargs), chosen.for_step())
        return self._session.perform(call, once)

    def posing(self, question: str, **options: Any) -> Flow[Answer | None]:
        """Return ``pose`` as a flow; the options are the same."""
        return self._put_question(as_question(question, **options), wait=False)

    def asking(self, question: str, **options: Any) -> Flow[Answer]:
        """Return ``ask`` as a flow; the options are the same."""
        return self._ask(as_question(question, **options))

    def _patched(self, name: str) -> Flow[bool]:
        session = self._session
        check.name("name", name)
        scope, _ = self._here()
        key = f"{PATCH}:{name}"
        if session.keys_of(scope).explicit(key) not in session.journal and session.has_more(scope):
            return False
        if session.replaying and self.recorded(key) is None:
            return False
        call = self._plan(PATCH, patched, (), {}, StepOptions(key=key, name=name, inputs=name, on_drift="accept"))
        yield from session.record_with(call, True, ())
        return True

    def _record(self, value: Any, key: str, name: str | None, kind: str, also: Sequence[Op[Any]]) -> Flow[Any]:
        options = step_options(key=check.text("key", key, optional=False), name=name, kind=kind)
        call = self._plan(kind, record, (), {}, options._replace(inputs=key, on_drift="accept"))
        return self._session.record_with(call, value, also)

    def _ask(self, asked: Question) -> Flow[Answer]:
        return self._put_question(asked, wait=True)  # type: ignore[return-value]  # an answer, because it waits

    def _put_question(self, asked: Question, wait: bool) -> Flow[Answer | None]:
        session = self._session
        question, key = asked.question, asked.key
        scope, in_order = self._here()
        place, _ = session.take_place(scope, "ask", "ask", key, session.codec.fingerprint((question,), {})[0], in_order)
        body = {"question": question, "evidence": asked.evidence}

        def flow() -> Flow[Answer | None]:
            if session.poison is not None:
                raise session.poison
            decision = yield from session.decide(
                key=f"ask:{place}",
                kind="ask",
                question=body,
                outcomes=list(asked.outcomes),
                comment_required=asked.comment_required,
                expires_in=asked.expires_in,
                default=asked.default,
                wait=wait,
            )
            return None if decision.outcome is None else session.as_answer(decision)

        return flow()

    def _checkpoint(
        self,
        state: Any,
        resources: Iterable[Resource],
        pending: Iterable[str],
        pin: str | None,
        keep: int,
        key: str | None,
        checks: Checks,
    ) -> Flow[int]:
        session = self._session
        check.text("key", key)
        check.name("pin", pin, optional=True)
        check.whole("keep", keep, least=1)
        resources, pending = list(resources), list(pending)
        for resource in resources:
            if not isinstance(resource, File | Check | str | os.PathLike):
                raise InvalidInput(f"resources: must be File or Check objects or paths, not {type(resource).__name__}.")
        for name in pending:
            check.text("pending", name, optional=False)
        if pin in ("current", "previous"):
            raise InvalidInput(f"pin: {pin!r} is kept by itself; choose another name, such as 'recovery'.")
        # A run that starts over meets its checkpoints again and takes them as read. One that goes on from
        # `restored` has other things to save: from its first new version on, every call writes one.
        while True:
            call = self._plan("checkpoint", checkpoint, (), {}, StepOptions(key=key, by="input", inputs=(state,)))
            if key is not None or not session.moved_on or call.key not in session.journal:
                break
        if call.key in session.journal:
            stock: list[dict[str, Any]] = []
        else:
            stock = take_stock(resources, checks)
        meta = {"resources": stock, "pending": list(pending), "total": session.intent.total_steps}
        return session.put_checkpoint(call, state, meta, pin, keep)

    def _rewind(self, reason: str, after: str | None, include_once: bool) -> Flow[int]:
        check.text("reason", reason, optional=False)
        check.text("after", after)
        check.flag("include_once", include_once)
        return self._session.rewind(self._path, reason, after=after, include_once=include_once)

    def _child(self, name: str, shared: bool) -> str:
        check.text("name", name, optional=False)
        check.flag("shared", shared)
        scope, in_order = self._here()
        if shared:
            return self._session.keys_of(scope).explicit(f"scope:{name}")
        return self._session.take_scope(scope, name, in_order)

    def _map_call(
        self,
        function: Callable[..., Any],
        key: str | None,
        name: str | None,
        concurrency: int,
        ordered: bool,
        return_exceptions: bool,
        total: int | None,
        progress: bool | None,
        on_drift: OnDrift | None,
    ) -> MapCall:
        check.whole("concurrency", concurrency, least=1)
        check.flag("ordered", ordered)
        check.flag("return_exceptions", return_exceptions)
        check.whole("total", total, optional=True)
        if progress is not None:
            check.flag("progress", progress)
        options = step_options(key=key, name=name, on_drift=on_drift)
        return MapCall(
            self._plan("map", function, (), {}, options), concurrency, ordered, return_exceptions, total, progress
        )


_ONCE_KINDS = {"ask": "once", "retry": "once-retry", "fail": "once-fail"}


class Question(NamedTuple):
    """What a person is asked; made by `as_question`, which checks it."""

    question: str
    key: str | None
    outcomes: Sequence[str]
    evidence: Any
    comment_required: bool
    expires_in: float | None
    default: str | None


def as_question(
    question: str,
    *,
    key: str | None = None,
    outcomes: Any = ("approved", "rejected"),
    evidence: Any = None,
    comment_required: bool = False,
    expires_in: float | None = None,
    default: str | None = None,
) -> Question:
    """Return a checked question; `InvalidInput` names the first thing that is wrong."""
    check.text("question", question, empty=False, optional=False)
    check.text("key", key)
    if not isinstance(outcomes, list | tuple) or not outcomes:
        raise InvalidInput(f"outcomes: must be a list of at least one word, not {outcomes!r}.")
    for outcome in outcomes:
        check.name("outcomes", outcome)
    check.flag("comment_required", comment_required)
    check.seconds("expires_in", expires_in, positive=True)
    if default is not None:
        check.choice("default", default, outcomes)
    return Question(question, key, outcomes, evidence, comment_required, expires_in, default)


def patched() -> None:
    """Stands for a patch marker in the journal."""


def record() -> None:
    """Stands for a value that was recorded as it is."""


def checkpoint() -> None:
    """Stands for the taking of a checkpoint in the journal."""


class RunFace(Place):
    """What a run shows of itself, blocking or not."""

    restored: Any = None
    verdict: Verdict | None = None
    result: Any = None
    on_error: Literal["hand_back", "fail"] = "hand_back"

    @property
    def intent(self) -> Intent:
        """The intent that this run carries out, as this process last saw it."""
        return self._session.intent

    @property
    def run_id(self) -> str:
        """The name a person gave it, or else the intent's id."""
        return self._session.intent.run_id or self._session.intent.intent_id

    @property
    def intent_id(self) -> str:
        """The id of the intent; a revived run has a new one."""
        return self._session.intent.intent_id

    @property
    def attempt(self) -> int:
        """The number of this delivery, which fences every write."""
        return self._session.intent.attempt

    @property
    def payload(self) -> Any:
        """What the intent was sent with."""
        session = self._session
        data = session.intent.payload
        return None if data is None else open_payload(session.codec, data, session.tenant, session.journal_id)

    @property
    def codec(self) -> Codec:
        """How this run turns values into bytes and back."""
        return self._session.codec

    @property
    def resumed(self) -> bool:
        """Whether an earlier attempt left something to go on from."""
        intent = self._session.intent
        return intent.attempt > 1 or intent.revived_from is not None

    @property
    def replaying(self) -> bool:
        """Whether the run is finished, so that calls only give what was recorded."""
        return self._session.replaying

    def complete(self, result: Any = None) -> None:
        """Set what the run gives; ``sf.wait_for`` and later opens see it."""
        self.result = result

    def steps(self) -> list[str]:
        """The keys recorded so far, in the order the run reached them."""
        return [step.key for step in self.journal()]

    def journal(self) -> list[Step]:
        """The steps recorded so far in all scopes, in the order the run reached them; see ``reading``."""
        return sorted(self._session.journal.values(), key=lambda step: step.position)

    def reporting(self, doing: str, *, step: int | None = None, every: float = 1.0) -> Flow[None]:
        """Return ``report`` as a flow; the options are the same."""
        return self._session.report(doing, step, every)

    def noting(self, event_type: str, notes: Sequence[Mapping[str, Any]]) -> Flow[None]:
        """Return the flow that adds events to the history for those who watch, each with its details, in one commit.

        ``event_type`` begins with ``intent.``. Nothing depends on them: a run that waits or is finished gets none.
        """
        return self._session.note_events(event_type, notes)

    def poison(self, error: BaseException) -> None:
        """Make every later call of this run raise ``error``: for callers that must not raise where they stand."""
        self._session.poison = error

    @property
    def waiting(self) -> bool:
        """Whether the run waits for a person and was opened for reading only (``on_wait="view"``)."""
        return self._session.waits is not None

    def _as_seen_outside(self, error: BaseException | None) -> Suspended | None:
        """Returns what callers of the run see in place of the signal that it waits, a task group's included."""
        leaves = [] if error is None else _leaves(error)
        signals = [leaf for leaf in leaves if isinstance(leaf, Suspension) and leaf.intent_id == self.intent_id]
        others = [leaf for leaf in leaves if leaf not in signals]
        if not signals or not all(isinstance(other, Exception) for other in others):
            return None
        seen = signals[0].as_error()
        seen.__cause__ = error if others else None
        return seen

    def _leave(self, error: BaseException | None) -> Flow[None]:
        session = self._session
        if session.waits is not None and error is None:
            raise session.waits  # it still waits, although nothing asked for more than was recorded
        if session.replaying or session.waits is not None:
            return
        if error is None:
            try:
                yield from session.end(Status.COMPLETED, result=self.result)
            except InvalidInput as refused:  # a result that cannot be stored: nothing was written
                yield from session.hand_back(refused)
                raise
        elif session.poison is not None:
            return
        elif self.on_error == "fail" and isinstance(error, Exception) and not isinstance(error, StepfastError):
            yield from session.end(Status.FAILED, error=error, reason=session.reason_of(error))
        else:
            yield from session.hand_back(error)


def _leaves(error: BaseException) -> list[BaseException]:
    """The exceptions that a group consists of, however deep; of any other error, itself."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for part in error.exceptions for leaf in _leaves(part)]
