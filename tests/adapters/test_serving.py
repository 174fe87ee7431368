"""Serving an address: payloads are unpacked, wrong ones fail at once, and waiting frees the worker."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from stepfast import AsyncStepfast, InvalidInput, Stepfast
from stepfast.adapters import input_from, serve

ADDRESS = "agent://acme/prod/clerk"


def unpack(payload: Any) -> Any:
    return input_from(payload, (str, list), "a text or a list of items")


def send(sf: Stepfast, payload: Any) -> str:
    return sf.send_intent({"intent_type": "work.v1", "to_agent": ADDRESS, "payload": payload})


def check(sf: Stepfast, ids: list[str]) -> None:
    good, also_good, bad = (sf.wait_for(each, timeout=20) for each in ids)
    assert (good["result"], also_good["result"]) == ("did a", "did ['b']")
    assert bad["status"] == "FAILED"
    assert "payload: must be a text or a list of items, or {'input': …} with that; not a int" in bad["reason"]


def test_a_blocking_worker(tmp_path: Path) -> None:
    with Stepfast(tmp_path / "a.db") as sf:
        ids = [send(sf, payload) for payload in ("a", {"input": ["b"]}, {"input": 5})]
        worker = serve(sf, ADDRESS, lambda run, given: run.step(lambda: f"did {given}"), unpack=unpack, concurrency=2)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            check(sf, ids)
        finally:
            worker.stop()
            thread.join()


async def test_an_async_worker(tmp_path: Path) -> None:
    with Stepfast(tmp_path / "a.db") as sf:
        ids = [send(sf, payload) for payload in ("a", {"input": ["b"]}, {"input": 5})]
        async with AsyncStepfast(tmp_path / "a.db") as client:

            async def handle(run: Any, given: Any) -> Any:
                return await run.step(lambda: f"did {given}")

            worker = serve(client, ADDRESS, handle, unpack=unpack)
            running = asyncio.create_task(worker.run())
            try:
                await asyncio.to_thread(check, sf, ids)
            finally:
                await worker.stop()
                await running


def test_what_is_no_client_is_named() -> None:
    with pytest.raises(InvalidInput, match="client: must be a Stepfast or an AsyncStepfast, not str"):
        serve("sqlite:///a.db", ADDRESS, print)  # type: ignore[call-overload]
