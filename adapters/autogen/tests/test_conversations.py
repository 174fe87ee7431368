"""Conversations: runs that go on across objects and processes, results that come back without calls, streams."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent, CodeExecutorAgent, MessageFilterAgent, SocietyOfMindAgent
from autogen_agentchat.agents._message_filter_agent import MessageFilterConfig, PerSourceFilter
from autogen_agentchat.base import TaskResult
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.messages import ModelClientStreamingChunkEvent, StructuredMessage, TextMessage
from autogen_agentchat.teams import MagenticOneGroupChat, RoundRobinGroupChat
from autogen_agentchat.tools import AgentTool
from autogen_agentchat.ui import Console
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeExecutor, CodeResult
from autogen_core.memory import ListMemory, MemoryContent, MemoryMimeType
from pydantic import BaseModel

from adapters.autogen.tests.kit import Log, Scripted, call, collect, in_turns, ledger, said, turns
from stepfast import AsyncStepfast, Conflict, InvalidInput, NotFound
from stepfast_autogen import durable, replayed


class Broken(Exception):
    """The model is away."""


class Office:
    """Makes teams of two; counts the calls of all of them, and lets the model fail at a certain one."""

    def __init__(self) -> None:
        self.calls = 0
        self.seen: list[int] = []  # how many messages each request had
        self.fail_at: int | None = None

    def model(self, name: str) -> Scripted:
        def script(messages: list[Any]) -> str:
            self.calls += 1
            self.seen.append(len(messages))
            if self.calls == self.fail_at:
                raise Broken("the model is away")
            return f"{name} {turns(messages)}"

        return Scripted(script)

    def team(self, **options: Any) -> RoundRobinGroupChat:
        return RoundRobinGroupChat(
            [AssistantAgent(name, self.model(name), **options) for name in ("ann", "bob")],
            termination_condition=MaxMessageTermination(5),
        )


async def test_finished_runs_come_back_without_calls_and_the_next_one_knows_them(url: str) -> None:
    office = Office()
    first = durable(office.team, "talk", url)
    results = [await first.run(task="one"), await first.run(task="two")]
    assert office.calls == 8

    again = durable(office.team, "talk", url)
    assert [said(await again.run(task=task)) for task in ("one", "two")] == [said(each) for each in results]
    assert office.calls == 8
    third = await again.run(task="three")

    assert said(third)[1] == "TextMessage ann: ann 4"  # it has spoken four times before
    assert office.calls == 12


async def test_another_process_brings_a_new_task(url: str) -> None:
    office = Office()
    await durable(office.team, "talk", url).run(task="one")

    second = await durable(office.team, "talk", url).run(task="two")

    assert said(second)[1] == "TextMessage ann: ann 2"
    talk = durable(office.team, "talk", url)
    await talk.run(task="one")
    with pytest.raises(Conflict, match="another task, and is finished"):
        await talk.run(task="three")


async def test_append_asks_the_first_question_once_more(url: str) -> None:
    office = Office()
    await durable(office.team, "talk", url).run(task="one")

    second = await durable(office.team, "talk", url, append=True).run(task="one")

    assert (said(second)[1], office.calls) == ("TextMessage ann: ann 2", 8)


async def test_a_reset_forgets_what_was_said_and_is_done_once(url: str) -> None:
    office = Office()

    async def program() -> list[list[str]]:
        talk = durable(office.team, "talk", url)
        told = [said(await talk.run(task="one"))]
        state = await talk.save_state()
        await talk.reset()
        told.append(said(await talk.run(task="two")))
        await talk.load_state(state)
        told.append(said(await talk.run(task="three")))
        return told

    first = await program()
    again = await program()

    assert [each[1] for each in first] == [f"TextMessage ann: ann {turn}" for turn in (0, 0, 2)]
    assert (again, office.calls) == (first, 12)


async def test_an_interrupted_run_goes_on_and_raises_what_the_model_raised(url: str) -> None:
    office = Office()
    office.fail_at = 3
    with pytest.raises(Broken):
        await durable(office.team, "talk", url).run(task="one")
    with pytest.raises(Conflict, match="is not finished: resume"):
        await durable(office.team, "talk", url).run(task="two")

    result = await durable(office.team, "talk", url).resume()

    assert [m.to_text() for m in result.messages[1:]] == ["ann 0", "bob 0", "ann 1", "bob 1"]
    assert office.calls == 5  # the third was made twice


async def test_a_run_in_a_state_that_was_loaded_has_the_requests_that_were_recorded(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    office = Office()
    await durable(office.team, "talk", url).run(task="one")
    talk = durable(office.team, "talk", url)
    await talk.run(task="one")
    office.fail_at = 8
    with pytest.raises(Broken):
        await talk.run(task="two")

    await durable(office.team, "talk", url, on_drift="raise").resume()

    assert "another request" not in caplog.text


async def test_a_team_object_goes_on_after_a_failure_too(url: str) -> None:
    office = Office()
    office.fail_at = 3
    talk = durable(office.team(), "talk", url)
    with pytest.raises(Broken):
        await talk.run(task="one")

    result = await talk.resume()
    second = await talk.run(task="two")

    assert (len(result.messages), said(second)[1], office.calls) == (5, "TextMessage ann: ann 2", 9)


async def test_the_stream_marks_what_is_repeated_and_keeps_the_ids(url: str) -> None:
    office = Office()
    office.fail_at = 3
    before: list[Any] = []
    with pytest.raises(Broken):
        await collect(durable(office.team, "talk", url).run_stream(task="one"), before)

    items = [item async for item in durable(office.team, "talk", url).run_stream(task="one")]

    assert [item.id for item in items[:3]] == [item.id for item in before]
    assert [replayed(item) for item in items[:-1]] == [True, True, True, False, False]
    assert isinstance(items[-1], TaskResult)
    assert [m.id for m in items[-1].messages] == [item.id for item in items[:-1]]


async def test_chunks_of_a_stream_carry_the_id_of_their_message(url: str) -> None:
    office = Office()
    talk = durable(lambda: office.team(model_client_stream=True), "talk", url)

    items = [item async for item in talk.run_stream(task="one")]

    chunk = next(item for item in items if isinstance(item, ModelClientStreamingChunkEvent))
    assert chunk.full_message_id in {item.id for item in items if isinstance(item, TextMessage)}


async def test_console_shows_a_durable_team(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    await Console(durable(Office().team, "talk", url).run_stream(task="one"))

    assert "ann 0" in capsys.readouterr().out


async def test_messages_and_status_tell_the_conversation(url: str) -> None:
    office = Office()
    talk = durable(office.team, "talk", url)
    await talk.run(task="one")
    assert (await talk.status())["status"] == "COMPLETED"
    office.fail_at = 6
    with pytest.raises(Broken):
        await talk.run(task="two")

    told, status = await talk.messages(), await talk.status()

    assert [m.to_text() for m in told] == ["one", "ann 0", "bob 0", "ann 1", "bob 1", "two"]
    assert (status["finished_runs"], status["status"]) == (1, "IN_PROGRESS")
    async with AsyncStepfast(url) as sf:
        shown = await sf.get_intent("talk")
        assert [line["text"] for line in shown["result"]["messages"]] == ["one", "ann 0", "bob 0", "ann 1", "bob 1"]
        assert shown["result"]["usage"]["requests"] == 4
        assert {each["run_id"] for each in await sf.list_intents()} == {"talk", "talk#2"}


async def test_an_agent_alone_is_a_conversation_too(url: str) -> None:
    office = Office()

    def make() -> AssistantAgent:
        return AssistantAgent("ann", office.model("ann"))

    await durable(make, "talk", url).run(task="one")
    talk = durable(make, "talk", url)
    await talk.run(task="one")
    second = await talk.run(task="two")

    assert (said(second), office.calls) == (["TextMessage user: two", "TextMessage ann: ann 1"], 2)


async def test_leaving_the_stream_hands_the_run_back(url: str) -> None:
    office = Office()
    talk = durable(office.team, "talk", url)
    stream = talk.run_stream(task="one")
    async for item in stream:
        if item.source == "ann":
            break
    await stream.aclose()

    result = await talk.run(task="one")

    assert len(result.messages) == 5
    assert office.calls <= 5  # at most the call under way was made twice


@pytest.mark.parametrize("how", ["token", "task"])
async def test_cancelling_during_a_tool_does_not_hang_and_the_call_is_in_doubt(how: str, url: str) -> None:
    began = asyncio.Event()

    async def slow() -> str:
        """Take its time."""
        began.set()
        await asyncio.Event().wait()
        return ""

    def make(tool: Callable[..., Any]) -> Any:
        client = Scripted(in_turns([call(tool.__name__)], "over"))
        return RoundRobinGroupChat([AssistantAgent("ann", client, tools=[tool])], max_turns=2)

    token = CancellationToken()
    talk = durable(lambda: make(slow), "talk", url, policies={"slow": "retry"})
    running = asyncio.ensure_future(talk.run(task="one", cancellation_token=token))
    await began.wait()
    token.cancel() if how == "token" else running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 20)

    async def quick() -> str:
        """Take its time."""
        return "quick now"

    quick.__name__ = "slow"
    result = await durable(lambda: make(quick), "talk", url, policies={"slow": "retry"}).run(task="one")
    assert result.messages[3].to_text() == "quick now"


class Verdict(BaseModel):
    good: bool


async def test_structured_messages_come_back_as_they_were(url: str) -> None:
    def make() -> Any:
        judge = AssistantAgent("judge", Scripted(lambda _: '{"good": true}'), output_content_type=Verdict)
        return RoundRobinGroupChat([judge], max_turns=1, custom_message_types=[StructuredMessage[Verdict]])

    await durable(make, "talk", url).run(task="one")
    result = await durable(make, "talk", url).run(task="one")

    assert result.messages[-1].content == Verdict(good=True)


class Executor(CodeExecutor):
    component_type = "code_executor"

    def __init__(self, log: Log) -> None:
        self.log = log

    async def execute_code_blocks(self, code_blocks: Any, cancellation_token: Any) -> CodeResult:
        self.log.add("executed")
        return CodeResult(exit_code=0, output="42")

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def restart(self) -> None: ...


@pytest.mark.filterwarnings("ignore:No approval function:UserWarning")
async def test_the_state_between_runs_has_what_save_state_leaves_out(url: str, tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    seen: dict[str, list[int]] = {}

    def model(name: str, script: Any = None) -> Scripted:
        def answer(messages: list[Any]) -> Any:
            seen.setdefault(name, []).append(len(messages))
            return (script or (lambda _: f"{name} speaks"))(messages)

        return Scripted(answer)

    def make() -> Any:
        expert = AssistantAgent("expert", model("expert"))
        boss = AssistantAgent(
            "boss", model("boss", lambda m: [call("expert", task=f"t{turns(m)}")]), tools=[AgentTool(expert)]
        )
        coder = CodeExecutorAgent(
            "coder",
            Executor(log),
            model_client=model("coder", lambda m: "```python\n1\n```" if turns(m) % 2 == 0 else "ok"),
        )
        mind = SocietyOfMindAgent(
            "mind",
            RoundRobinGroupChat([AssistantAgent("inner", model("inner"))], max_turns=1),
            model_client=model("mind"),
        )
        filtered = MessageFilterAgent(
            "filtered",
            AssistantAgent("behind", model("behind")),
            MessageFilterConfig(per_source=[PerSourceFilter(source="user", position="last", count=1)]),
        )
        return RoundRobinGroupChat([boss, coder, mind, filtered], max_turns=4)

    def growth() -> dict[str, list[int]]:
        counted = {name: list(sizes) for name, sizes in seen.items()}
        seen.clear()
        return counted

    live = durable(make, "live", url)
    for task in ("one", "two"):
        await live.run(task=task)
    undisturbed = growth()
    await durable(make, "parted", url).run(task="one")
    await durable(make, "parted", url).run(task="two")

    assert growth() == undisturbed
    assert log.lines == ["executed"] * 4


async def test_what_a_memory_added_is_added_again_although_it_has_changed(url: str) -> None:
    requests: list[str] = []
    fail = [True]

    def make(fact: str) -> Any:
        def script(messages: list[Any]) -> str:
            requests.append(" ".join(str(m.content) for m in messages))
            if len(requests) == 2 and fail.pop():
                raise Broken("away")
            return "noted"

        memory = ListMemory(memory_contents=[MemoryContent(content=fact, mime_type=MemoryMimeType.TEXT)])
        ann = AssistantAgent("ann", Scripted(script), memory=[memory])
        return RoundRobinGroupChat([ann, AssistantAgent("bob", Scripted(script))], max_turns=3)

    with pytest.raises(Broken):
        await durable(lambda: make("the sky is blue"), "talk", url).run(task="one")
    await durable(lambda: make("the sky is grey"), "talk", url).run(task="one")

    assert "the sky is blue" in requests[-1]  # the first turn of ann, from the journal
    assert "the sky is grey" in requests[-1]  # her second one, made now


async def test_prompts_that_change_are_warned_about_and_refused_by_the_strict(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    office = Office()
    office.fail_at = 2
    with pytest.raises(Broken):
        await durable(lambda: office.team(system_message="Be kind."), "talk", url).run(task="one")

    def changed() -> Any:
        return office.team(system_message="Be stern.")

    with pytest.raises(Exception, match=r"instructions: 'Be kind.' → 'Be stern.'"):
        await durable(changed, "talk", url, on_drift="raise").run(task="one")
    assert len((await durable(changed, "talk", url).run(task="one")).messages) == 5
    assert "instructions: 'Be kind.' → 'Be stern.'" in caplog.text


async def test_equal_requests_have_answers_of_their_own(url: str) -> None:
    """MagenticOne sends the same request again where it cannot read the answer."""
    asked: list[str] = []
    away = [True]

    def lead(messages: list[Any]) -> str:
        whole = "\n".join(str(message.content) for message in messages)
        asked.append(whole)
        if "JSON" not in str(messages[-1].content):
            return "a plan"
        done = any(str(message.content) == "result" for message in messages)
        return "no JSON at all" if asked.count(whole) == 1 and not done else ledger(done)

    def work(_: list[Any]) -> str:
        if away and away.pop():
            raise Broken("away")
        return "result"

    def make() -> Any:
        return MagenticOneGroupChat(
            [AssistantAgent("worker", Scripted(work))], model_client=Scripted(lead), max_turns=4
        )

    with pytest.raises(Broken):
        await durable(make, "talk", url).run(task="one")
    ledgers = [text for text in asked if "JSON" in text]
    assert ledgers[0] == ledgers[1]
    made = len(asked)
    await durable(make, "talk", url, on_drift="raise").run(task="one")

    assert asked[made:]
    assert not set(asked[made:]) & set(asked[:made])  # only what was new


def test_wrong_arguments_are_refused_with_their_names(url: str) -> None:
    with pytest.raises(InvalidInput, match="team: must be a team, an agent, or a function"):
        durable(3, "talk", url)
    with pytest.raises(InvalidInput, match=r"on_drift: must be one of 'raise', 'warn', 'accept'"):
        durable(Office().team, "talk", url, on_drift="acept")
    with pytest.raises(InvalidInput, match="run_id: a conversation needs a name"):
        asyncio.run(durable(Office().team, store=url).run(task="x"))
    with pytest.raises(InvalidInput, match="task: must be a text"):
        asyncio.run(durable(Office().team, "talk", url).run(task=[]))
    with pytest.raises(NotFound, match="no run that could go on"):
        asyncio.run(durable(Office().team, "talk", url).resume())


def test_an_agent_in_two_places_is_refused(url: str) -> None:
    office = Office()

    def make() -> Any:
        ann = AssistantAgent("ann", office.model("ann"))
        boss = AssistantAgent("boss", office.model("boss"), tools=[AgentTool(ann)])
        return RoundRobinGroupChat([ann, boss], max_turns=1)

    with pytest.raises(InvalidInput, match="team: ann is in two places"):
        asyncio.run(durable(make, "talk", url).run(task="x"))
    outside = AssistantAgent("ann", office.model("ann"))
    asyncio.run(durable(lambda: RoundRobinGroupChat([outside], max_turns=1), "a", url).run(task="x"))
    with pytest.raises(InvalidInput, match="ann was in a durable team before"):
        asyncio.run(durable(lambda: RoundRobinGroupChat([outside], max_turns=1), "b", url).run(task="x"))


def test_the_arguments_are_those_of_a_team() -> None:
    talk = durable(Office().team, "talk")
    for name in ("run", "run_stream"):
        ours = inspect.signature(getattr(talk, name))
        theirs = inspect.signature(getattr(RoundRobinGroupChat, name))
        assert list(ours.parameters) == list(theirs.parameters)[1:]
