"""Scenes for the crash matrix: crews as users write them, with scripted LLMs."""

import asyncio
import os
from dataclasses import replace
from typing import Any

from crewai import Agent, Crew, Process, Task
from crewai.flow.flow import Flow, and_, listen, or_, router, start
from crewai.flow.human_feedback import human_feedback
from crewai.tools import tool
from pydantic import BaseModel

from adapters.crewai.tests.kit import ScriptedLLM, call, done, outputs, react, text
from stepfast import Stepfast, idempotency_key
from stepfast.testing import Stage, scene
from stepfast.testing.scenes import approved_or_by_effect, recorded
from stepfast_crewai import crew_worker, durable, idempotent, once


def kickoff(stage: Stage, crew: Crew, inputs: dict[str, Any] | None = None, **options: Any) -> Any:
    """Drive a crew in the way that the matrix chose."""
    os.environ["CREWAI_STORAGE_DIR"] = str(stage.folder / "crewai")
    way = stage.options.get("way", "kickoff")
    with durable(crew, run_id=stage.run_id, store=stage.url, max_delivery_attempts=20, **options) as runs:
        if way == "kickoff":
            return runs.kickoff(inputs)
        return asyncio.run(getattr(runs, way)(inputs))


def llm_of(stage: Stage, name: str, script: Any, native: bool = True) -> ScriptedLLM:
    def answered(messages: list[dict[str, Any]]) -> Any:
        with stage.model(name, messages) as receipt:
            return script(messages, receipt)

    return ScriptedLLM(answered, native=native)


def tools_of(stage: Stage, *, bare: bool = False) -> dict[str, Any]:
    """Tools that count their calls; a bare one has no idempotency key."""

    def effect(name: str) -> str:
        return stage.effect(name, key="" if bare else idempotency_key())

    def looking_up(topic: str) -> Any:
        @tool(f"look_up_{topic}")
        def look_up(about: str) -> str:
            """Look something up."""
            return effect(f"look_up_{topic}")

        return idempotent(look_up)

    @once
    @tool
    def charge(amount: int) -> str:
        """Charge a card."""
        return effect("charge")

    @tool
    def mail(to: str) -> str:
        """Send a mail."""
        return effect("mail")

    return {"price": looking_up("price"), "tax": looking_up("tax"), "charge": charge, "mail": mail}


def look(*topics: str, receipt: str) -> Any:
    """Native calls of look-ups, side by side where there are several."""
    return call(*((f"look_up_{topic}", {"about": "a lamp"}) for topic in topics), receipt=receipt)


@scene(once=["charge", "mail"], at_once=2)
def order(stage: Stage) -> Any:
    """Three tasks in order: parallel look-ups, one-shot tools, a summary. Native tool calls, or calls in text."""
    native = not stage.options.get("react")
    tools = tools_of(stage)

    def research(messages: list[dict[str, Any]], receipt: str) -> Any:
        if native:
            seen = outputs(messages)
            if seen:
                return f"found {len(seen)} ({receipt[:-6]})"
            return look("price", "tax", receipt=receipt)
        if "look_up_price done" not in text(messages):
            return react("look_up_price", {"about": "a lamp"})
        if "look_up_tax done" not in text(messages):
            return react("look_up_tax", {"about": "a lamp"})
        return done("found 2 (researcher)")

    def clerk(messages: list[dict[str, Any]], receipt: str) -> Any:
        said = text(messages)
        if "Sum it up" in said:
            assert "found 2" in said
            return done("paid and told")
        if "charge done" not in said:
            return call(("charge", {"amount": 42}), receipt=receipt) if native else react("charge", {"amount": 42})
        if "mail done" not in said:
            return call(("mail", {"to": "ada"}), receipt=receipt) if native else react("mail", {"to": "ada"})
        return done(f"ordered, {said.count('charge done')} {said.count('mail done')}")

    researcher = Agent(
        role="researcher",
        goal="find",
        backstory="finds",
        llm=llm_of(stage, "researcher", research, native),
        tools=[tools["price"], tools["tax"]],
    )
    office = Agent(
        role="clerk",
        goal="order",
        backstory="orders",
        llm=llm_of(stage, "clerk", clerk, native),
        tools=[tools["charge"], tools["mail"]],
    )
    tasks = [
        Task(description="Find what {thing} costs.", expected_output="costs", agent=researcher),
        Task(description="Order {thing}.", expected_output="an order", agent=office),
        Task(description="Sum it up.", expected_output="a sentence", agent=office),
    ]
    tasks[2].context = tasks[:2]
    found = kickoff(stage, Crew(agents=[researcher, office], tasks=tasks), {"thing": "a lamp"})
    return [found.raw, [each.raw for each in found.tasks_output], found.token_usage.successful_requests]


