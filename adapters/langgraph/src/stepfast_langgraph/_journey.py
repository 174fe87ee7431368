"""One call of a durable graph: what was asked for, and how its run is opened."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from stepfast import AsyncRun, AsyncStepfast, Conflict, NotFound, Run, Stepfast, Suspended
from stepfast.adapters import OnWait
from stepfast.flow import Call, Flow

from . import _questions as questions
from ._chunks import INTERRUPT, Chunks
from ._doubts import as_interrupt
from ._trip import Ask, Trip, give_answer, is_answer, output_of

log = logging.getLogger("stepfast")


class Journey:
    """What one call asked for, and what came of it."""

    def __init__(
        self,
        given: Any,
        run_id: str,
        config: Mapping[str, Any],
        on_wait: OnWait,
        options: dict[str, Any],
        chunks: Chunks,
    ) -> None:
        self.given = given
        self.run_id = run_id
        self.config = config
        self.on_wait = on_wait
        self.options = options
        self.chunks = chunks
        self.result: Any = None
        self.trip: Trip | None = None

    @property
    def thread_id(self) -> str:
        """The thread of a run that is new."""
        given = self.config.get("configurable", {}).get("thread_id")
        return self.run_id if given is None else str(given)

    @property
    def stopped(self) -> bool:
        """Whether this call saw the graph stop."""
        return self.trip is not None and self.trip.stopped

    def returns(self, waits: Suspended) -> bool:
        """Whether the caller gets what this run waits for as a result."""
        return self.on_wait == "return" and waits.run_id == self.run_id

    def input_of(self, run: Run | AsyncRun) -> Any:
        """The input as it was recorded, except in the attempt that has just recorded it."""
        if not run.resumed and self.given is not None and not is_answer(self.given):
            return self.given
        return run.payload

    def opening(
        self, client: Stepfast | AsyncStepfast, graph: Any, on_drift: str, options: Mapping[str, Any]
    ) -> Flow[Any]:
        """Open the run. One that waits is answered first, if its caller or its thread has the answer."""
        run_id, given = self.run_id, self.given
        is_resume = is_answer(given)
        if is_resume or self.on_wait == "block":
            try:
                seen = yield Call(client.get_intent, (run_id,))
            except NotFound:
                if is_resume:
                    raise
            else:
                if seen["status"] == "WAITING":
                    yield from self._unblock(client, graph)
        try:
            return (yield self._open(client, None if is_resume else given, options))
        except Suspended:
            if not (yield from self._unblock(client, graph)):
                raise
        except Conflict as changed:
            if on_drift == "raise":
                raise
            if on_drift == "warn":
                log.warning("run %s goes on with its recorded input: %s", run_id, changed)
            self.given = given = None
        return (yield self._open(client, None if is_resume else given, options))

    def _open(self, client: Stepfast | AsyncStepfast, payload: Any, options: Mapping[str, Any]) -> Call:
        on_wait = "block" if self.on_wait == "block" else "suspend"
        return Call(client.run, (self.run_id,), {**options, "payload": payload, "on_wait": on_wait})

    def pending(self, client: Stepfast | AsyncStepfast, graph: Any) -> Flow[Any]:
        """What ``on_wait="return"`` returns: the state as it stands, and under ``__interrupt__`` all that is asked.

        It is read from the thread and the decisions of the run, so that each call returns the same.
        """
        intent = yield Call(client.get_intent, (self.run_id,))
        thread_id = intent["labels"].get("thread_id", self.run_id)
        state = yield Ask(graph, "get_state", {"configurable": {"thread_id": thread_id}})
        decisions = yield Call(client.decisions, (self.run_id,))
        asked = {questions.interrupt_of(each["key"]) for each in decisions}
        waiting = [each for each in state.interrupts if each.id in asked]
        waiting += [as_interrupt(self.run_id, each) for each in decisions if not questions.interrupt_of(each["key"])]
        values = output_of(graph, state.values)
        return {**(values if isinstance(values, dict) else {}), INTERRUPT: waiting}

    def _unblock(self, client: Stepfast | AsyncStepfast, graph: Any) -> Flow[bool]:
        """Whether an answer was found for a run that waits."""
        run_id = self.run_id
        decisions = yield Call(client.decisions, (run_id,))
        known = {questions.interrupt_of(each["key"]): each for each in decisions}
        waiting = {name: each for name, each in known.items() if name is not None}
        if not waiting:
            return False
        if is_answer(self.given):
            brought = questions.share_out(self.given.resume, waiting)
            for interrupt_id, value in brought.items():
                decision = waiting[interrupt_id]
                yield give_answer(client, run_id, decision["key"], value, decision["outcomes"])
            if brought:
                return True
        intent = yield Call(client.get_intent, (run_id,))
        thread_id = intent["labels"].get("thread_id", run_id)
        state = yield Ask(graph, "get_state", {"configurable": {"thread_id": thread_id}})
        asked_still = {interrupt.id for interrupt in state.interrupts}
        gone = [each for name, each in waiting.items() if name not in asked_still]
        for each in gone:
            word = {"comment": "it was answered on the thread itself", "actor": "langgraph"}
            yield Call(client.answer, (run_id, each["outcomes"][-1], each["key"]), word)
        return bool(gone)
