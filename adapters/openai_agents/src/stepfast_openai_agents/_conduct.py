"""One pass of the SDK over a durable run, nested loops and approvals included."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

from agents import Model, RunConfig, RunState
from agents.run import AgentRunner

from stepfast import Answer, AsyncScope
from stepfast.adapters import ask_all, digest, plain

from ._attempt import AgentAttempt, Here, Loop, place
from ._hooks import run_hooks
from ._model import durable_model, durable_provider
from ._sessions import journaled
from ._tools import parsed
from ._view import view_of

Play = Callable[[AgentAttempt, Any, Any, dict[str, Any]], Awaitable[Any]]
"""Lets the SDK run an agent from an input or a state; the difference between a plain run and a streamed one."""

OUTCOMES = ("approved", "rejected")


def dressed(attempt: AgentAttempt, options: dict[str, Any]) -> dict[str, Any]:
    """Return the SDK's options with what goes through the journal put around the user's own."""
    config = options.get("run_config")
    if config is None:
        config = RunConfig()
    elif isinstance(config, dict):
        config = RunConfig(**config)
    changes: dict[str, Any] = {"model_provider": durable_provider(config.model_provider)}
    if isinstance(config.model, Model):
        changes["model"] = durable_model(config.model)
    dressing = {
        **options,
        "run_config": dataclasses.replace(config, **changes),
        "hooks": run_hooks(attempt, options.get("hooks")),
    }
    if options.get("session") is not None:
        dressing["session"] = journaled(attempt, options["session"])
    return dressing


async def conduct(
    attempt: AgentAttempt, scope: AsyncScope, agent: Any, given: Any, options: dict[str, Any], play: Play
) -> Any:
    """Drive the outermost loop to its end, through every approval that has been answered."""
    loop = attempt.loop(scope, agent.name)
    view = view_of(attempt, agent)
    attempt.replays = loop.scope.recorded("model:0") is not None
    with place.standing(Here(attempt, loop, loop.scope)):
        dressing = dressed(attempt, options)
        result = await play(attempt, view, given, dressing)
        # A state brings its context, limits and conversation along.
        kept = ("run_config", "hooks", "session", "error_handlers")
        dressing = {name: dressing[name] for name in kept if name in dressing}
        while result.interruptions:
            attempt.check()
            state = await answered(attempt, loop, result)
            result = await play(attempt, view, state, dressing)
        attempt.check()
    return with_originals(attempt, result)


async def nested(base: AgentRunner, at: Here, agent: Any, given: Any, options: dict[str, Any]) -> Any:
    """A loop inside a tool or a guardrail of a durable run: it has a scope of its own."""
    attempt, loop = at.attempt, enter(at, agent, given)
    with place.standing(Here(attempt, loop, loop.scope)):
        result = await base.run(view_of(attempt, agent), given, **dressed(attempt, options))
    return result if result.interruptions else with_originals(attempt, result)


def nested_streamed(base: AgentRunner, at: Here, agent: Any, given: Any, options: dict[str, Any]) -> Any:
    """A streamed loop inside a tool of a durable run; its background task stands where it is started."""
    attempt, loop = at.attempt, enter(at, agent, given)
    with place.standing(Here(attempt, loop, loop.scope)):
        return base.run_streamed(view_of(attempt, agent), given, **dressed(attempt, options))


def enter(at: Here, agent: Any, given: Any) -> Loop:
    at.attempt.check()
    again = isinstance(given, RunState)
    return at.attempt.nested_loop(at.scope, agent.name, "" if again else digest(plain(given)), again=again)


# --- approvals -----------------------------------------------------------------------------------


def question(item: Any) -> dict[str, Any]:
    """Return what a person is asked about an interruption: the words, the key, and what to judge by."""
    raw = item.raw_item
    found = raw if isinstance(raw, dict) else plain(raw)
    call_id = found.get("call_id") or found.get("id") or ""
    name = str(getattr(item, "tool_name", None) or found.get("name") or found.get("type") or "a tool")
    agent = str(getattr(getattr(item, "agent", None), "name", ""))
    arguments = found.get("arguments")
    shown = parsed(arguments) if isinstance(arguments, str) else plain(found.get("action") or found.get("input"))
    return {
        "question": f"May agent {agent} call {name}?",
        "key": f"approve:{call_id}",
        "outcomes": OUTCOMES,
        "evidence": {"tool": name, "arguments": shown, "agent": agent, "call_id": call_id},
    }


async def answered(attempt: AgentAttempt, loop: Loop, result: Any) -> Any:
    """Return the SDK's state of an interrupted result, with the answers of people in it: all of them or none."""

    def wait() -> None:
        attempt.pending = result

    items = list(result.interruptions)
    with attempt.guarded():
        answers = await loop.scope.drive(ask_all(loop.scope, map(question, items), wait))
    attempt.pending = None
    state = result.to_state()
    for item, answer in zip(items, answers, strict=True):
        _apply(state, item, answer)
    return state


def _apply(state: Any, item: Any, answer: Answer) -> None:
    """``value={"always": True}`` makes an answer stand for later calls too."""
    always = isinstance(answer.value, dict) and bool(answer.value.get("always"))
    if answer:
        state.approve(item, always_approve=always)
    elif answer.comment:
        state.reject(item, always_reject=always, rejection_message=answer.comment)
    else:
        state.reject(item, always_reject=always)


# --- results -------------------------------------------------------------------------------------


def with_originals(attempt: AgentAttempt, result: Any) -> Any:
    """Put the user's own agents in place of a run's views of them."""
    for name in ("_last_agent", "current_agent"):
        if hasattr(result, name):
            setattr(result, name, attempt.original(getattr(result, name)))
    for item in (*result.new_items, *getattr(result, "interruptions", ())):
        for name in ("agent", "source_agent", "target_agent"):
            found = getattr(item, name, None)
            if found is not None and attempt.original(found) is not found:
                setattr(item, name, attempt.original(found))
    return result
