"""What ``langgraph.json`` names as its checkpointer."""

from __future__ import annotations

import contextlib
import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver

from adapters.langgraph.tests.kit import counting_graph, on

PATH = "stepfast_langgraph.factory:create_checkpointer"


def named(path: str) -> Any:
    """As a server resolves ``path``: module, colon, name."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


async def test_it_takes_no_arguments_and_yields_a_saver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPFAST_URL", f"sqlite:///{tmp_path}/served.db")
    factory = named(PATH)

    assert inspect.signature(factory).parameters == {}
    made = factory()
    assert isinstance(made, contextlib.AbstractAsyncContextManager)
    async with made as saver:
        assert isinstance(saver, BaseCheckpointSaver)
        assert (await counting_graph(saver, steps=3).ainvoke({"number": 0, "log": []}, on("t")))["number"] == 3


async def test_the_store_is_closed_with_the_server_and_what_it_holds_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPFAST_URL", f"sqlite:///{tmp_path}/served.db")
    async with named(PATH)() as saver:
        await counting_graph(saver).ainvoke({"number": 4, "log": []}, on("t"))

    with pytest.raises(Exception, match="closed"):
        await saver.aget_tuple(on("t"))
    async with named(PATH)() as again:
        found = await again.aget_tuple(on("t"))
        assert found is not None
        assert found.checkpoint["channel_values"]["number"] == 5
