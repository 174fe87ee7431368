"""AsyncStepfast: the same front door for an event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from stepfast import inputs as check
from stepfast.client import Client, OnError, dress
from stepfast.clock import new_id
from stepfast.core import Retention
from stepfast.deciding import OnWait
from stepfast.errors import Suspended
from stepfast.flow import Flow, do, drive_async
from stepfast.intents import TERMINAL, Status
from stepfast.opening import OnFailed, OpenedRun, RunOptions
from stepfast.ops import Claim, NewIntent
from stepfast.run import AsyncRun
from stepfast.steps import OnDrift, Waiting

if TYPE_CHECKING:  # loaded by whoever has a worker
    from stepfast.worker import AsyncWorker

T = TypeVar("T")


class _Opening:
    """``async with sf.run(...)`` and ``await sf.run(...)`` both work."""

    def __init__(self, client: AsyncStepfast, new: NewIntent, options: RunOptions, on_error: OnError) -> None:
        self._client = client
        self._new = new
        self._options = options
        self._on_error = on_error
        self._run: AsyncRun | None = None

    async def _open(self) -> AsyncRun:
        client = self._client
        opened = await client._drive(client._core.open(self._new, None, self._options))
        self._run = client._wear(opened, self._on_error)
        return self._run

    def __await__(self) -> Any:
        return self._open().__await__()

    async def __aenter__(self) -> AsyncRun:
        return await self._open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._run is not None:
            await self._run.__aexit__(kind, error, trace)


class AsyncStepfast(Client):
    """The same for an event loop; every method is awaited, and ``run`` is an async context manager."""

    async def _drive(self, flow: Flow[T]) -> T:
        return await drive_async(flow, self._astore, self._core.tenant)

    def _wear(self, opened: OpenedRun, on_error: OnError = "hand_back") -> AsyncRun:
        dressed: AsyncRun = dress(
            AsyncRun(opened.session, self._astore, self._core.checks), opened, self._core, on_error
        )
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
    ) -> _Opening:
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
        return _Opening(self, new, self._options(on_error, on_wait, on_drift, on_failed, wait), on_error)

    async def claim(
        self,
        to_agent: str,
        *,
        on_error: OnError = "hand_back",
        on_wait: OnWait = "suspend",
        on_drift: OnDrift = "raise",
    ) -> AsyncRun | None:
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
        taken = await self._drive(do(op))
        if not taken:
            return None
        return self._wear(await self._drive(self._core.adopt(taken[0], options)), on_error)

    def worker(
        self,
        address: str,
        *,
        concurrency: int = 1,
        retry_seconds: float = 1.0,
        retry_max_seconds: float = 300.0,
        drain_seconds: float = 30.0,
        on_drift: OnDrift = "raise",
    ) -> Callable[[Callable[[AsyncRun, Any], Any]], AsyncWorker]:
        """Make a function the handler of an address: it gets a run and the payload, and what it returns is the result.

        At most ``concurrency`` intents at a time. One whose handler raises is tried again after ``retry_seconds``,
        twice that, and so on, up to ``retry_max_seconds``; `GiveUp` fails it at once. When the worker is stopped,
        handlers have ``drain_seconds`` to end.
        """
        from stepfast.worker import AsyncWorker, check_worker

        check_worker(address, concurrency, retry_seconds, retry_max_seconds, drain_seconds, on_drift)

        def make(function: Callable[[AsyncRun, Any], Any]) -> AsyncWorker:
            made = AsyncWorker(
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

    async def run_workers(self) -> None:
        """Run all workers of this client until SIGTERM or SIGINT; a second one hands their work back at once."""
        from stepfast.worker import run_together_async

        await run_together_async(self._workers)

    async def send_intent(self, intent: Mapping[str, Any], *, idempotency_key: str | None = None) -> str:
        """Send work to an address; gives the intent's id. The same key and body give the same intent."""
        return await self._drive(self._core.send(intent, idempotency_key))

    async def get_intent(self, intent_id: str) -> dict[str, Any]:
        """An intent by its id, or by the run id a person gave it."""
        return await self._drive(self._core.get(intent_id))

    async def list_intents(
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
        return await self._drive(self._core.list_page(status, to_agent, intent_type, labels, before, limit))

    async def wait_for(self, intent_id: str, *, timeout: float | None = None) -> dict[str, Any]:  # noqa: ASYNC109
        """Wait for the one ending; TimeoutError if it does not come in time."""
        return await self._drive(self._core.wait_for(intent_id, timeout))

    async def observe(self, intent_id: str, *, since: int = 0) -> AsyncIterator[dict[str, Any]]:
        """Each event of an intent, in order, as it comes, up to its ending."""
        while True:
            events = await self._drive(self._core.next_events(intent_id, since))
            if not events:
                return
            for event in events:
                yield event.as_dict()
                since = event.seq
            if events[-1].status in TERMINAL:
                return

    async def events(self, intent_id: str, *, since: int = 0) -> list[dict[str, Any]]:
        """The history so far."""
        return await self._drive(self._core.events(intent_id, since))

    async def resolve_intent(
        self,
        intent_id: str,
        status: str | Status,
        *,
        result: Any = None,
        reason: str | None = None,
        actor: str = "",
    ) -> dict[str, Any]:
        """End an intent from outside, as COMPLETED, FAILED or CANCELED."""
        return await self._drive(self._core.finish(intent_id, status, result=result, reason=reason, actor=actor))

    async def cancel(self, intent_id: str, *, reason: str | None = None, actor: str = "") -> dict[str, Any]:
        """End an intent as CANCELED; its worker is fenced off at its next write."""
        return await self.resolve_intent(intent_id, Status.CANCELED, reason=reason, actor=actor)

    async def revive(self, intent_id: str, *, actor: str = "") -> dict[str, Any]:
        """Let failed work go on as a new intent that keeps the journal; the old ending stays as it is."""
        return await self._drive(self._core.revive(intent_id, actor))

    async def set_max_delivery_attempts(self, intent_type: str, count: int) -> None:
        """Set how many deliveries of an intent of a type may be lost in a row without a newly finished step."""
        await self._drive(self._core.set_attempts(intent_type, count))

    async def decisions(self, intent_id: str | None = None, *, pending: bool = True) -> list[dict[str, Any]]:
        """What runs wait for: approvals, and one-shot steps in doubt with their evidence."""
        return await self._drive(self._core.decisions(intent_id, pending))

    async def waiting(self, suspended: Suspended) -> Waiting:
        """The questions that held a run up, as ``on_wait="return"`` returns them.

        One that was answered since is listed with its answer.
        """
        return await self._drive(self._core.waiting(suspended))

    async def answer(
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
        return await self._drive(self._core.answer(intent_id, outcome, key, value, comment, actor))

    async def describe(self, intent_id: str) -> dict[str, Any]:
        """Where a run is, seen from outside: step n of total, open resources, open decisions."""
        return await self._drive(self._core.describe(intent_id))

    async def steps(self, intent_id: str) -> list[dict[str, Any]]:
        """The journal, voided records included."""
        return await self._drive(self._core.steps(intent_id))

    async def rewind(
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
        return await self._drive(self._rewinding(run_id, step, include_once, reason, also))

    async def checkpoints(self, intent_id: str) -> list[dict[str, Any]]:
        """A run's checkpoints, newest first, with the names that pin them."""
        return await self._drive(self._core.checkpoints(intent_id))

    async def check(self) -> datetime:
        """Prove by a durable write that the store takes work; gives the store's time."""
        return await self._drive(self._core.check())

    async def prune(self, policy: Retention) -> int:
        """Delete the finished runs that a policy lets go, in small batches; gives how many went."""
        return await self._drive(self._core.prune(policy))

    async def close(self) -> None:
        """Stop workers, give back every connection and thread. Open runs are left as a crash would leave them."""
        from asyncio import to_thread

        for worker in self._workers:
            await worker.stop()
        await to_thread(self._core.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
