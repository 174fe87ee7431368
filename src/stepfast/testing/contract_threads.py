"""The contract, part nine: threads, their lanes, their copies and their end."""

from __future__ import annotations

from random import Random
from typing import Any

from msgspec import structs

from stepfast.clock import new_id
from stepfast.errors import Conflict, InvalidInput
from stepfast.ops import (
    CopyThread,
    CountThreads,
    DeleteThread,
    DropCheckpoints,
    ExpireThreads,
    FindRuns,
    ListCheckpoints,
    ListThreads,
    NextDue,
    PutThread,
    ReadPath,
    ReadPieces,
    ReadThread,
    SetThreadTtl,
    Sweep,
)
from stepfast.ops.threads import NewCheckpoint, Piece, RunRow, Span, View, Write, Writes
from stepfast.testing.contract_kit import Driver, cases, expect
from stepfast.testing.threads_model import walk

__all__ = ["CopyRules", "ExpiryOfThreadsRules", "LaneRules", "ThreadListRules", "ThreadRules", "WriteRules"]

HOME = "home-1"


def checkpoint(number: int, *, parent: int | None = None, ns: str = "", end: int = 0, **fields: Any) -> NewCheckpoint:
    """Checkpoint ``number`` of a chain, with the first ``end`` messages."""
    before = number - 1 if parent is None else parent
    values = {
        "checkpoint_id": f"c{number}",
        "parent_id": f"c{before}" if before else None,
        "meta": f'{{"step":{number},"source":"loop"}}',
        "spans": [Span("messages", 0, end)] if end else [],
        "head": f"head {number}".encode(),
        **fields,
    }
    return NewCheckpoint(ns=ns, **values)


def turn(thread: str, number: int, **fields: Any) -> PutThread:
    """One turn of a conversation: message ``number``, and the checkpoint that needs all of them."""
    values = {
        "home": HOME,
        "pieces": [Piece("messages", number - 1, 1, f"message {number}".encode())],
        "checkpoint": checkpoint(number, end=number, ns=fields.get("ns", "")),
        **fields,
    }
    return PutThread(thread_id=thread, **values)


def wrote(task: str, *writes: tuple[int, bytes], at: str = "c1", path: str = "") -> Writes:
    return Writes(
        ns="", checkpoint_id=at, task_id=task, task_path=path, writes=[Write(idx, "ch", value) for idx, value in writes]
    )


async def talk(driver: Driver, thread: str, turns: int, **fields: Any) -> None:
    await driver.execute(*(turn(thread, n, **fields) for n in range(1, turns + 1)))


async def view(driver: Driver, thread: str, at: str | None = None, **fields: Any) -> View:
    found = await driver.do(ReadThread(thread_id=thread, checkpoint_id=at, **fields))
    assert found is not None
    return found


async def history(driver: Driver, thread: str | None, **fields: Any) -> list[str]:
    """The ids of all pages."""
    ids, cursor = [], ""
    while True:
        page = await driver.do(ListCheckpoints(thread_id=thread, cursor=cursor, **fields))
        ids += [item.checkpoint.checkpoint_id for item in page.items]
        cursor = page.cursor
        if not cursor:
            return ids


async def stale(driver: Driver, op: PutThread) -> str:
    error = await expect(Conflict, driver.do(op))
    return str(error.details["stale"])