@scene(once=["charge", "mail"], at_once=4)
def parallel(stage: Stage) -> Any:
    """One answer with four calls side by side: two that are the same, and two one-shot tools."""
    tools = tools_of(stage)

    def clerk(messages: list[dict[str, Any]], receipt: str) -> Any:
        seen = outputs(messages)
        if seen:
            return f"all done: {', '.join(sorted(seen))}"
        return [
            *look("price", "price", receipt=f"{receipt}_a"),
            *call(("charge", {"amount": 1}), ("mail", {"to": "ada"}), receipt=f"{receipt}_b"),
        ]

    agent = Agent(
        role="clerk",
        goal="order",
        backstory="orders",
        llm=llm_of(stage, "clerk", clerk),
        tools=[tools["price"], tools["charge"], tools["mail"]],
    )
    task = Task(description="Order it.", expected_output="an order", agent=agent)
    return kickoff(stage, Crew(agents=[agent], tasks=[task])).raw


@scene(once=["charge"])
def bare(stage: Stage) -> Any:
    """A crew without `durable`, whose result alone is kept: the matrix must find what it repeats."""
    result = stage.folder / "result"
    if result.exists():
        return result.read_text()
    os.environ["CREWAI_STORAGE_DIR"] = str(stage.folder / "crewai")

    def clerk(messages: list[dict[str, Any]], receipt: str) -> Any:
        return "paid" if outputs(messages) else call(("charge", {"amount": 42}), receipt=receipt)

    llm = llm_of(stage, "clerk", clerk)
    agent = Agent(role="clerk", goal="pay", backstory="pays", llm=llm, tools=[tools_of(stage, bare=True)["charge"]])
    crew = Crew(agents=[agent], tasks=[Task(description="Pay.", expected_output="paid", agent=agent)])
    result.write_text(crew.kickoff().raw)
    return result.read_text()


@scene(once=["charge"], at_once=3)
def side_by_side(stage: Stage) -> Any:
    """Two asynchronous tasks of different agents at the same time, then one that needs both."""
    tools = tools_of(stage)

    def looks(topic: str) -> Any:
        def script(messages: list[dict[str, Any]], receipt: str) -> Any:
            seen = outputs(messages)
            return f"{topic} known" if seen else look(topic, receipt=receipt)

        return script

    def clerk(messages: list[dict[str, Any]], receipt: str) -> Any:
        assert "price known" in text(messages)
        assert "tax known" in text(messages)
        return "paid" if outputs(messages) else call(("charge", {"amount": 1}), receipt=receipt)

    agents = [
        Agent(role=name, goal="find", backstory="finds", llm=llm_of(stage, name, looks(name)), tools=[tools[name]])
        for name in ("price", "tax")
    ]
    payer = Agent(
        role="clerk", goal="pay", backstory="pays", llm=llm_of(stage, "clerk", clerk), tools=[tools["charge"]]
    )
    tasks = [
        Task(description=f"Find the {each.role}.", expected_output="it", agent=each, async_execution=True)
        for each in agents
    ]
    tasks.append(Task(description="Pay.", expected_output="paid", agent=payer, context=list(tasks)))
    found = kickoff(stage, Crew(agents=[*agents, payer], tasks=tasks))
    return [found.raw, sorted(each.raw for each in found.tasks_output), found.token_usage.successful_requests]


@scene(once=["charge"])
def hierarchy(stage: Stage) -> Any:
    """A manager that delegates to a coworker, who has a one-shot tool."""
    tools = tools_of(stage)

    def manage(messages: list[dict[str, Any]], receipt: str) -> Any:
        seen = outputs(messages)
        if seen:
            return f"managed: {seen[-1]}"
        asked = {"task": "Charge the card.", "context": "42", "coworker": "clerk"}
        return call(("delegate_work_to_coworker", asked), receipt=receipt)

    def clerk(messages: list[dict[str, Any]], receipt: str) -> Any:
        return "card charged" if outputs(messages) else call(("charge", {"amount": 42}), receipt=receipt)

    worker = Agent(
        role="clerk", goal="pay", backstory="pays", llm=llm_of(stage, "clerk", clerk), tools=[tools["charge"]]
    )
    manager = Agent(
        role="manager",
        goal="manage",
        backstory="manages",
        llm=llm_of(stage, "manager", manage),
        allow_delegation=True,
    )
    crew = Crew(
        agents=[worker],
        tasks=[Task(description="See that the card is charged.", expected_output="a receipt")],
        process=Process.hierarchical,
        manager_agent=manager,
    )
    found = kickoff(stage, crew)
    return [found.raw, found.token_usage.successful_requests]


class Bill(BaseModel):
    total: int


