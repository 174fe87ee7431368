"""DurableSwarm: Swarm's own results, under a name, from wherever the run stopped."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from swarm import Agent, Swarm
from swarm.types import Result

from adapters.swarm.tests.kit import FakeClient, call, outputs, say
from stepfast import Conflict, Diverged, InvalidInput, RunFailed, Stepfast, Suspended, Waiting
from stepfast_swarm import (
    DID_NOT_HAPPEN,
    DurableSwarm,
    Happened,
    composite,
    durable,
    idempotency_key,
    idempotent,
    once,
)

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture
def sf(tmp_path: Path) -> Iterator[Stepfast]:
    with Stepfast(f"sqlite:///{tmp_path}/stepfast.db") as opened:
        yield opened


class Broken(Exception):
    pass


def in_turns(*answers: Any) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
    """One answer after the other, by how many of them the request holds; an exception is raised."""

    def script(messages: list[dict[str, Any]]) -> dict[str, Any]:
        answer = answers[sum(m["role"] == "assistant" for m in messages)]
        if isinstance(answer, Exception):
            raise answer
        return answer() if callable(answer) else answer

    return script


def agents_in_a_circle(happened: list[str]) -> Agent:
    def to_b() -> Agent:
        return b

    @idempotent
    def back(note: str, context_variables: dict[str, Any]) -> Result:
        happened.append(f"back {context_variables['user']}")
        return Result(value=note, agent=a, context_variables={"note": note})

    a = Agent(name="A", instructions=lambda variables: f"A of {variables['user']}{variables['note']}", functions=[to_b])
    b = Agent(name="B", instructions="B", model="other", functions=[back])
    return a


CIRCLE = in_turns(
    lambda: call(("to_b", {})), lambda: call(("back", {"note": "!"})), lambda: call(("nothing", {})), say("done")
)


@pytest.mark.parametrize("stream", [False, True])
def test_a_run_gives_what_swarm_gives(sf: Stepfast, stream: bool) -> None:
    def ending(swarm: Any, **named: Any) -> Any:
        happened: list[str] = []
        agent = agents_in_a_circle(happened)
        ended = swarm.run(agent, HELLO, {"user": "ada"}, stream=stream, max_turns=20, **named)
        events = list(ended) if stream else []
        response = events.pop()["response"] if stream else ended
        assert response.agent is agent
        assert happened == ["back ada"]
        ids = {"id", "tool_call_id"}
        told = [{n: v for n, v in m.items() if n not in {*ids, "tool_calls"}} for m in response.messages]
        return told, response.context_variables, len(events)

    bare, ours = FakeClient(CIRCLE), FakeClient(CIRCLE)
    expected = ending(Swarm(bare))

    assert ending(DurableSwarm(ours, store=sf), run_id="r") == expected
    assert [sorted(r) for r in ours.requests] == [sorted(r) for r in bare.requests]
    assert [r["model"] for r in ours.requests] == ["gpt-4o", "other", "gpt-4o", "gpt-4o"]
    assert ours.requests[2]["messages"][0]["content"] == "A of ada!"


@pytest.mark.parametrize("stream", [False, True])
def test_a_finished_run_gives_its_result_again_and_calls_nothing(sf: Stepfast, stream: bool) -> None:
    happened: list[str] = []
    agent = agents_in_a_circle(happened)
    client = FakeClient(CIRCLE)

    def ending() -> Any:
        ended = DurableSwarm(client, store=sf).run(agent, HELLO, {"user": "ada"}, stream=stream, run_id="r")
        if not stream:
            return ended
        for event in ended:
            if "response" in event:  # where Swarm's own printer stops listening
                return event["response"]
        raise AssertionError("no response")

    first = ending()
    assert sf.get_intent("r")["status"] == "COMPLETED"
    again = ending()

    assert (again.messages, again.context_variables) == (first.messages, first.context_variables)
    assert again.agent is agent
    assert (client.calls, happened) == (4, ["back ada"])
    assert sf.get_intent("r")["result"] == {
        "final_output": "done",
        "last_agent": "A",
        "messages": 7,
        "usage": {"requests": 4, "input_tokens": 0, "output_tokens": 0, "cached_tokens": 0},
    }


def test_the_recorded_messages_are_used_where_none_are_given(sf: Stepfast) -> None:
    agent = Agent(name="A", instructions="A")
    DurableSwarm(FakeClient(in_turns(say("hi"))), store=sf).run(agent, HELLO, run_id="r")

    again = DurableSwarm(FakeClient(in_turns(Broken())), store=sf).run(agent, run_id="r")

    assert again.messages[-1]["content"] == "hi"
    with pytest.raises(InvalidInput, match="messages: run new has none"):
        DurableSwarm(FakeClient(in_turns(say("hi"))), store=sf).run(agent, run_id="new")


def test_a_failed_model_call_is_not_recorded_and_is_made_again(sf: Stepfast) -> None:
    done: list[int] = []

    def count() -> str:
        done.append(1)
        return "counted"

    agent = Agent(name="A", instructions="A", functions=[count])
    broken = in_turns(lambda: call(("count", {})), Broken())
    with pytest.raises(Broken):
        DurableSwarm(FakeClient(broken), store=sf).run(agent, HELLO, run_id="r")
    client = FakeClient(in_turns(Broken(), say("fine")))

    assert DurableSwarm(client, store=sf).run(agent, HELLO, run_id="r").messages[-1]["content"] == "fine"
    assert (done, client.calls) == ([1], 1)


def test_a_tools_exception_ends_the_run_as_in_swarm_and_the_call_is_made_again(sf: Stepfast) -> None:
    fixed = False

    def fragile() -> str:
        if not fixed:
            raise Broken
        return "whole"

    agent = Agent(name="A", instructions="A", functions=[fragile])
    client = FakeClient(in_turns(lambda: call(("fragile", {})), say("ok")))
    with pytest.raises(Broken):
        DurableSwarm(client, store=sf).run(agent, HELLO, run_id="r")
    fixed = True

    ended = DurableSwarm(client, store=sf).run(agent, HELLO, run_id="r")

    assert outputs(ended.messages) == ["whole"]
    assert client.calls == 2


@pytest.mark.parametrize(("outcome", "happens", "told"), [("done", 1, "sent it"), ("retry", 2, "sent 2")])
def test_a_one_shot_that_raised_is_in_doubt_until_a_person_decides(
    sf: Stepfast, outcome: str, happens: int, told: str
) -> None:
    keys: list[str] = []

    @once
    def send() -> str:
        keys.append(idempotency_key())
        if len(keys) == 1:
            raise Broken
        return f"sent {len(keys)}"

    agent = Agent(name="A", instructions="A", functions=[send])
    swarm = DurableSwarm(FakeClient(in_turns(lambda: call(("send", {})), say("ok"))), store=sf)
    for _ in range(2):
        with pytest.raises(Suspended):
            swarm.run(agent, HELLO, run_id="r")
    assert len(keys) == 1
    sf.answer("r", outcome, value="sent it" if outcome == "done" else None)

    ended = swarm.run(agent, HELLO, run_id="r")

    assert outputs(ended.messages) == [told]
    assert len(keys) == happens
    assert len(set(keys)) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_where_it_is_wanted_each_call_returns_what_is_asked(sf: Stepfast, stream: bool) -> None:
    sent: list[str] = []

    @once
    def send() -> str:
        sent.append("x")
        raise Broken

    agent = Agent(name="A", instructions="A", functions=[send])
    client = FakeClient(in_turns(lambda: call(("send", {})), say("ok")))
    swarm = DurableSwarm(client, store=sf, on_wait="return")

    def ask() -> Any:
        said = swarm.run(agent, HELLO, run_id="r", stream=stream)
        return list(said)[-1]["response"] if stream else said

    for _ in range(3):
        waits = ask()
        assert isinstance(waits, Waiting)
        assert (waits.run_id, waits.decisions) == ("r", sf.decisions("r"))
        assert [d["kind"] for d in waits.decisions] == ["in_doubt"]
    assert sent == ["x"]
    sf.answer("r", "done", value="sent it")
    assert outputs(ask().messages) == ["sent it"]


def test_a_decision_to_fail_ends_the_run(sf: Stepfast) -> None:
    @once
    def send() -> str:
        raise Broken

    agent = Agent(name="A", instructions="A", functions=[send])
    swarm = DurableSwarm(FakeClient(in_turns(lambda: call(("send", {})), say("ok"))), store=sf)
    with pytest.raises(Suspended):
        swarm.run(agent, HELLO, run_id="r")
    sf.answer("r", "fail", actor="ada")

    with pytest.raises(RunFailed, match="ada decided to fail"):
        swarm.run(agent, HELLO, run_id="r")


@pytest.mark.parametrize("happened", [True, False])
def test_a_probe_settles_what_a_person_would_be_asked(sf: Stepfast, happened: bool) -> None:
    calls: list[str] = []

    def look(order: str) -> Any:
        assert order == "4711"
        return Happened("found") if happened else DID_NOT_HAPPEN

    @once(reconcile=look)
    def refund(order: str) -> str:
        calls.append(order)
        if len(calls) == 1:
            raise Broken
        return "refunded"

    agent = Agent(name="A", instructions="A", functions=[refund])
    client = FakeClient(in_turns(lambda: call(("refund", {"order": "4711"})), say("ok")))

    ended = DurableSwarm(client, store=sf).run(agent, HELLO, run_id="r")

    assert outputs(ended.messages) == (["found"] if happened else ["refunded"])
    assert len(calls) == (1 if happened else 2)


def test_arguments_that_do_not_fit_leave_nothing_in_doubt(sf: Stepfast) -> None:
    @once
    def send(to: str) -> str:
        raise AssertionError("not reached")

    agent = Agent(name="A", instructions="A", functions=[send])
    client = FakeClient(in_turns(lambda: call(("send", {"wrong": 1})), say("ok")))
    with pytest.raises(TypeError, match="wrong"):
        DurableSwarm(client, store=sf).run(agent, HELLO, run_id="r")

    assert sf.decisions("r") == []


def test_a_changed_request_is_told_and_can_be_accepted(sf: Stepfast, caplog: pytest.LogCaptureFixture) -> None:
    script = in_turns(lambda: call(("count", {})), say("ok"))

    def count() -> str:
        return "counted"

    DurableSwarm(FakeClient(script), store=sf).run(
        Agent(name="A", instructions="Be kind.", functions=[count]), HELLO, run_id="r"
    )

    def count() -> str:  # type: ignore[no-redef]
        """Count them."""
        return "counted"

    changed = Agent(name="A", instructions="Be brief.", model="newer", functions=[count])
    with pytest.raises(Diverged) as told:
        DurableSwarm(FakeClient(script), store=sf).run(changed, HELLO, run_id="r")
    for words in ("model: 'gpt-4o' → 'newer'", "'Be kind.' → 'Be brief.'", "tools: count has another", "on_drift"):
        assert words in str(told.value)
    with pytest.raises(Conflict, match="different body"):
        DurableSwarm(FakeClient(script), store=sf).run(changed, [{"role": "user", "content": "bye"}], run_id="r")
    with pytest.raises(Diverged, match="Pass stream=False again"):
        list(DurableSwarm(FakeClient(script), store=sf, on_drift="accept").run(changed, HELLO, run_id="r", stream=True))

    for policy in ("warn", "accept"):
        ended = DurableSwarm(FakeClient(script), store=sf, on_drift=policy).run(changed, HELLO, run_id="r")
        assert ended.messages[-1]["content"] == "ok"
    assert caplog.text.count("was recorded for another request") == 2


def test_a_resumed_stream_tells_finished_turns_again_or_leaves_them_out(sf: Stepfast) -> None:
    def count() -> str:
        return "counted"

    agent = Agent(name="A", instructions="A", functions=[count])

    turn = lambda: call(("count", {}))  # noqa: E731

    def until_broken(**options: Any) -> list[Any]:
        client = FakeClient(in_turns(turn, Broken()))
        stream = DurableSwarm(client, store=sf, **options).run(agent, HELLO, stream=True, run_id="r")
        found: list[Any] = []
        with pytest.raises(Broken):
            found.extend(stream)
        return found

    first = until_broken()
    assert [e["delim"] for e in first if "delim" in e] == ["start", "end"]

    assert until_broken() == first
    assert until_broken(replay_events=False) == []
    client = FakeClient(in_turns(Broken(), say("good day")))
    live = list(DurableSwarm(client, store=sf, replay_events=False).run(agent, HELLO, stream=True, run_id="r"))
    assert [e["content"] for e in live if "content" in e] == ["", "good", "day"]
    assert outputs(live[-1]["response"].messages) == ["counted"]


def test_a_stream_that_is_left_alone_is_handed_back_and_goes_on(sf: Stepfast) -> None:
    agent = Agent(name="A", instructions="A")
    client = FakeClient(in_turns(say("one two three")))
    stream = DurableSwarm(client, store=sf).run(agent, HELLO, stream=True, run_id="r")
    next(stream)
    stream.close()

    ended = list(DurableSwarm(client, store=sf).run(agent, HELLO, stream=True, run_id="r"))[-1]["response"]

    assert ended.messages[-1]["content"] == "onetwothree"
    assert client.calls == 2


def test_ids_that_a_provider_uses_again_are_calls_of_their_own(sf: Stepfast) -> None:
    done: list[int] = []

    @idempotent
    def add(number: int) -> str:
        done.append(number)
        return str(number)

    agent = Agent(name="A", instructions="A", functions=[add])
    turns = [call(("add", {"number": n}), ("add", {"number": n + 10}), ids=["call_0", "call_0"]) for n in (1, 2)]
    client = FakeClient(in_turns(*turns, say("ok")))

    for _ in range(2):
        ended = DurableSwarm(client, store=sf).run(agent, HELLO, run_id="r")
        assert outputs(ended.messages) == ["1", "11", "2", "12"]
    assert done == [1, 11, 2, 12]


def test_an_agent_that_only_its_function_knows_is_given_by_the_caller_or_made_again(sf: Stepfast) -> None:
    def hire() -> Agent:
        return Agent(name="helper", instructions="H")

    def fetch() -> Agent:
        return getattr(shelf, "".join(["hel", "per"]))

    def script(messages: list[dict[str, Any]]) -> dict[str, Any]:
        return say("ok") if outputs(messages) else call(("hire", {}), ("fetch", {}))

    def ending(function: Any, run_id: str, **options: Any) -> Any:
        agent = Agent(name="A", instructions="A", functions=[function])
        return DurableSwarm(FakeClient(script), store=sf, **options).run(agent, HELLO, run_id=run_id).agent

    shelf = SimpleNamespace(helper=Agent(name="helper", instructions="H"))
    assert ending(hire, "r").name == "helper"
    with pytest.raises(InvalidInput, match=r"hire handed over to agent 'helper'.*agents="):
        ending(hire, "r")
    assert ending(idempotent(hire), "safe").name == ending(idempotent(hire), "safe").name == "helper"

    for _ in range(2):
        assert ending(fetch, "named", agents=[shelf.helper]) is shelf.helper


def test_a_run_inside_a_tool_is_part_of_the_run(sf: Stepfast) -> None:
    swarm = DurableSwarm(FakeClient(lambda m: say(f"inner {m[-1]['content']}")), store=sf)
    inner = Agent(name="inner", instructions="I")

    @composite
    def ask(what: str) -> str:
        return str(swarm.run(inner, [{"role": "user", "content": what}]).messages[-1]["content"])

    outer = Agent(name="outer", instructions="O", functions=[ask])
    client = FakeClient(in_turns(lambda: call(("ask", {"what": "a"}), ("ask", {"what": "b"})), say("ok")))

    for _ in range(2):
        ended = DurableSwarm(client, store=sf).run(outer, HELLO, run_id="r")
        assert outputs(ended.messages) == ["inner a", "inner b"]
    assert (client.calls, swarm.client.calls) == (2, 2)
    assert sorted({step["kind"] for step in sf.steps("r")}) == ["model"]
    with pytest.raises(InvalidInput, match="run_id: a durable run needs a name"):
        swarm.run(inner, HELLO)


def test_an_open_run_can_be_given(sf: Stepfast) -> None:
    client = FakeClient(in_turns(say("ok")))
    with sf.run("work") as run:
        for _ in range(2):
            DurableSwarm(client).run(Agent(name="A", instructions="A"), HELLO, run=run)
        run.complete("all done")

    assert client.calls == 2
    assert sf.get_intent("work")["result"] == "all done"


def test_a_poisoned_answer_can_be_rewound(sf: Stepfast) -> None:
    bad: dict[str, Any] = call(("count", {}))
    bad["tool_calls"][0]["function"]["arguments"] = "{"

    def count() -> str:
        return "counted"

    agent = Agent(name="A", instructions="A", functions=[count])
    for _ in range(2):
        with pytest.raises(ValueError, match="Expecting"):
            DurableSwarm(FakeClient(in_turns(bad)), store=sf).run(agent, HELLO, run_id="r")
    swarm = DurableSwarm(FakeClient(in_turns(say("better"))), store=sf)

    assert swarm.rewind("r", "model:0") == 1
    assert swarm.run(agent, HELLO, run_id="r").messages[-1]["content"] == "better"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"on_drift": "maybe"}, "on_drift: must be"),
        ({"on_wait": "returned"}, "on_wait: must be"),
        ({"on_in_doubt": "perhaps"}, "on_in_doubt: must be"),
        ({"policies": {"send": "twice"}}, "policies\\['send'\\]: must be"),
        ({"store": 7}, "store: must be a URL"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        DurableSwarm(FakeClient(in_turns(say("ok"))), **options)


def test_it_needs_no_agents_sdk() -> None:
    assert "agents" not in sys.modules


# --- durable, and the words that all adapters share ----------------------------------------------


def counting(happened: list[str], dies: bool = False) -> Agent:
    def count(word: str) -> str:
        happened.append(word)
        if dies and len(happened) == 1:
            raise KeyboardInterrupt
        return f"counted {word}"

    return Agent(name="A", instructions="A", functions=[count])


COUNT = in_turns(lambda: call(("count", {"word": "one"})), say("done"))


def test_a_durable_agent_has_the_shared_words(sf: Stepfast) -> None:
    happened: list[str] = []
    client = FakeClient(in_turns(lambda: call(("count", {"word": "one"})), Broken()))
    options: dict[str, Any] = {"labels": {"team": "a"}, "prices": lambda model, usage: 0.5 * usage.requests}
    broken = durable(counting(happened), lambda messages: "r", sf, client=client, **options)
    with broken, pytest.raises(Broken):
        broken.run(HELLO, context_variables={"user": "ada"})
    with durable(counting(happened), "r", sf, client=FakeClient(COUNT), **options) as agent:
        assert agent.rewind("model:0") == 1
        assert agent.resume().messages[-1]["content"] == "done"
        assert list(agent.run(HELLO, "streamed", stream=True))[-1]["response"].messages[-1]["content"] == "done"
    shown = sf.get_intent("r")
    assert shown["labels"] == {"framework": "openai-swarm", "agent": "A", "team": "a"}
    assert shown["result"]["usage"] == {
        "requests": 2,
        "input_tokens": 0,
        "output_tokens": 0,
        "cached_tokens": 0,
        "cost": 1.0,
    }
    with pytest.raises(InvalidInput, match="agent: must be an Agent of Swarm, not str"):
        durable("agent")
    with (
        durable(counting([]), store=sf, client=client) as agent,
        pytest.raises(InvalidInput, match="run_id: a durable run needs"),
    ):
        agent.run(HELLO)


def test_a_function_that_says_nothing_is_asked_about_or_what_a_pattern_says(sf: Stepfast) -> None:
    for run_id, policies in (("asked", None), ("patterned", {"c*": "retry"})):
        happened: list[str] = []
        client = FakeClient(COUNT)
        with durable(counting(happened, dies=True), run_id, sf, client=client, policies=policies) as agent:
            with pytest.raises(KeyboardInterrupt):
                agent.run(HELLO)
            if policies is None:
                with pytest.raises(Suspended):
                    agent.run(HELLO)
            else:
                agent.run(HELLO)
        assert len(happened) == (1 if policies is None else 2)


def test_a_durable_agent_serves_an_address(sf: Stepfast) -> None:
    address = "agent://acme/prod/a"
    with durable(counting([]), client=FakeClient(COUNT), store=sf) as agent:
        worker = agent.worker(sf, address)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            about = {"intent_type": "count.v1", "to_agent": address}
            good = sf.send_intent({**about, "payload": {"messages": HELLO}})
            bad = sf.send_intent({**about, "payload": "hello"})
            result = sf.wait_for(good, timeout=30)["result"]
            assert (result["final_output"], result["usage"]["requests"]) == ("done", 2)
            assert "payload: must be a list of messages" in sf.wait_for(bad, timeout=30)["reason"]
        finally:
            worker.stop()
            thread.join()