class ThreadRules:
    async def test_a_thread_is_read_as_it_was_written(self, driver: Driver) -> None:
        assert await driver.do(ReadThread(thread_id="t")) is None
        before = await driver.now()
        first = await driver.do(turn("t", 1, writes=[wrote("a", (0, b"x"))]))
        second = await driver.do(turn("t", 2))
        assert second.seq > first.seq > 0
        found = await view(driver, "t")
        assert found.checkpoint is not None
        assert found.checkpoint.at >= before
        assert (found.home, found.tips, found.checkpoint.seq) == (HOME, {"messages": 2}, second.seq)
        new = checkpoint(2, end=2)
        assert [getattr(found.checkpoint, name) for name in new.__struct_fields__] == [
            getattr(new, name) for name in new.__struct_fields__
        ]
        assert found.pieces == [Piece("messages", 0, 1, b"message 1"), Piece("messages", 1, 1, b"message 2")]
        older = await view(driver, "t", "c1")
        assert (older.checkpoint and older.checkpoint.seq, len(older.pieces)) == (first.seq, 1)
        assert older.writes == [wrote("a", (0, b"x"))]
        bare = await view(driver, "t", values=False)
        assert (bare.checkpoint, bare.pieces) == (found.checkpoint, [])
        missing = await view(driver, "t", "c9")
        assert (missing.checkpoint, missing.pieces, missing.writes) == (None, [], [])

    async def test_a_namespace_has_its_own_head_and_lanes(self, driver: Driver) -> None:
        await talk(driver, "t", 2)
        await talk(driver, "t", 3, ns="child|x")
        root, child = await view(driver, "t"), await view(driver, "t", ns="child|x")
        assert root.checkpoint is not None
        assert child.checkpoint is not None
        assert (root.checkpoint.checkpoint_id, root.tips) == ("c2", {"messages": 2})
        assert (child.checkpoint.checkpoint_id, child.tips) == ("c3", {"messages": 3})
        assert (await view(driver, "t", ns="nobody")).checkpoint is None
        assert await history(driver, "t", ns="child|x") == ["c3", "c2", "c1"]

    async def test_of_two_that_continue_one_checkpoint_the_second_is_refused(self, driver: Driver) -> None:
        await talk(driver, "t", 2)
        answers = await driver.together(
            [PutThread(thread_id="t", home=HOME, checkpoint=checkpoint(3, head=str(n).encode(), checkpoint_id=f"x{n}"))]
            for n in range(5)
        )
        refused = [answer for answer in answers if isinstance(answer, Conflict)]
        assert len(refused) == 4, answers
        assert {error.details["stale"] for error in refused} == {"head"}
        assert len(await history(driver, "t")) == 3

    async def test_a_fork_goes_off_from_any_checkpoint_and_becomes_the_head(self, driver: Driver) -> None:
        await talk(driver, "t", 3)
        other = checkpoint(4, parent=1, end=1)
        assert await stale(driver, PutThread(thread_id="t", home=HOME, checkpoint=other)) == "head"
        await driver.do(PutThread(thread_id="t", home=HOME, checkpoint=other, fork=True))
        found = await view(driver, "t")
        assert found.checkpoint is not None
        assert (found.checkpoint.checkpoint_id, len(found.pieces)) == ("c4", 1)

    async def test_a_checkpoint_put_again_is_replaced_and_moves_no_head(self, driver: Driver) -> None:
        await talk(driver, "t", 3)
        before = await view(driver, "t", "c2")
        assert before.checkpoint is not None
        changed = checkpoint(2, end=1, head=b"changed", meta='{"step":"two"}')
        again = await driver.do(PutThread(thread_id="t", home=HOME, checkpoint=changed))
        assert again.seq == before.checkpoint.seq
        after = await view(driver, "t", "c2")
        assert after.checkpoint is not None
        assert (after.checkpoint.head, after.checkpoint.at) == (b"changed", before.checkpoint.at)
        assert await history(driver, "t") == ["c3", "c2", "c1"]
        [info] = (await driver.do(ListThreads())).items
        assert (info.head, info.meta, info.checkpoints) == ("c3", '{"step":3,"source":"loop"}', 3)

    async def test_another_thread_of_the_same_name_is_not_taken_for_the_one_that_was_read(self, driver: Driver) -> None:
        await talk(driver, "t", 2)
        assert await driver.do(DeleteThread(thread_id="t"))
        assert await driver.do(ReadThread(thread_id="t")) is None
        assert await stale(driver, turn("t", 3)) in ("lane", "head")
        assert await stale(driver, PutThread(thread_id="t", home=HOME, checkpoint=checkpoint(3, end=2), fork=True))
        assert await driver.do(ReadThread(thread_id="t")) is None, "nothing was written"
        await driver.do(turn("t", 1, home="home-2"))
        assert await stale(driver, turn("t", 2)) == "home"

    @cases(
        thread_id={"thread_id": ""},
        home={"home": ""},
        piece={"pieces": [Piece("messages", 0, 0, b"")]},
        span={"checkpoint": NewCheckpoint(ns="", checkpoint_id="c1", spans=[Span("messages", 2, 1)], head=b"")},
        meta={"checkpoint": NewCheckpoint(ns="", checkpoint_id="c1", meta="[]", head=b"")},
        checkpoint_id={"checkpoint": NewCheckpoint(ns="", checkpoint_id="", head=b"")},
        ttl={"ttl_seconds": -1.0},
        text={"ns": "half a pair: \ud83e", "pieces": [Piece("messages", 0, 1, b"")]},
    )
    async def test_a_put_that_is_wrong_says_where_and_writes_nothing(self, driver: Driver, case: Any) -> None:
        await expect(InvalidInput, driver.do(PutThread(**{"thread_id": "t", "home": HOME, **case})))
        assert await driver.do(CountThreads()) == 0

    async def test_a_deleted_thread_leaves_nothing(self, driver: Driver) -> None:
        await talk(driver, "t", 3)
        assert await driver.do(DeleteThread(thread_id="t"))
        assert not await driver.do(DeleteThread(thread_id="t"))
        assert (await history(driver, None), await driver.do(CountThreads())) == ([], 0)
        assert await driver.do(FindRuns(run_ids=["r"])) == []
        await talk(driver, "t", 1)
        assert len((await view(driver, "t")).pieces) == 1

    async def test_a_change_of_a_thread_wakes_who_watches_it(self, driver: Driver) -> None:
        with driver.watch("thread:t") as watch:
            await talk(driver, "t", 1)
            assert await driver.woken(watch)


