"""Where AutoGen asks a person, a durable decision: the process may end, and the next call goes on with the answer."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from stepfast import Answer
from stepfast.flow import Flow

from ._callbacks import is_autogens, stepped
from ._place import Place


def human_input(place: Place, original: Callable[..., Any], agent: Any, prompt: str, **kwargs: Any) -> Any:
    """Take the place of ``get_human_input``. One that the user has written asks in its own way, as a step."""
    if not is_autogens(original):
        return stepped(original, "input", agent.name)(agent, prompt, **kwargs)
    return _reply(agent, place.drive(_asking(place, agent, prompt)))


async def human_input_async(place: Place, original: Callable[..., Any], agent: Any, prompt: str, **kwargs: Any) -> Any:
    """Take the place of ``a_get_human_input``."""
    if not is_autogens(original):
        return await stepped(original, "input", agent.name)(agent, prompt, **kwargs)
    blocking = inspect.unwrap(type(agent).get_human_input)
    if not is_autogens(blocking):  # AutoGen's own way is to call it in a thread
        return await asyncio.to_thread(human_input, place, blocking, agent, prompt)
    return _reply(agent, await place.adrive(_asking(place, agent, prompt)))


def _asking(place: Place, agent: Any, prompt: str) -> Flow[Answer]:
    place.attempt.check()
    key = place.occurrences.key("ask", agent.name)
    evidence = {"agent": agent.name, **place.heard.get(agent.name, {})}
    # Where a chat begins without a message, AutoGen's prompt is only a mark.
    question = prompt if any(map(str.isalnum, prompt)) else f"What does {agent.name} say first?"
    with place.attempt.guarded():
        return (yield from place.scope.asking(question, key=key, evidence=evidence))


def _reply(agent: Any, answer: Answer) -> str:
    """Return what a person would have typed: a text, nothing (approved), or *exit* (rejected)."""
    said = answer.value if isinstance(answer.value, str) else answer.comment
    reply = said if said is not None else "" if answer else "exit"
    process = getattr(agent, "_process_human_input", None)  # AutoGen 0.14 has hooks for it
    if process is not None:
        reply = process(reply)
        if reply is None:
            raise ValueError("safeguard_human_inputs hook returned None")
    agent._human_input.append(reply)
    return str(reply)


def select_speaker(place: Place, original: Callable[..., Any], group: Any, agents: Any = None) -> Any:
    """Take the place of ``GroupChat.manual_select_speaker``: the outcome is the name of an agent, or *auto*."""
    place.attempt.check()
    among = group.agents if agents is None else agents
    key = place.occurrences.key("ask", "speaker")
    evidence = {"messages": len(group.messages)}
    outcomes = (*(agent.name for agent in among), "auto")

    def asking() -> Flow[Answer]:
        with place.attempt.guarded():
            return (yield from place.scope.asking("Who speaks next?", key=key, evidence=evidence, outcomes=outcomes))

    answer = place.drive(asking())
    return next((agent for agent in among if agent.name == answer.outcome), None)