@scene(once=["charge"])
def guarded(stage: Stage) -> Any:
    """Guardrail, output_pydantic, callbacks before, between and after: each is done once."""
    tools = tools_of(stage)

    def clerk(messages: list[dict[str, Any]], receipt: str) -> Any:
        if not outputs(messages) and "too small" not in text(messages):
            return call(("charge", {"amount": 1}), receipt=receipt)
        return '{"total": 2}' if "too small" in text(messages) else '{"total": 1}'

    def enough(output: Any) -> tuple[bool, Any]:
        stage.effect("enough")
        return (True, output.raw) if "2" in output.raw else (False, "too small")

    def note(output: Any) -> None:
        stage.effect("note")

    def prepare(inputs: dict[str, Any]) -> dict[str, Any]:
        stage.effect("prepare")
        return {**inputs, "thing": "a lamp"}

    def finish(result: Any) -> Any:
        stage.effect("finish")
        result.raw += " (checked)"
        return result

    agent = Agent(
        role="clerk", goal="pay", backstory="pays", llm=llm_of(stage, "clerk", clerk), tools=[tools["charge"]]
    )
    task = Task(
        description="Bill {thing}.", expected_output="a bill", agent=agent, guardrail=enough, output_pydantic=Bill
    )
    crew = Crew(
        agents=[agent],
        tasks=[task],
        task_callback=note,
        before_kickoff_callbacks=[prepare],
        after_kickoff_callbacks=[finish],
    )
    found = kickoff(stage, crew, {"for": "ada"})
    assert isinstance(found.pydantic, Bill)
    return [found.raw, found.pydantic.total, found.tasks_output[0].pydantic.total, crew.task_callback is note]


@scene(once=["charge"], at_once=2)
def each(stage: Stage) -> Any:
    """The same crew for each of two inputs, in one run."""
    tools = tools_of(stage)

    def clerk(messages: list[dict[str, Any]], receipt: str) -> Any:
        said = text(messages)
        topic = "price" if "price" in said else "tax"
        return f"{topic} known" if outputs(messages) else look(topic, receipt=receipt)

    agent = Agent(
        role="clerk",
        goal="find",
        backstory="finds",
        llm=llm_of(stage, "clerk", clerk),
        tools=[tools["price"], tools["tax"]],
    )
    crew = Crew(agents=[agent], tasks=[Task(description="Find the {topic}.", expected_output="it", agent=agent)])
    with durable(crew, run_id=stage.run_id, store=stage.url, max_delivery_attempts=20) as runs:
        inputs = [{"topic": "price"}, {"topic": "tax"}]
        way = stage.options.get("way", "kickoff_for_each")
        found = getattr(runs, way)(inputs)
        results = found if way == "kickoff_for_each" else asyncio.run(found)
    return [result.raw for result in results]


@scene(answer=lambda stage, question: next_answer(stage, question))
def reviewed(stage: Stage) -> Any:
    """A person rejects the first result and approves the second; the process ends at each question."""

    def writer(messages: list[dict[str, Any]], receipt: str) -> Any:
        return "long text" if "shorter" in text(messages) else "very long text"

    agent = Agent(role="writer", goal="write", backstory="writes", llm=llm_of(stage, "writer", writer))
    task = Task(description="Write.", expected_output="a text", agent=agent, human_input=True)
    return kickoff(stage, Crew(agents=[agent], tasks=[task])).raw


def next_answer(stage: Stage, question: dict[str, Any]) -> dict[str, Any]:
    if "very" in question["evidence"]["result"]:
        return {"outcome": "rejected", "value": "Make it shorter."}
    return {"outcome": "approved"}


@scene(once=["charge", "mail"], at_once=3)
def journey(stage: Stage) -> Any:
    """A flow with a router, a loop, a crew inside, and two branches that join."""
    os.environ["CREWAI_STORAGE_DIR"] = str(stage.folder / "crewai")
    tools = tools_of(stage)

    def clerk(messages: list[dict[str, Any]], receipt: str) -> Any:
        return "paid" if outputs(messages) else call(("charge", {"amount": 42}), receipt=receipt)

    def writer(messages: list[dict[str, Any]], receipt: str) -> Any:
        return f"draft {1 + text(messages).count('again')}"

    class Order(Flow):  # type: ignore[type-arg]
        _skip_auto_memory: bool = True  # no vector store beside each flow
        suppress_flow_events: bool = True

        @start()
        def begin(self) -> str:
            self.state["trail"] = ["begin"]
            return "begun"

        @listen(or_(begin, "again"))
        def draft(self, _: Any) -> str:
            words = " ".join(["again"] * self.state.get("drafts", 0))
            self.state["drafts"] = self.state.get("drafts", 0) + 1
            self.state["trail"].append(f"draft {self.state['drafts']}")
            return str(llm_of(stage, "scripted", writer).call(f"Write. {words}"))

        @router(draft)
        def good_enough(self, found: str) -> str:
            return "ready" if found == "draft 2" else "again"

        @listen("ready")
        def pay(self) -> str:
            agent = Agent(
                role="clerk", goal="pay", backstory="pays", llm=llm_of(stage, "clerk", clerk), tools=[tools["charge"]]
            )
            task = Task(description="Pay.", expected_output="paid", agent=agent)
            return str(Crew(agents=[agent], tasks=[task]).kickoff().raw)

        @listen(pay)
        def left(self) -> str:
            return "left"

        @listen(pay)
        def right(self) -> str:
            return "right"

        @listen(and_(left, right))
        def join(self) -> list[str]:
            self.state["trail"].append("join")
            return list(self.state["trail"])

    flow = Order()
    with durable(flow, run_id=stage.run_id, store=stage.url, max_delivery_attempts=20) as runs:
        way = stage.options.get("way", "kickoff")
        found = runs.kickoff() if way == "kickoff" else asyncio.run(runs.kickoff_async())
    return [found, flow.state["drafts"]]


