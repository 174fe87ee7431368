"""The run record: what a run was begun with, compared with the call that goes on with it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from stepfast import Diverged
from stepfast.adapters import OnDrift, digest, plain, shorten

log = logging.getLogger("stepfast")


def record_of(call: str, parties: list[str], inputs: Any, histories: dict[str, Any] | None) -> dict[str, Any]:
    """Return a call in short: who speaks to whom, the messages it begins with, and the histories it goes on with."""
    return {"call": call, "parties": parties, "inputs": plain(inputs), "histories": histories}


def check(recorded: dict[str, Any], now: dict[str, Any], policy: OnDrift, run_id: str) -> None:
    """Compare what a run was begun with and what it is called with now; ``policy`` is ``on_drift``."""
    found = [
        f"{name}: {recorded[name]!r} → {now[name]!r}" for name in ("call", "parties") if recorded[name] != now[name]
    ]
    if now["inputs"] is not None and now["inputs"] != recorded["inputs"]:
        found.append(f"message: {_shown(recorded['inputs'])} → {_shown(now['inputs'])}")
    if not found or policy == "accept":
        return
    text = f"run {run_id} was begun with another call:\n  " + "\n  ".join(found)
    if policy == "warn":
        log.warning("%s\nIt goes on with what it was begun with.", text)
        return
    raise Diverged(
        f"{text}\nCall it as before, choose another run_id, or pass on_drift='warn' or 'accept' to go on with what was "
        "recorded.",
        differences=found,
    )


def _shown(inputs: Any) -> str:
    text = shorten(inputs) if isinstance(inputs, str) else digest(inputs)
    return repr(text)[:200]


# --- histories ---------------------------------------------------------------------------------------


def known_agents(agents: Iterable[Any]) -> dict[str, Any]:
    """Return agents by name, with those of the groups among them."""
    found: dict[str, Any] = {}
    waiting: list[Any] = list(agents)
    while waiting:
        agent: Any = waiting.pop(0)
        if agent.name not in found and hasattr(agent, "_oai_messages"):
            found[agent.name] = agent
            waiting += getattr(getattr(agent, "_groupchat", None), "agents", [])
    return found


def histories_of(agents: dict[str, Any]) -> dict[str, Any]:
    """Return what agents have said to each other so far; for a chat that goes on with it (``clear_history=False``)."""
    found: dict[str, Any] = {}
    for name, agent in agents.items():
        # With `get`: AutoGen counts the conversations of an agent, empty ones as well.
        said = {other: plain(agent._oai_messages.get(agents[other], [])) for other in agents}
        group = plain(agent._groupchat.messages) if hasattr(agent, "_groupchat") else []
        found[name] = {"messages": {other: messages for other, messages in said.items() if messages}, "group": group}
    return found


def restore(histories: dict[str, Any], agents: dict[str, Any]) -> None:
    """Give agents the histories that a run was begun with."""
    for name, history in histories.items():
        agent = agents.get(name)
        if agent is None:
            continue
        for other in agents.values():
            messages = history["messages"].get(other.name, [])
            if messages or other in agent._oai_messages:
                agent._oai_messages[other] = list(messages)
        if hasattr(agent, "_groupchat"):
            agent._groupchat.messages[:] = history["group"]
