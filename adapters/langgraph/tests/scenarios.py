"""What people do with graphs, each as a story that gives the same answers with any sound checkpointer.

A story drives its graphs through `Driven`, so that it is told once for both halves of a saver and for each durability.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, StateUpdate, interrupt

from adapters.langgraph.tests.kit import Counted, counting_graph, on


class Driven:
    """A graph, driven blocking or on one event loop, with one durability."""

    def __init__(self, graph: Any, loop: asyncio.AbstractEventLoop | None, durability: str) -> None:
        self.graph = graph
        self.loop = loop
        self.durability = durability

    def _do(self, name: str, *args: Any, **options: Any) -> Any:
        if self.loop is None:
            return getattr(self.graph, name)(*args, **options)
        return self.loop.run_until_complete(getattr(self.graph, f"a{name}")(*args, **options))

    def invoke(self, value: Any, config: Any, *, past: bool = False, **options: Any) -> Any:
        """``past``: the story goes back into this run, so each of its steps must be kept."""
        durability = "async" if past and self.durability == "exit" else self.durability
        return self._do("invoke", value, config, durability=durability, **options)

    def stream(self, value: Any, config: Any, **options: Any) -> list[Any]:
        if self.loop is None:
            return list(self.graph.stream(value, config, durability=self.durability, **options))

        async def collect() -> list[Any]:
            return [one async for one in self.graph.astream(value, config, durability=self.durability, **options)]

        return self.loop.run_until_complete(collect())

    def state(self, config: Any, **options: Any) -> Any:
        return self._do("get_state", config, **options)

    def update(self, config: Any, values: Any, **options: Any) -> Any:
        return self._do("update_state", config, values, **options)

    def bulk(self, config: Any, steps: Any) -> Any:
        return self._do("bulk_update_state", config, steps)

    def history(self, config: Any) -> list[Any]:
        if self.loop is None:
            return list(self.graph.get_state_history(config))

        async def collect() -> list[Any]:
            return [one async for one in self.graph.aget_state_history(config)]

        return self.loop.run_until_complete(collect())


Drive = Callable[[Any], Driven]


def told(state: Any) -> Any:
    """What a state says, without the ids that differ from run to run."""
    return (
        _plain(state.values),
        state.next,
        (state.metadata or {}).get("source"),
        (state.metadata or {}).get("step"),
        [(one.name, _plain(one.result), [i.value for i in one.interrupts], one.error) for one in state.tasks],
        state.parent_config is None,
    )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items() if name != "__interrupt__"}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return (type(value).__name__, value.content) if isinstance(value, AIMessage | HumanMessage) else value


def whole(graph: Driven, config: Any) -> list[Any]:
    return [told(one) for one in graph.history(config)]


# --- one graph ------------------------------------------------------------------------------------------------------


def runs_and_goes_on(saver: Any, drive: Drive) -> Any:
    graph, config = drive(counting_graph(saver, steps=3)), on("t")
    first = graph.invoke({"number": 10, "log": []}, config)
    second = graph.invoke({"number": 10, "log": []}, config)
    return first, second, told(graph.state(config)), whole(graph, config)


def streams_every_mode(saver: Any, drive: Drive) -> Any:
    graph, config = drive(counting_graph(saver, steps=2)), on("t")
    chunks = graph.stream({"number": 1, "log": []}, config, stream_mode=["values", "updates"])
    graph.stream({"number": 1, "log": []}, config, stream_mode=["checkpoints", "tasks", "debug", "messages", "custom"])
    return chunks, whole(graph, config)


# LangGraph before 1.2 does not guess, on an event loop, whose update the second one is.
GUESSED: dict[str, Any] = {} if version("langgraph") >= "1.2" else {"as_node": "step"}


def updates_the_state(saver: Any, drive: Drive) -> Any:
    graph, config = drive(counting_graph(saver)), on("t")
    graph.update(config, {"number": 5}, as_node="step")  # on a thread that is not there yet
    graph.update(config, {"number": 5, "log": ["by hand"]}, **GUESSED)
    graph.invoke({"number": 1, "log": []}, config)
    graph.update(config, None, as_node=END)
    return whole(graph, config)


def updates_in_bulk(saver: Any, drive: Drive, thread: str = "t") -> Any:
    graph, config = drive(counting_graph(saver)), on(thread)
    graph.bulk(
        config,
        [
            [StateUpdate({"number": 1, "log": ["a"]}, "__input__")],
            [StateUpdate({"number": 1, "log": ["b"]}, "step")],
            [StateUpdate({"number": 1, "log": ["c"]}, "step")],
        ],
    )
    graph.bulk(config, [[StateUpdate(None, "__copy__")], [StateUpdate({"number": 7}, "step")]])
    return whole(graph, config)


def copies_a_checkpoint_with_updates(saver: Any, drive: Drive) -> Any:
    graph, config = drive(counting_graph(saver, steps=2)), on("t")
    graph.invoke({"number": 1, "log": []}, config, past=True)
    old = next(one for one in graph.history(config) if one.next == ("step",) and one.values["log"])
    copied: Any = [({"number": 100, "log": ["copied"]}, "step")]
    graph.bulk(old.config, [[StateUpdate(copied, "__copy__")]])
    return whole(graph, config), graph.invoke(None, config)


def travels_in_time(saver: Any, drive: Drive, thread: str = "t") -> Any:
    graph, config = drive(counting_graph(saver, steps=3)), on(thread)
    graph.invoke({"number": 10, "log": []}, config, past=True)
    history = graph.history(config)
    middle = next(one for one in history if len(one.values.get("log", [])) == 1)
    replayed = graph.invoke(None, middle.config)
    with_input = graph.invoke({"number": 1000, "log": ["travelled"]}, middle.config)
    forked = graph.update(middle.config, {"number": 500, "log": ["forked"]})
    on_fork = graph.invoke(None, forked)
    at_head = graph.state(config)
    again = graph.invoke(None, at_head.config)  # addressed, and the newest
    return replayed, with_input, on_fork, told(at_head), again, whole(graph, config)


def travels_to_the_newest_with_input(saver: Any, drive: Drive) -> Any:
    graph, config = drive(counting_graph(saver)), on("t")
    graph.invoke({"number": 1, "log": []}, config)
    newest = graph.state(config)
    return graph.invoke({"number": 1, "log": []}, newest.config), whole(graph, config)


def stops_before_and_after_nodes(saver: Any, drive: Drive) -> Any:
    graph, config = drive(counting_graph(saver, steps=2)), on("t")
    stopped = graph.invoke({"number": 1, "log": []}, config, interrupt_before=["step"])
    on_its_way = graph.invoke(None, config, interrupt_after=["step"])
    return _plain(stopped), _plain(on_its_way), graph.invoke(None, config), whole(graph, config)


def _asking_graph(saver: Any) -> Any:
    def ask(state: Counted) -> dict[str, Any]:
        first = interrupt("first?")
        second = interrupt("second?")
        return {"number": first + second, "log": ["answered"]}

    graph: Any = StateGraph(Counted)
    graph.add_node("ask", ask)
    graph.add_node("after", lambda state: {"log": ["after"]})
    graph.add_edge(START, "ask")
    graph.add_edge("ask", "after")
    return graph.compile(checkpointer=saver)


def asks_and_is_answered(saver: Any, drive: Drive) -> Any:
    graph, config = drive(_asking_graph(saver)), on("t")
    asked = graph.invoke({"number": 0, "log": []}, config, past=True)["__interrupt__"]
    again = graph.invoke(Command(resume=1), config)["__interrupt__"]
    waiting = told(graph.state(config))
    done = graph.invoke(Command(resume=2, update={"log": ["with the answer"]}), config)
    first = graph.history(config)[-2]
    replayed = graph.invoke(None, first.config)["__interrupt__"]
    return [i.value for i in asked], [i.value for i in again], waiting, done, [i.value for i in replayed]


def two_ask_at_once(saver: Any, drive: Drive) -> Any:
    def asker(name: str) -> Callable[[Counted], dict[str, Any]]:
        return lambda state: {"number": interrupt(name), "log": [name]}

    graph: Any = StateGraph(Counted)
    for name in ("left", "right"):
        graph.add_node(name, asker(name))
        graph.add_edge(START, name)
    driven, config = drive(graph.compile(checkpointer=saver)), on("t")
    asked = driven.invoke({"number": 0, "log": []}, config)["__interrupt__"]
    by_id = {one.id: 10 if one.value == "left" else 1 for one in asked}
    return sorted(one.value for one in asked), driven.invoke(Command(resume=by_id), config), whole(driven, config)


def sends_to_many(saver: Any, drive: Drive) -> Any:
    graph: Any = StateGraph(Counted)
    graph.add_node("spread", lambda state: {"log": ["spread"]})
    graph.add_node("work", lambda state: {"number": state["number"], "log": [f"work {state['number']}"]})
    graph.add_edge(START, "spread")
    graph.add_conditional_edges("spread", lambda state: [Send("work", {"number": n, "log": []}) for n in range(5)])
    driven, config = drive(graph.compile(checkpointer=saver)), on("t")
    return driven.invoke({"number": 0, "log": []}, config), whole(driven, config)


def a_failed_step_is_taken_up(saver: Any, drive: Drive) -> Any:
    tries: list[str] = []

    def badly(state: Counted) -> dict[str, Any]:
        tries.append("badly")
        if len(tries) == 1:
            raise ValueError("once")
        return {"number": 10, "log": ["badly"]}

    graph: Any = StateGraph(Counted)
    graph.add_node("well", lambda state: {"number": 1, "log": ["well"]})
    graph.add_node("badly", badly)
    graph.add_edge(START, "well")
    graph.add_edge(START, "badly")
    driven, config = drive(graph.compile(checkpointer=saver)), on("t")
    failed = ""
    try:
        driven.invoke({"number": 0, "log": []}, config)
    except ValueError as error:
        failed = str(error)
    shown = "badly" in [one.name for one in driven.state(config).tasks if one.error]
    return failed, shown, driven.invoke(None, config), tries


def chats(saver: Any, drive: Drive) -> Any:
    class Chat(TypedDict):
        messages: Annotated[list[AnyMessage], add_messages]

    graph: Any = StateGraph(Chat)
    graph.add_node("answer", lambda state: {"messages": [AIMessage(f"answer {len(state['messages'])}", id="a")]})
    graph.add_edge(START, "answer")
    driven, config = drive(graph.compile(checkpointer=saver)), on("t")
    for turn in range(3):  # the answer's id is always the same, so it is replaced in place
        driven.invoke({"messages": [HumanMessage(f"question {turn}", id=f"h{turn}")]}, config)
    return whole(driven, config)


# --- graphs in graphs -----------------------------------------------------------------------------------------------


def _with_subgraph(saver: Any, *, stateful: bool = False, asks: bool = False) -> Any:
    class Inner(TypedDict):
        number: Annotated[int, operator.add]
        log: Annotated[list[str], operator.add]
        calls: Annotated[int, operator.add]

    def work(state: Inner) -> dict[str, Any]:
        extra = interrupt("inside?") if asks else 0
        return {"calls": 1, "log": [f"inside, call {state.get('calls', 0)}"], "number": extra}

    inner: Any = StateGraph(Inner)
    inner.add_node("work", work)
    inner.add_node("more", lambda state: {"log": ["more"]})
    inner.add_edge(START, "work")
    inner.add_edge("work", "more")
    below = inner.compile(checkpointer=True) if stateful else inner.compile()

    def call(state: Counted) -> dict[str, Any]:
        found = below.invoke({"number": 0, "log": [], "calls": 0})
        return {"number": found["number"], "log": [f"inner has {found['calls']}", *found["log"][-2:]]}

    graph: Any = StateGraph(Counted)
    graph.add_node("before", lambda state: {"log": ["before"]})
    graph.add_node("sub", call if stateful else below)
    graph.add_node("after", lambda state: {"number": 1, "log": ["after"]})
    graph.add_edge(START, "before")
    graph.add_edge("before", "sub")
    graph.add_edge("sub", "after")
    return graph.compile(checkpointer=saver)


def has_a_subgraph(saver: Any, drive: Drive) -> Any:
    graph, config = drive(_with_subgraph(saver)), on("t")
    graph.invoke({"number": 0, "log": []}, config)
    graph.invoke({"number": 0, "log": []}, config)
    return whole(graph, config)


def a_subgraph_asks(saver: Any, drive: Drive, thread: str = "t") -> Any:
    graph, config = drive(_with_subgraph(saver, asks=True)), on(thread)
    asked = graph.invoke({"number": 0, "log": []}, config)["__interrupt__"]
    state = graph.state(config, subgraphs=True)
    inside = told(state.tasks[0].state)
    done = graph.invoke(Command(resume=42), config)
    before = next(one for one in graph.history(config) if one.next == ("sub",))
    replayed = graph.invoke(None, before.config)["__interrupt__"]
    again = graph.invoke(Command(resume=1), config)
    return [i.value for i in asked], inside, done, [i.value for i in replayed], again, whole(graph, config)


def a_subgraph_is_changed_while_it_waits(saver: Any, drive: Drive) -> Any:
    graph, config = drive(_with_subgraph(saver, asks=True)), on("t")
    graph.invoke({"number": 0, "log": []}, config)
    inside = graph.state(config, subgraphs=True).tasks[0].state
    graph.update(inside.config, {"log": ["from outside"]})
    return graph.invoke(Command(resume=42), config), whole(graph, config)


def a_subgraph_remembers(saver: Any, drive: Drive) -> Any:
    graph, config = drive(_with_subgraph(saver, stateful=True)), on("t")
    answers = [graph.invoke({"number": 0, "log": []}, config, past=True)["log"][-3:] for _ in range(3)]
    first = [one for one in graph.history(config) if one.next == ("sub",)][-1]
    replayed = graph.invoke(None, first.config)["log"]
    return answers, replayed, graph.invoke({"number": 0, "log": []}, config)["log"]


def a_subgraph_that_remembers_asks(saver: Any, drive: Drive) -> Any:
    graph, config = drive(_with_subgraph(saver, stateful=True, asks=True)), on("t")
    answers = []
    for turn in range(2):
        graph.invoke({"number": 0, "log": []}, config)
        answers.append(graph.invoke(Command(resume=turn), config))
    return answers, whole(graph, config)


def parallel_subgraphs(saver: Any, drive: Drive) -> Any:
    def below(name: str) -> Any:
        inner: Any = StateGraph(Counted)
        inner.add_node("one", lambda state: {"number": 1})
        inner.add_node("two", lambda state: {"number": 1, "log": [name]})
        inner.add_edge(START, "one")
        inner.add_edge("one", "two")
        return inner.compile()

    graph: Any = StateGraph(Counted)
    for name in ("left", "right"):
        made = below(name)
        graph.add_node(name, lambda state, made=made: made.invoke({"number": 0, "log": []}))
        graph.add_edge(START, name)
    graph.add_node("many", lambda state: below("many").invoke({"number": 0, "log": []}))
    graph.add_conditional_edges("left", lambda state: [Send("many", state) for _ in range(3)])
    driven, config = drive(graph.compile(checkpointer=saver)), on("t")
    return driven.invoke({"number": 0, "log": []}, config), whole(driven, config)


def graphs_three_deep(saver: Any, drive: Drive) -> Any:
    deepest: Any = StateGraph(Counted)
    deepest.add_node("ask", lambda state: {"number": interrupt("deep?"), "log": ["deep"]})
    deepest.add_edge(START, "ask")
    middle: Any = StateGraph(Counted)
    middle.add_node("deepest", deepest.compile())
    middle.add_edge(START, "deepest")
    graph: Any = StateGraph(Counted)
    graph.add_node("middle", middle.compile())
    graph.add_edge(START, "middle")
    driven, config = drive(graph.compile(checkpointer=saver)), on("t")
    driven.invoke({"number": 0, "log": []}, config)
    return driven.invoke(Command(resume=5), config), whole(driven, config)


# --- functions ------------------------------------------------------------------------------------------------------


def functions_with_tasks(saver: Any, drive: Drive) -> Any:
    ran: list[int] = []

    @task
    def double(number: int) -> int:
        ran.append(number)
        return 2 * number

    @entrypoint(checkpointer=saver)
    def flow(number: int, *, previous: Any = None) -> Any:
        futures = [double(n) for n in range(3)]
        total = sum(future.result() for future in futures)
        answer = interrupt("how much?") if number else 0
        return entrypoint.final(value=total + answer, save=(previous or 0) + total)

    driven, config = drive(flow), on("t")
    first = driven.invoke(0, config)
    driven.invoke(1, config)
    second = driven.invoke(Command(resume=100), config)
    return first, second, sorted(ran), told(driven.state(config))[0]


STORIES: list[Callable[[Any, Drive], Any]] = [
    runs_and_goes_on,
    streams_every_mode,
    updates_the_state,
    updates_in_bulk,
    copies_a_checkpoint_with_updates,
    travels_in_time,
    travels_to_the_newest_with_input,
    stops_before_and_after_nodes,
    asks_and_is_answered,
    two_ask_at_once,
    sends_to_many,
    a_failed_step_is_taken_up,
    chats,
    has_a_subgraph,
    a_subgraph_asks,
    a_subgraph_is_changed_while_it_waits,
    a_subgraph_remembers,
    a_subgraph_that_remembers_asks,
    parallel_subgraphs,
    graphs_three_deep,
    functions_with_tasks,
]
