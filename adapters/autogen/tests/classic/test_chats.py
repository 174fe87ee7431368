"""Chats of classic AutoGen in durable runs: started, resumed and finished by the same line."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from adapters.autogen.tests.classic import kit
from adapters.autogen.tests.classic.kit import (
    AssistantAgent,
    ConversableAgent,
    GroupChat,
    GroupChatManager,
    UserProxyAgent,
    call,
    ends,
    llm,
    pair,
    text,
)
from stepfast import Diverged, InvalidInput, Stepfast, StepfastError, Suspended, Waiting, current_run
from stepfast.adapters import Price, usage_of
from stepfast_autogen.classic import durable, idempotent, once

QUIET: dict[str, Any] = {"human_input_mode": "NEVER", "code_execution_config": False}


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kit.requests.clear()
    monkeypatch.chdir(tmp_path)


def go(way: str, agents: Any, url: str, **options: Any) -> Any:
    """Begin or go on with the run r, with ``initiate_chat`` or ``a_initiate_chat``."""
    chat = options.pop("chat", {"message": "Go."})
    with durable(agents, "r", url, **options) as chats:
        found = getattr(chats, way)(silent=True, **chat)
        return asyncio.run(found) if way.startswith("a_") else found


both_ways = pytest.mark.parametrize("way", ["initiate_chat", "a_initiate_chat"])


class Cut(BaseException):
    """The end of a process, as far as one process can play it."""


@both_ways
def test_the_same_line_starts_a_chat_goes_on_with_it_and_returns_its_result(way: str, url: str) -> None:
    made: list[str] = []
    away = [ConnectionError("the model is away")]

    @idempotent
    def find(topic: str) -> str:
        """Find."""
        made.append(topic)
        return f"{topic} found"

    def script(messages: kit.Messages) -> Any:
        if "found" not in text(messages):
            return call(("find", {"topic": "a"}), ("find", {"topic": "b"}))
        return away.pop() if away else "done TERMINATE"

    with pytest.raises(ConnectionError, match="the model is away"):
        go(way, pair(script, (find,)), url)
    results = [go(way, pair(script, (find,)), url) for _ in range(2)]
    assert [each.summary for each in results] == ["done ", "done "]
    assert results[0].chat_history == results[1].chat_history
    assert results[0].cost == results[1].cost
    assert results[0].cost["usage_including_cached_inference"]["assistant"]["prompt_tokens"] == 20
    assert made == ["a", "b"]
    assert kit.requests == ["assistant"] * 3
    assert not Path(".cache").exists()  # AutoGen 0.2 has a cache on disk unless it is told otherwise


def test_a_run_is_seen_from_outside_with_what_it_used(url: str) -> None:
    agents = pair(lambda messages: "done TERMINATE")
    go("initiate_chat", agents, url, labels={"order": "7"}, prices={"assistant": Price(input=1e6, output=2e6)})
    with Stepfast(url) as sf:
        seen = sf.get_intent("r")
        assert seen["labels"] == {"framework": "autogen", "agent": "user", "order": "7"}
        usage = {"requests": 1, "input_tokens": 10, "output_tokens": 5, "cached_tokens": 0, "cost": 20.0}
        assert seen["result"] == {"summary": "done ", "messages": 2, "usage": usage}
        assert usage_of(sf, "r").cost == 20.0
        assert [step["name"] for step in sf.steps("r") if step["kind"] == "model"] == ["assistant"]


@both_ways
def test_an_error_of_a_tool_is_shown_to_the_model_and_one_of_stepfast_never_is(way: str, url: str) -> None:
    asked: list[str] = []

    @idempotent
    def find(topic: str) -> str:
        """Find."""
        raise (StepfastError if topic == "signal" else ValueError)(f"no {topic}")

    def script(messages: kit.Messages) -> Any:
        asked.append(text(messages))
        topic = "signal" if "Error: no book" in asked[-1] else "book"
        return call(("find", {"topic": topic}), ("absent", {}))

    with pytest.raises(StepfastError, match="no signal"):
        go(way, pair(script, (find,)), url)
    assert len(asked) == 2
    assert "Error: Function absent not found." in asked[1]
    assert "no signal" not in asked[1]


@pytest.mark.parametrize(
    ("policy", "expected", "calls"),
    [("retry", "charged", 2), ("fail", "Error: ", 1), (lambda amount: None, None, 1), ("once", None, 1)],
    ids=["retry", "fail", "probe that does not know", "once"],
)
def test_a_call_that_was_cut_short_is_treated_by_its_policy(
    policy: Any, expected: str | None, calls: int, url: str
) -> None:
    made: list[int] = []

    def charge(amount: int) -> str:
        """Charge."""
        made.append(amount)
        if len(made) == 1:
            raise Cut
        return "charged"

    def script(messages: kit.Messages) -> Any:
        return "done TERMINATE" if "harge" in text(messages[1:]) else call(("charge", {"amount": 3}))

    def chat() -> Any:
        return go("initiate_chat", pair(script, (charge,)), url, policies={"charge": policy})

    with pytest.raises(Cut):
        chat()
    if expected is None:
        with pytest.raises(Suspended):
            chat()
        with Stepfast(url) as sf:
            sf.answer("r", "done", value="charged")
    assert (expected or "charged") in chat().chat_history[2]["content"]
    assert len(made) == calls


def test_a_one_shot_tool_that_raises_is_in_doubt_and_its_error_is_not_shown(url: str) -> None:
    @once
    def charge(amount: int) -> str:
        """Charge."""
        raise TimeoutError("no answer")

    def script(messages: kit.Messages) -> Any:
        return "done TERMINATE" if "receipt" in text(messages) else call(("charge", {"amount": 3}))

    for _ in range(2):
        with pytest.raises(Suspended):
            go("initiate_chat", pair(script, (charge,)), url)
    with Stepfast(url) as sf:
        sf.answer("r", "done", value="receipt 7")
    assert go("initiate_chat", pair(script, (charge,)), url).chat_history[2]["content"] == "receipt 7"
    assert kit.requests == ["assistant"] * 2


def test_a_tool_knows_its_run(url: str) -> None:
    seen: list[str] = []

    @idempotent
    def find() -> str:
        """Find."""
        run = current_run()
        seen.append("none" if run is None else run.run_id)
        return "found"

    user, assistant = pair(lambda messages: "TERMINATE" if "found" in text(messages) else call(("find", {})), (find,))
    go("initiate_chat", [user, assistant], url)
    assert seen == ["r"]
    assert "found" in user.function_map["find"]()  # outside of a run it is the user's own again
    assert seen == ["r", "none"]


# --- people ------------------------------------------------------------------------------------------


@both_ways
def test_what_a_run_waits_for_is_returned_where_the_caller_wants_it(way: str, url: str) -> None:
    def chat() -> Any:
        user, assistant = pair(lambda messages: f"answer {len(messages)} TERMINATE", human_input_mode="ALWAYS")
        return go(way, [user, assistant], url, on_wait="return")

    first, second = chat(), chat()
    assert isinstance(first, Waiting)
    assert [each["question"] for each in first.decisions] == [each["question"] for each in second.decisions]
    assert first.decisions[0]["question"].startswith("Replying as user. Provide feedback to assistant.")
    assert first.decisions[0]["evidence"] == {
        "agent": "user",
        "from": "assistant",
        "message": "answer 2 TERMINATE",
    }
    with Stepfast(url) as sf:
        assert sf.get_intent("r")["status"] == "WAITING"
        sf.answer("r", "approved", value="Go on.")
    assert isinstance(chat(), Waiting)
    with Stepfast(url) as sf:
        sf.answer("r", "rejected")
    found = chat()
    assert found.human_input == ["Go on.", "exit"]
    assert [each["content"] for each in found.chat_history] == [
        "Go.",
        "answer 2 TERMINATE",
        "Go on.",
        "answer 4 TERMINATE",
    ]
    assert len(kit.requests) == 2


@both_ways
def test_input_in_the_users_own_way_is_asked_for_once(way: str, url: str) -> None:
    asked: list[str] = []
    away = [ConnectionError("away")]

    class Person(UserProxyAgent):  # type: ignore[misc]
        def get_human_input(self, prompt: str, **kwargs: Any) -> str:
            asked.append(prompt)
            return "Go on." if len(asked) == 1 else "exit"

    def script(messages: kit.Messages) -> Any:
        return away.pop() if away and len(messages) > 2 else "yes"

    def chat() -> Any:
        person = Person("user", human_input_mode="ALWAYS", code_execution_config=False)
        return go(way, [person, AssistantAgent("assistant", llm_config=llm("assistant", script))], url)

    with pytest.raises(ConnectionError):
        chat()
    assert [each["content"] for each in chat().chat_history] == ["Go.", "yes", "Go on.", "yes"]
    assert len(asked) == 2


# --- functions of the user ---------------------------------------------------------------------------


def test_a_reply_function_that_runs_agents_is_entered_again_and_repeats_no_call(url: str) -> None:
    entered: list[int] = []
    away = [ConnectionError("away")]

    def script(messages: kit.Messages) -> Any:
        return "a fact TERMINATE"

    def chat() -> Any:
        user, writer = UserProxyAgent("user", is_termination_msg=ends, **QUIET), ConversableAgent("writer", **QUIET)
        expert = AssistantAgent("expert", llm_config=llm("expert", script))

        def consult(recipient: Any, messages: Any = None, sender: Any = None, config: Any = None) -> Any:
            entered.append(1)
            found = recipient.initiate_chat(expert, message="A fact, please.", max_turns=1, silent=True)
            if away:
                raise away.pop()
            return True, found.summary + "TERMINATE"

        writer.register_reply(UserProxyAgent, consult)
        found = go("initiate_chat", [user, writer], url)
        return found, len(writer.chat_messages[expert])

    with pytest.raises(ConnectionError):
        chat()
    for _ in range(2):
        found, heard = chat()
        assert found.chat_history[1]["content"] == "a fact TERMINATE"
        assert heard == 2
    assert len(entered) == 3
    assert kit.requests == ["expert"]


@pytest.mark.parametrize("by", ["random", "function"])
def test_the_choice_of_a_speaker_is_recorded(by: str, url: str) -> None:
    chosen: list[str] = []
    away = [ConnectionError("away")]

    def script(messages: kit.Messages) -> Any:
        if away and len(messages) > 6:
            raise away.pop()
        return f"line {len(messages)}"

    def chat() -> list[Any]:
        agents = [AssistantAgent(name, llm_config=llm(name, script)) for name in ("ada", "bob", "eve", "kim")]

        def choose(last: Any, group: Any) -> Any:
            chosen.append(last.name)
            return agents[(len(chosen) * 7 + 1) % 4]

        group = GroupChat(agents, messages=[], max_round=9, speaker_selection_method=choose if by == "function" else by)
        manager = GroupChatManager(group, silent=True)
        with durable(manager, "r", url) as chats:
            chats.initiate_chat(message="Go.", silent=True)
        assert group.speaker_selection_method in (choose, "random")
        return [(each["name"], each["content"]) for each in group.messages]

    with pytest.raises(ConnectionError):
        chat()
    first = chat()
    assert first == chat()
    assert len(first) == 9
    assert len(kit.requests) == 9
    assert len(chosen) == (8 if by == "function" else 0)


# --- drift -------------------------------------------------------------------------------------------


def test_a_changed_agent_goes_on_with_a_warning_or_is_refused(url: str, caplog: pytest.LogCaptureFixture) -> None:
    away = [ConnectionError("away")]

    def chat(system: str, message: str = "Go.", **options: Any) -> Any:
        def script(messages: kit.Messages) -> Any:
            return away.pop() if len(messages) > 2 and away else "TERMINATE" if len(messages) > 3 else "first"

        config = llm("assistant", script, temperature=len(system) / 10 % 1)
        assistant = AssistantAgent("assistant", system_message=system, llm_config=config)
        user = UserProxyAgent("user", is_termination_msg=ends, default_auto_reply="more", **QUIET)
        return go("initiate_chat", [user, assistant], url, chat={"message": message}, **options)

    with pytest.raises(ConnectionError):
        chat("Be kind.")
    with pytest.raises(Diverged) as refused:
        chat("Be brief!!", on_drift="raise")
    assert "system message: 'Be kind.' → 'Be brief!!'" in str(refused.value)
    assert "settings: temperature" in str(refused.value)
    with pytest.raises(Diverged, match=r"message: 'Go.' → 'Stop.'"):
        chat("Be kind.", "Stop.", on_drift="raise")
    with caplog.at_level(logging.WARNING, "stepfast"):
        found = chat("Be brief!!", "Stop.")
    assert found.chat_history[0]["content"] == "Go."
    assert "message: 'Go.' → 'Stop.'" in caplog.text
    assert "system message: 'Be kind.' → 'Be brief!!'" in caplog.text
    assert len(kit.requests) == 3


@both_ways
def test_an_agent_that_calls_its_client_by_itself_is_recorded_too(way: str, url: str) -> None:
    away = [ConnectionError("away")]

    class Own(AssistantAgent):  # type: ignore[misc]
        """As AutoGen's agents for images do it."""

        def generate_oai_reply(self, messages: Any = None, sender: Any = None, config: Any = None, **_: Any) -> Any:
            response = self.client.create(messages=self._oai_system_message + messages, agent=self)
            return True, self.client.extract_text_or_completion_object(response)[0]

    def script(messages: kit.Messages) -> Any:
        return "first" if len(messages) == 2 else away.pop() if away else "second TERMINATE"

    def chat() -> Any:
        own = Own("own", llm_config=llm("own", script))
        own.replace_reply_func(ConversableAgent.generate_oai_reply, Own.generate_oai_reply)
        user = UserProxyAgent("user", is_termination_msg=ends, default_auto_reply="more", **QUIET)
        return go(way, [user, own], url)

    with pytest.raises(ConnectionError):
        chat()
    results = [chat() for _ in range(2)]
    assert [each.summary for each in results] == ["second ", "second "]
    assert results[0].cost == results[1].cost
    assert kit.requests == ["own"] * 3


