"""One delivery of an intent: open its run, call the handler, and write what came of it, once and for all.

A flow, so that workers with threads and workers with tasks cannot disagree.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stepfast.bindings import of_error
from stepfast.core import Core
from stepfast.errors import AlreadyFinished, Fenced, GiveUp, StepfastError, StoreError, Suspended, Suspension
from stepfast.flow import Call, Do, Flow, Sleep
from stepfast.intents import Intent, Status
from stepfast.opening import OpenedRun, RunOptions
from stepfast.ops import FinishIntent, Lease, ReleaseIntent
from stepfast.session import Session
from stepfast.steps import Retry, describe_error

if TYPE_CHECKING:
    import asyncio

log = logging.getLogger("stepfast")

Wear = Callable[[OpenedRun], Any]
OUTAGE = Retry(delay=0.1, max_delay=5.0, jitter=0.25)


def lease_of(intent: Intent) -> Lease:
    return Lease(intent.intent_id, intent.attempt, intent.lease_token or "")


class Job:
    """One delivery. ``given_back``: the worker stopped and let go of it, so its handler's word no longer counts."""

    def __init__(self, intent: Intent) -> None:
        self.intent = intent
        self.claimed = lease_of(intent)
        self.session: Session | None = None
        self.given_back = False
        self.task: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return f"{self.intent.intent_id} (attempt {self.intent.attempt})"

    @property
    def lease(self) -> Lease | None:
        return self.claimed if self.session is None else self.session.lease

    @property
    def stopped(self) -> bool:
        """Whether somebody else has, or will have, the word on this intent."""
        return self.given_back or (self.session is not None and self.session.poison is not None)

    def poison(self) -> None:
        self.given_back = True
        if self.session is not None and self.session.poison is None:
            self.session.poison = Fenced(f"the worker was stopped and handed {self.name} back; stop working on it.")


class Handling:
    """What a worker does with a delivery."""

    def __init__(
        self,
        core: Core,
        wear: Wear,
        address: str,
        function: Callable[..., Any],
        retry: Retry,
        run_options: RunOptions,
    ) -> None:
        self.address = address
        self.function = function
        self._core = core
        self._wear = wear
        self._retry = retry
        self._run_options = run_options

    def _deliver(self, job: Job) -> Flow[None]:
        """From the claim to the ending, whatever the handler does."""
        run: Any = None
        try:
            opened = yield from self._core.adopt(job.intent, self._run_options)
            session = job.session = opened.session
            run = self._wear(opened)
            if job.given_back:
                job.poison()
            returned = yield Call(self.function, (run, run.payload), {})
            result = run.result if returned is None else returned
            yield from self._insist(job, lambda: session.end(Status.COMPLETED, result=result))
        except GeneratorExit:
            raise
        except BaseException as error:
            yield from self._settle(job, error)
        finally:
            if run is not None:
                run._on_close(run)

    def _settle(self, job: Job, error: BaseException) -> Flow[None]:
        """What an exception means for the intent. Where it is not ours any more, the store refuses, and that is it."""
        lease = job.lease
        if job.stopped or lease is None:
            self._note_stop(job, error)
            return
        reason, data = self._describe(job, error)
        pause = self._retry.pause_after(min(job.intent.lost + 1, 60))
        if isinstance(error, GiveUp):
            op: Any = FinishIntent(
                intent_id=lease.intent_id, status=Status.FAILED, lease=lease, error=data, reason=reason
            )
        elif isinstance(error, Suspended | Suspension):  # where this run is the one that waits, it has no lease
            op = ReleaseIntent(lease=lease, reason=reason, data=data, delay_seconds=self._retry.max_delay)
        elif isinstance(error, StoreError) or _is_cancelled_from_outside(error):
            op = ReleaseIntent(lease=lease, reason=reason, data=data, delay_seconds=pause)
        else:
            op = ReleaseIntent(lease=lease, reason=reason, data=data, delay_seconds=pause, lost=True)
        try:
            yield from self._insist(job, lambda: _let_go(job, op))
        except StepfastError as refused:
            self._note_stop(job, refused)
            return
        if job.session is not None:
            job.session.lease = None
        if isinstance(error, Suspended | Suspension | Fenced | AlreadyFinished):
            self._note_stop(job, error)
        else:
            log.warning("%s of %s failed: %s", job.name, self.address, reason, exc_info=error)

    def _note_stop(self, job: Job, why: BaseException) -> None:
        waits = isinstance(why, Suspended | Suspension)
        log.info("%s of %s %s: %s", job.name, self.address, "waits" if waits else "is no longer ours", why)

    def _describe(self, job: Job, error: BaseException) -> tuple[str, bytes]:
        """An error for the history: a line that everybody may read, and its traceback in the codec's hands."""
        codec, intent = self._core.codec, job.intent
        name = type(error).__name__
        bind = of_error(self._core.tenant, intent.journal_id)
        reason = name if codec.encrypts else f"{name}: {error}"[:2000]
        return reason, codec.encode(describe_error(error), bind=bind)

    def _insist(self, job: Job, write: Callable[[], Flow[Any]]) -> Flow[Any]:
        """Write an ending although the store is away: the work is done, and must not be done again for that."""
        failures = 0
        while True:
            try:
                return (yield from write())
            except StoreError as error:
                if job.stopped:
                    raise
                log.warning("the outcome of %s cannot be stored yet, trying again: %s", job.name, error)
            failures += 1
            yield Sleep(OUTAGE.pause_after(min(failures, 60)))


def _let_go(job: Job, op: Any) -> Flow[None]:
    """Write an ending that is not the handler's, with what its run has not told yet of where it is."""
    yield Do([*([] if job.session is None else job.session.last_words()), op])


def _is_cancelled_from_outside(error: BaseException) -> bool:
    """Whether somebody ended the handler's task, rather than the handler itself having failed so."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None or not isinstance(error, asyncio.CancelledError) or asyncio._get_running_loop() is None:
        return False
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
