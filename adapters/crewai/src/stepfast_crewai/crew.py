"""DurableCrew: CrewAI's crew, with runs that have a name and outlive their process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from crewai import Crew
from crewai.types.streaming import CrewStreamingOutput

from stepfast import AsyncRun, InvalidInput, Run, Suspended

from ._record import crew_record
from ._runs import Durable, Options

Inputs = dict[str, Any]


class DurableCrew(Durable):
    """A crew whose runs outlive their process. Made by `durable`.

    The methods are the crew's own. The same call starts a run, goes on with it, or returns its finished result.
    """

    def __init__(self, crew: Crew, options: Options) -> None:
        if crew.checkpoint:
            raise InvalidInput("crew: its checkpoint option is on. A durable run needs none; leave one of them out.")
        super().__init__(crew.name or "crew", options)
        self.crew = crew

    def kickoff(self, inputs: Inputs | None = None, *, run_id: str | None = None, run: Run | None = None) -> Any:
        """Start a run, go on with it, or return its result, a CrewOutput; a stream of it if the crew streams.

        ``run_id`` names the run; or ``run`` is one that is open already, such as a worker's. Without ``inputs`` the
        recorded ones are used.
        """
        return self._drive(inputs, run_id, run, lambda found: self.crew.kickoff(inputs=found))

    def kickoff_for_each(self, inputs: list[Inputs], *, run_id: str | None = None, run: Run | None = None) -> Any:
        """The same for each of several inputs, one after the other, in one run.

        A crew that streams returns a list of streams: each is a run of its own, whose name ends in ``.1``, ``.2``, ….
        """
        if not self.crew.stream:
            return self._drive(inputs, run_id, run, lambda found: self.crew.kickoff_for_each(inputs=found))
        if run is not None:
            raise InvalidInput("run: the streams of kickoff_for_each are runs of their own; pass run_id=….")
        self._check(inputs)
        name = self._named(run_id)
        # Each has a crew of its own, as CrewAI's would: they may be iterated side by side.
        copies = [(f"{name}.{number}", each, self.crew.copy()) for number, each in enumerate(inputs, 1)]
        return [self._streamed(each, named, None, crew) for named, each, crew in copies]

    async def kickoff_async(
        self, inputs: Inputs | None = None, *, run_id: str | None = None, run: Run | AsyncRun | None = None
    ) -> Any:
        """`kickoff` in a thread."""
        return await self._adrive(inputs, run_id, run, lambda found: self.crew.kickoff_async(inputs=found))

    async def akickoff(
        self, inputs: Inputs | None = None, *, run_id: str | None = None, run: Run | AsyncRun | None = None
    ) -> Any:
        """`kickoff` for an event loop."""
        return await self._adrive(inputs, run_id, run, lambda found: self.crew.akickoff(inputs=found))

    async def kickoff_for_each_async(self, inputs: list[Inputs], *, run_id: str | None = None) -> Any:
        """`kickoff_for_each`, side by side in threads; if the crew streams, one stream of all."""
        return await self._adrive(inputs, run_id, None, lambda found: self.crew.kickoff_for_each_async(inputs=found))

    async def akickoff_for_each(self, inputs: list[Inputs], *, run_id: str | None = None) -> Any:
        """`kickoff_for_each`, side by side on the event loop; if the crew streams, one stream of all."""
        return await self._adrive(inputs, run_id, None, lambda found: self.crew.akickoff_for_each(inputs=found))

    def _drive(self, inputs: Any, run_id: str | None, run: Run | None, go: Callable[[Any], Any]) -> Any:
        self._check(inputs)
        if self.crew.stream:
            return self._streamed(inputs, run_id, run, self.crew)
        try:
            with self._opening(crew_record(self.crew, inputs), run_id, run) as opened:
                opened.result = go(opened.inputs)
            return opened.result
        except Suspended as waits:
            return self._waiting(waits)

    def _streamed(self, inputs: Any, run_id: str | None, run: Run | None, crew: Crew) -> CrewStreamingOutput:
        opening = (crew_record(crew, inputs), run_id, run)
        return self._stream(CrewStreamingOutput, "result", opening, lambda found: crew.kickoff(inputs=found))

    async def _adrive(self, inputs: Any, run_id: str | None, run: Any, go: Callable[[Any], Awaitable[Any]]) -> Any:
        self._check(inputs)
        opening = (crew_record(self.crew, inputs), run_id, run)
        if self.crew.stream:
            return self._astream(CrewStreamingOutput, "results" if isinstance(inputs, list) else "result", opening, go)
        try:
            async with self._aopening(*opening) as opened:
                opened.result = await go(opened.inputs)
            return opened.result
        except Suspended as waits:
            return await self._awaiting(waits)

    def _check(self, inputs: Any) -> None:
        given = inputs if isinstance(inputs, list) else [] if inputs is None else [inputs]
        if not all(isinstance(each, dict) for each in given):
            raise InvalidInput(f"inputs: must be a dictionary of the crew's inputs, not {type(inputs).__name__}.")
