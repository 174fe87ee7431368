"""Where in a durable run CrewAI's code stands, and the state of one pass over the run."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any

from stepfast import AsyncRun, Run, Scope
from stepfast.adapters import Attempt, Occurrences, Settings, Standing, Stopped
from stepfast.faces import awaited, blocking
from stepfast.flow import Flow

from ._events import Mirror
from ._requests import Normaliser, Requests

Make = Callable[..., Any]

OUTPUT = "output"


class CrewAttempt(Attempt):
    """One pass of CrewAI over a run.

    CrewAI lets BaseExceptions pass wherever it calls a model or a tool, so a run stops at once. Its threads go on for
    a moment: `settled` waits for the calls that are under way.
    """

    def __init__(
        self,
        run: Run | AsyncRun,
        settings: Settings,
        normalise: Normaliser | None = None,
        redact: Normaliser | None = None,
        mirror: bool = False,
    ) -> None:
        super().__init__(run, settings, tools_may_raise=True)
        self.keeper = None
        self.normalise = normalise
        self.redact = redact
        self.mirror = Mirror(self, on=mirror and not run.replaying)
        self.models: dict[str, list[Any]] = {}  # by scope: model calls that earlier attempts had recorded
        for step in run.journal():
            if step.kind == "model":
                self.models.setdefault(step.scope, []).append(step)
        self.threaded = False  # CrewAI works in a thread of its own, and this one iterates over a stream
        self.counting = threading.Lock()

    def redacted(self, value: Any) -> Any:
        """Return a value as it may be stored: each text in it as ``redact`` returns it."""
        if self.redact is None:
            return value
        if isinstance(value, str):
            return self.redact(value)
        if isinstance(value, Mapping):
            return {self.redacted(name): self.redacted(item) for name, item in value.items()}
        return [self.redacted(item) for item in value] if isinstance(value, list | tuple) else value

    def reporting(self, agent: str, doing: str, step: int | None = None) -> Flow[None]:
        """Show the task and the agent with each call; the step is the number of the task."""
        place = here()
        if place is not None:
            agent, step = agent or place.agent, place.number
            doing = ", ".join(word for word in (place.task, doing) if word)
        yield from super().reporting(agent, doing, step)
        yield from self.mirror.writing()


class Counted(Occurrences):
    """Occurrences that can be counted again from an earlier state."""

    def state(self) -> Counter[str]:
        with self._lock:
            return Counter(self._counts)

    def restore(self, state: Counter[str]) -> None:
        with self._lock:
            self._counts = Counter(state)


class Place:
    """A scope of the run in which CrewAI's calls are made, with what was called there in this pass.

    CrewAI calls from several threads in any order, so a call is known by what it asks and how often that was asked.
    """

    def __init__(
        self,
        attempt: CrewAttempt,
        scope: Any,
        *,
        parent: Place | None = None,
        crew: Any = None,
        flow: Any = None,
        shifting: bool = False,
    ) -> None:
        self.attempt = attempt
        self.parent = parent
        self.scope: Scope = blocking(scope)
        self.crew = crew
        self.flow = flow
        # What is shown of the run from outside: the task, its number and the agent that works on it.
        self.task: str = "" if parent is None else parent.task
        self.number: int | None = None if parent is None else parent.number
        self.agent: str = "" if parent is None else parent.agent
        self.shifting = shifting  # requests may differ from the recorded ones without a change of the crew
        self.saves: list[Future[Any]] = []  # memories that are being written, here and further inside
        self.occurrences = Counted()
        self.requests = Requests(attempt.normalise)
        self.used: set[str] = set()  # keys of model calls that were asked for in this pass
        self.hidden: str | None = None  # the key of the last model call, if its answer was replayed without its secrets
        self.last: str | None = None  # the key of the last call, if that was a model's
        self.failed: dict[str, str] = {}  # one-shot tool calls that raised since the last model call
        self.snapshot = 0  # the number of the newest state of a flow
        self.chosen: dict[str, str] = {}  # outcomes that people chose, by what they said
        self.marks: dict[int, Counter[str]] = {}
        self.tokens: dict[str, Counter[str]] = {}  # by the role of the agent, with what was used further inside

    def inner(self, name: str, **objects: Any) -> Place:
        """Return a place inside this one; the name must be the same on every pass."""
        return Place(self.attempt, self.scope.scope(name, shared=True), parent=self, **objects)

    def around(self) -> Iterator[Place]:
        """Yield this place and those that it is in."""
        place: Place | None = self
        while place is not None:
            yield place
            place = place.parent

    def spend(self, role: str, tokens: Mapping[str, int]) -> None:
        """Count tokens for an agent, here and in the places around."""
        with self.attempt.counting:
            for place in self.around():
                place.tokens.setdefault(role, Counter()).update(tokens)

    def saving(self, save: Future[Any]) -> Future[Any]:
        """Have a memory written before this place, or one around it, is recorded as finished."""
        for place in self.around():
            place.saves.append(save)
        return save

    def saved(self) -> None:
        """Wait until the memories of this place are written. CrewAI itself reports those that could not be."""
        while self.saves:
            self.saves.pop().exception()
            self.attempt.check()

    def drive(self, flow: Flow[Any]) -> Any:
        return self.scope.drive(flow)

    async def adrive(self, flow: Flow[Any]) -> Any:
        return await awaited(self.scope).drive(flow)

    def finished(self, key: str) -> bool:
        return self.scope.recorded(key) == "FINISHED"

    def recalling(self, key: str) -> Flow[Any]:
        """Return the flow that reads a value which was recorded here."""
        return self.scope.performing(_nothing, key=key, inputs=key, on_drift="accept")

    def memo(self, make: Make, pack: Make, unpack: Make, *, name: str, kind: str) -> Any:
        """Return the output that is recorded for this place; or make it here, and record it."""
        if self.finished(OUTPUT):
            with self.attempt.guarded():
                return unpack(self.drive(self.recalling(OUTPUT)))
        with standing.standing(self):
            output = make()
        self.saved()
        with self.attempt.flying(), self.attempt.guarded():
            packed, name = self.attempt.redacted([pack(output), name])
            self.scope.record(packed, key=OUTPUT, name=name, kind=kind)
        return output

    async def amemo(self, make: Make, pack: Make, unpack: Make, *, name: str, kind: str) -> Any:
        """`memo` for an event loop."""
        if self.finished(OUTPUT):
            with self.attempt.guarded():
                return unpack(await self.adrive(self.recalling(OUTPUT)))
        with standing.standing(self):
            output = await make()
        if self.saves:
            await asyncio.to_thread(self.saved)
        with self.attempt.flying(), self.attempt.guarded():
            packed, name = self.attempt.redacted([pack(output), name])
            await awaited(self.scope).record(packed, key=OUTPUT, name=name, kind=kind)
        return output

    def ends_thread(self, error: BaseException) -> bool:
        """Whether an error has come to the end of a stream's thread, which would lose it; the attempt then has it."""
        lost = self.parent is None and self.attempt.threaded and not isinstance(error, Exception)
        if lost and not isinstance(error, Stopped):
            self.attempt.stop(error)
        return lost

    def unused(self) -> Any:
        """Return the first model call that an earlier attempt recorded here and that this pass has not asked for."""
        for step in self.attempt.models.get(self.scope.path, ()):
            key = key_of(step)
            if key not in self.used and self.scope.recorded(key) is not None:
                return step
        return None

    def mark(self, actor: Any) -> None:
        """Remember the counts at which an agent begins to work on a task."""
        self.marks[id(actor)] = self.occurrences.state()

    def back_to_mark(self, actor: Any) -> Flow[None]:
        """Count again from where an agent began: what it had finished is answered from the journal.

        The answer of a model that was last is set aside: it may be the reason why the agent begins again.
        """
        if self.last is not None:
            yield from self.scope.voiding(self.last, "the agent began again")
        self.last = None
        self.occurrences.restore(self.marks.get(id(actor), Counter()))


def key_of(step: Any) -> str:
    """Return the key that a step has in its scope."""
    return str(step.key.rpartition("/")[2])


def _nothing() -> None:
    """A recorded step is answered from the journal, so nothing is called."""


standing: Standing[Place] = Standing("stepfast_crewai")
here = standing.here
