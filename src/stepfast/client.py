"""Stepfast and AsyncStepfast: the front door."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from stepfast import inputs as check
from stepfast.bindings import of_result
from stepfast.clock import Clock, new_id
from stepfast.codec import Codec
from stepfast.core import Core, Retention, check_behaviour
from stepfast.deciding import Frame, OnWait, current_actor, current_frame
from stepfast.errors import InvalidInput, Suspended
from stepfast.flow import Flow, do, drive
from stepfast.intents import TERMINAL, Status
from stepfast.opening import OnFailed, OpenedRun, RunOptions, rewind_run
from stepfast.ops import Claim, NewIntent
from stepfast.owner import in_use
from stepfast.run import Run
from stepfast.steps import OnDrift, Waiting
from stepfast.stores import AsyncStore, Store, open_store

if TYPE_CHECKING:  # loaded by whoever has a worker
    from stepfast.worker import Worker

T = TypeVar("T")
OnError = Literal["hand_back", "fail"]


class Client:
    """What both clients are made of."""

    def __init__(
        self,
        url: str | os.PathLike[str] | None = None,
        api_key: str | None = None,
        *,
        store: Store | None = None,
        codec: Codec | None = None,
        checks: Mapping[str, Any] | None = None,
        retention: Retention | None = None,
        lease_seconds: float = 30.0,
        code_version: str | None = None,
        clock: Clock | None = None,
        **store_options: Any,
    ) -> None:
        if store is not None and not isinstance(store, Store):
            raise InvalidInput(f"store: must be a Store, not {store!r}; a URL or path is the first argument.")
        opened = store or open_store(url, api_key=api_key, clock=clock, **store_options)
        try:
            self._core = Core(
                opened,
                codec=codec,
                tenant=opened.tenant,
                checks=checks,
                retention=retention,
                lease_seconds=lease_seconds,
                code_version=code_version,
            )
        except BaseException:
            if store is None:
                opened.close()
            raise
        self._astore = AsyncStore(opened)
        self._workers: list[Any] = []

    @property
    def url(self) -> str:
        """Where the store is; it holds no secret."""
        return self._core.store.url

    @property
    def store(self) -> Store:
        """The store behind this client, for what speaks in operations."""
        return self._core.store

    @property
    def codec(self) -> Codec:
        """How this client turns values into bytes and back."""
        return self._core.codec

    def _options(
        self, on_error: OnError, on_wait: OnWait, on_drift: OnDrift, on_failed: OnFailed, wait: float | None
    ) -> RunOptions:
        check_behaviour(on_error, on_wait, on_drift, on_failed, wait)
        return RunOptions(
            on_wait, on_drift, on_failed, wait, self._core.lease_seconds, code_version=self._core.code_version
        )

    def _rewinding(self, run_id: str, step: str, include_once: bool, reason: str, also: Any) -> Flow[int]:
        check.name("run_id", run_id)
        check.text("step", step, empty=False, optional=False)
        check.flag("include_once", include_once)
        check.text("reason", reason, optional=False)
        if also is not None and not (isinstance(also, Mapping) and all(map(callable, also.values()))):
            raise InvalidInput(f"also: must map kinds of steps to functions, not {also!r}.")
        options = RunOptions("suspend", on_failed="revive", lease_seconds=self._core.lease_seconds)
        return rewind_run(
            run_id,
            step,
            include_once=include_once,
            reason=reason,
            also=also or {},
            open_run=lambda intent_id: self._core.open(None, intent_id, options),
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"


def dress(run: Any, opened: OpenedRun, core: Core, on_error: OnError) -> Any:
    """Give a run what it shows, keep its lease alive, and make it the current one until it is left."""
    session = opened.session
    session.face = run
    run.restored, run.verdict, run.on_error = opened.restored, opened.verdict, on_error
    if session.replaying and session.intent.result is not None:
        run.result = session.codec.decode(session.intent.result, bind=of_result(session.tenant, session.journal_id))
    if session.lease is not None:
        core.heart.add(session)
    token = current_frame.set(Frame(session, "", current_actor()))
    if session.span is not None:
        session.span.enter()

    def closed(_run: Any) -> None:
        if session.span is not None:
            session.span.leave(session.intent.status)
        core.heart.discard(session)
        in_use.discard(session)
        try:
            current_frame.reset(token)
        except ValueError:  # left in another context than it was entered in
            current_frame.set(None)

    run._on_close = closed
    return run


class Stepfast(Client):
    """Durable runs for plain Python. With no arguments: an embedded store, nothing to set up.

    ``url`` or ``STEPFAST_URL``: ``sqlite:///file.db``, ``postgresql://…``, or a server's ``http(s)://…`` and its key.
    """

    def _drive(self, flow: Flow[T]) -> T:
        return drive(flow, self._core.store, self._core.tenant)

    def _enter(self, new: NewIntent | None, intent_id: str | None, options: RunOptions, on_error: OnError) -> Run:
        return self._wear(self._drive(self._core.open(new, intent_id, options)), on_error)

    def _wear(self, opened: OpenedRun, on_error: OnError = "hand_back") -> Run:
        dressed: Run = dress(Run(opened.session, self._core.store, self._core.checks), opened, self._core, on_error)
        return dressed

    def run(
        self,
        run_id: str,
        *,
        total_steps: int | None = None,
        labels: Mapping[str, str] | None = None,
        payload: Any = None,
        max_delivery_attempts: int | None = None,
        deadline_at: datetime | None = None,
        ttl_seconds: float | None = None,
        on_error: OnError = "hand_back",
        on_wait: OnWait = "block",
        on_drift: OnDrift = "raise",
        on_failed: OnFailed = "raise",
        wait: float | None = None,
    ) -> Run:
        """Open a run by name: a new one, or one that stopped, at its first unfinished step.

        A finished run opens too: its calls give what was recorded, and new work is refused.
        """
        new = self._core.new_run(
            run_id,
            total_steps=total_steps,
            labels=labels,
            payload=payload,
            max_delivery_attempts=max_delivery_attempts,
            deadline_at=deadline_at,
            ttl_seconds=ttl_seconds,
        )
        return self._enter(new, None, self._options(on_error, on_wait, on_drift, on_failed, wait), on_error)

    def claim(
        self,
        to_agent: str,
        *,
        on_error: OnError = "hand_back",
        on_wait: OnWait = "suspend",
        on_drift: OnDrift = "raise",
    ) -> Run | None:
        """Take the next intent sent to an address, as a run; None if there is none just now.

        Raises `Suspended` where the run must wait for a person before it can go on; it then waits, and is not lost.
        """
        options = self._options(on_error, on_wait, on_drift, "raise", None)
        op = Claim(
            to_agent=check.name("to_agent", to_agent),
            token=new_id(),
            owner=self._core.owner,
            lease_seconds=self._core.lease_seconds,
        )
        taken = self._drive(do(op))
        if not taken:
            return None
        return self._wear(self._drive(self._core.adopt(taken[0], options)), on_error)

    def worker(
        self,
        address: str,
        *,
        concurrency: int = 1,
        retry_seconds: float = 1.0,
        retry_max_seconds: float = 300.0,
        drain_seconds: float = 30.0,
        on_drift: OnDrift = "raise",
    ) -> Callable[[Callable[[Run, Any], Any]], Worker]:
        """Make a function the handler of an address: it gets a run and the payload, and what it returns is the result.

        At most ``concurrency`` intents at a time. One whose handler raises is tried again after ``retry_seconds``,
        twice that, and so on, up to ``retry_max_seconds``; `GiveUp` fails it at once. When the worker is stopped,
        handlers have ``drain_seconds`` to end.
        """
        from stepfast.worker import Worker, check_worker

        check_worker(address, concurrency, retry_seconds, retry_max_seconds, drain_seconds, on_drift)

        def make(function: Callable[[Run, Any], Any]) -> Worker:
            made = Worker(
                self._core,
                self._wear,
                address,
                function,
                concurrency=concurrency,
                retry_seconds=retry_seconds,
                retry_max_seconds=retry_max_seconds,
                drain_seconds=drain_seconds,
                on_drift=on_drift,
            )
            self._workers.append(made)
            return made

        return make

    def run_workers(self) -> None:
        """Run all workers of this client until SIGTERM or SIGINT; a second one hands their work back at once."""
        from stepfast.worker import run_together

        run_together(self._workers)

    def send_intent(self, intent: Mapping[str, Any], *, idempotency_key: str | None = None) -> str:
        """Send work to an address; gives the intent's id. The same key and body give the same intent."""
        return self._drive(self._core.send(intent, idempotency_key))

    def get_intent(self, intent_id: str) -> dict[str, Any]:
        """An intent by its id, or by the run id a person gave it."""
        return self._drive(self._core.get(intent_id))

    def list_intents(
        self,
        *,
        status: str | Status | Iterable[str | Status] | None = None,
        to_agent: str | None = None,
        intent_type: str | None = None,
        labels: Mapping[str, str] | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> list[dict[str, Any]]:
        """Newest first; ``before`` is the last id of the page before."""
        return self._drive(self._core.list_page(status, to_agent, intent_type, labels, before, limit))

    def wait_for(self, intent_id: str, *, timeout: float | None = None) -> dict[str, Any]:
        """Wait for the one ending; TimeoutError if it does not come in time."""
        return self._drive(self._core.wait_for(intent_id, timeout))

    def observe(self, intent_id: str, *, since: int = 0) -> Iterator[dict[str, Any]]:
        """Each event of an intent, in order, as it comes, up to its ending."""
        while True:
            events = self._drive(self._core.next_events(intent_id, since))
            if not events:
                return
            for event in events:
                yield event.as_dict()
                since = event.seq
            if events[-1].status in TERMINAL:
                return

    def events(self, intent_id: str, *, since: int = 0) -> list[dict[str, Any]]:
        """The history so far."""
        return self._drive(self._core.events(intent_id, since))

    def resolve_intent(
        self,
        intent_id: str,
        status: str | Status,
        *,
        result: Any = None,
        reason: str | None = None,
        actor: str = "",
    ) -> dict[str, Any]:
        """End an intent from outside, as COMPLETED, FAILED or CANCELED."""
        return self._drive(self._core.finish(intent_id, status, result=result, reason=reason, actor=actor))

    def cancel(self, intent_id: str, *, reason: str | None = None, actor: str = "") -> dict[str, Any]:
        """End an intent as CANCELED; its worker is fenced off at its next write."""
        return self.resolve_intent(intent_id, Status.CANCELED, reason=reason, actor=actor)

    def revive(self, intent_id: str, *, actor: str = "") -> dict[str, Any]:
        """Let failed work go on as a new intent that keeps the journal; the old ending stays as it is."""
        return self._drive(self._core.revive(intent_id, actor))

    def set_max_delivery_attempts(self, intent_type: str, count: int) -> None:
        """Set how many deliveries of an intent of a type may be lost in a row without a newly finished step."""
        self._drive(self._core.set_attempts(intent_type, count))

    def decisions(self, intent_id: str | None = None, *, pending: bool = True) -> list[dict[str, Any]]:
        """What runs wait for: approvals, and one-shot steps in doubt with their evidence."""
        return self._drive(self._core.decisions(intent_id, pending))

    def waiting(self, suspended: Suspended) -> Waiting:
        """The questions that held a run up, as ``on_wait="return"`` returns them.

        One that was answered since is listed with its answer.
        """
        return self._drive(self._core.waiting(suspended))

    def answer(
        self,
        intent_id: str,
        outcome: str,
        key: str | None = None,
        *,
        value: Any = None,
        comment: str | None = None,
        actor: str = "",
    ) -> dict[str, Any]:
        """Answer what a run waits for. For a one-shot in doubt: *done* (``value`` is its result), *retry*, *fail*."""
        return self._drive(self._core.answer(intent_id, outcome, key, value, comment, actor))

    def describe(self, intent_id: str) -> dict[str, Any]:
        """Where a run is, seen from outside: step n of total, open resources, open decisions."""
        return self._drive(self._core.describe(intent_id))

    def steps(self, intent_id: str) -> list[dict[str, Any]]:
        """The journal, voided records included."""
        return self._drive(self._core.steps(intent_id))

    def rewind(
        self,
        run_id: str,
        step: str,
        *,
        include_once: bool = False,
        reason: str = "rewound",
        also: Mapping[str, Callable[[dict[str, Any]], Any]] | None = None,
    ) -> int:
        """Set a recorded step and all after it aside, so that they are done again when the run goes on.

        For an answer that breaks the run each time it is replayed. ``step`` is a key as ``sf.steps(run_id)`` shows it,
        such as ``model:3``. One-shot steps that were confirmed stay, unless ``include_once``. ``also`` maps kinds of
        steps to functions that undo what such steps did elsewhere: each is called with the recorded values by key,
        before the steps go. A failed run is revived by this. Returns how many steps went.
        """
        return self._drive(self._rewinding(run_id, step, include_once, reason, also))

    def checkpoints(self, intent_id: str) -> list[dict[str, Any]]:
        """A run's checkpoints, newest first, with the names that pin them."""
        return self._drive(self._core.checkpoints(intent_id))

    def check(self) -> datetime:
        """Prove by a durable write that the store takes work; gives the store's time."""
        return self._drive(self._core.check())

    def prune(self, policy: Retention) -> int:
        """Delete the finished runs that a policy lets go, in small batches; gives how many went."""
        return self._drive(self._core.prune(policy))

    def close(self) -> None:
        """Stop workers, give back every connection and thread. Open runs are left as a crash would leave them."""
        for worker in self._workers:
            worker.stop()
        self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
