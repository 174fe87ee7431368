"""Runs that take turns on a thread: ``on_conflict="wait"``.

A run takes its turn when it first reads its thread, and holds it until it ends. The saver sees that end through
LangChain's callbacks: a handler, which every run in this process gets from the moment that such a saver is made, is
told when a run starts and ends, whatever way it ends. In the store a turn is a record that its process renews: one that
is not renewed any more, because its process died or lost the store, is taken over.

What it costs: two commits for each run (to take the turn and to give it back), one every few seconds while it lasts,
and some microseconds for each step, as the handler is called for each. A run whose end cannot be seen (its config has a
callback manager made elsewhere) takes no turn: as without ``wait``, the check of the parent guards it.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import RunnableConfig
from langchain_core.tracers.context import register_configure_hook

from stepfast import Conflict, RunBusy, StepfastError
from stepfast.flow import Do, Flow, Signal, Wait
from stepfast.threads import DeleteRecord, GetRecord, Op, PutRecord, Record

if TYPE_CHECKING:
    from ._inner import Inner

KIND = "langgraph.turn"
LEASE_SECONDS = 15.0
_LOOK_FIRST, _LOOK_LAST = 0.02, 0.25

_run: ContextVar[UUID | None] = ContextVar("stepfast_langgraph_run", default=None)
_held: ContextVar[tuple[Turn, ...]] = ContextVar("stepfast_langgraph_turns", default=())


class Turn:
    """The right to run on a thread, until it is given back."""

    def __init__(self, turns: Turns, thread_id: str) -> None:
        self.turns = turns
        self.thread_id = thread_id
        self.token = uuid4().hex
        self.version = 0
        self.ended = Signal()  # whoever waits in this process
        self.lock = threading.Lock()  # over renewing and giving back

    @property
    def live(self) -> bool:
        return not self.ended.given


class _Watcher(BaseCallbackHandler):
    """Knows which runs of this process are under way, and gives back their turns when they end."""

    run_inline = True  # on an event loop, too: else what it notes down would be in another context

    def __init__(self) -> None:
        self.live: set[UUID] = set()
        self.turns: dict[UUID, list[Turn]] = {}

    @property
    def ignore_llm(self) -> bool:
        return True

    @property
    def ignore_agent(self) -> bool:
        return True

    @property
    def ignore_retriever(self) -> bool:
        return True

    @property
    def ignore_chat_model(self) -> bool:
        return True

    def on_chain_start(self, serialized: Any, inputs: Any, *, run_id: UUID, **_more: Any) -> None:
        self.live.add(run_id)
        _run.set(run_id)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **_more: Any) -> None:
        self._end(run_id)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **_more: Any) -> None:
        self._end(run_id)

    def _end(self, run_id: UUID) -> None:
        self.live.discard(run_id)
        for turn in self.turns.pop(run_id, ()):
            turn.turns.give_back(turn)


_watcher = _Watcher()
_hook: ContextVar[BaseCallbackHandler | None] = ContextVar("stepfast_langgraph_watcher", default=_watcher)
_hooked = threading.Lock()


def _watch_runs() -> None:
    if _hooked.acquire(blocking=False):  # once in a process, and for good
        register_configure_hook(_hook, inheritable=False)


class Turns:
    """The turns of one saver."""

    def __init__(self, wait_seconds: float) -> None:
        self._wait_seconds = wait_seconds
        self._inner: Inner | None = None
        self._lock = threading.Lock()
        self._mine: dict[str, Turn] = {}  # by thread: what a run of this process holds or is about to
        self._renewing: threading.Thread | None = None
        self._closing = threading.Event()
        _watch_runs()

    def attach(self, inner: Inner) -> None:
        self._inner = inner

    def take(self, config: RunnableConfig, thread_id: str) -> Flow[None]:
        """Wait until no other run is on the thread, if this is the first read of a run."""
        run_id = _run.get()
        if run_id is None or run_id not in _watcher.live or not _of_a_run(config):
            return
        held = tuple(turn for turn in _held.get() if turn.live)
        if any(turn.turns is self and turn.thread_id == thread_id for turn in held):
            return  # a subgraph, or a node that looks at the state of its own thread
        turn = Turn(self, thread_id)
        until = time.monotonic() + self._wait_seconds
        while True:
            with self._lock:
                other = self._mine.setdefault(thread_id, turn)
            if other is turn:
                break
            left = until - time.monotonic()
            if left <= 0:
                raise self._busy(thread_id)
            yield Wait(other.ended, left)
        try:
            yield from self._take_record(turn, until)
        except BaseException:
            self._leave(turn)
            raise
        _held.set((*held, turn))
        _watcher.turns.setdefault(run_id, []).append(turn)
        self._renew()

    def _take_record(self, turn: Turn, until: float) -> Flow[None]:
        seen: tuple[str, int] | None = None
        since = time.monotonic()
        pause = _LOOK_FIRST
        expected = 0
        while True:
            try:
                [record] = yield Do([self._record(turn, expected)])
            except Conflict:
                pass
            else:
                turn.version = record.version
                return
            [found] = yield Do([GetRecord(kind=KIND, record_id=turn.thread_id)])
            now = time.monotonic()
            if found is None:
                expected = 0
                continue
            if seen != (found.write_id, found.version):
                seen, since = (found.write_id, found.version), now
            if now - since > LEASE_SECONDS or _is_dead(found):
                expected = found.version
                continue
            expected = 0
            if now >= until:
                raise self._busy(turn.thread_id)
            yield Wait(Signal(), min(pause, until - now))
            pause = min(pause * 1.5, _LOOK_LAST)

    def _record(self, turn: Turn, expected: int) -> PutRecord:
        return PutRecord(
            kind=KIND,
            record_id=turn.thread_id,
            body=json.dumps({"pid": os.getpid(), "where": _where()}).encode(),
            write_id=f"{turn.token}:{expected}",
            expected=expected,
        )

    def _busy(self, thread_id: str) -> RunBusy:
        return RunBusy(
            f"thread {thread_id!r} is still in use by another run after {self._wait_seconds:g} seconds; this one did "
            "nothing. Try again later, or give StepfastSaver a longer wait_seconds.",
            thread_id=thread_id,
        )

    def give_back(self, turn: Turn) -> None:
        """The run has ended: the next may go on."""
        with turn.lock:  # not while it is being renewed
            ops: list[Op[Any]] = [
                # Only while it is ours: one that was taken over belongs to somebody else.
                PutRecord(
                    kind=KIND,
                    record_id=turn.thread_id,
                    body=b"{}",
                    write_id=f"{turn.token}:end",
                    expected=turn.version,
                ),
                DeleteRecord(kind=KIND, record_id=turn.thread_id),
            ]
            turn.version = -1
        assert self._inner is not None  # noqa: S101
        store, tenant = self._inner.opened.store, self._inner.tenant
        if _on_a_loop():
            store.submit(ops, lambda _outcome: self._leave(turn), tenant=tenant)
            return
        try:
            store.execute(ops, tenant=tenant)
        except StepfastError:  # it runs out by itself
            pass
        finally:
            self._leave(turn)

    def _leave(self, turn: Turn) -> None:
        with self._lock:
            if self._mine.get(turn.thread_id) is turn:
                del self._mine[turn.thread_id]
        turn.ended.give()

    def _renew(self) -> None:
        with self._lock:
            if self._renewing is None and not self._closing.is_set():
                self._renewing = threading.Thread(target=self._keep_renewing, name="stepfast-turns", daemon=True)
                self._renewing.start()

    def _keep_renewing(self) -> None:
        assert self._inner is not None  # noqa: S101
        store, tenant = self._inner.opened.store, self._inner.tenant
        while True:
            self._closing.wait(LEASE_SECONDS / 3)
            with self._lock:
                if self._closing.is_set() or not self._mine:
                    self._renewing = None
                    return
                turns = list(self._mine.values())
            for turn in turns:
                with turn.lock:
                    if turn.version <= 0:
                        continue
                    try:
                        [record] = store.execute([self._record(turn, turn.version)], tenant=tenant)
                    except StepfastError:  # lost, or the store is away: the check of the parent still guards the run
                        continue
                    turn.version = record.version

    def close(self) -> None:
        with self._lock:
            renewing = self._renewing
            self._closing.set()
        if renewing is not None:
            renewing.join()


def _of_a_run(config: RunnableConfig) -> bool:
    """Whether LangGraph reads this for a run that starts, and not for somebody who looks at the state."""
    return any(name.startswith("__pregel_") for name in config.get("configurable") or {})


def _on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _where() -> str:
    """Names the set of processes in which a pid means one; empty where that cannot be told."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _is_dead(record: Record) -> bool:
    """Whether the process that holds a turn is surely gone."""
    try:
        holder = json.loads(record.body)
        where, pid = holder["where"], holder["pid"]
    except (ValueError, KeyError, TypeError):
        return False
    if not where or where != _where():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError):
        return False
    return False