# --- several runs, several chats ---------------------------------------------------------------------


def test_a_chat_goes_on_with_the_history_of_an_earlier_run_in_another_process(url: str) -> None:
    def script(messages: kit.Messages) -> Any:
        return f"{len(messages)} messages TERMINATE"

    def chat(run_id: str, message: str, agents: Any, clear: bool) -> Any:
        with durable(agents, run_id, url) as chats:
            return chats.initiate_chat(message=message, clear_history=clear, silent=True)

    agents = pair(script)
    chat("first", "One.", agents, True)
    expected = chat("second", "Two.", agents, False).chat_history
    assert [each["content"] for each in expected][2:] == ["Two.", "4 messages TERMINATE"]
    # Other processes, with new agents: with the first run called again, and without it.
    assert chat("second", "Two.", pair(script), False).chat_history == expected
    others = pair(script)
    chat("first", "One.", others, True)
    assert chat("second", "Two.", others, False).chat_history == expected
    assert chat("second", "Two.", others, False).chat_history == expected
    assert len(kit.requests) == 2


def test_a_message_can_be_left_out_when_a_run_goes_on(url: str) -> None:
    away = [ConnectionError("away")]

    def script(messages: kit.Messages) -> Any:
        return away.pop() if away else f"{messages[-1]['content']} TERMINATE"

    with pytest.raises(ConnectionError):
        go("initiate_chat", pair(script), url)
    assert go("initiate_chat", pair(script), url, chat={}).summary == "Go. "


