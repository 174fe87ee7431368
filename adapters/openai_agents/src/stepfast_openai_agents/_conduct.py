"""One pass of the SDK over a durable run, nested loops and approvals included."""

from __future__ import annotations

import dataclasses
from typing import Any

from agents import Model, RunConfig, RunState
from agents.run import AgentRunner

from stepfast import Answer, AsyncScope

from ._current import Drive, Here, Loop, standing
from ._hooks import run_hooks
from ._model import durable_model, durable_provider
from ._plain import plain
from ._request import digest
from ._sessions import journaled
from ._tools import parsed
from ._view import view_of

OUTCOMES = ("approved", "rejected")


def dressed(drive: Drive, options: dict[str, Any]) -> dict[str, Any]:
    """The SDK's options with what goes through the journal put around the user's own."""
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
        "hooks": run_hooks(drive, options.get("hooks")),
    }
    if options.get("session") is not None:
        dressing["session"] = journaled(drive, options["session"])
    return dressing


async def conduct(base: AgentRunner, drive: Drive, scope: AsyncScope, agent: Any, given: Any, options: Any) -> Any:
    """Drive the outermost loop to its end, through every approval that has been answered."""
    loop = drive.loop(scope, agent.name)
    view = view_of(drive, agent)
    with standing(Here(drive, loop, loop.scope)):
        dressing = dressed(drive, options)
        result = await base.run(view, given, **dressing)
        while result.interruptions:
            drive.check()
            answers = await answers_to(drive, loop, result)
            state = result.to_state()
            apply(state, answers)
            result = await base.run(view, state, **resuming(dressing))
        drive.check()
    return with_originals(drive, result)


def resuming(options: dict[str, Any]) -> dict[str, Any]:
    """A state brings its context, limits and conversation along."""
    kept = ("run_config", "hooks", "session", "error_handlers")
    return {name: options[name] for name in kept if name in options}


async def nested(base: AgentRunner, at: Here, agent: Any, given: Any, options: dict[str, Any]) -> Any:
    """A loop inside a tool or a guardrail of a durable run: it has a scope of its own."""
    drive = at.drive
    loop = enter(at, agent, given)
    with standing(Here(drive, loop, loop.scope)):
        result = await base.run(view_of(drive, agent), given, **dressed(drive, options))
    return result if result.interruptions else with_originals(drive, result)


def enter(at: Here, agent: Any, given: Any) -> Loop:
    at.drive.check()
    again = isinstance(given, RunState)
    return at.drive.nested(at.scope, agent.name, "" if again else digest(plain(given)), again=again)


# --- approvals -----------------------------------------------------------------------------------


def question(item: Any) -> dict[str, Any]:
    """What a person is asked about an interruption: its words, its key, and what they judge by."""
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


async def answers_to(drive: Drive, loop: Loop, result: Any) -> list[tuple[Any, Answer]]:
    """All of them, or none: a pause ends at once for all calls, so that it ends the same on each attempt."""
    asked = [(item, question(item)) for item in result.interruptions]
    with drive.guarded():
        if any([await loop.scope.pose(**about) is None for _, about in asked]):
            drive.pending = result
        answers = [(item, await loop.scope.ask(**about)) for item, about in asked]
    drive.pending = None
    return answers


def apply(state: Any, answers: list[tuple[Any, Answer]]) -> None:
    """What people said, as the SDK takes it. ``value={"always": True}`` makes it stand for later calls too."""
    for item, answer in answers:
        always = isinstance(answer.value, dict) and bool(answer.value.get("always"))
        if answer:
            state.approve(item, always_approve=always)
        elif answer.comment:
            state.reject(item, always_reject=always, rejection_message=answer.comment)
        else:
            state.reject(item, always_reject=always)


# --- results -------------------------------------------------------------------------------------


def with_originals(drive: Drive, result: Any) -> Any:
    """The user's own agents in place of a run's views of them."""
    for name in ("_last_agent", "current_agent"):
        if hasattr(result, name):
            setattr(result, name, drive.original(getattr(result, name)))
    for item in (*result.new_items, *getattr(result, "interruptions", ())):
        for name in ("agent", "source_agent", "target_agent"):
            found = getattr(item, name, None)
            if found is not None and drive.original(found) is not found:
                setattr(item, name, drive.original(found))
    return result