class LaneRules:
    async def test_an_element_is_stored_once_and_a_span_finds_it(self, driver: Driver) -> None:
        pieces = [
            Piece("a", 0, 3, b"a0-2"),
            Piece("b", 0, 1, b"b0"),
            Piece("a", 3, 1, b"a3"),
            Piece("a", 4, 4, b"a4-7"),
        ]
        spans = [Span("a", 5, 6), Span("a", 0, 1), Span("a", 2, 4), Span("a", 0, 1), Span("b", 0, 0)]
        new = NewCheckpoint(ns="", checkpoint_id="c1", spans=spans, head=b"")
        await driver.do(PutThread(thread_id="t", home=HOME, pieces=pieces, checkpoint=new))
        found = await view(driver, "t")
        assert found.tips == {"a": 8, "b": 1}
        assert found.pieces == [pieces[0], pieces[2], pieces[3]], "each once, by lane and number"
        assert await driver.do(ReadPieces(thread_id="t", spans=[Span("a", 1, 2), Span("b", 0, 1)])) == [
            pieces[0],
            pieces[1],
        ]
        assert await driver.do(ReadPieces(thread_id="t", spans=[])) == []
        assert await driver.do(ReadPieces(thread_id="nobody", spans=[Span("a", 0, 1)])) == []

    async def test_a_lane_grows_at_its_tip_only(self, driver: Driver) -> None:
        await talk(driver, "t", 2)
        for n, data in ((1, b"another"), (3, b"too far"), (0, b"message 2")):
            op = PutThread(thread_id="t", home=HOME, pieces=[Piece("messages", n, 1, data)])
            assert await stale(driver, op) == "lane"
        beyond = PutThread(thread_id="t", home=HOME, checkpoint=checkpoint(3, end=3))
        assert await stale(driver, beyond) == "lane"
        assert (await view(driver, "t")).tips == {"messages": 2}

    async def test_a_commit_whose_answer_was_lost_may_be_sent_again_after_others(self, driver: Driver) -> None:
        first = await driver.do(turn("t", 1))
        second = await driver.do(turn("t", 2))
        assert await driver.do(turn("t", 1)) == first
        await driver.do(turn("t", 3))
        assert await driver.do(turn("t", 2)) == second
        assert len((await view(driver, "t")).pieces) == 3

    async def test_dropped_checkpoints_take_with_them_what_no_other_needs(self, driver: Driver) -> None:
        await talk(driver, "t", 4)
        await driver.do(PutThread(thread_id="t", home=HOME, writes=[wrote("a", (0, b"x"), at="c2")]))
        window = checkpoint(5, spans=[Span("messages", 2, 4)])
        await driver.do(PutThread(thread_id="t", home=HOME, checkpoint=window))
        dropped = [("", f"c{n}") for n in (1, 2, 3, 4, 9)]
        assert await driver.do(DropCheckpoints(thread_id="t", drop=dropped)) == 4
        assert await history(driver, "t") == ["c5"]
        kept = await driver.do(ReadPieces(thread_id="t", spans=[Span("messages", 0, 4)]))
        assert [piece.n for piece in kept] == [2, 3]
        assert (await view(driver, "t", "c2")).writes == []
        [info] = (await driver.do(ListThreads())).items
        assert (info.checkpoints, info.size_bytes) == (1, len(b"head 5") + 2 * len(b"message 3"))
        gone = PutThread(thread_id="t", home=HOME, checkpoint=checkpoint(6, spans=[Span("messages", 1, 4)]))
        assert await stale(driver, gone) == "lane", "an element that was deleted meanwhile"
        await driver.do(PutThread(thread_id="t", home=HOME, checkpoint=checkpoint(6, spans=[Span("messages", 2, 4)])))

    async def test_dropping_the_head_makes_the_newest_that_is_left_the_head(self, driver: Driver) -> None:
        await talk(driver, "t", 3)
        await talk(driver, "t", 2, ns="child")
        assert await driver.do(DropCheckpoints(thread_id="t", drop=[("", "c3"), ("child", "c2")])) == 2
        root, child = await view(driver, "t"), await view(driver, "t", ns="child")
        assert root.checkpoint is not None
        assert child.checkpoint is not None
        assert (root.checkpoint.checkpoint_id, child.checkpoint.checkpoint_id) == ("c2", "c1")
        rest = [("", "c1"), ("", "c2"), ("child", "c1")]
        assert await driver.do(DropCheckpoints(thread_id="t", drop=rest)) == 3
        assert await driver.do(ReadThread(thread_id="t")) is None, "a thread with nothing left goes"


