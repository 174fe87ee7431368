"""Threads move in from the stock savers, and out again, and go on where they were."""

from __future__ import annotations

import json
import operator
import sqlite3
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict
from uuid import uuid4

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt
from typer.testing import CliRunner

from adapters.langgraph.tests.kit import counting_graph, on
from stepfast.cli.app import app
from stepfast_langgraph import StepfastSaver
from stepfast_langgraph._stock import Header, Stock, as_called, open_stock
from stepfast_langgraph._transfer import Held, parents_first, transfer

KINDS = ("sqlite", "postgres")


@pytest.fixture(params=KINDS)
def stock_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database for a stock saver, of this test's own."""
    if request.param == "sqlite":
        return str(tmp_path / "stock.sqlite")
    server: Any = request.getfixturevalue("postgres")
    return str(server.database(f"stock_{uuid4().hex[:12]}"))


def stock_saver(url: str) -> AbstractContextManager[Any]:
    """The stock saver as a user has it."""
    if url.startswith("postgres"):
        from langgraph.checkpoint.postgres import PostgresSaver

        made: Any = PostgresSaver.from_conn_string(url)
    else:
        from langgraph.checkpoint.sqlite import SqliteSaver

        made = SqliteSaver.from_conn_string(url)
    return _Ready(made)


class _Ready(AbstractContextManager[Any]):
    def __init__(self, made: Any) -> None:
        self.made = made

    def __enter__(self) -> Any:
        saver = self.made.__enter__()
        saver.setup()
        return saver

    def __exit__(self, *exc: Any) -> None:
        self.made.__exit__(*exc)


