"""Streams: new calls come live, finished ones as one marked piece; a stream that broke goes on where it broke."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from crewai.flow.flow import Flow, listen, start
from crewai.llms.base_llm import llm_call_context
from crewai.types.streaming import StreamChunkType

from adapters.crewai.tests.kit import ScriptedLLM, call, make_crew, outputs, text
from adapters.crewai.tests.test_crews import Crash, Desk
from stepfast import InvalidInput, Stepfast, Suspended, Waiting
from stepfast.adapters import replayed
from stepfast_crewai import durable


class StreamingLLM(ScriptedLLM):
    """Emits its answers word by word."""

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        with llm_call_context():
            answer = super().call(messages, *args, **kwargs)
            if self.stream and isinstance(answer, str):
                for word in answer.split(" "):
                    self._emit_stream_chunk_event(f"{word} ", kwargs.get("from_task"), kwargs.get("from_agent"))
        return answer


def shown(pieces: list[Any]) -> list[tuple[str, bool]]:
    return [(piece.content.strip(), replayed(piece)) for piece in pieces]


async def listed(stream: Any) -> list[Any]:
    return [piece async for piece in stream]


def iterate(runs: Any, way: str) -> tuple[list[Any], Any]:
    """Return the pieces of a stream that was started in one of CrewAI's three ways, and its result."""
    if way == "kickoff":
        stream = runs.kickoff()
        return list(stream), stream.result

    async def play() -> tuple[list[Any], Any]:
        stream = await getattr(runs, way)()
        return await listed(stream), stream.result

    return asyncio.run(play())


ways = pytest.mark.parametrize("way", ["kickoff", "kickoff_async", "akickoff"])


@ways
def test_a_stream_goes_on_where_it_broke(url: str, way: str) -> None:
    desk = Desk()

    def dying(messages: list[dict[str, Any]]) -> Any:
        if "Two." in text(messages) and outputs(messages):
            raise Crash
        return desk.script(messages)

    def crew_of(script: Any) -> tuple[StreamingLLM, Any]:
        llm = StreamingLLM(script)
        return llm, make_crew(llm, [desk.tool], ("One.", "Two."), stream=True)

    _, crew = crew_of(dying)
    with durable(crew, "r", url) as runs, pytest.raises(Crash):
        iterate(runs, way)
    llm, crew = crew_of(desk.script)
    with durable(crew, "r", url) as runs:
        pieces, result = iterate(runs, way)
        assert shown(pieces) == [
            ("paid: charged 3", True),  # the first task, whole
            ('{"amount": 3}', True),  # the call of a tool in the second
            ("paid:", False),
            ("charged", False),
            ("3", False),
        ]
        assert pieces[1].chunk_type is StreamChunkType.TOOL_CALL
        assert pieces[1].tool_call.tool_name == "charge"
        assert pieces[0].agent_role == "worker"
        assert "stepfast" not in pieces[0].model_dump_json()
        assert result.raw == "paid: charged 3"
        assert (llm.calls, len(desk.calls)) == (1, 2)
    _, crew = crew_of(desk.script)
    with durable(crew, "r", url) as runs:
        pieces, result = iterate(runs, way)
    assert shown(pieces) == [("paid: charged 3", True)] * 2
    assert result.raw == "paid: charged 3"


@ways
def test_what_stops_a_run_is_raised_to_the_one_who_iterates(url: str, way: str) -> None:
    desk = Desk()
    desk.broken = Crash()
    with durable(make_crew(StreamingLLM(desk.script), [desk.tool], stream=True), "r", url) as runs:
        with pytest.raises(Crash):
            iterate(runs, way)
        desk.broken = None
        with pytest.raises(Suspended):
            iterate(runs, way)
    with durable(make_crew(StreamingLLM(desk.script), [desk.tool], stream=True), "r", url, on_wait="return") as runs:
        pieces, result = iterate(runs, way)
        assert isinstance(result, Waiting)
        with Stepfast(url) as sf:
            sf.answer("r", "done", value="charged 4")
        pieces, result = iterate(runs, way)
    assert result.raw == "paid: charged 4"
    assert shown(pieces)[0] == ('{"amount": 3}', True)
    assert len(desk.calls) == 1