class WriteRules:
    async def test_of_regular_writes_the_first_stays_and_of_special_ones_the_newest(self, driver: Driver) -> None:
        put = [wrote("a", (0, b"first"), (-1, b"old error")), wrote("a", (0, b"second"), (1, b"more"), (-1, b"error"))]
        for writes in put:
            await driver.do(PutThread(thread_id="t", home=HOME, writes=[writes]))
        found = await view(driver, "t", "c1")
        assert found.checkpoint is None, "writes may come before their checkpoint"
        assert found.writes == [wrote("a", (-1, b"error"), (0, b"first"), (1, b"more"))]
        await driver.do(turn("t", 1))
        assert (await view(driver, "t")).writes == found.writes

    async def test_writes_come_by_task_path_task_and_idx(self, driver: Driver) -> None:
        writes = [
            wrote("b", (1, b"4"), (0, b"3"), path="p1"),
            wrote("a", (0, b"5"), path="p2"),
            wrote("a2", (0, b"2"), (-2, b"1"), path="p1"),
        ]
        await driver.do(turn("t", 1, writes=writes))
        await driver.do(PutThread(thread_id="t", home=HOME, writes=[wrote("z", (0, b"other"), at="c7")]))
        found = (await view(driver, "t")).writes
        assert [(w.task_path, w.task_id, [one.idx for one in w.writes]) for w in found] == [
            ("p1", "a2", [-2, 0]),
            ("p1", "b", [0, 1]),
            ("p2", "a", [0]),
        ]


