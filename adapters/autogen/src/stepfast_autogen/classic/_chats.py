"""The seams around chats and groups: each chat is a place of its own in the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._callbacks import stepped
from ._place import Place, standing


def initiate_chat(place: Place, original: Callable[..., Any], agent: Any, recipient: Any, *args: Any, **kw: Any) -> Any:
    """Take the place of ``ConversableAgent.initiate_chat``."""
    with standing.standing(_inside(place, agent, recipient, kw)):
        return original(agent, recipient, *args, **kw)


async def initiate_chat_async(
    place: Place, original: Callable[..., Any], agent: Any, recipient: Any, *args: Any, **kw: Any
) -> Any:
    """Take the place of ``ConversableAgent.a_initiate_chat``."""
    with standing.standing(_inside(place, agent, recipient, kw)):
        return await original(agent, recipient, *args, **kw)


def _inside(place: Place, agent: Any, recipient: Any, options: dict[str, Any]) -> Place:
    place.attempt.check()
    for option in ("message", "summary_method"):
        if callable(options.get(option)):
            options[option] = stepped(options[option], option, agent.name)
    number = options.get("chat_id")
    parties = f"{agent.name} to {recipient.name}"
    return place.inner(place.occurrences.key("chat", parties if number is None else f"{parties}, {number}"))


def random_speaker(place: Place, original: Callable[..., Any], group: Any, agents: Any = None) -> Any:
    """Take the place of ``GroupChat.random_select_speaker``: the choice is recorded."""

    def random(group: Any) -> Any:
        return original(group, agents)

    return stepped(random, "speaker", "group")(group)


def select_agents(place: Place, original: Callable[..., Any], group: Any, *args: Any, **kwargs: Any) -> Any:
    """Take the place of ``GroupChat._prepare_and_select_agents``: a selection function of the user is a step."""
    method = group.speaker_selection_method
    if not callable(method):
        return original(group, *args, **kwargs)
    group.speaker_selection_method = stepped(method, "speaker", "group")
    try:
        return original(group, *args, **kwargs)
    finally:
        group.speaker_selection_method = method
