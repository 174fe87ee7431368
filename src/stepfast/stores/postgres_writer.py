"""The one writer of a store: groups of requests in as few commits as can be, and no outcome guessed.

A group is cut into waves of requests that do not touch each other. A wave goes in one transaction;
if the server refuses any of it, each request goes alone, so that it meets its own error and nobody
another's. If a commit is not confirmed, each of its requests is *run again*: every operation is
idempotent by its keys, so that is the look-up. It is run together with a durable write of our own,
and counts only once that is confirmed: then all that it saw is durable too.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Sequence
from typing import Any

from stepfast._failpoints import declare, failpoint
from stepfast.clock import Clock
from stepfast.errors import InvalidInput, OutcomeUnknown, StepfastError, StoreUnavailable
from stepfast.ops import Claim
from stepfast.stores.base import LOCAL_TENANT
from stepfast.stores.group import Request
from stepfast.stores.plans import plan_for
from stepfast.stores.postgres_bulk import is_step, steps_params, written_steps
from stepfast.stores.postgres_courses import (
    DECIDED_AT_ONCE,
    Common,
    Course,
    Steps,
    Volley,
    only_query,
    transact,
    waves,
)
from stepfast.stores.postgres_errors import PASSING, READ_ONLY, STALE, explain
from stepfast.stores.postgres_link import Batch, Link, Lost, Refused, Statement, Unconfirmed, pack_texts
from stepfast.stores.postgres_listener import EVERYBODY
from stepfast.stores.postgres_pool import Dialer

declare("postgres.before_send", "postgres.after_commit")

log = logging.getLogger("stepfast")

_TRIES = 6
_LONGEST_PAUSE = 1.0


class Writer:
    """Commits groups over one connection. Only the leader of a group enters, one at a time."""

    def __init__(
        self,
        dialer: Dialer,
        statements: dict[str, Statement],
        *,
        channel: str,
        clock: Clock,
        connect_timeout: float,
    ) -> None:
        self._dialer = dialer
        self._statements = statements
        self._shown = dialer.shown
        self._channel = channel
        self._clock = clock
        self._commit_timeout = dialer.timeout
        self._connect_timeout = connect_timeout
        self.link: Link | None = None
        # A commit of ours was not confirmed, and none has been since: what is seen may not be durable.
        self._doubt = False
        self._busy = threading.Lock()
        self._closed = False

    def close(self) -> None:
        """Wait for the commit under way, and make no more."""
        with self._busy:
            self._closed = True
            self._drop()

    def commit(self, group: list[Request]) -> list[str]:
        """Give every request its outcome; gives the topics to wake."""
        topics: list[str] = []
        with self._busy:
            if self._closed:
                raise StoreUnavailable(f"{self._shown} is closed.")
            for wave in [group] if all(map(is_step, group)) else waves(group):
                self._commit_wave(wave, topics)
        return topics

    def _drop(self) -> None:
        if self.link is not None:
            self.link.close()
            self.link = None

    def _commit_wave(self, wave: list[Request], topics: list[str]) -> None:
        failpoint("postgres.before_send")
        until = time.monotonic() + self._commit_timeout
        sent = False
        if not self._doubt:
            try:
                self._together(self._connected(until), wave, topics)
            except StoreUnavailable as error:
                _give(wave, error)
                return
            except StepfastError as error:
                if len(wave) == 1:
                    wave[0].outcome = error
                    return
            except Unconfirmed as error:
                log.warning("%s: a commit was not confirmed (%s); looking it up.", self._shown, error)
                sent = self._doubt = True
                until = time.monotonic() + self._commit_timeout
            except Refused as error:
                self._heed(error)
            except Exception as error:
                # Alone, each request meets its own error and nobody another's.
                log.debug("%s: a group could not go together: %r", self._shown, error)
            except BaseException:
                self._mistrust()
                raise
        for request in wave:
            if request.outcome is None:
                unreachable = self._settle(request, topics, until, sent=sent)
                if unreachable is not None:
                    _give(wave, unreachable)
        failpoint("postgres.after_commit")

    # --- together --------------------------------------------------------------------------------

    def _together(self, link: Link, wave: list[Request], topics: list[str]) -> None:
        """Everything in one transaction. A request left without an outcome was certainly not applied."""
        if len(wave) == 1 and len(wave[0].ops) == 1 and type(wave[0].ops[0]) in DECIDED_AT_ONCE:
            self._at_once(link, wave[0])
        elif all(map(is_step, wave)):
            self._record(link, wave)
        else:
            steps = [request for request in wave if is_step(request)]
            others = [request for request in wave if not is_step(request)]
            courses = [self._course(request) for request in others]
            if steps:
                courses.append(Steps(steps, self._clock.offset_us))
            self._transact(link, courses, self._opening(others))
            for request, course in zip(others, courses, strict=False):
                request.outcome = course.results
                topics += course.topics
            for request in steps:
                request.outcome = [None]

    def _course(self, request: Request) -> Course:
        at_once = all(type(op) in DECIDED_AT_ONCE for op in request.ops)
        return (Volley if at_once else Course)(request.ops, self._common(request))

    def _record(self, link: Link, wave: list[Request]) -> None:
        params = {**steps_params(wave), "clock_offset": self._clock.offset_us}
        rows = link.one(self._statements["record_steps_at_once"], params, commits=True)
        for request in written_steps(wave, rows if isinstance(rows, list) else []):
            request.outcome = [None]

    def _at_once(self, link: Link, request: Request) -> None:
        plan = plan_for(request.ops[0])
        asked = only_query(plan)
        params = {**asked.params, **self._common(request)}
        answer = link.one(self._statements[asked.name], params, commits=True)
        try:
            plan.send(answer)
        except StopIteration as stop:
            request.outcome = [stop.value]

    def _transact(self, link: Link, courses: Sequence[Course], opening: Batch, *, touch: bool = False) -> None:
        def closing() -> Batch:
            batch: Batch = []
            if touch:
                own = {"tenant": LOCAL_TENANT, "clock_offset": self._clock.offset_us}
                batch.append((self._statements["touch_health"], own))
            told = list(dict.fromkeys(topic for course in courses for topic in course.topics))
            if told:
                batch.append((self._statements["notify"], notify_params(self._channel, told)))
            return batch

        transact(link, self._statements, courses, opening=opening, closing=closing)

    def _opening(self, wave: Sequence[Request]) -> Batch:
        names = [f"{r.tenant}\n{op.to_agent}\n{op.token}" for r in wave for op in r.ops if isinstance(op, Claim)]
        return [(self._statements["one_at_a_time"], {"name": name}) for name in names]

    def _common(self, request: Request) -> Common:
        return {"tenant": request.tenant, "clock_offset": self._clock.offset_us}

    # --- alone -----------------------------------------------------------------------------------

    def _settle(self, request: Request, topics: list[str], until: float, *, sent: bool) -> StoreUnavailable | None:
        """Run one request by itself until it has an outcome. ``sent``: it may be applied already.

        Gives the error if the server cannot be reached, so that nobody else of its group tries in vain.
        """
        tries = 0
        if sent and time.monotonic() > until:
            request.outcome = self._unknown("there was no time left to find out")
            return None
        refusal: StepfastError | None = None
        while True:
            touch = sent or self._doubt
            try:
                link = self._connected(until, patient=sent)
                link.timeout = max(0.1, min(self._commit_timeout, until - time.monotonic()))
                try:
                    course = Course(request.ops, self._common(request))
                    self._transact(link, [course], self._opening([request]), touch=touch)
                finally:
                    link.timeout = self._commit_timeout
                request.outcome = course.results
                topics += course.topics
                self._doubt = False
                return None
            except StoreUnavailable as error:
                why, refusal = "the server cannot be reached", error
                if not sent:
                    request.outcome = error
                    return error
            except StepfastError as error:
                request.outcome = error
                return None
            except Refused as error:
                self._heed(error)
                why, refusal = str(error), explain(error, self._shown)
                passing = tries < _TRIES and error.state in PASSING
                if isinstance(refusal, InvalidInput) or not (passing or sent):
                    request.outcome = refusal
                    return None
            except Lost as error:
                why = str(error)
                refusal = StoreUnavailable(f"{self._shown}: {error}; nothing was written. Try again.")
            except Unconfirmed as error:
                sent = self._doubt = True
                why = str(error)
            except Exception as error:
                request.outcome = blame(error)
                return None
            except BaseException:
                self._mistrust()
                raise
            tries += 1
            pause = min(_LONGEST_PAUSE, 0.01 * 2**tries) * random.uniform(0.5, 1)  # noqa: S311 - no secret
            if time.monotonic() + pause > until:
                request.outcome = self._unknown(why) if sent else refusal
                return None
            time.sleep(pause)

    def _unknown(self, why: str) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"{self._shown}: the store did not confirm within {self._commit_timeout:g} s ({why}), and the operation "
            "may or may not have been applied. The same call, made again, finds out and does not do it twice."
        )

    def _mistrust(self) -> None:
        """Interrupted while a commit may have been under way: the next request must not trust what it sees."""
        self._doubt = self._doubt or self.link is None or self.link.committing

    def _heed(self, refused: Refused) -> None:
        if refused.state in STALE:
            self._dialer.prepare = False
            self._drop()
        elif refused.state in READ_ONLY:
            self._drop()

    def _connected(self, until: float, *, patient: bool = False) -> Link:
        """The link, made anew if need be. Once the server could not be reached, the next caller tries only
        once, so that nobody waits long behind others for a store that is down."""
        if self.link is not None:
            if self.link.fit():
                return self.link
            self._drop()
        now = time.monotonic()
        until = until if patient else min(until, now + self._connect_timeout)
        pause = 0.02
        while True:
            try:
                self.link = self._dialer.dial()
            except StoreUnavailable:
                if (self._dialer.down and not patient) or time.monotonic() + pause > until:
                    self._dialer.down = True
                    raise
            else:
                return self.link
            time.sleep(pause)
            pause = min(_LONGEST_PAUSE, pause * 2)


def _give(wave: list[Request], error: StoreUnavailable) -> None:
    for request in wave:
        request.outcome = request.outcome or error


def notify_params(channel: str, topics: list[str]) -> dict[str, Any]:
    """A payload has at most 7999 bytes; a longer topic wakes everybody."""
    texts: list[str | None] = [topic if len(topic) < 2000 else EVERYBODY for topic in topics]
    return {"channel": channel, "topics": pack_texts(texts)}


def blame(error: Exception) -> Exception:
    """A value that cannot be sent (half a surrogate pair) is the caller's."""
    if isinstance(error, ValueError | OverflowError):
        refused = InvalidInput(f"a value cannot be stored: {error}. Nothing was written.")
        refused.__cause__ = error
        return refused
    return error
