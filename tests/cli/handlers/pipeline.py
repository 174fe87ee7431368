"""Handlers that ``stepfast worker`` runs in the tests."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

NOT_A_FUNCTION = 3


def note(file: str, number: int) -> int:
    """An effect that can be counted."""
    with Path(file).open("a") as log:
        log.write(f"{number} {os.getpid()}\n")
    return number


def wait_for(gate: str) -> None:
    until = time.monotonic() + 60
    while not Path(gate).exists() and time.monotonic() < until:
        time.sleep(0.01)


def handle(run: Any, payload: dict[str, Any]) -> dict[str, Any]:
    """Some counted steps, and one in the middle that waits for a file."""
    done = []
    for number in range(payload["steps"]):
        if number == payload.get("stop_at"):
            note(payload["file"] + ".here", number)
            wait_for(payload["gate"])
        done.append(run.step(note, payload["file"], number))
    return {"done": done}


async def handle_async(run: Any, payload: dict[str, Any]) -> dict[str, Any]:
    return {"doubled": await run.step(lambda n: n * 2, payload["n"])}


def fail(_run: Any, payload: dict[str, Any]) -> None:
    raise ValueError(payload["why"])


def charge(file: str, gate: str) -> str:
    note(file, 1)
    wait_for(gate)
    return "charged"


def pay(run: Any, payload: dict[str, Any]) -> dict[str, Any]:
    """A one-shot whose effect happens, and whose confirmation waits for a file."""
    return {"receipt": run.once(charge, payload["file"], payload["gate"])}


def write_step(run: Any, payload: dict[str, Any]) -> dict[str, Any]:
    """A step of a scenario, which brings the scenario's payload along."""
    return {"written": run.step(str, payload["parent_payload"]["n"])}
