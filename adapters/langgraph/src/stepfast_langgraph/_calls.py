"""Calls inside a node that are journaled: made once, and answered from the journal when the node is run again."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from langgraph.errors import GraphBubbleUp

from stepfast import (
    AsyncRun,
    Codec,
    Fenced,
    InvalidInput,
    Run,
    RunFailed,
    Scope,
    StoreError,
    Suspended,
    Suspension,
    current_run,
)
from stepfast.adapters import StoreLike
from stepfast.faces import awaited, blocking

from ._doubts import settle_in_graph
from ._journals import journals
from ._where import Task, current_task

_fingerprints = Codec()


@dataclass
class Call:
    """One call as its author wrote it."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    once: bool
    name: str
    key: str | None = None
    inputs: Any = None
    on_in_doubt: Any = "ask"
    store: StoreLike = None
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        while isinstance(self.function, functools.partial):
            self.args = (*self.function.args, *self.args)
            self.kwargs = {**self.function.keywords, **self.kwargs}
            self.function = self.function.func
        if not callable(self.function):
            raise InvalidInput(f"function: {self.function!r} cannot be called; pass the function and its arguments.")
        check_policy(self.on_in_doubt)

    @property
    def awaits(self) -> bool:
        function = self.function
        return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)

    @property
    def shown(self) -> Any:
        """What decides whether a recorded call is this one."""
        if self.inputs is not None:
            return self.inputs
        return [*self.args, self.kwargs] if self.kwargs else list(self.args)

    def made(self) -> Any:
        return self.function(*self.args, **self.kwargs)

    def passing(self) -> Any:
        """The same, with LangGraph's control flow made invisible to a step that records errors."""
        if self.awaits:
            return self._passing_awaited()
        try:
            return self.made()
        except GraphBubbleUp as error:
            raise _Passing(error) from None

    async def _passing_awaited(self) -> Any:
        try:
            return await self.made()
        except GraphBubbleUp as error:
            raise _Passing(error) from None


def check_policy(policy: Any) -> None:
    if not callable(policy) and policy not in ("ask", "retry", "fail"):
        raise InvalidInput(f"on_in_doubt: must be 'ask', 'retry', 'fail' or a probe, not {policy!r}.")


class _Passing(BaseException):
    """Carries LangGraph's control flow past a journal that records errors."""

    def __init__(self, error: GraphBubbleUp) -> None:
        self.error = error


class _Turn:
    """How often each call was made in one execution of a node, and by whom in order."""

    def __init__(self, execution: object) -> None:
        self.execution = execution
        self.counts: Counter[tuple[str, str]] = Counter()
        self.homes: dict[str, object] = {}


_turns: dict[int, tuple[Any, _Turn]] = {}
_turns_lock = threading.Lock()


def _turn_of(task: Task) -> _Turn:
    """The counts of the execution that the caller is part of; they begin anew when the node is retried."""
    with _turns_lock:
        number = id(task.writes)
        known = _turns.get(number)
        if known is not None and known[1].execution is task.execution:
            return known[1]
        turn = _Turn(task.execution)
        watch = weakref.ref(task.writes, lambda _: _turns.pop(number, None)) if known is None else known[0]
        _turns[number] = (watch, turn)
        return turn


def _actor() -> object:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return threading.current_thread()


def _key_of(call: Call, task: Task, path: str) -> str:
    """The call's name in its task: given, or by order in the node's own thread, or by input in another."""
    label = f"once:{call.name}" if call.once else call.name
    if call.key is not None:
        return call.key
    if task.writes is None or (call.once and task.execution is None):
        raise InvalidInput(
            f"key: {call.name} needs one here: this version of langgraph does not tell a retry of the node from a "
            "second call. Pass key=…, or use a newer langgraph."
        )
    turn = _turn_of(task)
    with _turns_lock:
        if turn.homes.setdefault(path, _actor()) is not _actor():
            label = f"{label}[{_fingerprints.fingerprint((call.shown,), {})[0][:8].hex()}]"
        turn.counts[(path, label)] += 1
        return f"{label}({turn.counts[(path, label)]})"


