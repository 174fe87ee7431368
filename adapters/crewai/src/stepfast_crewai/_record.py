"""The run record: what a run was begun with, compared with the crew or flow that goes on with it."""

from __future__ import annotations

import functools
import logging
from importlib.metadata import version
from typing import Any

from stepfast import Diverged
from stepfast.adapters import OnDrift, digest, plain

log = logging.getLogger("stepfast")

RECORD = "begin"


def crew_record(crew: Any, inputs: Any) -> dict[str, Any]:
    """Return a crew in short. Nothing of the configuration of its LLMs is kept."""
    agents = {f"agent {number}": [each.key, _original(each, "role")] for number, each in enumerate(crew.agents, 1)}
    tasks = {
        f"task {number}": [f"{task.key} by {_worker(task)}", task.name or _original(task, "description")]
        for number, task in enumerate(crew.tasks, 1)
    }
    process = str(getattr(crew.process, "value", crew.process))
    return _record("crew", inputs, {"process": [process, ""], **agents, **tasks})


def flow_record(flow: Any, inputs: Any) -> dict[str, Any]:
    """Return a flow in short: its class and methods."""
    methods = {f"method {name}": ["", ""] for name in sorted(map(str, flow._methods))}
    return _record("flow", inputs, {"class": [type(flow).__qualname__, ""], **methods})


def _record(kind: str, inputs: Any, parts: dict[str, list[str]]) -> dict[str, Any]:
    return {"crewai": _version(), "kind": kind, "inputs": plain(inputs), "parts": parts}


@functools.cache
def _version() -> str:
    return version("crewai")  # reads a file, which takes milliseconds


def _original(thing: Any, name: str) -> str:
    """Return a text as the user wrote it: a kickoff puts the inputs into it."""
    return str(getattr(thing, f"_original_{name}", None) or getattr(thing, name)).strip()[:40]


def _worker(task: Any) -> str:
    return digest(getattr(task.agent, "key", None))


def check(recorded: dict[str, Any], now: dict[str, Any], policy: OnDrift, run_id: str) -> None:
    """Compare what a run was begun with and what is there now; ``policy`` is ``on_drift``."""
    if recorded["crewai"] != now["crewai"]:
        log.info("run %s was begun with crewai %s; this is %s", run_id, recorded["crewai"], now["crewai"])
    if policy == "accept":
        return
    before, parts = recorded["parts"], now["parts"]
    found = [f"{_shown(name, before)} is gone" for name in before if name not in parts]
    found += [f"{_shown(name, parts)} is new" for name in parts if name not in before]
    same = [name for name in before if name in parts]
    found += [f"{_shown(name, before)} has changed" for name in same if before[name][0] != parts[name][0]]
    if now["inputs"] is not None and recorded["inputs"] != now["inputs"]:
        found.append("the inputs have changed")
    if not found:
        return
    text = f"run {run_id} was begun with another {recorded['kind']} or other inputs:\n  " + "\n  ".join(found)
    if policy == "warn":
        log.warning("%s", text)
        return
    raise Diverged(
        f"{text}\nPut them back as they were, choose another run_id, or pass on_drift='warn' or 'accept' to go on with "
        "what was recorded.",
        differences=found,
    )


def _shown(name: str, parts: dict[str, Any]) -> str:
    return f"{name} ({parts[name][1]})" if parts[name][1] else name
