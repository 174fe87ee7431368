"""Writes that wait a moment for the checkpoint of their thread, to share its commit.

LangGraph saves what a task wrote in the background, just before the checkpoint that follows. Here such writes are
encoded at once and then wait: whoever commits on their thread next takes them all along, and when nobody comes within
the moment, the first of them commits for all. A call returns when what it brought is durable, and not before.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from stepfast.flow import Signal
from stepfast.threads import Writes


class Ticket:
    """One call's writes, and the signal that something was decided about them."""

    __slots__ = ("done", "home", "signal", "taken", "thread_id", "writes")

    def __init__(self, thread_id: str, home: str, writes: Writes) -> None:
        self.thread_id = thread_id
        self.home = home
        self.writes = writes
        self.signal = Signal()
        self.taken = False
        self.done = False


class Gather:
    """The waiting writes of all threads. Safe to share between threads; nothing here waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, list[Ticket]] = {}
        self._committing: dict[str, list[Signal]] = {}

    @contextmanager
    def committing(self, thread_id: str) -> Iterator[None]:
        """A checkpoint of this thread is on its way. The next one follows it, and takes what waits until then."""
        ended = Signal()
        with self._lock:
            self._committing.setdefault(thread_id, []).append(ended)
        try:
            yield
        finally:
            with self._lock:
                under_way = self._committing[thread_id]
                under_way.remove(ended)
                if not under_way:
                    del self._committing[thread_id]
            ended.give()

    def under_way(self, thread_id: str) -> Signal | None:
        """Given when a checkpoint of this thread that is on its way has arrived; None if there is none."""
        with self._lock:
            found = self._committing.get(thread_id)
            return found[-1] if found else None

    def is_worth_waiting(self, ticket: Ticket) -> bool:
        """Whether nobody took a ticket yet, and a checkpoint of its thread is on its way."""
        return not ticket.taken and not ticket.signal.given and ticket.thread_id in self._committing

    def add(self, ticket: Ticket) -> int:
        """Let it wait; gives how many wait on its thread."""
        with self._lock:
            waiting = self._waiting.setdefault(ticket.thread_id, [])
            waiting.append(ticket)
            return len(waiting)

    def take(self, thread_id: str) -> list[Ticket]:
        """All writes that wait on a thread, in the order they came; whoever takes them must settle or return them."""
        if thread_id not in self._waiting:  # the usual case of a read
            return []
        with self._lock:
            tickets = self._waiting.pop(thread_id, [])
            for ticket in tickets:
                ticket.taken = True
        return tickets

    def discard(self, ticket: Ticket) -> None:
        """Its caller is told that it failed, and nobody tries again."""
        with self._lock:
            waiting = self._waiting.get(ticket.thread_id, [])
            if ticket in waiting:
                waiting.remove(ticket)
                if not waiting:
                    del self._waiting[ticket.thread_id]

    def settle(self, tickets: Iterable[Ticket]) -> None:
        """They are durable."""
        for ticket in tickets:
            ticket.done = True
            ticket.signal.give()

    def give_back(self, tickets: list[Ticket]) -> None:
        """They could not be taken along: each caller is woken and sees to its own."""
        if not tickets:
            return
        woken = []
        with self._lock:
            for ticket in tickets:
                woken.append(ticket.signal)
                ticket.signal = Signal()
                ticket.taken = False
            thread_id = tickets[0].thread_id
            self._waiting[thread_id] = tickets + self._waiting.get(thread_id, [])
        for signal in woken:
            signal.give()
