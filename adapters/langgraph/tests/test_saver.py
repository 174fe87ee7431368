"""The contract in the points that LangGraph's own suite leaves out."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from adapters.langgraph.tests.kit import CountingStore, checkpoint, counting_graph, on, put
from stepfast import AsyncStepfast, InvalidInput, Stepfast, open_store
from stepfast_langgraph import StepfastSaver


def values(saver: StepfastSaver, config: Any) -> dict[str, Any]:
    found = saver.get_tuple(config)
    assert found is not None
    return found.checkpoint["channel_values"]


def ids(found: Any) -> list[str]:
    return [one.config["configurable"]["checkpoint_id"] for one in found]


# --- places ---------------------------------------------------------------------------------------------------------


def test_a_saver_takes_a_url_a_path_a_store_or_a_client(tmp_path: Path) -> None:
    config = on("t")
    with StepfastSaver(f"sqlite:///{tmp_path}/a.db") as saver:
        put(saver, config, x=1)
    with StepfastSaver(tmp_path / "a.db") as saver:
        assert values(saver, config) == {"x": 1}
    with open_store(tmp_path / "a.db") as store:
        StepfastSaver(store).close()
        assert StepfastSaver(store).get_tuple(config) is not None  # what it was given stays open
    with Stepfast(tmp_path / "a.db") as client:
        assert StepfastSaver(client).get_tuple(config) is not None


async def test_a_saver_takes_an_async_client_and_is_left_by_async_with(tmp_path: Path) -> None:
    async with AsyncStepfast(tmp_path / "a.db") as client:
        saver = StepfastSaver(client)
        await saver.aput(on("t"), checkpoint(x=1), {"source": "loop"}, {})
    async with StepfastSaver.from_conn_string(f"sqlite:///{tmp_path}/a.db") as again:
        await again.asetup()
        assert await again.aget_tuple(on("t")) is not None


def test_code_for_a_stock_saver_changes_one_line(tmp_path: Path) -> None:
    with StepfastSaver.from_conn_string(f"sqlite:///{tmp_path}/a.db") as saver:
        saver.setup()
        graph = counting_graph(saver)
        assert graph.invoke({"number": 1, "log": []}, on("t"))["number"] == 2


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"on_conflict": "ignore"}, "on_conflict"),
        ({"gather_seconds": -1}, "gather_seconds"),
        ({"ttl": -5}, "ttl"),
        ({"allow_metadata": "user"}, "allow_metadata"),
    ],
)
def test_a_wrong_option_is_named(tmp_path: Path, options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput, match=field):
        StepfastSaver(tmp_path / "a.db", **options)
    assert not (tmp_path / "a.db").exists()


def test_without_a_thread_id_every_call_says_so(saver: StepfastSaver) -> None:
    nowhere: Any = {"configurable": {"checkpoint_ns": ""}}
    for call in (
        lambda: saver.get_tuple(nowhere),
        lambda: list(saver.list(nowhere)),
        lambda: put(saver, nowhere, x=1),
        lambda: saver.put_writes(nowhere, [("x", 1)], "task"),
    ):
        with pytest.raises(InvalidInput, match="thread_id"):
            call()


def test_a_thread_id_of_any_type_is_its_text(saver: StepfastSaver) -> None:
    put(saver, on(7), x=1)
    assert saver.get_tuple(on("7")) is not None
    seven: Any = 7
    saver.delete_thread(seven)
    assert saver.get_tuple(on("7")) is None


# --- writes ---------------------------------------------------------------------------------------------------------


def test_writes_come_back_by_task_path_then_task_then_position(any_saver: StepfastSaver) -> None:
    saved = put(any_saver, on())
    any_saver.put_writes(saved, [("c", 5), ("c", 6)], "task-a", "~z")
    any_saver.put_writes(saved, [("c", 3)], "task-b", "~a")
    any_saver.put_writes(saved, [("c", 4)], "task-c", "~a")
    any_saver.put_writes(saved, [("c", 1), ("d", 2)], "task-d")
    found = any_saver.get_tuple(saved)
    assert found is not None
    assert found.pending_writes == [
        ("task-d", "c", 1),
        ("task-d", "d", 2),
        ("task-b", "c", 3),
        ("task-c", "c", 4),
        ("task-a", "c", 5),
        ("task-a", "c", 6),
    ]
    assert [one.pending_writes for one in any_saver.list(saved)] == [found.pending_writes]


def test_of_regular_writes_the_first_stays_and_of_special_ones_the_newest(any_saver: StepfastSaver) -> None:
    saved = put(any_saver, on())
    any_saver.put_writes(saved, [("c", "first")], "task")
    any_saver.put_writes(saved, [("c", "second")], "task")
    any_saver.put_writes(saved, [("__interrupt__", "old")], "task")
    any_saver.put_writes(saved, [("__interrupt__", "new")], "task")
    found = any_saver.get_tuple(saved)
    assert found is not None
    assert sorted(found.pending_writes or []) == [("task", "__interrupt__", "new"), ("task", "c", "first")]


def test_a_mixed_call_keeps_regular_writes_and_replaces_special_ones(any_saver: StepfastSaver) -> None:
    saved = put(any_saver, on())
    any_saver.put_writes(saved, [("c", 1), ("__resume__", ["a"])], "task")
    any_saver.put_writes(saved, [("c", 2), ("__resume__", ["a", "b"])], "task")
    found = any_saver.get_tuple(saved)
    assert found is not None
    assert sorted(found.pending_writes or []) == [("task", "__resume__", ["a", "b"]), ("task", "c", 1)]


def test_writes_may_come_before_their_checkpoint(any_saver: StepfastSaver) -> None:
    config = on()
    made = checkpoint(x=1)
    later = on(config["configurable"]["thread_id"], checkpoint_id=made["id"])
    any_saver.put_writes(later, [("c", 1)], "task")
    assert any_saver.get_tuple(later) is None
    any_saver.put(config, made, {"source": "loop"}, made["channel_versions"])
    found = any_saver.get_tuple(config)
    assert found is not None
    assert found.pending_writes == [("task", "c", 1)]


def test_writes_without_a_checkpoint_id_are_refused(saver: StepfastSaver) -> None:
    with pytest.raises(InvalidInput, match="checkpoint_id"):
        saver.put_writes(on(), [("c", 1)], "task")


# --- checkpoints ----------------------------------------------------------------------------------------------------


def test_putting_an_id_again_replaces_it_and_moves_no_head(any_saver: StepfastSaver) -> None:
    first = checkpoint(x=1)
    config = on()
    saved = any_saver.put(config, first, {"source": "loop", "step": 0}, first["channel_versions"])
    second = put(any_saver, saved, step=1, x=2)
    first["channel_values"] = {"x": 10}
    any_saver.put(config, first, {"source": "loop", "step": 0}, first["channel_versions"])
    newest, replaced = any_saver.get_tuple(config), any_saver.get_tuple(saved)
    assert newest is not None
    assert replaced is not None
    assert newest.config["configurable"]["checkpoint_id"] == second["configurable"]["checkpoint_id"]
    assert newest.checkpoint["channel_values"] == {"x": 2}
    assert replaced.checkpoint["channel_values"] == {"x": 10}
    assert len(list(any_saver.list(config))) == 2


def test_keys_of_a_checkpoint_that_nobody_knows_come_back(any_saver: StepfastSaver) -> None:
    made: Any = {**checkpoint(x=1), "pending_sends": [], "from_the_future": {"a": (1, 2)}, "v": 1}
    metadata: Any = {"source": "loop", "also": [1, {"b": 2}]}
    saved = any_saver.put(on(), made, metadata, {})
    found = any_saver.get_tuple(saved)
    assert found is not None
    assert found.checkpoint == made
    assert found.metadata == {**metadata}


def test_a_channel_that_lost_its_value_is_not_there_any_more(saver: StepfastSaver) -> None:
    config = on()
    saved = put(saver, config, a=1, b=2)
    made = checkpoint(a=1)
    made["channel_versions"]["b"] = "00000000000000000000000000000002.0.5"
    saved = saver.put(saved, made, {"source": "loop"}, {"b": made["channel_versions"]["b"]})
    found = saver.get_tuple(config)
    assert found is not None
    assert found.checkpoint["channel_values"] == {"a": 1}


def test_a_copied_checkpoint_does_not_take_its_values_from_the_parent_it_is_put_under(saver: StepfastSaver) -> None:
    config = on()
    old = put(saver, config, x="old")
    made = checkpoint(x="new")
    made["channel_versions"] = {"x": "00000000000000000000000000000002.0.5"}
    saver.put(old, made, {"source": "loop"}, made["channel_versions"])
    copy: Any = {**made, "id": checkpoint()["id"]}
    saver.put(old, copy, {"source": "fork"}, {})
    found = saver.get_tuple(config)
    assert found is not None
    assert found.checkpoint["channel_values"] == {"x": "new"}


# --- listing --------------------------------------------------------------------------------------------------------


def test_before_counts_also_across_namespaces(any_saver: StepfastSaver) -> None:
    thread = on()["configurable"]["thread_id"]
    put(any_saver, on(thread, checkpoint_ns="sub"), x=1)
    root = put(any_saver, on(thread, checkpoint_ns=""), x=2)
    put(any_saver, on(thread, checkpoint_ns="sub"), x=3)
    found = list(any_saver.list(on(thread, checkpoint_ns="sub"), before=root, limit=1))
    assert [one.checkpoint["channel_values"] for one in found] == [{"x": 1}]


def test_the_newest_is_the_one_put_last_though_a_clock_stepped_back(any_saver: StepfastSaver) -> None:
    config = on()
    first = put(any_saver, config, x=1)
    made: Any = {**checkpoint(x=2), "id": "0" + checkpoint()["id"][1:]}
    any_saver.put(first, made, {"source": "loop"}, {"x": "2"})
    found = any_saver.get_tuple(config)
    assert found is not None
    assert found.checkpoint["channel_values"] == {"x": 2}
    assert ids(any_saver.list(config)) == [made["id"], first["configurable"]["checkpoint_id"]]


def test_a_paused_walk_blocks_no_writer(any_saver: StepfastSaver) -> None:
    config = on()
    saved = put(any_saver, config, x=0)
    for number in range(3):
        saved = put(any_saver, saved, x=number)
    walk = any_saver.list(config)
    next(walk)
    writer = threading.Thread(target=lambda: put(any_saver, saved, x="written while the walk was paused"))
    writer.start()
    writer.join(10)
    assert not writer.is_alive()
    assert len(list(walk)) == 3


@pytest.mark.parametrize(
    "key",
    ["x') OR 1=1 --", "a.b", '"', "'", "$", "x]", "a\\b", "%", "a\x00b", "\ud800"],
)
def test_a_filter_key_is_only_a_name(any_saver: StepfastSaver, key: str) -> None:
    config = on()
    saved = put(any_saver, config)
    made = checkpoint()
    metadata: Any = {"source": "loop", key: "here"}
    any_saver.put(saved, made, metadata, {})
    assert ids(any_saver.list(config, filter={key: "here"})) == [made["id"]]
    assert ids(any_saver.list(config, filter={key: "elsewhere"})) == []


def test_filters_compare_as_python_does(any_saver: StepfastSaver) -> None:
    config = on()
    metadata: Any = {"source": "loop", "n": 1, "deep": {"a": [1, 2]}, "flag": True, "none": None, "f": 0.5, "text": "é"}
    any_saver.put(config, checkpoint(), metadata, {})
    for same in (
        {"n": 1},
        {"n": 1.0},
        {"n": True},
        {"deep": {"a": [1, 2]}},
        {"flag": 1},
        {"none": None},
        {"gone": None},
    ):
        assert len(list(any_saver.list(config, filter=same))) == 1, same
    for other in ({"n": "1"}, {"deep": {"a": [1]}}, {"flag": "true"}, {"gone": 1}, {"f": 0.25}, {"n": 1, "text": "e"}):
        assert not list(any_saver.list(config, filter=other)), other


def test_a_long_history_comes_in_pages_and_a_limit_is_kept(saver: StepfastSaver) -> None:
    config = on()
    saved: Any = config
    for number in range(230):
        saved = put(saver, saved, source="loop" if number % 2 else "input", step=number, items=list(range(number)))
    found = list(saver.list(config))
    assert [one.metadata["step"] for one in found] == list(range(229, -1, -1))
    assert all(one.checkpoint["channel_values"]["items"] == list(range(one.metadata["step"])) for one in found)
    assert [one.metadata["step"] for one in saver.list(config, limit=3)] == [229, 228, 227]
    assert len(list(saver.list(config, filter={"source": "input"}, limit=105))) == 105
    assert len(list(saver.list(config, filter={"step": 7}))) == 1
    assert not list(saver.list(config, limit=0))


def test_listing_all_threads_shows_those_of_this_tenant_only(
    http_over_sqlite: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def as_tenant(name: str) -> StepfastSaver:
        return StepfastSaver(http_over_sqlite, api_key=name.encode().hex())

    with as_tenant("ann") as anns, as_tenant("bob") as bobs:
        put(anns, on("same name"), x="ann's")
        put(bobs, on("same name"), x="bob's")
        assert [one.checkpoint["channel_values"] for one in anns.list(None)] == [{"x": "ann's"}]
        assert [one.checkpoint["channel_values"] for one in bobs.list(None)] == [{"x": "bob's"}]
        bobs.delete_thread("same name")
        assert anns.get_tuple(on("same name")) is not None
        assert not list(bobs.list(None))


# --- deleting, copying ----------------------------------------------------------------------------------------------


def test_prune_can_keep_the_last_few(any_saver: StepfastSaver) -> None:
    config = on()
    saved: Any = config
    for number in range(5):
        saved = put(any_saver, saved, step=number, items=list(range(number)))
    any_saver.prune([config["configurable"]["thread_id"]], keep_last=2)
    found = list(any_saver.list(config))
    assert [one.checkpoint["channel_values"]["items"] for one in found] == [[0, 1, 2, 3], [0, 1, 2]]
    saved = put(any_saver, saved, step=5, items=[9])
    assert len(list(any_saver.list(config))) == 3


def test_a_wrong_strategy_deletes_nothing(saver: StepfastSaver) -> None:
    saved = put(saver, put(saver, on("t"), x=1), x=2)
    for options in ({"strategy": "everything"}, {"keep_last": 0}, {"strategy": "delete", "keep_last": 1}):
        with pytest.raises(InvalidInput):
            saver.prune(["t"], **options)
    assert len(list(saver.list(on("t")))) == 2
    assert saver.get_tuple(saved) is not None


def test_a_copy_and_its_source_go_their_own_ways(any_saver: StepfastSaver) -> None:
    source, target = on(), on()
    saved = put(any_saver, source, items=["a"])
    any_saver.put_writes(saved, [("c", 1)], "task")
    any_saver.copy_thread(source["configurable"]["thread_id"], target["configurable"]["thread_id"])
    copied = any_saver.get_tuple(target)
    assert copied is not None
    assert copied.pending_writes == [("task", "c", 1)]
    put(any_saver, copied.config, items=["a", "target"])
    put(any_saver, saved, items=["a", "source"])
    any_saver.delete_thread(source["configurable"]["thread_id"])
    again = any_saver.get_tuple(target)
    assert again is not None
    assert again.checkpoint["channel_values"] == {"items": ["a", "target"]}


# --- one object for everybody ---------------------------------------------------------------------------------------


async def test_the_blocking_half_works_inside_a_running_loop(any_saver: StepfastSaver) -> None:
    config = on()
    saved = await any_saver.aput(config, checkpoint(x=1), {"source": "loop"}, {})
    any_saver.put_writes(saved, [("c", 1)], "task")
    put(any_saver, saved, x=2)
    found = any_saver.get_tuple(config)
    assert found is not None
    assert found.checkpoint["channel_values"] == {"x": 2}
    assert len([one async for one in any_saver.alist(config)]) == 2


def test_one_saver_serves_several_loops_and_threads_at_once(any_saver: StepfastSaver) -> None:
    errors: list[BaseException] = []

    async def work(name: str) -> None:
        saved: Any = on(name)
        for number in range(4):
            made = checkpoint(items=list(range(number)))
            saved = await any_saver.aput(saved, made, {"source": "loop"}, made["channel_versions"])
            await any_saver.aput_writes(saved, [("c", number)], "task")
        found = await any_saver.aget_tuple(on(name))
        assert found is not None
        assert found.checkpoint["channel_values"] == {"items": [0, 1, 2]}

    names = [on()["configurable"]["thread_id"] for _ in range(8)]

    def one_loop(mine: list[str]) -> None:
        async def together() -> None:
            await asyncio.gather(*(work(name) for name in mine))

        try:
            asyncio.run(together())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one_loop, args=(names[place::4],)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert all(any_saver.get_tuple(on(name)) is not None for name in names)


def test_clones_share_all_state(saver: StepfastSaver) -> None:
    clone: Any = saver.with_allowlist([("somewhere", "Something")])
    saved = put(saver, on("t"), x=1)
    assert clone.get_tuple(saved) is not None
    assert clone._inner is saver._inner


def test_versions_grow_and_are_those_of_the_stock_savers(saver: StepfastSaver) -> None:
    first = saver.get_next_version(None, None)
    assert saver.get_next_version(first, None) > first
    assert first.split(".")[0] == "00000000000000000000000000000001"
    assert saver.get_next_version(9, None).startswith("00000000000000000000000000000010.")
    assert saver.get_next_version("00000000000000000000000000000099.0.123", None) > first


def test_a_run_needs_no_read_after_its_first(tmp_path: Path) -> None:
    store = CountingStore(open_store(tmp_path / "a.db"))
    with store, StepfastSaver(store) as saver:
        counting_graph(saver, steps=20).invoke({"number": 0, "log": []}, {**on("t"), "recursion_limit": 50})
        assert store.count("ReadThread") == 1
        assert store.count("ReadPieces") == 0


def test_a_thread_expires_after_its_time_to_live(tmp_path: Path) -> None:
    with open_store(tmp_path / "a.db") as store, StepfastSaver(store, ttl=3600) as saver:
        put(saver, on("t"), x=1)
        assert saver.threads.get("t").expires_at is not None
        store.clock.offset_us = 3601 * 1_000_000
        assert saver.get_tuple(on("t")) is None
        assert not list(saver.list(None))