def answered(stage: Stage, question: dict[str, Any]) -> dict[str, Any]:
    if "answered" in question["outcomes"]:
        return {"outcome": "answered", "value": "Ada"}
    first = question["evidence"]["output"] == "text for Ada"
    return {"outcome": "revise", "comment": "Be kinder."} if first else {"outcome": "publish"}


def written(stage: Stage) -> list[str]:
    """The journal names the method; the story counts its rounds."""
    rounds = recorded(stage).count("write")
    return [f"write_{number}" for number in range(1, rounds + 1)]


@scene(finished=written, answer=answered)
def asked(stage: Stage) -> Any:
    """Flow.ask and @human_feedback with a loop: the process ends at each question."""
    os.environ["CREWAI_STORAGE_DIR"] = str(stage.folder / "crewai")

    class Review(Flow):  # type: ignore[type-arg]
        _skip_auto_memory: bool = True
        suppress_flow_events: bool = True

        @start()
        def whom(self) -> str:
            self.state["name"] = self.ask("Whom is it for?")
            return "known"

        @human_feedback(message="Publish it?", emit=["publish", "revise"], llm=ScriptedLLM(lambda messages: "publish"))
        @listen(or_(whom, "revise"))
        def write(self) -> str:
            kind = "kind " if self.state.get("rounds") else ""
            self.state["rounds"] = self.state.get("rounds", 0) + 1
            stage.effect(f"write_{self.state['rounds']}")
            return f"{kind}text for {self.state['name']}"

        @listen("publish")
        def announce(self, result: Any) -> str:
            return f"published: {result.output}"

    with durable(Review(), run_id=stage.run_id, store=stage.url, max_delivery_attempts=20) as runs:
        return runs.kickoff()


# --- delivered to a worker -----------------------------------------------------------------------------


def sent(stage: Stage, client: Stepfast) -> str:
    """Send the order; the same in each life."""
    intent = {"intent_type": "order.v1", "to_agent": f"agent://{stage.run_id}", "max_delivery_attempts": 20}
    return client.send_intent({**intent, "payload": {"thing": "a lamp"}}, idempotency_key=stage.run_id)


def delivered_calls(stage: Stage) -> list[str]:
    with Stepfast(stage.url) as client:
        intent_id = sent(stage, client)
    return recorded(replace(stage, run_id=intent_id))


@scene(once=["charge"], at_once=2, finished=delivered_calls)
def delivered(stage: Stage) -> Any:
    """A crew as a worker of an address: the process that is killed is the worker's."""
    os.environ["CREWAI_STORAGE_DIR"] = str(stage.folder / "crewai")
    tools = tools_of(stage)

    def clerk(messages: list[dict[str, Any]], receipt: str) -> Any:
        seen = outputs(messages)
        if not seen:
            return look("price", "tax", receipt=receipt)
        return "ordered" if "charge done" in seen else call(("charge", {"amount": 42}), receipt=receipt)

    def crew(payload: Any) -> Crew:
        llm = llm_of(stage, "clerk", clerk)
        chosen = [tools[name] for name in ("price", "tax", "charge")]
        agent = Agent(role="clerk", goal="order", backstory="orders", llm=llm, tools=chosen)
        return Crew(agents=[agent], tasks=[Task(description="Order {thing}.", expected_output="an order", agent=agent)])

    with Stepfast(stage.url) as client:
        intent_id = sent(stage, client)
        worker = crew_worker(client, f"agent://{stage.run_id}", crew)
        worker.start()
        for event in client.observe(intent_id):
            if event["status"] == "WAITING":  # a person, meanwhile
                for question in client.decisions(intent_id):
                    client.answer(intent_id, key=question["key"], **approved_or_by_effect(stage, question))
        worker.stop()
        return client.get_intent(intent_id)["result"]