def cli(*arguments: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, ["langgraph", *arguments, "--json"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, (result.exit_code, result.stdout, result.stderr)
    return json.loads(result.stdout or result.stderr)


def brought_in(stock_url: str, url: str, *more: str, code: int = 0) -> Any:
    return cli("import", "--from", stock_url, "--to", url, *more, code=code)


def taken_out(url: str, stock_url: str, *more: str, code: int = 0) -> Any:
    return cli("export", "--url", url, "--to", stock_url, *more, code=code)


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    log: Annotated[list[str], operator.add]


def asking_graph(saver: Any, effects: list[str]) -> Any:
    """Four branches at once, one of which asks; then one more node."""

    def spread(state: State) -> list[Send]:
        return [Send("work", {"log": [name]}) for name in ("b", "a", "c")]

    def work(state: State) -> dict[str, Any]:
        effects.append(state["log"][0])
        return {"log": [f"worked {state['log'][0]}"], "messages": [AIMessage(f"did {state['log'][0]}")]}

    def ask(state: State) -> dict[str, Any]:
        return {"log": [f"answered {interrupt({'question': 'Go on?'})}"]}

    def last(state: State) -> dict[str, Any]:
        effects.append("last")
        return {"log": ["last"]}

    graph = StateGraph(State)
    graph.add_node("work", work)
    graph.add_node("ask", ask)
    graph.add_node("last", last)
    graph.add_conditional_edges(START, lambda state: [*spread(state), "ask"], ["work", "ask"])
    graph.add_edge("ask", "last")
    graph.add_edge("last", END)
    return graph.compile(checkpointer=saver)


def states(graph: Any, config: Any) -> list[Any]:
    """A thread's whole history, in a form that can be compared."""
    return [
        (each.values, each.next, each.config["configurable"]["checkpoint_id"], each.metadata["step"], each.created_at)
        for each in graph.get_state_history(config)
    ]


BEGINNING = {"messages": [HumanMessage("hello")], "log": []}


def test_a_thread_that_waits_for_an_answer_goes_on_here(stock_url: str, sqlite_url: str) -> None:
    config, effects = on("asked"), list[str]()
    with stock_saver(stock_url) as stock:
        asking_graph(stock, effects).invoke(BEGINNING, config)
        before = states(asking_graph(stock, effects), config)
    assert sorted(effects) == ["a", "b", "c"]

    told = brought_in(stock_url, sqlite_url)

    assert [(each["thread_id"], each["state"]) for each in told["threads"]] == [("asked", "copied")]
    with StepfastSaver(sqlite_url) as saver:
        graph = asking_graph(saver, effects)
        assert states(graph, config) == before
        assert [each.value for each in graph.get_state(config).interrupts] == [{"question": "Go on?"}]
        ended = graph.invoke(Command(resume="yes"), config)
    assert sorted(effects) == ["a", "b", "c", "last"], "what was done is not done again"
    assert sorted(ended["log"]) == ["answered yes", "last", "worked a", "worked b", "worked c"]


def test_it_comes_to_the_same_end_as_it_would_have_there(stock_url: str, sqlite_url: str) -> None:
    config = on("same")
    with stock_saver(stock_url) as stock:
        asking_graph(stock, []).invoke(BEGINNING, config)
        brought_in(stock_url, sqlite_url)
        there = asking_graph(stock, []).invoke(Command(resume="yes"), config)
    with StepfastSaver(sqlite_url) as saver:
        here = asking_graph(saver, []).invoke(Command(resume="yes"), config)

    assert here["log"] == there["log"]
    assert [message.content for message in here["messages"]] == [message.content for message in there["messages"]]


def test_a_thread_goes_back_and_goes_on_there(stock_url: str, sqlite_url: str) -> None:
    config, effects = on("back"), list[str]()
    with StepfastSaver(sqlite_url) as saver:
        asking_graph(saver, effects).invoke(BEGINNING, config)
        before = states(asking_graph(saver, effects), config)

    told = taken_out(sqlite_url, stock_url)

    assert told["failed"] == 0
    with stock_saver(stock_url) as stock:
        graph = asking_graph(stock, effects)
        assert states(graph, config) == before
        ended = graph.invoke(Command(resume="no"), config)
    assert "answered no" in ended["log"]
    assert sorted(effects) == ["a", "b", "c", "last"]


def test_every_write_keeps_its_task_path_and_place(stock_url: str, sqlite_url: str) -> None:
    config = on("writes")
    with stock_saver(stock_url) as stock:
        asking_graph(stock, []).invoke(BEGINNING, config)
    brought_in(stock_url, sqlite_url)

    with open_stock(stock_url, "read") as there, StepfastSaver(sqlite_url) as saver:
        here = Held(saver)
        compared = 0
        for header in there.headers("writes"):
            theirs, ours = there.writes("writes", header), here.writes("writes", header)
            assert [(each.task_id, each.task_path) for each in ours] == [(e.task_id, e.task_path) for e in theirs]
            for one, other in zip(ours, theirs, strict=True):
                assert sorted(each[:2] for each in one.writes) == sorted(each[:2] for each in other.writes)
                compared += len(one.writes)
    assert compared > 8


def test_subgraphs_keep_their_namespaces(stock_url: str, sqlite_url: str) -> None:
    def pausing(saver: Any) -> Any:
        def inner(state: State) -> dict[str, Any]:
            return {"log": [f"inner {interrupt('how?')}"]}

        below = StateGraph(State)
        below.add_node("inner", inner)
        below.add_edge(START, "inner")
        graph = StateGraph(State)
        graph.add_node("below", below.compile(checkpointer=True))
        graph.add_edge(START, "below")
        return graph.compile(checkpointer=saver)

    config = on("nested")
    with stock_saver(stock_url) as stock:
        pausing(stock).invoke(BEGINNING, config)
        theirs = {header.ns for header in open_headers(stock_url, "nested")}
    assert len(theirs) == 2
    brought_in(stock_url, sqlite_url)

    with StepfastSaver(sqlite_url) as saver:
        assert {header.ns for header in Held(saver).headers("nested")} == theirs
        assert pausing(saver).invoke(Command(resume="so"), config)["log"] == ["inner so"]


def open_headers(stock_url: str, thread_id: str) -> list[Header]:
    with open_stock(stock_url, "read") as there:
        return there.headers(thread_id)


def test_a_thread_of_delta_channels_goes_on_here_and_back_there(stock_url: str, sqlite_url: str) -> None:
    channels = pytest.importorskip("langgraph.channels.delta", reason="this langgraph has no DeltaChannel")

    def joined(state: list[str], writes: list[list[str]]) -> list[str]:
        return [*state, *(item for each in writes for item in each)]

    items = Annotated[list[str], channels.DeltaChannel(joined)]
    Grown = TypedDict("Grown", {"items": items})  # noqa: UP013

    def growing(saver: Any) -> Any:
        graph = StateGraph(Grown)
        graph.add_node("grow", lambda state: {"items": [f"item {len(state['items'])}"]})
        graph.add_edge(START, "grow")
        return graph.compile(checkpointer=saver)

    config = on("delta")
    with stock_saver(stock_url) as stock:
        for _ in range(4):
            growing(stock).invoke({"items": ["asked"]}, config)
    brought_in(stock_url, sqlite_url)
    with StepfastSaver(sqlite_url) as saver:
        here = growing(saver).invoke({"items": ["asked"]}, config)["items"]
    assert len(here) == 10
    taken_out(sqlite_url, stock_url)
    with stock_saver(stock_url) as stock:
        there = growing(stock).invoke({"items": ["asked"]}, config)["items"]
    assert there[:10] == here
    assert len(there) == 12


def test_once_more_changes_nothing(stock_url: str, sqlite_url: str) -> None:
    with stock_saver(stock_url) as stock:
        for name in ("one", "two"):
            counting_graph(stock, steps=3).invoke({"number": 0, "log": []}, on(name))
    first = brought_in(stock_url, sqlite_url)
    with StepfastSaver(sqlite_url) as saver:
        size = saver.threads.get("one").size_bytes

    again = brought_in(stock_url, sqlite_url)

    assert first["checkpoints"] == 10
    assert [each["state"] for each in again["threads"]] == ["there already", "there already"]
    assert again["checkpoints"] == 0
    with StepfastSaver(sqlite_url) as saver:
        assert saver.threads.get("one").size_bytes == size


def test_what_was_cut_off_goes_on_where_it_was(stock_url: str, sqlite_url: str) -> None:
    with stock_saver(stock_url) as stock:
        counting_graph(stock, steps=6).invoke({"number": 0, "log": []}, on("long"))
        whole = states(counting_graph(stock, steps=6), on("long"))

    def cut(thread_id: str, done: int, of: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with open_stock(stock_url, "read") as there, StepfastSaver(sqlite_url) as saver, pytest.raises(KeyboardInterrupt):
        list(transfer(there, Held(saver), progress=cut))
    told = brought_in(stock_url, sqlite_url)

    assert told["checkpoints"] == len(whole) - 3
    with StepfastSaver(sqlite_url) as saver:
        assert states(counting_graph(saver, steps=6), on("long")) == whole


def test_what_went_on_here_is_not_set_back(stock_url: str, sqlite_url: str) -> None:
    with stock_saver(stock_url) as stock:
        counting_graph(stock).invoke({"number": 0, "log": []}, on("t"))
    brought_in(stock_url, sqlite_url)
    with StepfastSaver(sqlite_url) as saver:
        counting_graph(saver).invoke({"number": 10, "log": []}, on("t"))

    told = brought_in(stock_url, sqlite_url)

    assert [each["state"] for each in told["threads"]] == ["went on there"]
    with StepfastSaver(sqlite_url) as saver:
        assert counting_graph(saver).get_state(on("t")).values["number"] == 12


def test_what_went_on_in_both_places_is_told_and_left_as_it_is(stock_url: str, sqlite_url: str) -> None:
    with stock_saver(stock_url) as stock:
        counting_graph(stock).invoke({"number": 0, "log": []}, on("both"))
        counting_graph(stock).invoke({"number": 0, "log": []}, on("fine"))
    brought_in(stock_url, sqlite_url, "--thread", "both")
    with StepfastSaver(sqlite_url) as saver, stock_saver(stock_url) as stock:
        counting_graph(saver).invoke({"number": 10, "log": []}, on("both"))
        counting_graph(stock).invoke({"number": 20, "log": []}, on("both"))

    told = brought_in(stock_url, sqlite_url, code=1)

    by_name = {each["thread_id"]: each for each in told["threads"]}
    assert "went on in both places" in by_name["both"]["error"]
    assert by_name["fine"]["state"] == "copied", "one that fails does not keep the others"
    with StepfastSaver(sqlite_url) as saver:
        assert counting_graph(saver).get_state(on("both")).values["number"] == 12


def test_a_dry_run_reads_all_and_writes_nothing(stock_url: str, sqlite_url: str) -> None:
    with stock_saver(stock_url) as stock:
        counting_graph(stock, steps=3).invoke({"number": 0, "log": []}, on("t"))

    told = brought_in(stock_url, sqlite_url, "--dry-run")

    assert told["dry_run"]
    assert told["checkpoints"] == 5
    with StepfastSaver(sqlite_url) as saver:
        assert saver.threads.count() == 0


@dataclass
class Order:
    number: int


class Sold(TypedDict):
    order: Order


def selling(saver: Any) -> Any:
    graph = StateGraph(Sold)
    graph.add_node("sell", lambda state: {"order": Order(state["order"].number + 1)})
    graph.add_edge(START, "sell")
    return graph.compile(checkpointer=saver)


def test_a_class_that_is_not_allowed_is_named_and_nothing_of_it_is_lost(stock_url: str, sqlite_url: str) -> None:
    with stock_saver(stock_url) as stock:
        selling(stock).invoke({"order": Order(1)}, on("sold"))

    told = brought_in(stock_url, sqlite_url, code=1)

    [failed] = told["threads"]
    name = f"{Order.__module__}.Order"
    assert failed["state"] == "failed"
    assert f"--allow {name}" in failed["error"]
    assert brought_in(stock_url, sqlite_url, "--allow", name)["failed"] == 0
    from stepfast_langgraph._types import make_codec

    with StepfastSaver(sqlite_url, codec=make_codec(types=[Order])) as saver:
        assert selling(saver).get_state(on("sold")).values["order"] == Order(2)


def test_a_forged_row_runs_nothing(tmp_path: Path, sqlite_url: str) -> None:
    import ormsgpack

    path, made = tmp_path / "stock.sqlite", tmp_path / "made"
    with stock_saver(str(path)) as stock:
        counting_graph(stock).invoke({"number": 0, "log": []}, on("forged"))
    call = ormsgpack.packb(("pathlib", "Path.touch", (str(made),)))
    command = ormsgpack.packb(("os", "system", f"touch {made}"))
    for payload in (ormsgpack.Ext(0, command), ormsgpack.Ext(1, call)):
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE writes SET type = 'msgpack', value = ?", (ormsgpack.packb(payload),))

        told = brought_in(str(path), sqlite_url, code=1)

        assert told["threads"][0]["state"] == "failed"
        assert not made.exists()


@pytest.mark.parametrize("content", [b"", b"not a database", None], ids=["empty", "text", "missing"])
def test_what_is_no_savers_file_is_refused(tmp_path: Path, sqlite_url: str, content: bytes | None) -> None:
    path = tmp_path / "other"
    if content is not None:
        path.write_bytes(content)

    assert str(path) in brought_in(str(path), sqlite_url, code=2)["error"]["message"]


def test_a_file_from_before_task_paths_is_read(tmp_path: Path, sqlite_url: str) -> None:
    path = tmp_path / "old.sqlite"
    config = on("old")
    with stock_saver(str(path)) as stock:
        asking_graph(stock, []).invoke(BEGINNING, config)
    with closing(sqlite3.connect(path)) as connection, connection:
        if "task_path" in {row[1] for row in connection.execute("PRAGMA table_info(writes)")}:
            connection.execute("ALTER TABLE writes DROP COLUMN task_path")

    brought_in(str(path), sqlite_url)

    with StepfastSaver(sqlite_url) as saver:
        assert "answered yes" in asking_graph(saver, []).invoke(Command(resume="yes"), config)["log"]


def test_the_source_is_not_changed(stock_url: str, sqlite_url: str) -> None:
    with stock_saver(stock_url) as stock:
        asking_graph(stock, []).invoke(BEGINNING, on("t"))

    def everything() -> list[Any]:
        with open_stock(stock_url, "read") as there:
            assert isinstance(there, Stock)
            writes = "writes" if stock_url.endswith(".sqlite") else "checkpoint_writes"
            return [there.rows(f"SELECT * FROM {table} ORDER BY 1, 2, 3, 4") for table in ("checkpoints", writes)]

    before = everything()
    brought_in(stock_url, sqlite_url)

    assert everything() == before


def test_it_comes_in_over_a_server_and_on_postgresql(store_url: str, tmp_path: Path) -> None:
    path, thread_id = tmp_path / "stock.sqlite", uuid4().hex
    with stock_saver(str(path)) as stock:
        asking_graph(stock, []).invoke(BEGINNING, on(thread_id))

    brought_in(str(path), store_url)

    with StepfastSaver(store_url) as saver:
        assert "answered yes" in asking_graph(saver, []).invoke(Command(resume="yes"), on(thread_id))["log"]


def test_progress_is_told_of_a_long_thread(tmp_path: Path, sqlite_url: str) -> None:
    path, told = tmp_path / "stock.sqlite", list[tuple[str, int, int]]()
    with stock_saver(str(path)) as stock:
        counting_graph(stock, steps=4).invoke({"number": 0, "log": []}, on("t"))

    with open_stock(str(path), "read") as there, StepfastSaver(sqlite_url) as saver:
        list(transfer(there, Held(saver), progress=lambda *each: told.append(each)))

    assert told == [("t", number, 6) for number in range(7)]


@pytest.mark.parametrize(
    ("writes", "called"),
    [
        ([(0, "a", 1), (1, "b", 2)], [("a", 1), ("b", 2)]),
        ([(-3, "__interrupt__", 0), (0, "a", 1), (2, "b", 2)], [("a", 1), ("__interrupt__", 0), ("b", 2)]),
        ([(-1, "__error__", 0)], [("__error__", 0)]),
        ([(0, "a", 1), (3, "b", 2)], [("a", 1), ("b", 2)]),
    ],
)
def test_a_call_gives_each_write_the_place_it_had(writes: Any, called: Any) -> None:
    assert as_called(writes) == called


def test_parents_come_first_although_a_clock_was_set_back() -> None:
    child, parent, other = Header("", "1", "2"), Header("", "2", None), Header("", "3", "2")
    assert parents_first([child, parent, other]) == [parent, child, other]


def test_a_circle_of_parents_ends() -> None:
    assert len(parents_first([Header("", "1", "2"), Header("", "2", "1")])) == 2
