"""A scripted client in place of the API, and a story for the kill matrix: agents in a circle, one-shot tools."""

from __future__ import annotations

import json
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openai.types.chat import ChatCompletion, ChatCompletionChunk
from swarm import Agent
from swarm.types import Result

from stepfast import Suspended, _failpoints, idempotency_key
from stepfast_swarm import DurableSwarm, composite, idempotent, once

RUN = "order-4711"
Script = Callable[[list[dict[str, Any]]], dict[str, Any]]


def say(words: str) -> dict[str, Any]:
    return {"content": words}


def call(*calls: tuple[str, dict[str, Any]], ids: list[str] | None = None) -> dict[str, Any]:
    """Tool calls, with ids of their own as the API would give on each call."""
    numbered = [
        {
            "id": f"call_{uuid.uuid4().hex}" if ids is None else ids[number],
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for number, (name, arguments) in enumerate(calls)
    ]
    return {"content": None, "tool_calls": numbered}


def outputs(messages: list[dict[str, Any]]) -> list[str]:
    return [message["content"] for message in messages if message["role"] == "tool"]


class FakeClient:
    """Answers by a function of the messages; every real call is counted."""

    def __init__(self, script: Script, log: Callable[[str], None] = lambda _line: None) -> None:
        self.script = script
        self.log = log
        self.requests: list[dict[str, Any]] = []
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self.create))

    @property
    def calls(self) -> int:
        return len(self.requests)

    def create(self, **params: Any) -> Any:
        self.requests.append(params)
        self.log("model")
        answer = self.script(params["messages"])
        if params["stream"]:
            return self._pieces(answer)
        self.log("model.return")
        message = {"role": "assistant", **answer}
        finish = "tool_calls" if answer.get("tool_calls") else "stop"
        return ChatCompletion.model_validate(
            {
                "id": f"chatcmpl-{uuid.uuid4().hex}",
                "object": "chat.completion",
                "created": 0,
                "model": params["model"],
                "choices": [{"index": 0, "finish_reason": finish, "message": message}],
            }
        )

    def _pieces(self, answer: dict[str, Any]) -> Iterator[Any]:
        name = f"chatcmpl-{uuid.uuid4().hex}"
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        if answer["content"] is not None:
            deltas += [{"content": word} for word in answer["content"].split(" ")]
        for index, one in enumerate(answer.get("tool_calls", [])):
            begun, rest = one["function"]["arguments"][:3], one["function"]["arguments"][3:]
            first = {**one, "index": index, "function": {"name": one["function"]["name"], "arguments": begun}}
            deltas += [{"tool_calls": [first]}, {"tool_calls": [{"index": index, "function": {"arguments": rest}}]}]
        for number, delta in enumerate(deltas):
            self.log("model.piece")
            last = number == len(deltas) - 1
            yield ChatCompletionChunk.model_validate(
                {
                    "id": name,
                    "object": "chat.completion.chunk",
                    "created": 0,
                    "model": "scripted",
                    "choices": [{"index": 0, "delta": delta, "finish_reason": "stop" if last else None}],
                }
            )


class Log:
    """Lines in a file, which survive the process that wrote them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, line: str) -> None:
        with self.path.open("a") as file:
            file.write(line + "\n")

    @property
    def lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []


# --- the story -----------------------------------------------------------------------------------


class Stage:
    """Where a child plays: it counts effects and model calls, tells each boundary it passes, and dies at one."""

    def __init__(self, folder: Path, kill: str | None) -> None:
        self.effects = Log(folder / "effects.log")
        self.models = Log(folder / "models.log")
        self.labels = Log(folder / "labels.log")
        self.kill = kill
        self.met: dict[str, int] = {}

    def point(self, name: str) -> None:
        self.met[name] = self.met.get(name, 0) + 1
        label = f"{name}#{self.met[name]}"
        self.labels.add(label)
        if label == self.kill:
            os.kill(os.getpid(), signal.SIGKILL)

    def model(self, line: str) -> None:
        if line == "model":
            self.models.add(line)
        self.point(line)

    def effect(self, name: str) -> str:
        self.point(f"before {name}")
        self.effects.add(f"{name} {idempotency_key()}")
        self.point(f"after {name}")
        return f"{name} done"


def script(messages: list[dict[str, Any]]) -> dict[str, Any]:
    who, done = messages[0]["content"], outputs(messages)
    if who == "research":
        return say(f"tariff by {done[-1]}") if "look_up done" in done else call(("look_up", {"topic": "tariff"}))
    if who == "triage":
        if not done:
            return call(("charge_card", {"amount": 42}), ("reserve", {"item": "lamp"}))
        if len(done) == 2:
            return call(("to_shipping", {}))
        # Back again from shipping: the circle is closed.
        return say("Shipped: " + "; ".join(done))
    assert who == "shipping for ada, 42 paid"
    if len(done) == 3:
        return call(("weigh", {}), ("ask_research", {"topic": "tariff"}))
    if len(done) == 5:
        return call(("send_email", {"to": "ada"}))
    return call(("back", {}))


def build(stage: Stage, swarm: Callable[[], DurableSwarm]) -> Agent:
    @once
    def charge_card(amount: int, context_variables: dict[str, Any]) -> Any:
        context_variables["paid"] = amount  # in place, as many do
        return stage.effect("charge")

    @idempotent
    def reserve(item: str) -> Any:
        return Result(value=stage.effect("reserve"), context_variables={"items": [item]})

    @idempotent
    def to_shipping() -> Any:
        return Result(value="over to shipping", agent=shipping, context_variables={"at": "shipping"})

    @idempotent
    def weigh(context_variables: dict[str, Any]) -> str:
        assert context_variables["items"] == ["lamp"]
        return stage.effect("weigh")

    @idempotent
    def look_up(topic: str) -> str:
        return stage.effect("look_up")

    @composite
    def ask_research(topic: str) -> str:
        answer = swarm().run(research, [{"role": "user", "content": topic}])
        return str(answer.messages[-1]["content"])

    @once
    def send_email(to: str) -> str:
        return stage.effect("email")

    def back() -> Agent:
        return triage

    def instructions(context_variables: dict[str, Any]) -> str:
        return f"shipping for {context_variables['customer']}, {context_variables['paid']} paid"

    research = Agent(name="research", instructions="research", functions=[look_up])
    shipping = Agent(name="shipping", instructions=instructions, functions=[weigh, ask_research, send_email, back])
    triage = Agent(name="triage", instructions="triage", functions=[charge_card, reserve, to_shipping])
    return triage


def play(folder: Path, url: str, options: dict[str, Any], kill: str | None) -> str:
    """In a child: the run, from wherever it is, to its end (``done: …``) or to where it waits (``waits``)."""
    stage = Stage(folder, kill)
    _failpoints.install(stage.point)
    client = FakeClient(script, stage.model)
    messages = [{"role": "user", "content": "Refund my lamp"}]
    with DurableSwarm(client, store=url, max_delivery_attempts=10) as swarm:
        agent = build(stage, lambda: swarm)
        try:
            ended = swarm.run(agent, messages, {"customer": "ada"}, run_id=RUN, stream=bool(options.get("streamed")))
            if options.get("streamed"):
                for event in ended:
                    stage.point(f"event {next(iter(event))}")
                    if "response" in event:
                        ended = event["response"]
        except Suspended:
            return "waits"
    assert ended.agent is agent
    assert ended.context_variables == {"customer": "ada", "paid": 42, "items": ["lamp"], "at": "shipping"}
    return f"done: {ended.messages[-1]['content']} after {len(ended.messages)} messages"
