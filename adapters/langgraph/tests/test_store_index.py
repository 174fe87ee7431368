"""The store: search by meaning, with the scores of the stock store and the exact vectors."""

from __future__ import annotations

import math
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore

from adapters.langgraph.tests.store_kit import INDEX, KINDS, aembed, embed, rows_of, with_index
from stepfast import InvalidInput
from stepfast.threads import GetRecord
from stepfast_langgraph import StepfastStore

WORDS = ("stressed desserts", "listen", "silent", "enlist the tinsel", "a dog", "god", "zebra", "")


@pytest.mark.parametrize("numpy", [True, False], ids=["numpy", "plain"])
def test_scores_are_those_of_the_stock_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numpy: bool) -> None:
    index: Any = {"embed": embed, "dims": 26, "fields": ["text", "more[*]"]}
    stock = InMemoryStore(index=index)
    with StepfastStore(tmp_path / "v.db", index=index) as ours:
        for number, word in enumerate(WORDS):
            for each in (stock, ours):
                each.put(
                    ("n",), f"k{number}", {"text": word, "more": [f"{word}{number} x", f"{number} y"], "n": number}
                )
        stock.put(("n",), "none", {"n": 9}, index=False)
        ours.put(("n",), "none", {"text": "listen", "n": 9}, index=False)
        answers = {query: stock.search(("n",), query=query, limit=20) for query in ("inlets", "dog", "q")}
        if not numpy:
            monkeypatch.setitem(sys.modules, "numpy", None)
        for query, answer in answers.items():
            expected = {item.key: item.score for item in answer}
            found = ours.search(("n",), query=query, limit=20)
            scores: dict[str, Any] = {item.key: item.score for item in found}
            assert scores.pop("none") is expected.pop("none") is None
            assert scores == pytest.approx(expected)
            assert [item.score for item in found[:-1]] == sorted(scores.values(), reverse=True)
            assert found[-1].key == "none"
            assert [item.key for item in ours.search(("n",), query=query, limit=3, offset=2)] == [
                item.key for item in found[2:5]
            ]
        near = ours.search(("n",), query="listen", filter={"n": {"$lt": 4, "$ne": 1}}, limit=1)
        assert near[0].key == "k2"


async def test_an_async_embedder_is_awaited(tmp_path: Path) -> None:
    async with StepfastStore(tmp_path / "v.db", index=with_index(embed=aembed, fields=None)) as store:
        await store.aput(("n",), "k", {"text": "dog"})
        [found] = await store.asearch(("n",), query="dog")
        assert (found.score or 0) > 0.4


def test_a_changed_item_is_found_by_its_new_value_only(tmp_path: Path) -> None:
    path = tmp_path / "v.db"
    with StepfastStore(path, index=INDEX) as store:
        store.put(("n",), "k", {"text": "dog"})
        store.put(("n",), "k", {"text": "zebra"})
        assert store.search(("n",), query="dog")[0].score == 0
        with StepfastStore(path) as without:
            without.put(("n",), "k", {"text": "dog"})
        assert store.search(("n",), query="zebra")[0].score is None
        store.put(("n",), "k", {"text": "dog"}, index=False)
        assert rows_of(store, KINDS[1]) == []
        store.put(("n",), "k", {"text": "dog"}, index=["text"])
        store.delete(("n",), "k")
        assert [rows_of(store, kind) for kind in KINDS] == [[], [], []]


def test_vectors_are_kept_exactly(tmp_path: Path) -> None:
    vectors = [[0.1, 1e300], [0.5, -2.0]]
    index: Any = {"embed": lambda texts: [vectors[len(text) - 1] for text in texts], "dims": 2, "fields": ["t"]}
    with StepfastStore(tmp_path / "v.db", index=index) as store:
        store.put(("n",), "wide", {"t": "x"})
        store.put(("n",), "narrow", {"t": "xx"})
        place = store._place
        for key, vector in (("wide", vectors[0]), ("narrow", vectors[1])):
            record = place.store.one(GetRecord(kind=KINDS[1], record_id=f"n//{key}"), tenant=place.tenant)
            assert record is not None
            assert [list(each) for each in store._items.vectors(record)] == [vector]


def test_a_wrong_index_is_refused_and_writes_nothing(tmp_path: Path) -> None:
    with StepfastStore(tmp_path / "v.db", index=with_index(dims=3)) as store:
        with pytest.raises(InvalidInput, match="dims=3"):
            store.put(("n",), "k", {"text": "dog"})
        assert store.get(("n",), "k") is None
    with StepfastStore(tmp_path / "v.db", index=with_index(fields=["$"])) as store:
        with pytest.raises(InvalidInput, match="index"):
            store.put(("n",), "k", {"when": datetime.now(UTC)})
        assert store.get(("n",), "k") is None
    broken = with_index(embed=lambda texts: [[math.nan] * 26 for _ in texts])
    with StepfastStore(tmp_path / "v.db", index=broken) as store, pytest.raises(InvalidInput, match="finite"):
        store.put(("n",), "k", {"text": "dog"})
    with pytest.raises(InvalidInput, match="distance_type"):
        StepfastStore(tmp_path / "v.db", index=with_index(distance_type="l2"))
