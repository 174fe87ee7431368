"""Stories for the crash matrix, one for each kind of team: models and tools are scripted, effects are counted."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from typing import Any

from autogen_agentchat.agents import (
    AssistantAgent,
    BaseChatAgent,
    CodeExecutorAgent,
    SocietyOfMindAgent,
    UserProxyAgent,
)
from autogen_agentchat.base import Response
from autogen_agentchat.conditions import HandoffTermination, MaxMessageTermination, TextMentionTermination
from autogen_agentchat.messages import BaseChatMessage, TextMessage
from autogen_agentchat.teams import (
    DiGraphBuilder,
    GraphFlow,
    MagenticOneGroupChat,
    RoundRobinGroupChat,
    SelectorGroupChat,
    Swarm,
)
from autogen_agentchat.tools import AgentTool, TeamTool
from autogen_core.code_executor import CodeExecutor, CodeResult
from autogen_core.models import LLMMessage

from adapters.autogen.tests.kit import Script, Scripted, call, in_turns, ledger, outputs
from stepfast.testing import Stage, scene
from stepfast_autogen import durable, idempotency_key, idempotent, once

warnings.filterwarnings("ignore", "No approval function", UserWarning)  # it is a scripted executor

ONE_SHOTS = ["charge", "send_mail", "coder"]


class Cast:
    """Makes the agents of a scene: each real call of a model and of a tool is seen by the stage."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def model(self, name: str, script: Script) -> Scripted:
        def answer(messages: list[LLMMessage]) -> Any:
            seen = [message.model_dump(mode="json") for message in messages]
            with self.stage.model(name, seen) as receipt:
                given = script(messages)
                if isinstance(given, str):
                    return given if given.startswith("{") else f"{given} ({receipt})"
                for number, each in enumerate(given):
                    each.id = f"{receipt}.{number}"
                return given

        return Scripted(answer)

    def agent(self, name: str, script: Script, **options: Any) -> AssistantAgent:
        return AssistantAgent(name, self.model(name, script), **options)

    def effect(self, name: str) -> str:
        return self.stage.effect(name, key=idempotency_key())

    def tools(self, *names: str) -> list[Any]:
        return [getattr(self, name)() for name in names]

    def charge(self) -> Any:
        @once
        async def charge(amount: int) -> str:
            """Charge the card."""
            return self.effect("charge")

        return charge

    def send_mail(self) -> Any:
        async def send_mail(to: str) -> str:
            """Send a mail."""
            return self.effect("send_mail")

        return send_mail

    def look_up(self) -> Any:
        @idempotent
        async def look_up(topic: str) -> str:
            """Look something up."""
            await asyncio.sleep(0)
            return self.effect("look_up")

        return look_up

    def weigh(self) -> Any:
        @idempotent
        def weigh(thing: str) -> str:
            """Weigh a thing, in a thread."""
            return self.effect("weigh")

        return weigh


def answered(words: str) -> Script:
    """Say what the tools have said so far."""
    return lambda messages: f"{words} {len(outputs(messages))}"


# --- the teams -----------------------------------------------------------------------------------


def round_robin(cast: Cast, *, stream: bool = False) -> Any:
    clerk = cast.agent(
        "clerk",
        in_turns(
            lambda _: [call("charge", amount=42), call("look_up", topic="lamp")],
            lambda _: [call("weigh", thing="lamp")],
            answered("booked"),
            answered("closed"),
        ),
        tools=cast.tools("charge", "look_up", "weigh"),
        max_tool_iterations=3,
        reflect_on_tool_use=True,
        model_client_stream=stream,
    )
    shipper = cast.agent(
        "shipper",
        in_turns(lambda _: [call("send_mail", to="ada@example.org")], answered("sent")),
        tools=cast.tools("send_mail"),
        model_client_stream=stream,
    )
    return RoundRobinGroupChat([clerk, shipper], termination_condition=MaxMessageTermination(5))


def streamed(cast: Cast) -> Any:
    return round_robin(cast, stream=True)


def selector(cast: Cast) -> Any:
    names = ["writer", "critic"]

    def choose(messages: list[Any]) -> str:
        text = str(messages[0].content)
        rejected = sum("No valid name" in str(m.content) or "mention" in str(m.content) for m in messages[1:])
        return "nobody" if not rejected and "draft" not in text else names[text.count("draft") % 2]

    return SelectorGroupChat(
        [
            cast.agent(
                "writer", in_turns(lambda _: [call("look_up", topic="x")], "draft"), tools=cast.tools("look_up")
            ),
            cast.agent("critic", in_turns("draft is bad", "draft is good")),
        ],
        model_client=_unsigned(cast, "SelectorGroupChatManager", choose),
        termination_condition=MaxMessageTermination(5),
        allow_repeated_speaker=True,
    )


