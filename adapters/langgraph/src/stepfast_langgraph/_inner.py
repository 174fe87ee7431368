"""What all copies of a saver share: the place, what is remembered, what waits. LangGraph copies savers shallowly."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from stepfast import Conflict, OutcomeUnknown, StepfastError
from stepfast.adapters import OpenStore
from stepfast.flow import Do, Flow
from stepfast.threads import Op, PutThread, ReadThread, Writes

from ._gather import Gather, Ticket
from ._heads import decode_write, encode_write
from ._lines import Lines
from ._parents import Reads
from ._patience import Patience

if TYPE_CHECKING:
    from ._turns import Turns

RETRIES = 8  # of a commit whose lanes or home another process moved meanwhile


class Inner:
    """The state of a saver, and what drives its flows."""

    def __init__(
        self,
        opened: OpenStore,
        *,
        ttl_seconds: float | None,
        patience: Patience,
        allowed: Collection[str],
        turns: Turns | None,
    ) -> None:
        self.opened = opened
        self.tenant = opened.tenant
        self.codec = opened.codec
        self.lines = Lines(opened.codec, opened.tenant)
        self.gather = Gather()
        self.reads = Reads()
        self.turns = turns
        self.ttl_seconds = ttl_seconds
        self.patience = patience
        self.allowed = frozenset(allowed)
        self.run, self.arun = opened.drive, opened.adrive


def insist(ops: Sequence[Op[Any]]) -> Flow[list[Any]]:
    """Execute a batch, once more if it is not known what became of it: to repeat it changes nothing."""
    try:
        results: list[Any] = yield Do(ops)
    except OutcomeUnknown:
        results = yield Do(ops)
    return results


def find_home(inner: Inner, thread_id: str) -> Flow[str]:
    """The home of a thread, or the one it will have."""
    home = inner.lines.home(thread_id)
    if home is None:
        [view] = yield Do([ReadThread(thread_id=thread_id, values=False)])
        home = inner.lines.new_home(thread_id) if view is None else view.home
        inner.lines.line(thread_id, "", home)
    return home


def sealed(inner: Inner, tickets: Sequence[Ticket], home: str) -> list[Writes]:
    """The writes of these tickets for a thread of this home; those made for another are sealed anew."""
    return [
        ticket.writes if ticket.home == home else reseal(inner, ticket.writes, ticket.home, home) for ticket in tickets
    ]


def reseal(inner: Inner, writes: Writes, old: str, new: str) -> Writes:
    codec, task = inner.codec, writes.task_id
    was = inner.lines.place(old, writes.ns, writes.checkpoint_id)
    now = inner.lines.place(new, writes.ns, writes.checkpoint_id)
    again = []
    for write in writes.writes:
        value = decode_write(codec, was, task, write.idx, write.channel, write.value)
        data = encode_write(codec, now, task, write.idx, write.channel, value)
        again.append(type(write)(write.idx, write.channel, data))
    return Writes(
        ns=writes.ns, checkpoint_id=writes.checkpoint_id, task_id=task, task_path=writes.task_path, writes=again
    )


def commit(inner: Inner, thread_id: str, tickets: list[Ticket]) -> Flow[None]:
    """Make these writes durable on their own."""
    try:
        for attempt in range(RETRIES):
            home = yield from find_home(inner, thread_id)
            writes = sealed(inner, tickets, home)
            op = PutThread(thread_id=thread_id, home=home, writes=writes, ttl_seconds=inner.ttl_seconds)
            try:
                yield from insist([op])
            except Conflict as error:
                if error.details.get("stale") != "home" or attempt == RETRIES - 1:
                    raise
                inner.lines.forget(thread_id)
            else:
                break
    except BaseException:
        inner.gather.give_back(tickets)
        raise
    inner.gather.settle(tickets)


def after_pending(inner: Inner, thread_id: str, ops: Sequence[Op[Any]]) -> Flow[list[Any]]:
    """Do this in one batch with the writes that wait on the thread, so that it sees them."""
    tickets = inner.gather.take(thread_id)
    if tickets:
        home = tickets[0].home
        first = PutThread(
            thread_id=thread_id, home=home, writes=sealed(inner, tickets, home), ttl_seconds=inner.ttl_seconds
        )
        try:
            results: list[Any] = yield Do([first, *ops])
        except StepfastError:
            inner.gather.give_back(tickets)  # their callers try again, and are told what is wrong
        except BaseException:
            inner.gather.give_back(tickets)
            raise
        else:
            inner.gather.settle(tickets)
            return results[1:]
    answers: list[Any] = yield Do(ops)
    return answers
