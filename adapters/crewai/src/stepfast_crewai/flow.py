"""DurableFlow: CrewAI's flow, with runs that have a name and outlive their process."""

from __future__ import annotations

from typing import Any

from crewai.flow.flow import Flow

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
        """Start a run, go on with it, or return its result: what the flow's last method returned."""
        self._check(inputs)
        try:
            with self._opening(flow_record(self.flow, inputs), run_id, run) as opened:
                opened.result = self.flow.kickoff(inputs=opened.inputs)
            return opened.result
        except Suspended as waits:
            return self._waiting(waits)

    async def kickoff_async(
        self, inputs: Inputs | None = None, *, run_id: str | None = None, run: Run | AsyncRun | None = None
    ) -> Any:
        """`kickoff` for an event loop."""
        self._check(inputs)
        try:
            async with self._aopening(flow_record(self.flow, inputs), run_id, run) as opened:
                opened.result = await self.flow.kickoff_async(inputs=opened.inputs)
            return opened.result
        except Suspended as waits:
            return await self._awaiting(waits)

    akickoff = kickoff_async

    def _check(self, inputs: Any) -> None:
        if self.flow.stream:
            raise InvalidInput("flow: stream=True is not supported in durable runs; leave it out.")
        if inputs is not None and not isinstance(inputs, dict):
            raise InvalidInput(f"inputs: must be a dictionary of the flow's inputs, not {type(inputs).__name__}.")
        if inputs and "id" in inputs:
            raise InvalidInput("inputs: leave the id out; the run's name says which state to go on with.")
