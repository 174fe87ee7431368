"""Following one intent: lines and a bar on a screen, plain lines in a pipe, JSON lines for programs."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from stepfast.cli import out
from stepfast.cli.failures import FAILED, OK, UNAVAILABLE, tell
from stepfast.cli.reach import open_client
from stepfast.cli.setup import Setup
from stepfast.cli.text import as_text, to_json
from stepfast.errors import OutcomeUnknown, StoreUnavailable

if TYPE_CHECKING:
    from rich.progress import Progress

    from stepfast.client import Stepfast

Json = dict[str, Any]
_LOOK_SECONDS = 0.5
_ANSWER_SECONDS = 5.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
_ENDED = frozenset({"COMPLETED", "FAILED", "CANCELED", "TIMED_OUT"})
# As the AXME command line tags them, where it has the event.
_TAGS = {
    "intent.created": "intent:create",
    "intent.reminder": "reminder",
    "intent.escalated": "escalation",
    "intent.timed_out": "timeout",
    "intent.delivery_failed": "delivery:failed",
    "intent.delivery_lost": "delivery:lost",
    "intent.human_task_assigned": "cur_holder",
    "intent.step_completed": "step:done",
    "intent.step_failed": "step:failed",
    "intent.step_started": "step:start",
}
_WORTH_A_LINE = ("step", "doing", "step_id", "key", "reason", "error", "message", "escalated_to", "outcome")
_WAITS = {
    "WAITING_FOR_HUMAN": "for human",
    "WAITING_FOR_AGENT": "for agent",
    "WAITING_FOR_TOOL": "for tool",
    "WAITING_FOR_TIME": "for time",
}


def follow(at: Setup, intent_id: str, *, since: int = 0, timeout: float | None = None) -> None:
    """Tell what happens to an intent until it ends; then ends the command with 0 or 1."""
    ends = None if timeout is None else time.monotonic() + timeout
    view = _Lines() if at.as_json else _Screen(at)
    with view.drawn():
        final = _follow(at, intent_id, since, ends, view)
    if final is None:
        raise typer.Exit(tell(TimeoutError(f"{intent_id} has not ended in {timeout} s."), as_json=at.as_json))
    view.final(final)
    raise typer.Exit(OK if final["status"] == "COMPLETED" else FAILED)


def _follow(at: Setup, intent_id: str, since: int, ends: float | None, view: _View) -> Json | None:
    pause = _FIRST_PAUSE
    seen_once = False
    while True:
        try:
            with open_client(at, timeout=_ANSWER_SECONDS) as sf:
                for intent, events in _looks(sf, intent_id, since, ends):
                    seen_once, pause = True, _FIRST_PAUSE
                    intent_id = intent["intent_id"]
                    for event in events:
                        if event["status"] in _ENDED:  # the last steps come before the ending
                            view.progress(intent)
                        view.event(event, intent)
                        since = event["seq"]
                    view.progress(intent)
                    if intent["status"] in _ENDED and since >= intent["seq"]:
                        return intent
            return None
        except (StoreUnavailable, OutcomeUnknown) as error:
            # At the first try the URL may be wrong; once it was right, an outage is worth waiting for.
            if not seen_once:
                raise
            if ends is not None and time.monotonic() + pause > ends:
                raise typer.Exit(tell(error, as_json=at.as_json) or UNAVAILABLE) from None
            view.outage(str(error), pause)
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)


def _looks(sf: Stepfast, intent_id: str, since: int, ends: float | None) -> Iterator[tuple[Json, list[Json]]]:
    """The intent as it is, and its new events, again and again until the time is over."""
    intent = sf.describe(intent_id)
    with sf.store.watch(f"intent:{intent['intent_id']}", tenant=sf.store.tenant) as changed:
        while True:
            # First the events, then the intent: a last event is never behind an ending that was told.
            events = sf.events(intent["intent_id"], since=since)
            intent = sf.describe(intent["intent_id"])
            yield intent, events
            since = events[-1]["seq"] if events else since
            left = _LOOK_SECONDS if ends is None else min(_LOOK_SECONDS, ends - time.monotonic())
            if left <= 0:
                return
            changed.wait(left)


class _View:
    """What following shows; this one shows nothing."""

    @contextmanager
    def drawn(self) -> Iterator[None]:
        yield

    def event(self, event: Json, intent: Json) -> None:
        raise NotImplementedError

    def progress(self, intent: Json) -> None:
        pass

    def outage(self, why: str, pause: float) -> None:
        out.note(f"the store does not answer, trying again in {pause:.1f} s: {why}")

    def final(self, intent: Json) -> None:
        pass


class _Lines(_View):
    """A JSON object on each line."""

    def event(self, event: Json, intent: Json) -> None:
        sys.stdout.write(to_json(event) + "\n")
        sys.stdout.flush()

    def outage(self, why: str, pause: float) -> None:
        pass


class _Screen(_View):
    """A line for each event, and on a terminal a bar below them when the number of steps is known."""

    def __init__(self, at: Setup) -> None:
        self._at = at
        self._console = out.console(at)
        self._bar: Progress | None = None
        self._task: Any = None
        self._status: str | None = None
        self._step = 0

    @contextmanager
    def drawn(self) -> Iterator[None]:
        try:
            yield
        finally:
            if self._bar is not None:
                self._bar.stop()

    def event(self, event: Json, intent: Json) -> None:
        before, self._status = self._status, event["status"]
        kind = str(event["event_type"])
        tag, text = _TAGS.get(kind), _about(event)
        if tag is None and before is not None and before != event["status"]:
            tag, text = "status:change", f"{before} → {event['status']}{_waiting(event, intent)}{text and '  ' + text}"
        elif kind == "intent.in_progress":
            tag = "delivery:again"
        elif tag == "intent:create":
            text = f"{intent['intent_id']} to {intent['to_agent']}"
        self._line(tag or kind.removeprefix("intent.").replace("_", ":", 1), text or event["status"])

    def progress(self, intent: Json) -> None:
        step, total = intent["step"], intent["total_steps"]
        if not self._console.is_terminal:
            if step > self._step:
                self._line("step:done", f"{step}{f' of {total}' if total else ''}: {as_text(intent['last_step'])}")
            self._step = max(step, self._step)
            return
        if not total:
            return
        if self._bar is None:
            self._bar = _new_bar(self._console)
            self._task = self._bar.add_task("", total=total)
            self._bar.start()
        self._bar.update(self._task, completed=step, description=as_text(intent["last_step"], 40))

    def outage(self, why: str, pause: float) -> None:
        self._line("reconnect", f"in {pause:.1f} s: {why}")

    def final(self, intent: Json) -> None:
        self._console.print("─" * 60)
        rows = [("Final status", intent["status"]), ("Intent ID", intent["intent_id"])]
        rows += [("Result", intent["result"]), ("Reason", intent["reason"]), ("Error", intent["error"])]
        rows += [("Goes on as", intent["superseded_by"])]
        out.block(self._at, rows)

    def _line(self, tag: str, text: str) -> None:
        from rich.text import Text

        self._console.print(Text(f"  [{as_text(tag, 20):<20}]:  {as_text(text, 2000)}"))
        self._console.file.flush()


def _new_bar(console: Any) -> Progress:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    described = TextColumn("{task.description}", markup=False)
    return Progress(BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), described, console=console)


def _waiting(event: Json, intent: Json) -> str:
    if event["status"] != "WAITING":
        return ""
    reason = event["details"].get("waiting_reason") or intent["waiting_reason"]
    return f" ({_WAITS.get(str(reason), reason)})" if reason else ""


def _about(event: Json) -> str:
    """What the details say that is worth a line."""
    details = event["details"]
    parts = [f"{name} {as_text(details[name], 200)}" for name in _WORTH_A_LINE if details.get(name)]
    if event["attempt"] > 1:
        parts.insert(0, f"attempt {event['attempt']}")
    return ", ".join(parts)
