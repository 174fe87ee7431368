"""DurableFlow: CrewAI's flow, with runs that have a name and outlive their process."""

from __future__ import annotations

from typing import Any

from crewai.flow.flow import Flow
from crewai.types.streaming import AsyncStreamSession, StreamSession

from stepfast import AsyncRun, InvalidInput, Run, Suspended

from ._record import flow_record
from ._runs import Durable, Options

Inputs = dict[str, Any]


class DurableFlow(Durable):
    """A flow whose runs outlive their process. Made by `durable`.

    The flow is driven again from its start. A finished method is answered from the journal, with the state as it left
    it; inside an unfinished one, crews, agents, LLM calls and tools go on at their last finished call.
    """

    def __init__(self, flow: Flow[Any], options: Options) -> None:
        super().__init__(type(flow).__name__, options)
        self.flow = flow

    def kickoff(self, inputs: Inputs | None = None, *, run_id: str | None = None, run: Run | None = None) -> Any:
        """Start a run, go on with it, or return its result: what the flow's last method returned.

        A flow that streams returns a stream of it.
        """
        opening = self._check(inputs, run_id, run)
        if self.flow.stream:
            return self._stream(StreamSession, "result", opening, lambda found: self.flow.kickoff(inputs=found))
        try:
            with self._opening(*opening) as opened:
                opened.result = self.flow.kickoff(inputs=opened.inputs)
            return opened.result
        except Suspended as waits:
            return self._waiting(waits)

    async def kickoff_async(
        self, inputs: Inputs | None = None, *, run_id: str | None = None, run: Run | AsyncRun | None = None
    ) -> Any:
        """`kickoff` for an event loop."""
        opening = self._check(inputs, run_id, run)
        if self.flow.stream:
            return self._astream(AsyncStreamSession, "result", opening, self.flow.kickoff_async)
        try:
            async with self._aopening(*opening) as opened:
                opened.result = await self.flow.kickoff_async(inputs=opened.inputs)
            return opened.result
        except Suspended as waits:
            return await self._awaiting(waits)

    akickoff = kickoff_async

    def _check(self, inputs: Any, run_id: str | None, run: Any) -> tuple[dict[str, Any], str | None, Any]:
        if inputs is not None and not isinstance(inputs, dict):
            raise InvalidInput(f"inputs: must be a dictionary of the flow's inputs, not {type(inputs).__name__}.")
        if inputs and "id" in inputs:
            raise InvalidInput("inputs: leave the id out; the run's name says which state to go on with.")
        return flow_record(self.flow, inputs), run_id, run
