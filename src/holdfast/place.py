"""Where in a run a call is made: its scope, its key, and what it is to do. Nothing here waits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

from holdfast.deciding import current_actor, current_frame
from holdfast.errors import InvalidInput
from holdfast.flow import Flow
from holdfast.ledger import StepCall
from holdfast.mapping import MapCall
from holdfast.recovery import Checks, Resource, take_stock
from holdfast.session import Session
from holdfast.steps import Answer, OnDrift, OnInDoubt, Retry, as_retry, bound_arguments, name_of


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
        *,
        key: str | None,
        name: str | None,
        on_drift: OnDrift | None,
        by: Literal["order", "input"] | None = None,
        inputs: Any = None,
        retry: Retry | None = None,
        record_errors: tuple[type[Exception], ...] = (),
        on_in_doubt: OnInDoubt = "ask",
        retry_on: tuple[type[Exception], ...] = (),
    ) -> StepCall:
        session = self._session
        if not callable(function):
            raise InvalidInput(f"function: {function!r} cannot be called; pass the function and its arguments apart.")
        called = name or name_of(function)
        if inputs is None:
            fingerprint, preview = session.codec.fingerprint(bound_arguments(function, args), kwargs)
        else:
            fingerprint, preview = session.codec.fingerprint((inputs,), {})
        scope, in_order = self._here()
        if by is not None:
            in_order = by == "order"
        label = "once" if kind.startswith("once") else kind
        place, position = session.take_place(scope, label, called, key, fingerprint, in_order)
        return StepCall(
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
            on_drift or session.on_drift,
            retry,
            record_errors,
            on_in_doubt,
            retry_on,
        )

    def _plan_step(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        key: str | None,
        name: str | None,
        kind: str,
        by: Literal["order", "input"] | None,
        inputs: Any,
        retry: Retry | int | None,
        record_errors: bool | tuple[type[Exception], ...],
        on_drift: OnDrift | None,
    ) -> StepCall:
        if kind.startswith("once"):
            raise InvalidInput("kind: names that start with 'once' are for run.once().")
        recorded = (Exception,) if record_errors is True else record_errors or ()
        return self._plan(
            kind,
            function,
            args,
            kwargs,
            key=key,
            name=name,
            on_drift=on_drift,
            by=by,
            inputs=inputs,
            retry=None if retry is None else as_retry(retry),
            record_errors=recorded,
        )

    def _plan_once(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        key: str | None,
        name: str | None,
        by: Literal["order", "input"] | None,
        inputs: Any,
        on_in_doubt: OnInDoubt,
        retry_on: tuple[type[Exception], ...],
        on_drift: OnDrift | None,
    ) -> StepCall:
        if not callable(on_in_doubt) and on_in_doubt not in ("ask", "retry", "fail"):
            raise InvalidInput(f"on_in_doubt: must be 'ask', 'retry', 'fail' or a probe, not {on_in_doubt!r}.")
        kind = "once-probe" if callable(on_in_doubt) else {"ask": "once"}.get(on_in_doubt, f"once-{on_in_doubt}")
        return self._plan(
            kind,
            function,
            args,
            kwargs,
            key=key,
            name=name,
            on_drift=on_drift,
            by=by,
            inputs=inputs,
            on_in_doubt=on_in_doubt,
            retry_on=retry_on,
        )

    def _ask(
        self,
        question: str,
        key: str | None,
        outcomes: list[str] | tuple[str, ...],
        evidence: Any,
        comment_required: bool,
        expires_in: float | None,
        default: str | None,
    ) -> Flow[Answer]:
        session = self._session
        if not question:
            raise InvalidInput("question: must not be empty.")
        if expires_in is not None and expires_in <= 0:
            raise InvalidInput(f"expires_in: must be more than 0 seconds, not {expires_in}.")
        scope, in_order = self._here()
        place, _ = session.take_place(scope, "ask", "ask", key, session.codec.fingerprint((question,), {})[0], in_order)
        body = {"question": question, "evidence": evidence}

        def flow() -> Flow[Answer]:
            if session.poison is not None:
                raise session.poison
            decision = yield from session.decide(
                key=f"ask:{place}",
                kind="ask",
                question=body,
                outcomes=list(outcomes),
                comment_required=comment_required,
                expires_in=expires_in,
                default=default,
            )
            return session.as_answer(decision)

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
        if pin in ("current", "previous"):
            raise InvalidInput(f"pin: {pin!r} is kept by itself; choose another name, such as 'recovery'.")
        # A run that starts over meets its checkpoints again and takes them as read. One that goes on from
        # `restored` has other things to save: from its first new version on, every call writes one.
        while True:
            call = self._plan(
                "checkpoint", checkpoint, (), {}, key=key, name=None, on_drift=None, by="input", inputs=(state,)
            )
            if key is not None or not session.moved_on or call.key not in session.journal:
                break
        if call.key in session.journal:
            stock: list[dict[str, Any]] = []
        else:
            stock = take_stock(resources, checks)
        meta = {"resources": stock, "pending": list(pending), "total": session.intent.total_steps}
        return session.put_checkpoint(call, state, meta, pin, keep)

    def _child(self, name: str) -> tuple[str, str]:
        scope, in_order = self._here()
        return scope, self._session.take_scope(scope, name, in_order)

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
        if concurrency < 1:
            raise InvalidInput(f"concurrency: must be at least 1, not {concurrency}.")
        call = self._plan("map", function, (), {}, key=key, name=name, on_drift=on_drift)
        return MapCall(call, concurrency, ordered, return_exceptions, total, progress)


def checkpoint() -> None:
    """Stands for the taking of a checkpoint in the journal."""