def test_an_error_of_the_crew_is_raised_as_crewai_raises_it(url: str) -> None:
    llm = StreamingLLM(lambda messages: RuntimeError("provider is down"))
    with durable(make_crew(llm, [], stream=True), "r", url) as runs, pytest.raises(RuntimeError, match="is down"):
        list(runs.kickoff())


def test_streams_for_each_input_are_runs_of_their_own(url: str) -> None:
    llm = StreamingLLM(lambda messages: "lamps" if "lamps" in text(messages) else "tables")

    def crew() -> Any:
        return make_crew(llm, [], ("Write on {topic}.",), stream=True)

    inputs = [{"topic": "lamps"}, {"topic": "tables"}]
    for _ in range(2):
        with durable(crew(), "r", url) as runs:
            streams = runs.kickoff_for_each(inputs)
            assert [[piece.content.strip() for piece in stream] for stream in streams] == [["lamps"], ["tables"]]
            assert [stream.result.raw for stream in streams] == ["lamps", "tables"]
    assert llm.calls == 2
    with Stepfast(url) as sf:
        assert sf.get_intent("r.2")["status"] == "COMPLETED"
        with (
            sf.run("outer") as run,
            durable(crew(), "r", url) as runs,
            pytest.raises(InvalidInput, match="run: the streams"),
        ):
            runs.kickoff_for_each(inputs, run=run)


@pytest.mark.parametrize("way", ["kickoff_for_each_async", "akickoff_for_each"])
def test_one_stream_of_all_inputs(url: str, way: str) -> None:
    broken = [True]

    def script(messages: list[dict[str, Any]]) -> Any:
        if "lamps" in text(messages):
            return "lamps"
        while broken:
            with Stepfast(url) as sf:  # until the other one's task is recorded
                if any(step["kind"] == "task" for step in sf.steps("r")):
                    raise Crash
            time.sleep(0.01)
        return "tables"

    llm = StreamingLLM(script)

    async def play() -> Any:
        with durable(make_crew(llm, [], ("Write on {topic}.",), stream=True), "r", url) as runs:
            stream = await getattr(runs, way)([{"topic": "lamps"}, {"topic": "tables"}])
            return await listed(stream), [result.raw for result in stream.results]

    with pytest.raises(Crash):
        asyncio.run(play())
    broken.clear()
    before = llm.calls
    pieces, results = asyncio.run(play())
    # CrewAI itself shows each piece twice here: in the stream of an input, and in that of all.
    assert set(shown(pieces)) == {("lamps", True), ("tables", False)}
    assert results == ["lamps", "tables"]
    assert llm.calls == before + 1


def flow_of(llm: Any, broken: list[bool]) -> Any:
    class Writing(Flow):  # type: ignore[type-arg]
        _skip_auto_memory: bool = True

        @start()
        def first(self) -> str:
            return str(llm.call("Begin."))

        @listen(first)
        def second(self, begun: str) -> str:
            ended = llm.call(f"{begun}: end it.")
            if broken:
                raise Crash
            return f"{begun} {ended}"

    flow = Writing()
    flow.stream = True
    return flow


@pytest.mark.parametrize("way", ["kickoff", "kickoff_async"])
def test_a_stream_of_a_flow_goes_on_where_it_broke(url: str, way: str) -> None:
    llm = StreamingLLM(lambda messages: "the end" if "end it" in text(messages) else "a beginning")
    llm.stream = True
    broken = [True]
    with durable(flow_of(llm, broken), "f", url) as runs, pytest.raises(Crash):
        iterate(runs, way)
    broken.clear()
    with durable(flow_of(llm, broken), "f", url) as runs:
        frames, result = iterate(runs, way)
    assert result == "a beginning the end"
    assert shown([frame for frame in frames if frame.content]) == [("the end", True)]
    assert llm.calls == 2


def test_a_native_tool_call_can_be_streamed_beside_a_text(url: str) -> None:
    desk = Desk()
    llm = StreamingLLM(lambda messages: "done" if outputs(messages) else call(("charge", {"amount": 3})))
    with durable(make_crew(llm, [desk.tool], stream=True), "r", url) as runs:
        assert shown(list(runs.kickoff())) == [("done", False)]
