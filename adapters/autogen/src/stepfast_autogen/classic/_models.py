"""The seam around a model call: a step of the run, with what it used."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from stepfast.adapters import Request, Standing, Usage, digest, model_call, plain, shorten

from ._place import Place, here, standing

counting: Standing[list[Any]] = Standing("stepfast_autogen.classic.usage")
"""The list into which the usage of the model call goes that is under way in this thread."""

_NOT_SETTINGS = frozenset({"model", "tools", "functions", "api_type", "tags", "cache_seed"})


def generate(
    place: Place,
    original: Callable[..., Any],
    agent: Any,
    llm_client: Any,
    messages: list[dict[str, Any]],
    cache: Any,
    **kwargs: Any,
) -> Any:
    """Take the place of ``_generate_oai_reply_from_client``, through which all of AutoGen's model calls go."""
    spent: list[Any] = []

    def ask() -> Any:
        with counting.standing(spent), standing.standing(None):
            return original(agent, llm_client, messages, cache, **kwargs)

    recorded = _call(place, agent.name, llm_client, messages, ask, spent)
    return recorded["response"]


def _call(
    place: Place, agent: str, client: Any, messages: list[dict[str, Any]], ask: Callable[[], Any], spent: list[Any]
) -> dict[str, Any]:
    talk = place.talk(agent)
    recorded, replayed = place.drive(
        model_call(
            place.attempt,
            place.scope,
            key=place.occurrences.key("model", agent),
            agent=agent,
            request=_request(client, messages, talk),
            ask=ask,
            pack=lambda answer: {"response": plain(answer), "spent": spent},
            unpack=lambda found: found,
            measure=lambda found: _usage(found, priced=place.attempt.settings.prices is not None),
            conversation=talk,
        )
    )
    if replayed:
        messages[-1].pop("context", None)  # as the call would have done
        for used in recorded["spent"]:
            client._update_usage(**used)
    return dict(recorded)


async def generate_in_thread(place: Place, original: Callable[..., Any], agent: Any, *args: Any, **kwargs: Any) -> Any:
    """Take the place of ``a_generate_oai_reply``, whose thread does not know where its caller stands."""
    return await asyncio.to_thread(agent.generate_oai_reply, *args, **kwargs)


def calling() -> Any:
    """Return where a call of a client is made: in a recorded call, or in a place of the run; None elsewhere."""
    spent = counting.here()
    return here() if spent is None else spent


def create(at: Any, original: Callable[..., Any], client: Any, **config: Any) -> Any:
    """Take the place of ``OpenAIWrapper.create``: a cache on this machine's disk is used only where it is asked for.

    Some agents, such as those for images, call it by themselves. That is a step, too, of which the texts are kept.
    """
    config = {"cache_seed": None, **config}
    if not isinstance(at, Place):
        return original(client, **config)
    agent = config.get("agent") or "client"
    spent: list[Any] = []
    made: list[Any] = []

    def ask() -> Any:
        with counting.standing(spent), standing.standing(None):
            made.append(original(client, **config))
            return client.extract_text_or_completion_object(made[-1])

    found = _call(at, str(getattr(agent, "name", agent)), client, config.get("messages") or [{}], ask, spent)
    answer = found["response"]
    return made[-1] if made else SimpleNamespace(message_retrieval_function=lambda _: answer, cost=0)


def update_usage(spent: list[Any], original: Callable[..., Any], client: Any, *args: Any, **kwargs: Any) -> Any:
    """Take the place of ``OpenAIWrapper._update_usage``: what a call used is recorded with it."""
    spent.append(plain(dict(zip(("actual_usage", "total_usage"), args, strict=False)) | kwargs))
    return original(client, *args, **kwargs)


def _usage(recorded: dict[str, Any], *, priced: bool) -> Usage:
    used = [each["total_usage"] or {} for each in recorded["spent"]]
    add = functools.partial(_sum, used)
    # AutoGen knows the prices of some models; prices of the user come first.
    return Usage(
        1, int(add("prompt_tokens")), int(add("completion_tokens")), 0, None if priced else add("cost") or None
    )


def _sum(used: list[dict[str, Any]], name: str) -> float:
    return sum(each.get(name) or 0 for each in used)


def _request(client: Any, messages: list[dict[str, Any]], talk: Any) -> Request:
    configs = getattr(client, "_config_list", None) or [{}]
    config = configs[0]
    said = list(messages)
    system = said.pop(0).get("content") if said and said[0].get("role") == "system" else None
    tools = [*(each.get("function", each) for each in config.get("tools") or ()), *(config.get("functions") or ())]
    sections = {
        "model": str(config.get("model", type(client).__name__)),
        "system message": shorten(system if isinstance(system, str) or system is None else digest(system)),
        "tools": {str(each.get("name")): digest(each) for each in tools},
        "settings": {name: plain(each) for name, each in config.items() if name not in _NOT_SETTINGS},
    }
    return Request(sections, talk.digests.of(said))