def _unsigned(cast: Cast, name: str, script: Script) -> Scripted:
    """A model whose answer must be exact, so that it cannot show its receipt."""

    def answer(messages: list[Any]) -> Any:
        with cast.stage.model(name, [str(message.content) for message in messages]):
            return script(messages)

    return Scripted(answer)


def swarm(cast: Cast) -> Any:
    return Swarm(
        [
            cast.agent(
                "triage",
                in_turns(lambda _: [call("look_up", topic="order"), call("transfer_to_refunds")], "thanks TERMINATE"),
                tools=cast.tools("look_up"),
                handoffs=["refunds"],
            ),
            cast.agent(
                "refunds",
                in_turns(lambda _: [call("charge", amount=-42)], lambda _: [call("transfer_to_triage")]),
                tools=cast.tools("charge"),
                handoffs=["triage"],
            ),
        ],
        termination_condition=TextMentionTermination("TERMINATE") | MaxMessageTermination(20),
    )


def graph(cast: Cast) -> Any:
    """Two branches at once, a join, and a circle until the reviewer is content."""
    writer = cast.agent("writer", in_turns("draft one", "draft two"))
    lawyer = cast.agent(
        "lawyer", in_turns(lambda _: [call("look_up", topic="law")], "fine"), tools=cast.tools("look_up")
    )
    editor = cast.agent("editor", in_turns(lambda _: [call("charge", amount=1)], "edited"), tools=cast.tools("charge"))
    reviewer = cast.agent("reviewer", in_turns("REVISE", "APPROVE"))
    builder = DiGraphBuilder()
    publisher = cast.agent("publisher", in_turns("published"))
    for each in (writer, lawyer, editor, reviewer, publisher):
        builder.add_node(each)
    builder.add_edge(writer, lawyer)
    builder.add_edge(writer, editor)
    builder.add_edge(lawyer, reviewer)
    builder.add_edge(editor, reviewer)
    builder.add_edge(reviewer, writer, condition=lambda message: "REVISE" in message.to_model_text())
    builder.add_edge(reviewer, publisher, condition=lambda message: "APPROVE" in message.to_model_text())
    builder.set_entry_point(writer)
    return GraphFlow(builder.get_participants(), graph=builder.build(), termination_condition=MaxMessageTermination(30))


def magentic(cast: Cast) -> Any:
    def lead(messages: list[Any]) -> str:
        text = str(messages[-1].content)
        if "JSON" not in text and "json" not in text:
            return "a plan" if "ledger" not in text.lower() else "facts"
        done = any("result" in str(m.content) for m in messages[:-1])
        return ledger(done)

    worker = cast.agent("worker", in_turns(lambda _: [call("charge", amount=3)], "result"), tools=cast.tools("charge"))
    return MagenticOneGroupChat([worker], model_client=_unsigned(cast, "MagenticOneOrchestrator", lead), max_turns=6)


def nested(cast: Cast) -> Any:
    """A team as a participant, a society of mind, an agent and a team as tools."""
    inner = cast.agent("inner", in_turns(lambda _: [call("charge", amount=5)], "paid"), tools=cast.tools("charge"))
    expert = cast.agent(
        "expert", in_turns(lambda _: [call("look_up", topic="t")], "known"), tools=cast.tools("look_up")
    )
    helper = cast.agent("helper", in_turns("helped", "helped again"))
    crew = RoundRobinGroupChat([helper], name="crew", description="A crew.", max_turns=1)
    boss = cast.agent(
        "boss",
        in_turns(
            lambda _: [call("expert", task="first")],
            lambda _: [call("crew", task="second")],
            lambda _: [call("expert", task="third")],
            answered("all done"),
        ),
        tools=[AgentTool(expert), TeamTool(crew, name="crew", description="A crew.")],
        max_tool_iterations=4,
    )
    mind = SocietyOfMindAgent(
        "mind", RoundRobinGroupChat([inner], max_turns=1), model_client=cast.model("mind", lambda _: "in short")
    )
    below = RoundRobinGroupChat([cast.agent("low", in_turns("low one", "low two"))], name="below", max_turns=1)
    return RoundRobinGroupChat([boss, mind, below], termination_condition=MaxMessageTermination(8))