class CopyRules:
    async def test_a_copy_has_the_same_past_and_its_own_future(self, driver: Driver) -> None:
        await talk(driver, "t", 2)
        await driver.do(PutThread(thread_id="t", home=HOME, writes=[wrote("a", (0, b"x"), at="c2")]))
        shared = await view(driver, "t")
        await driver.do(CopyThread(source="t", target="u"))
        assert structs.replace(await view(driver, "u"), born=shared.born) == shared
        await driver.do(
            turn("u", 3, writes=[wrote("a", (0, b"no"), (1, b"y"), at="c2"), wrote("b", (0, b"z"), at="c2")])
        )
        assert await view(driver, "t") == shared, "what the copy writes, the source does not see"
        other = Piece("messages", 2, 1, b"the source's own")
        await driver.do(PutThread(thread_id="t", home=HOME, pieces=[other], checkpoint=checkpoint(3, end=3)))
        assert (await view(driver, "t")).pieces[2] == other
        assert (await view(driver, "u")).pieces[2].data == b"message 3"
        theirs = [wrote("a", (0, b"x"), (1, b"y"), at="c2"), wrote("b", (0, b"z"), at="c2")]
        assert (await view(driver, "u", "c2")).writes == theirs
        assert (await view(driver, "t", "c2")).writes == shared.writes
        assert await history(driver, "u") == await history(driver, "t") == ["c3", "c2", "c1"]

    async def test_a_checkpoint_changed_in_one_is_unchanged_in_the_other(self, driver: Driver) -> None:
        await talk(driver, "t", 3)
        await driver.do(CopyThread(source="t", target="u"))
        before = await view(driver, "t", "c2")
        await driver.do(PutThread(thread_id="u", home=HOME, checkpoint=checkpoint(2, end=1, head=b"changed")))
        await driver.do(PutThread(thread_id="t", home=HOME, checkpoint=checkpoint(1, end=1, head=b"mine")))
        assert await view(driver, "t", "c2") == before
        changed = await view(driver, "u", "c2")
        assert before.checkpoint is not None
        assert changed.checkpoint is not None
        assert (changed.checkpoint.head, changed.checkpoint.seq) == (b"changed", before.checkpoint.seq)
        assert await history(driver, "u") == ["c3", "c2", "c1"]
        path = await driver.do(ReadPath(thread_id="u", checkpoint_id="c3"))
        assert [item.checkpoint.head for item in path] == [b"changed", b"head 1"]

    async def test_a_copy_is_made_of_what_is_there_and_onto_what_is_not(self, driver: Driver) -> None:
        await driver.do(CopyThread(source="nobody", target="u"))
        assert await driver.do(CountThreads()) == 0
        await talk(driver, "t", 1)
        await talk(driver, "u", 1)
        await expect(Conflict, driver.do(CopyThread(source="t", target="u")))
        await expect(InvalidInput, driver.do(CopyThread(source="t", target="t")))
        await driver.do(CopyThread(source="t", target="v"))
        await driver.do(turn("t", 2))
        await expect(Conflict, driver.do(CopyThread(source="t", target="v")), "it is not this copy any more")

    async def test_what_is_shared_stays_until_the_last_that_sees_it_goes(self, driver: Driver) -> None:
        await talk(driver, "t", 2)
        await driver.do(CopyThread(source="t", target="u"))
        await driver.do(CopyThread(source="u", target="v"))
        whole = await view(driver, "v")
        assert await driver.do(DeleteThread(thread_id="t"))
        assert await driver.do(DropCheckpoints(thread_id="u", drop=[("", "c1")])) == 1
        assert await history(driver, "u") == ["c2"]
        assert await view(driver, "v") == whole
        assert await history(driver, "v") == ["c2", "c1"]
        assert await driver.do(DeleteThread(thread_id="v"))
        assert len((await view(driver, "u")).pieces) == 2
        await driver.do(turn("u", 3))
        assert len((await view(driver, "u")).pieces) == 3

    async def test_a_thread_may_be_copied_again_and_again(self, driver: Driver) -> None:
        for n in range(1, 21):
            await driver.do(turn("t", n))
            await driver.do(CopyThread(source="t", target=f"u{n}"))
        for n in (1, 10, 20):
            found = await view(driver, f"u{n}")
            assert [piece.data for piece in found.pieces] == [f"message {i + 1}".encode() for i in range(n)]
        assert await history(driver, "t") == [f"c{n}" for n in range(20, 0, -1)]

    async def test_a_walk_of_random_operations_agrees_with_a_plain_model(self, driver: Driver) -> None:
        await walk(driver, Random(4), 40)


