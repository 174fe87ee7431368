"""Calls inside a node that are journaled: made once, and answered from the journal when the node is run again."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from langgraph.errors import GraphBubbleUp, GraphInterrupt

from stepfast import (
    DID_NOT_HAPPEN,
    AsyncRun,
    Codec,
    Fenced,
    InvalidInput,
    Run,
    RunFailed,
    StepFailed,
    StoreError,
    Suspended,
    Suspension,
    current_run,
)
from stepfast.adapters import Doubt, StoreLike, then
from stepfast.faces import awaited, blocking
from stepfast.flow import Call as Calling
from stepfast.flow import Flow, drive, drive_async
from stepfast.steps import OnInDoubt
from stepfast.stored_names import UNKNOWN_OUTCOME_TYPE

from ._carried import current_trip
from ._doubts import ask_in_graph, settle_in_graph
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
    on_in_doubt: OnInDoubt | None = None  # None: as the durable run says, else a person is asked
    store: StoreLike = None
    options: dict[str, Any] = field(default_factory=dict)
    ran: Callable[[Exception], bool] | None = None  # whether the code behind the call was entered before an error
    leaves_doubt: bool = False  # an error says nothing about the effect

    def __post_init__(self) -> None:
        while isinstance(self.function, functools.partial):
            self.args = (*self.function.args, *self.args)
            self.kwargs = {**self.function.keywords, **self.kwargs}
            self.function = self.function.func
        if not callable(self.function):
            raise InvalidInput(f"function: {self.function!r} cannot be called; pass the function and its arguments.")

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

    def guarded(self) -> Any:
        """The same, with errors that the journal must not see as results made invisible to it."""
        if self.awaits:
            return self._guarded_awaited()
        with self._passing():
            return self.made()

    async def _guarded_awaited(self) -> Any:
        with self._passing():
            return await self.made()

    @contextmanager
    def _passing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if isinstance(error, GraphBubbleUp) or (self.ran is not None and not self.ran(error)):
                raise (_NotDone if self.once else _Passing)(error) from None
            if self.leaves_doubt:
                raise Doubt from error
            raise


class _Passing(BaseException):
    """Carries LangGraph's control flow, or arguments that did not fit, past a step that retries or records errors."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class _NotDone(Exception):
    """The same for a one-shot step, which takes it as the word that nothing happened."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class Aside(NamedTuple):
    """A command: call a function that blocks; on an event loop, in a thread."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()

    def perform(self, *_store: Any) -> Any:
        return self.function(*self.args)

    async def aperform(self, *_store: Any) -> Any:
        return await asyncio.to_thread(self.function, *self.args)


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
            "second call. Make it with calls.options(key=…), or use a newer langgraph."
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

    def performing(self) -> Flow[Any]:
        """Make the call in the run around it, or in one of the task's own, which is opened for it."""
        call, task = self.call, self.task
        if self.run is not None:
            return (yield from self._in(self.run))
        assert task is not None  # noqa: S101 - or there would be a run
        client, number = (yield Aside(journals.client, (task, call.store))), 0
        while True:
            number += 1
            journal = self.journal = journals.enter(task, client, number)
            broken: BaseException | None = None
            try:
                run = journal.known(task) or (yield Aside(journal.open, (task,)))
                if not self._is_refused_by(run):
                    return (yield from self._in(run))
            except Suspension as waiting:
                broken = waiting
                if not journal.waits(waiting):
                    raise
                raise (yield Aside(journal.interrupt)) from None
            except BaseException as error:
                broken = _unfit(error)
                raise
            finally:
                journals.leave(journal, broken)

    def _in(self, run: Run | AsyncRun) -> Flow[Any]:
        """Hand the call to the core, by the face of the run that fits the function."""
        place: Any = (awaited if self.call.awaits else blocking)(self._place_in(run))
        call = self.call
        options = {"key": self.key, "name": call.name, "inputs": call.shown, **call.options}
        try:
            if not call.once and place.recorded(self.key) != "STARTED":
                return (yield Calling(place.options(**options).step, (call.guarded,)))
            if not call.once:  # an earlier attempt began it as a one-shot; now it may be repeated
                options = {name: options[name] for name in ("key", "name", "inputs", "on_drift") if name in options}
            options["retry_on"] = (*options.get("retry_on", ()), _NotDone)
            options["on_in_doubt"] = self._policy(run, place)
            return (yield Calling(place.options(**options).once, (call.guarded,)))
        except (_Passing, _NotDone) as passing:
            raise passing.error from None
        except Doubt as doubt:
            raise self._question(run, place) from doubt.__cause__

    def _place_in(self, run: Run | AsyncRun) -> Any:
        """The part of the run that the call belongs to."""
        task = self.task
        if task is None or (self.journal is not None and self.journal.is_of(task)):
            return run
        name = task.task_id if task.durable else task.place
        return run.scope(f"{task.node}:{name}", shared=True)

    def _is_refused_by(self, run: Run) -> bool:
        """Whether the run is complete without this call: the node had returned, and now does something else."""
        return run.replaying and self._place_in(run).recorded(self.key) is None

    # --- a call in doubt ---------------------------------------------------------------------------

    def _policy(self, run: Run | AsyncRun, place: Any) -> Any:
        """Settled where the call is made, so that what is in doubt interrupts the graph and not its opening."""
        call, task, trip = self.call, self.task, current_trip.get()
        policy = call.on_in_doubt or ("ask" if trip is None else trip.on_in_doubt) if call.once else "retry"
        if task is None and policy == "ask":
            return policy
        if policy in ("retry", "fail"):
            # A record of an earlier attempt, whose policy was another, is settled by the present one.
            in_doubt = place.recorded(self.key) == "STARTED"
            return functools.partial(_decided, policy, call.name) if in_doubt else policy
        # Of a run that is the task's own, the core asks.
        question = None if task is None or self.journal is not None else self._asked(run, place)

        def ask(told: Any) -> Any:
            if told is not None or question is None or task is None:
                return told
            return settle_in_graph(task, *question)

        return lambda: then(policy(*call.args, **call.kwargs) if callable(policy) else None, ask)

    def _question(self, run: Run | AsyncRun, place: Any) -> GraphInterrupt:
        """The interrupt that asks about a call which raised an error that leaves it in doubt."""
        assert self.task is not None  # noqa: S101 - only tools that a model calls can leave a doubt
        return ask_in_graph(*self._asked(run, place))

    def _asked(self, run: Run | AsyncRun, place: Any) -> tuple[str, str, str, str]:
        """The question about this call. A call that was repeated and is in doubt again is another question."""
        assert self.task is not None  # noqa: S101
        assert self.key is not None  # noqa: S101
        generation = place.generation(self.key)
        key = f"{self.task.task_id}/{self.key}" + (f"/{generation}" if generation else "")
        return run.run_id, key, self.call.name, repr(self.call.shown)[:1000]


def _decided(policy: str, name: str) -> Any:
    if policy == "retry":
        return DID_NOT_HAPPEN
    text = f"{name} was started and never confirmed"
    raise StepFailed(text, error={"type": UNKNOWN_OUTCOME_TYPE, "message": text})


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


_NO_STORE: Any = None  # the commands of these flows find their stores themselves


def perform(call: Call) -> Any:
    """Make the call, or answer it from the journal; a coroutine if its function is a coroutine function.

    The call takes its place now, not when it is awaited.
    """
    ground = _stand(call)
    if ground is None:
        return call.made()
    if call.awaits:
        coroutine: Coroutine[Any, Any, Any] = drive_async(ground.performing(), _NO_STORE, "")
        return coroutine
    return drive(ground.performing(), _NO_STORE, "")
