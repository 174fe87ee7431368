"""The seam around a model call: answered from the journal, or made and recorded before CrewAI gets the answer."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Generator
from contextvars import ContextVar
from typing import Any

from stepfast import Diverged
from stepfast.adapters import Request, model_call
from stepfast.flow import Flow

from ._place import Place, standing
from ._place import key_of as key_of_step
from ._requests import add_tokens, explain, key_of, pack, tokens_between, unpack, usage_of
from ._streams import repeat

log = logging.getLogger("stepfast")

_counting: ContextVar[Counter[str] | None] = ContextVar("stepfast_crewai_tokens", default=None)

Arguments = dict[str, Any]


def call(place: Place, original: Callable[..., Any], llm: Any, *args: Any, **kwargs: Any) -> Any:
    """Take the place of ``BaseLLM.call``."""

    def ask(tokens: Counter[str]) -> Any:
        with standing.standing(None):
            counted = _counting.set(tokens)
            try:
                return original(llm, *args, **kwargs)
            finally:
                _counting.reset(counted)

    with place.attempt.flying():
        return place.drive(_calling(place, llm, _arguments(args, kwargs), ask))


async def acall(place: Place, original: Callable[..., Any], llm: Any, *args: Any, **kwargs: Any) -> Any:
    """Take the place of ``BaseLLM.acall``."""

    async def ask(tokens: Counter[str]) -> Any:
        with standing.standing(None):
            counted = _counting.set(tokens)
            try:
                return await original(llm, *args, **kwargs)
            finally:
                _counting.reset(counted)

    with place.attempt.flying():
        return await place.adrive(_calling(place, llm, _arguments(args, kwargs), ask))


def track(tokens: Counter[str], original: Callable[..., Any], llm: Any, *args: Any, **kwargs: Any) -> Any:
    """Take the place of the LLM's own counting, to record the tokens of each call with it."""
    before = dict(llm._token_usage)
    found = original(llm, *args, **kwargs)
    tokens.update(tokens_between(before, llm._token_usage))
    return found


counting = _counting.get

_NAMES = ("messages", "tools", "callbacks", "available_functions", "from_task", "from_agent", "response_model")


def _arguments(args: tuple[Any, ...], kwargs: Arguments) -> Arguments:
    return {**dict(zip(_NAMES, args, strict=False)), **kwargs}


def _calling(place: Place, llm: Any, given: Arguments, ask: Callable[[Counter[str]], Any]) -> Flow[Any]:
    attempt = place.attempt
    attempt.check()
    model = given.get("response_model")
    messages = attempt.redacted(given.get("messages"))
    request = place.requests.of(llm, messages, given.get("tools"), model, not place.used)
    key = place.occurrences.key("model", key_of(request))
    with attempt.guarded():
        key = yield from _known(place, key, request)
    place.used.add(key)
    place.failed.clear()
    agent = _role_of(given.get("from_agent"), llm)
    live: list[Any] = []
    tokens: Counter[str] = Counter()

    def packed(answer: Any) -> dict[str, Any]:
        live.append(answer)
        packed = pack(answer)
        kept = attempt.redacted(packed)
        return {**kept, "tokens": dict(tokens), **({} if kept == packed else {"redacted": True})}

    found, replayed = yield from model_call(
        attempt,
        place.scope,
        key=key,
        agent=agent,
        request=request,
        ask=lambda: ask(tokens),
        pack=packed,
        unpack=lambda recorded: recorded,
        measure=usage_of,
        on_drift="accept",  # looked at above: a recorded request is found by what it asks
    )
    place.last = key
    place.hidden = key if replayed and found.get("redacted") else None
    place.spend(agent, found.get("tokens") or {})
    if not replayed:
        return live[-1]
    add_tokens(llm, found.get("tokens") or {})
    answer = unpack(found, model)
    repeat(llm, answer, given.get("from_task"), given.get("from_agent"))
    return answer


def _known(place: Place, key: str, request: Request) -> Generator[Any, Any, str]:
    """Return the key to look under: that of the next recorded call where the request is not the recorded one."""
    if place.scope.recorded(key) is not None:
        return key
    step = None if place.shifting else place.unused()
    if step is None:
        return key
    policy = place.attempt.settings.on_drift
    recorded = yield from place.scope.reading(step)
    where = place.scope.path.replace("scope:", "") or "the run"
    shown = "\n  ".join(explain(recorded["request"], request))
    text = f"a model call in {where} was recorded for another request than CrewAI makes now:\n  {shown}"
    if policy == "raise":
        raise Diverged(
            f"{text}\nPut the task, the agent or its tools back as they were, leave out what changes by itself with "
            "normalise=…, pass on_drift='warn' or 'accept' to go on with the recorded answers, or rewind the run to "
            f"{step.key}.",
            key=step.key,
        )
    if policy == "warn":
        log.warning("%s", text)
    return key_of_step(step)


def _role_of(agent: Any, llm: Any) -> str:
    return str(getattr(agent, "role", None) or getattr(llm, "model", "model")).strip()