class ThreadListRules:
    async def test_checkpoints_are_listed_newest_first_in_pages_with_each_piece_once(self, driver: Driver) -> None:
        await talk(driver, "t", 5, writes=[wrote("a", (0, b"x"))])
        page = await driver.do(ListCheckpoints(thread_id="t", limit=2))
        assert [item.checkpoint.checkpoint_id for item in page.items] == ["c5", "c4"]
        assert [(p.thread_id, p.ns, p.piece.n) for p in page.pieces] == [("t", "", n) for n in range(5)]
        assert page.items[0].home == HOME
        for limit in (1, 2, 3, 5, 9):
            assert await history(driver, "t", limit=limit) == ["c5", "c4", "c3", "c2", "c1"]
        bare = await driver.do(ListCheckpoints(thread_id="t", values=False))
        assert (bare.pieces, bare.items[4].writes) == ([], [wrote("a", (0, b"x"))])
        assert await history(driver, "nobody") == []
        await expect(InvalidInput, driver.do(ListCheckpoints(limit=0)))
        await expect(InvalidInput, driver.do(ListCheckpoints(cursor="nonsense")))

    async def test_a_listing_is_narrowed_by_all_that_is_given(self, driver: Driver) -> None:
        await talk(driver, "t", 3)
        await talk(driver, "t", 2, ns="child")
        await talk(driver, "u", 4)
        odd = checkpoint(4, meta='{"step":4,"ok":true,"tags":["a"],"none":null}')
        await driver.do(PutThread(thread_id="t", home=HOME, checkpoint=odd))
        assert await history(driver, "t", where={"step": 2}) == ["c2", "c2"]
        assert await history(driver, "t", ns="", where={"step": 2, "source": "loop"}) == ["c2"]
        assert await history(driver, "t", where={"tags": ["a"], "ok": True, "none": None, "missing": None}) == ["c4"]
        assert await history(driver, "t", where={"step": "2"}) == []
        assert await history(driver, "t", ns="child") == ["c2", "c1"]
        assert await history(driver, "t", ns="", before="c3") == ["c2", "c1"]
        assert await history(driver, "t", ns="", before="c25") == ["c2", "c1"], "an id that is not there"
        assert await history(driver, "t", ns="", checkpoint_id="c2") == ["c2"]
        assert await history(driver, None, where={"step": 4}, limit=1) == ["c4", "c4"]
        everything = await history(driver, None, limit=2)
        assert sorted(everything) == ["c1", "c1", "c1", "c2", "c2", "c2", "c3", "c3", "c4", "c4"]

    async def test_the_way_back_follows_the_parents(self, driver: Driver) -> None:
        await talk(driver, "t", 4, writes=[wrote("a", (0, b"x"), at="c2")])
        fork = checkpoint(9, parent=2, end=2)
        await driver.do(PutThread(thread_id="t", home=HOME, checkpoint=fork, fork=True))
        path = await driver.do(ReadPath(thread_id="t", checkpoint_id="c9"))
        assert [item.checkpoint.checkpoint_id for item in path] == ["c2", "c1"]
        assert [len(item.writes) for item in path] == [1, 0]
        path = await driver.do(ReadPath(thread_id="t", checkpoint_id="c4", limit=2))
        assert [item.checkpoint.checkpoint_id for item in path] == ["c3", "c2"]
        assert await driver.do(ReadPath(thread_id="t", checkpoint_id="c1")) == []
        assert await driver.do(ReadPath(thread_id="nobody", checkpoint_id="c1")) == []

    async def test_the_checkpoints_of_runs_are_found_in_all_threads(self, driver: Driver) -> None:
        for n, run in ((1, "r1"), (2, "r2"), (3, None)):
            await driver.do(turn("t", n, checkpoint=checkpoint(n, end=n, run_id=run)))
        await driver.do(CopyThread(source="t", target="u"))
        await driver.do(PutThread(thread_id="u", home=HOME, checkpoint=checkpoint(1, end=1, run_id="r3")))
        found = await driver.do(FindRuns(run_ids=["r1", "r2", "r2", "r9"]))
        assert sorted(found, key=str) == [
            RunRow("t", "", "c1", "r1"),
            RunRow("t", "", "c2", "r2"),
            RunRow("u", "", "c2", "r2"),
        ]

    async def test_threads_are_listed_by_their_last_activity(self, driver: Driver) -> None:
        for name in ("a/1", "a/2", "b/1"):
            await talk(driver, name, 1)
            driver.advance(3700)
        await driver.do(turn("a/1", 2))
        page = await driver.do(ListThreads(limit=2))
        assert [info.thread_id for info in page.items] == ["a/1", "b/1"]
        newest, older = page.items
        assert (newest.checkpoints, newest.head, newest.expires_at) == (2, "c2", None)
        assert newest.size_bytes == 2 * (len(b"head 1") + len(b"message 1"))
        assert newest.created_at < older.created_at < newest.updated_at
        rest = await driver.do(ListThreads(limit=2, cursor=page.cursor))
        assert ([info.thread_id for info in rest.items], rest.cursor) == (["a/2"], "")

        async def names(**fields: Any) -> list[str]:
            return [info.thread_id for info in (await driver.do(ListThreads(**fields))).items]

        assert await names(prefix="a/") == ["a/1", "a/2"]
        assert await names(ids=["a/2", "b/1", "zzz"]) == ["b/1", "a/2"]
        assert await names(where={"step": 1}) == ["b/1", "a/2"]
        assert await names(updated_after=older.updated_at) == ["a/1"]
        assert await names(updated_before=newest.updated_at) == ["b/1", "a/2"]
        counts = [CountThreads(), CountThreads(prefix="a/"), CountThreads(where={"step": 1}, prefix="a/")]
        assert [await driver.do(op) for op in counts] == [3, 2, 1]