def test_one_reply_is_a_run_too(url: str) -> None:
    for _ in range(2):
        _, assistant = pair(lambda messages: "hello")
        with durable(assistant, "r", url) as chats:
            assert chats.generate_reply([{"role": "user", "content": "Hi."}]) == "hello"
            assert asyncio.run(chats.a_generate_reply([{"role": "user", "content": "Hi."}])) == "hello"
    assert kit.requests == ["assistant"]


def test_a_step_is_done_again_after_a_rewind(url: str) -> None:
    away = [ConnectionError("away")]

    def script(messages: kit.Messages) -> Any:
        return away.pop() if len(messages) == 4 and away else "TERMINATE" if len(messages) == 4 else "first"

    with durable(pair(script, default_auto_reply="more"), "r", url) as chats:
        with pytest.raises(ConnectionError):
            chats.initiate_chat(message="Go.", silent=True)
        with Stepfast(url) as sf:
            [step] = [each["key"] for each in sf.steps("r") if each["kind"] == "model"]
        assert chats.rewind(step) == 1
        assert len(chats.initiate_chat(message="Go.", silent=True).chat_history) == 4
    assert kit.requests == ["assistant"] * 4


def test_an_error_in_one_of_several_chats_ends_the_run_and_the_others_stop(url: str) -> None:
    began = threading.Event()
    away = [ConnectionError("away")]

    def failing(messages: kit.Messages) -> Any:
        assert began.wait(60)
        return away.pop() if away else "failing done TERMINATE"

    def slow(messages: kit.Messages) -> Any:
        began.set()
        return f"slow {len(messages)}" if len(messages) < 8 else "slow done TERMINATE"

    def chats() -> Any:
        user = UserProxyAgent("user", is_termination_msg=ends, default_auto_reply="more", **QUIET)
        agents = [
            AssistantAgent(each.__name__, llm_config=llm(each.__name__, each), max_consecutive_auto_reply=20)
            for each in (failing, slow)
        ]
        queue = [
            {"chat_id": number, "recipient": agent, "message": "Go.", "silent": True, "summary_method": "last_msg"}
            for number, agent in enumerate(agents)
        ]
        with durable(user, "r", url) as runs:
            return asyncio.run(runs.a_initiate_chats(queue))

    with pytest.raises(ConnectionError):
        chats()
    before = kit.requests.count("slow")
    found = chats()
    assert [found[0].summary, found[1].summary] == ["failing done ", "slow done "]
    assert before <= kit.requests.count("slow") == 4  # none that was finished is made again


# --- what is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agents", "options", "words"),
    [
        (42, {}, "agents: must be a ConversableAgent or a list of them, not a int."),
        ([], {}, "agents: must be a ConversableAgent or a list of them, not an empty list."),
        ("user", {"on_drift": "acept"}, "on_drift: must be one of 'raise', 'warn', 'accept', not 'acept'."),
        ("user", {"run_id": None}, "run_id: a durable run needs a name"),
        ("alone", {}, "recipient: must be an agent"),
    ],
)
def test_what_cannot_be_done_is_refused(agents: Any, options: dict[str, Any], words: str, url: str) -> None:
    if isinstance(agents, str):
        found = pair(lambda messages: "TERMINATE")
        agents = found[0] if agents == "alone" else found
    with pytest.raises(InvalidInput) as refused:
        durable(agents, **{"run_id": "r", "store": url, **options}).initiate_chat(message="Go.")
    assert words in str(refused.value)
    assert kit.requests == []
