"""What a run remembers: its journal in memory, the keys it has handed out, and how it is set back or ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import Token
from typing import Any, NamedTuple

from stepfast._failpoints import declare, failpoint
from stepfast.bindings import of_error, of_result
from stepfast.clock import new_id
from stepfast.codec import Codec
from stepfast.deciding import Deciding, Frame, OnWait, current_actor, current_frame
from stepfast.errors import InvalidInput, RunFailed
from stepfast.flow import Do, Flow
from stepfast.intents import Intent, Status
from stepfast.journal import Keys, Step
from stepfast.ops import (
    AppendEvent,
    FinishIntent,
    Lease,
    ReadCheckpoints,
    ReadJournal,
    ReleaseIntent,
    VoidSteps,
)
from stepfast.order import RecordedOrder, made_of, position_of, recorded_order, turn_of
from stepfast.steps import OnDrift, OnInDoubt, Retry, describe_error
from stepfast.telemetry import RunSpan

declare("run.before_finish", "run.finished")


class StepCall(NamedTuple):
    """One call to be made or answered from the journal; its place in the run is already taken."""

    key: str
    position: int
    kind: str
    name: str
    scope: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    input_hash: bytes
    preview: bytes
    on_drift: OnDrift
    retry: Retry | None = None
    record_errors: tuple[type[Exception], ...] = ()
    on_in_doubt: OnInDoubt = "ask"
    retry_on: tuple[type[Exception], ...] = ()


class Ledger(Deciding):
    """The state of one open run, shared by all its threads, tasks and scopes."""

    def __init__(
        self,
        *,
        intent: Intent,
        lease: Lease | None,
        journal: Iterable[Step],
        codec: Codec,
        tenant: str,
        owner: str,
        lease_seconds: float,
        on_wait: OnWait = "block",
        on_drift: OnDrift = "raise",
    ) -> None:
        super().__init__(intent, lease, codec, tenant, owner=owner, lease_seconds=lease_seconds, on_wait=on_wait)
        self.on_drift = on_drift
        self.keys: dict[str, Keys] = {}
        self.taken: dict[str, int] = {}  # every key handed out in this process, and when
        self.returned: dict[tuple[str, str, str, bytes], list[str]] = {}  # keys whose call left no record
        self.begun: set[str] = set()  # one-shots that this process started
        self.last_version = 0
        self.span: RunSpan | None = None  # where somebody collects spans
        self.moved_on = False  # this process has taken a checkpoint that no earlier attempt took
        self.journal: dict[str, Step] = {}
        self.generations: dict[str, int] = {}
        self.made = 0  # calls, in all attempts
        self.earlier: RecordedOrder | None = None  # the calls of earlier attempts, if there were any
        self.code_version: str | None = None  # of the code that resumes
        self.changed_course = False  # a call that left no record was made again, so what follows it may differ
        for step in journal:
            self.remember(step)

    @property
    def replaying(self) -> bool:
        """The run is finished: calls are answered from the journal and nothing new is done."""
        return self.intent.status is Status.COMPLETED

    def remember(self, step: Step) -> None:
        key, generation = step.key, step.generation
        if generation >= self.generations.get(key, 0):
            self.generations[key] = generation + 1
        if (made := made_of(step.position)) > self.made:
            self.made = made
        if not step.voided:
            self.journal[key] = step

    # --- places ----------------------------------------------------------------------------------

    def keys_of(self, scope: str) -> Keys:
        keys = self.keys.get(scope)
        if keys is None:
            keys = self.keys[scope] = Keys(scope)
        return keys

    def refresh(self) -> Flow[None]:
        """Another process had the run meanwhile: take up what it wrote."""
        journal, newest = yield Do(
            [
                ReadJournal(journal_id=self.journal_id, voided=True),
                ReadCheckpoints(journal_id=self.journal_id, limit=1),
            ]
        )
        self.journal.clear()
        for step in journal:
            self.remember(step)
        self.earlier = recorded_order(self.journal.values())
        self.last_version = max((c.version for c in newest), default=self.last_version)

    def take_place(
        self,
        scope: str,
        kind: str,
        name: str,
        key: str | None,
        fingerprint: bytes,
        in_order: bool,
        renamed_from: str | None = None,
    ) -> tuple[str, int]:
        """The key and position of the next call. In order: by ordinal. Side by side: by input."""
        with self.lock:
            self.made = made = self.made + 1
            keys = self.keys_of(scope)
            turn = 0
            if key is not None:
                place = keys.explicit(key)
            elif self.returned and (returned := self.returned.get((scope, kind, name, fingerprint))):
                place = returned.pop(0)
                turn = turn_of(self.taken[place])  # still that at which the call was made first
            else:
                if in_order:
                    keys.turn = turn = keys.turn + 1
                place = "" if renamed_from is None else _derived(keys, kind, renamed_from, fingerprint, in_order)
                if place not in self.journal:
                    place = _derived(keys, kind, name, fingerprint, in_order)
            self.taken[place] = position = position_of(made, turn)
            return place, position

    def skipped(self, key: str, scope: str, turn: int) -> list[Step]:
        """The recorded steps of a scope that should have been called before this call, and were not."""
        assert self.earlier is not None  # noqa: S101 - or nothing could be skipped
        step = self.journal.get(key)
        recorded = 0 if step is None else turn_of(step.position)
        if step is None:
            found, later = self.earlier.left_out(scope, turn + 1, self.taken, self.journal)
            self.changed_course = self.changed_course or later
        elif recorded:
            found, _ = self.earlier.left_out(scope, recorded, self.taken, self.journal)
            keys = self.keys_of(scope)
            keys.turn = max(keys.turn, recorded)
            self.taken[key] = position_of(made_of(self.taken[key]), recorded)
        else:
            found = []
        return found

    def give_back(self, call: StepCall) -> None:
        """The next equal call gets this one's key, so that a caller's own retry is one step and not two."""
        with self.lock:
            if "#" in call.key.rpartition("/")[2] and self.taken.get(call.key) == call.position:
                kind = "once" if call.kind.startswith("once") else call.kind
                self.returned.setdefault((call.scope, kind, call.name, call.input_hash), []).append(call.key)

    def take_scope(self, scope: str, name: str, in_order: bool) -> str:
        """The path of the next child of a scope."""
        with self.lock:
            self.made += 1
            keys = self.keys_of(scope)
            keys.turn += in_order
            path = keys.ordinal("scope", name) if in_order else keys.explicit(f"scope:{name}")
            if not in_order and path in self.keys:
                raise InvalidInput(
                    f"scope: {name!r} is open already beside this one; scopes opened side by side need names of "
                    "their own."
                )
            self.keys_of(path)
            self.taken[path] = position_of(self.made, 0)
            return path

    def enter(self, scope: str) -> Token[Frame | None]:
        """Stand inside a step or an item, in this thread or task, until `leave`."""
        depth = self.depth() + 1
        with self.lock:
            self.in_flight += 1
        return current_frame.set(Frame(self, scope, current_actor(), depth))

    def leave(self, token: Token[Frame | None]) -> None:
        current_frame.reset(token)
        with self.lock:
            self.in_flight -= 1

    # --- setting back and ending -------------------------------------------------------------------

    def void(self, steps: list[Step], reason: str) -> Flow[None]:
        yield from self.ready()
        yield Do(
            [
                VoidSteps(
                    lease=self.hold(),
                    journal_id=self.journal_id,
                    steps=[(s.key, s.generation) for s in steps],
                    reason=reason,
                )
            ]
        )
        for step in steps:
            self.journal.pop(step.key, None)

    def rewind(self, scope: str, reason: str, *, after: str | None, include_once: bool) -> Flow[int]:
        """Set a scope's steps aside so that they run again; confirmed one-shot steps stay unless told."""
        limit = -1
        if after is not None:
            anchor = self.journal.get(after)
            if anchor is None:
                raise InvalidInput(f"after: there is no recorded step {after!r} in this run.")
            limit = anchor.position
        inside = [s for s in self.journal.values() if _is_inside(s.key, scope) and s.position > limit]
        voided = [s for s in inside if include_once or not s.kind.startswith("once")]
        if voided:
            yield from self.void(voided, reason)
        if after is None or after in self.taken:
            self._count_again(scope, -1 if after is None else self.taken[after])
        return len(voided)

    def _count_again(self, scope: str, upto: int) -> None:
        """Hand out anew the keys of a scope that were taken later than this."""
        with self.lock:
            late = [k for k, position in self.taken.items() if _is_inside(k, scope) and position > upto]
            for key in late:
                del self.taken[key]
                self.keys.pop(key, None)
            for returned in self.returned.values():
                returned[:] = [key for key in returned if key in self.taken]
            for path, keys in self.keys.items():
                if path == scope or _is_inside(path, scope):
                    kept = [k for k in self.taken if k.rpartition("/")[0] == path]
                    keys.restart(kept)
                    keys.turn = max((turn_of(self.taken[k]) for k in kept), default=0)
            if self.earlier is not None:
                self.earlier.start_over()

    def end(
        self,
        status: Status,
        *,
        result: Any = None,
        error: BaseException | None = None,
        reason: str | None = None,
    ) -> Flow[None]:
        yield from self.ready()
        lease = self.hold()
        failpoint("run.before_finish")
        place = (self.tenant, self.journal_id)
        packed = self.codec.encode(result, bind=of_result(*place)) if status is Status.COMPLETED else None
        wrong = None if error is None else self.codec.encode(describe_error(error), bind=of_error(*place))
        ending = FinishIntent(
            intent_id=lease.intent_id,
            status=status,
            lease=lease,
            result=packed,
            error=wrong,
            reason=reason,
        )
        self.intent = (yield Do([*self.last_words(), ending]))[-1]
        self.lease = None
        failpoint("run.finished")
        if self.intent.status is not status:
            why = f": {self.intent.reason}" if self.intent.reason else ""
            raise RunFailed(
                f"run {self.name} is {self.intent.status}, not {status}{why}. sf.revive({self.name!r}) lets it go on.",
                intent_id=self.intent.intent_id,
                status=str(self.intent.status),
            )

    def hand_back(self, error: BaseException) -> Flow[None]:
        """Give the lease up without an ending; whoever opens the run next goes on."""
        if self.lease is None or self.poison is not None:
            return
        data = self.codec.encode(describe_error(error), bind=of_error(self.tenant, self.journal_id))
        release = ReleaseIntent(lease=self.lease, reason=self.reason_of(error), data=data)
        self.intent = (yield Do([*self.last_words(), release]))[-1]
        self.lease = None

    def reason_of(self, error: BaseException) -> str:
        """An error in a line that everybody may read: without its text where values are encrypted."""
        name = type(error).__name__
        return name if self.codec.encrypts else f"{name}: {error}"[:2000]

    def note(self, event_type: str, details: dict[str, Any]) -> Flow[None]:
        yield Do(
            [
                AppendEvent(
                    intent_id=self.intent.intent_id,
                    lease=self.hold(),
                    note_id=new_id(),
                    event_type=event_type,
                    details=details,
                )
            ]
        )


def _derived(keys: Keys, kind: str, name: str, fingerprint: bytes, in_order: bool) -> str:
    return keys.ordinal(kind, name) if in_order else keys.by_input(kind, name, fingerprint)


def _is_inside(key: str, scope: str) -> bool:
    return not scope or key.startswith(scope + "/")
