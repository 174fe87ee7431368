"""Where AgentChat asks a person, a durable decision: the process may end, and the answer restarts the run."""

from __future__ import annotations

import builtins
from typing import Any

from autogen_agentchat.agents._user_proxy_agent import cancellable_input
from autogen_agentchat.base import TaskResult
from autogen_agentchat.messages import HandoffMessage
from autogen_agentchat.teams import BaseGroupChat

from stepfast import Answer
from stepfast.adapters import RETRY

from ._attempt import Actor, Halt, TeamAttempt, halting
from ._tools import perform

OUTCOMES = ("approved", "rejected")
_WORDS = {"approved": "APPROVE", "rejected": "REJECT"}  # what AutoGen's own examples have people say


def words_of(answer: Answer) -> str:
    """Return an answer as the text that an agent gets: its value, its comment, or else a word for its outcome."""
    if isinstance(answer.value, str):
        return answer.value
    return answer.comment or _WORDS.get(answer.outcome, answer.outcome)


def durable_input(agent: Any, actor: Actor) -> None:
    """Make the input of a UserProxyAgent a decision of the run; or a recorded call, if it has a function of its own."""
    original = agent._get_input
    own = agent.input_func not in (cancellable_input, builtins.input)

    async def get_input(prompt: str, cancellation_token: Any) -> str:
        attempt = actor.attempt
        if attempt is None:
            return await original(prompt, cancellation_token)  # type: ignore[no-any-return]
        key = actor.ordinals.key("input")
        if own and actor.stage.own_input:
            with halting():
                attempt.check()
            output = await perform(
                actor,
                attempt,
                key=key,
                name=agent.name,
                policy=RETRY,
                arguments={"prompt": prompt},
                effect=lambda: original(prompt, cancellation_token),
            )
            if attempt.stopping:
                raise Halt("the durable run has stopped here")
            return str(output)
        evidence = {"agent": agent.name, "prompt": prompt.strip(), "messages": list(actor.stage.recent)}
        return words_of(await asking(actor.scope, attempt, f"{agent.name}: {prompt.strip()}", key, evidence))

    agent._get_input = get_input


async def asking(scope: Any, attempt: TeamAttempt, question: str, key: str, evidence: Any) -> Answer:
    """Pose a question, and return its answer; or suspend the run."""
    with halting():
        attempt.check()
        with attempt.guarded():
            return await attempt.calling(scope.ask(question, key=key, evidence=evidence, outcomes=OUTCOMES))


def handed_to_person(thing: Any, result: TaskResult) -> HandoffMessage | None:
    """Return the message by which a team handed the conversation to somebody outside of it and stopped."""
    last = result.messages[-1] if result.messages else None
    if not isinstance(thing, BaseGroupChat) or not isinstance(last, HandoffMessage):
        return None
    outside = last.target not in thing._participant_names
    return last if outside and (result.stop_reason or "").startswith("Handoff to ") else None