class ExpiryOfThreadsRules:
    async def test_an_expired_thread_is_gone_before_it_is_deleted(self, driver: Driver) -> None:
        await driver.do(turn("t", 1, ttl_seconds=60.0))
        await driver.do(turn("u", 1))
        driver.advance(30)
        await driver.do(turn("t", 2))
        [info] = (await driver.do(ListThreads(prefix="t"))).items
        assert info.expires_at == await driver.do(NextDue())
        driver.advance(31)
        assert await driver.do(ReadThread(thread_id="t")) is None
        assert await history(driver, "t") == []
        assert await history(driver, None) == ["c1"]
        assert await driver.do(CountThreads()) == 1
        await driver.do(CopyThread(source="t", target="v"))
        assert not await driver.do(SetThreadTtl(thread_id="t", ttl_seconds=None))
        await driver.do(turn("t", 1, home="home-2"))
        found = await view(driver, "t")
        assert (found.home, len(found.pieces)) == ("home-2", 1), "the same name begins anew"

    async def test_expired_threads_are_deleted_some_at_a_time(self, driver: Driver) -> None:
        for n in range(5):
            await driver.do(turn(f"t{n}", 1, ttl_seconds=60.0))
        assert await driver.do(SetThreadTtl(thread_id="t0", ttl_seconds=None))
        assert await driver.do(SetThreadTtl(thread_id="t1", ttl_seconds=600.0))
        assert await driver.do(ExpireThreads()) == 0
        driver.advance(61)
        assert [await driver.do(ExpireThreads(limit=2)), await driver.do(Sweep())] == [2, 1]
        assert await driver.do(CountThreads()) == 2
        await expect(InvalidInput, driver.do(ExpireThreads(limit=0)))

    async def test_a_copy_outlives_the_thread_it_was_made_of(self, driver: Driver) -> None:
        await talk(driver, "t", 2)
        await driver.do(CopyThread(source="t", target=f"u {new_id()}"))
        await driver.do(SetThreadTtl(thread_id="t", ttl_seconds=60.0))
        driver.advance(61)
        assert await driver.do(ExpireThreads()) == 1
        [info] = (await driver.do(ListThreads())).items
        assert len((await view(driver, info.thread_id)).pieces) == 2