class Scribe(BaseChatAgent):
    """An agent of the user's own: no model, an effect, and a state."""

    def __init__(self, cast: Cast) -> None:
        super().__init__("scribe", "Writes things down.")
        self.cast = cast
        self.notes = 0

    @property
    def produced_message_types(self) -> Any:
        return (TextMessage,)

    async def on_messages(self, messages: Any, cancellation_token: Any) -> Response:
        self.notes += len(messages)
        self.cast.effect("scribe")
        return Response(chat_message=TextMessage(content=f"{self.notes} notes", source=self.name))

    async def on_reset(self, cancellation_token: Any) -> None:
        self.notes = 0

    async def save_state(self) -> Any:
        return {"notes": self.notes}

    async def load_state(self, state: Any) -> None:
        self.notes = state["notes"]


class Executor(CodeExecutor):
    """Runs no code at all, and is counted."""

    component_type = "code_executor"

    def __init__(self, cast: Cast) -> None:
        self.cast = cast

    async def execute_code_blocks(self, code_blocks: Any, cancellation_token: Any) -> CodeResult:
        return CodeResult(exit_code=0, output=self.cast.effect("coder"))

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def restart(self) -> None:
        pass


def people(cast: Cast) -> Any:
    """A person who is asked, an executor of code, and an agent of the user's own."""
    return RoundRobinGroupChat(
        [
            cast.agent("planner", in_turns("```python\nprint(1)\n```", "over")),
            CodeExecutorAgent("coder", Executor(cast)),
            UserProxyAgent("user"),
            Scribe(cast),
        ],
        termination_condition=MaxMessageTermination(6),
    )


def handoff(cast: Cast) -> Any:
    """Twice a person outside of the team has the word."""
    return Swarm(
        [
            cast.agent(
                "desk",
                in_turns(
                    lambda _: [call("transfer_to_user")],
                    lambda _: [call("charge", amount=7)],
                    lambda _: [call("transfer_to_user")],
                    "bye TERMINATE",
                ),
                tools=cast.tools("charge"),
                handoffs=["user"],
            )
        ],
        termination_condition=HandoffTermination("user") | TextMentionTermination("TERMINATE"),
    )


def alone(cast: Cast) -> Any:
    return cast.agent(
        "solo",
        in_turns(
            lambda _: [call("charge", amount=9), call("charge", amount=10), call("look_up", topic="a")],
            lambda _: [call("send_mail", to="bob@example.org")],
            answered("done"),
            answered("still here"),
        ),
        tools=cast.tools("charge", "look_up", "send_mail"),
        max_tool_iterations=3,
        model_client_stream=True,
    )


TEAMS: dict[str, Callable[[Cast], Any]] = {
    "round_robin": round_robin,
    "streamed": streamed,
    "selector": selector,
    "swarm": swarm,
    "graph": graph,
    "magentic": magentic,
    "nested": nested,
    "people": people,
    "handoff": handoff,
    "alone": alone,
}


# --- playing them --------------------------------------------------------------------------------


def transcript(messages: Any) -> list[Any]:
    """What was said, of each speaker in order: where several speak at once, only that is defined. Without what is
    given anew by each real call."""
    said: dict[str, list[str]] = {}
    for each in messages:
        if isinstance(each, BaseChatMessage):
            said.setdefault(each.source, []).append(type(each).__name__)
    return sorted(said.items())


async def play(stage: Stage) -> Any:
    build = TEAMS[stage.options["team"]]
    with durable(
        lambda: build(Cast(stage)), stage.run_id, stage.url, policies={"scribe": "retry"}, max_delivery_attempts=20
    ) as team:
        first: Any = None
        async for item in team.run_stream(task="Please go on"):
            stage.boundary(f"item {type(item).__name__}")
            first = item
        result = [transcript(first.messages), first.stop_reason]
        if stage.options.get("again"):
            second = await team.run(task="And once more")
            result += [transcript(second.messages), len(await team.messages())]
        return result


def runs(stage: Stage) -> list[str]:
    return [stage.run_id, f"{stage.run_id}#2"]


def answer(stage: Stage, question: dict[str, Any]) -> dict[str, Any]:
    """Approves what is asked. A call in doubt is *done* if the effect with its key has happened, else to *retry*."""
    if "retry" not in question["outcomes"]:
        return {"outcome": "approved"}
    key = f"{question['intent_id']}/{question['key'].removeprefix('in-doubt:').rpartition(':')[0]}"
    happened = next((line["answer"] for line in stage.story() if line.get("key") == key), None)
    return {"outcome": "retry"} if happened is None else {"outcome": "done", "value": happened}


@scene(once=ONE_SHOTS, at_once=4, runs=runs, answer=answer)
def conversation(stage: Stage) -> Any:
    return asyncio.run(play(stage))
