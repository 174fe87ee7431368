"""Where a run is, told to whoever looks in from outside, and the proof that it is still ours."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from stepfast import inputs as check
from stepfast.clock import new_id
from stepfast.codec import Codec
from stepfast.errors import AlreadyFinished, Fenced, InvalidInput, NotFound, RunFailed, StoreError
from stepfast.flow import Do, Flow
from stepfast.intents import Intent
from stepfast.ops import AppendEvent, Lease, Op, RenewLease
from stepfast.vault import Vault

log = logging.getLogger("stepfast")

PROGRESS = "intent.progress"
# A run of an hour has then told where it is some hundreds of times, not thousands.
_SHARE_OF_AGE = 0.01


class Reporting(Vault):
    """A run that says where it is, seldom enough to cost nothing."""

    def __init__(self, intent: Intent, lease: Lease | None, codec: Codec, tenant: str, *, lease_seconds: float) -> None:
        super().__init__(intent, lease, codec, tenant)
        self.lease_seconds = lease_seconds
        self._since = self._confirmed_at = time.monotonic()  # the lease is as good as new
        self._told_at = float("-inf")
        self._told: dict[str, Any] | None = None
        self._untold: dict[str, Any] | None = None
        self._reporting = threading.Lock()

    def report(self, doing: str, step: int | None, every: float) -> Flow[None]:
        """Tell it if it is time to, else prove that the lease holds if that was long ago, else do nothing.

        With nothing to tell (``doing`` is empty) only the proof is left.
        """
        check.text("doing", doing, optional=False)
        check.whole("step", step, optional=True)
        check.seconds("every", every, optional=False)
        if self.waits is not None:
            return
        lease = self.hold()
        where = {"doing": doing} if step is None else {"step": step, "doing": doing}
        now = time.monotonic()
        with self._reporting:
            pause = max(every, (now - self._since) * _SHARE_OF_AGE)
            tell = bool(doing) and where != self._told and now - self._told_at >= pause
            prove = now - self._confirmed_at >= every
            if tell:
                self._told, self._told_at, self._untold = where, now, None
            else:
                self._untold = None if not doing or where == self._told else where
        if tell or prove:
            op: Op[Any] = RenewLease(lease=lease, lease_seconds=self.lease_seconds)
            yield from self._prove(_as_event(lease, where) if tell else op)
            # Only now: whoever reports meanwhile in another thread must not rely on a proof that is not there yet.
            self._confirmed_at = max(now, self._confirmed_at)

    def _prove(self, op: Op[Any]) -> Flow[None]:
        try:
            yield Do((op,))
        except (Fenced, NotFound) as error:
            self.poison = error
            raise
        except AlreadyFinished as error:
            self.poison = RunFailed(f"run {self.name} was ended from outside: {error}")
            raise self.poison from None
        except StoreError as error:  # the heart goes on trying, and no harm is done before the lease has run out
            log.warning("where run %s is could not be told: %s", self.name, error)

    def note_events(self, event_type: str, notes: Sequence[Mapping[str, Any]]) -> Flow[None]:
        """Add events to the history, in one commit; they change nothing, and one that cannot be written is let go."""
        if not check.name("event_type", event_type).startswith("intent."):
            raise InvalidInput(f"event_type: must start with 'intent.', not {event_type!r}.")
        if not all(isinstance(each, Mapping) for each in notes):
            raise InvalidInput(f"notes: must be a list of details, each a mapping, not {notes!r}.")
        if self.waits is not None or self.poison is not None or self.lease is None or not notes:
            return
        try:
            yield Do([_as_event(self.lease, dict(each), event_type) for each in notes])
        except (Fenced, NotFound, AlreadyFinished, StoreError) as error:  # what the run does next will meet it as well
            log.info("%d events of run %s could not be noted: %s", len(notes), self.name, error)

    def last_words(self) -> list[Op[Any]]:
        """What was not told yet, to go along with a commit that renews the lease or gives it up."""
        with self._reporting:
            where, self._untold = self._untold, None
            self._told = where or self._told
        return [] if where is None or self.lease is None else [_as_event(self.lease, where)]


def _as_event(lease: Lease, details: dict[str, Any], event_type: str = PROGRESS) -> AppendEvent:
    return AppendEvent(intent_id=lease.intent_id, lease=lease, note_id=new_id(), event_type=event_type, details=details)