class Ground:
    """Where a call is kept: the run that is open around the graph, or else the task's own."""

    def __init__(self, call: Call, task: Task | None, run: Run | AsyncRun | None) -> None:
        self.call = call
        self.task = task
        self.journal = None if run is None else journals.owns(run)
        self.run = run
        self.key = call.key if task is None else _key_of(call, task, "" if run is None else run.path)

    def place_in(self, run: Run | AsyncRun) -> Any:
        """The part of the run that the call belongs to."""
        task = self.task
        if task is None or (self.journal is not None and self.journal.is_of(task)):
            return run
        name = task.task_id if task.durable else task.place
        return run.scope(f"{task.node}:{name}", shared=True)

    def is_refused_by(self, run: Run) -> bool:
        """Whether the run is complete without this call: the node had returned, and now does something else."""
        return run.replaying and self.place_in(run).recorded(self.key) is None

    def make(self, place: Any, run: Run | AsyncRun) -> Any:
        """Hand the call to the core, from whichever face of the run."""
        call = self.call
        options = {"key": self.key, "name": call.name, "inputs": call.shown, **call.options}
        if not call.once:
            return place.options(**options).step(call.passing if call.options.get("record_errors") else call.made)
        options["retry_on"] = (*options.get("retry_on", ()), GraphBubbleUp)
        options["on_in_doubt"] = self._policy(run)
        return place.options(**options).once(call.made)

    def _policy(self, run: Run | AsyncRun) -> Any:
        """Settled where the call is made, so that what is in doubt interrupts the graph and not its opening."""
        call, task, policy = self.call, self.task, self.call.on_in_doubt
        if policy in ("retry", "fail") or (task is None and policy == "ask"):
            return policy
        owned = self.journal is not None

        def ask() -> Any:
            if owned or task is None:
                return None  # the core asks
            return settle_in_graph(task, run.run_id, f"{task.task_id}/{self.key}", call.name, repr(call.shown)[:1000])

        if inspect.iscoroutinefunction(policy):

            async def probe_awaited() -> Any:
                told = await policy(*call.args, **call.kwargs)
                return ask() if told is None else told

            return probe_awaited

        def probe() -> Any:
            told = policy(*call.args, **call.kwargs) if callable(policy) else None
            return ask() if told is None else told

        return probe


def _stand(call: Call) -> Ground | None:
    """Take the call's place; None where nothing is journaled."""
    task, run = current_task(), current_run()
    if run is not None or (task is not None and task.durable):
        return Ground(call, task, run)
    if call.once:
        raise InvalidInput(
            f"{call.name} is a one-shot call; make it in a graph with a checkpointer and a thread_id, or in a run."
        )
    return None


def _unfit(error: BaseException) -> BaseException | None:
    """Whether the open run can take no more calls after this."""
    lost = isinstance(error, StoreError | Fenced | RunFailed | Suspended) or not isinstance(error, Exception)
    return error if lost and not isinstance(error, _Passing) else None


def perform(call: Call) -> Any:
    """Make the call, or answer it from the journal."""
    ground = _stand(call)
    if ground is None:
        return call.made()
    if ground.run is not None:
        return _in_thread(ground, ground.run)
    assert ground.task is not None  # noqa: S101 - or there would be a run
    client, number = journals.client(ground.task, call.store), 0
    while True:
        number += 1
        journal = ground.journal = journals.enter(ground.task, client, number)
        broken: BaseException | None = None
        try:
            run = journal.open(ground.task)
            if not ground.is_refused_by(run):
                return _in_thread(ground, run)
        except Suspension as waiting:
            broken = waiting
            if not journal.waits(waiting):
                raise
            raise journal.interrupt() from None
        except BaseException as error:
            broken = _unfit(error)
            raise
        finally:
            journals.leave(journal, broken)


def _in_thread(ground: Ground, run: Run | AsyncRun) -> Any:
    place: Scope = blocking(ground.place_in(run))
    try:
        return ground.make(place, run)
    except _Passing as passing:
        raise passing.error from None


def perform_awaited(call: Call) -> Coroutine[Any, Any, Any]:
    """The same for a coroutine function. The call takes its place now, not when it is awaited."""
    ground = _stand(call)
    if ground is None:
        made: Coroutine[Any, Any, Any] = call.made()
        return made
    return _on_loop(ground)


async def _on_loop(ground: Ground) -> Any:
    if ground.run is not None:
        return await _awaited(ground, ground.run)
    assert ground.task is not None  # noqa: S101 - or there would be a run
    client, number = await asyncio.to_thread(journals.client, ground.task, ground.call.store), 0
    while True:
        number += 1
        journal = ground.journal = journals.enter(ground.task, client, number)
        broken: BaseException | None = None
        try:
            run = journal.known(ground.task)
            if run is None:
                run = await asyncio.to_thread(journal.open, ground.task)
            if not ground.is_refused_by(run):
                return await _awaited(ground, run)
        except Suspension as waiting:
            broken = waiting
            if not journal.waits(waiting):
                raise
            raise (await asyncio.to_thread(journal.interrupt)) from None
        except BaseException as error:
            broken = _unfit(error)
            raise
        finally:
            journals.leave(journal, broken)


async def _awaited(ground: Ground, run: Run | AsyncRun) -> Any:
    try:
        return await ground.make(awaited(ground.place_in(run)), run)
    except _Passing as passing:
        raise passing.error from None
