"""Where AgentChat asks a person, a durable decision: the process may end, and the answer restarts the run."""

from __future__ import annotations

import builtins
from collections.abc import AsyncGenerator, Iterable
from typing import Any

from autogen_agentchat.agents._user_proxy_agent import cancellable_input
from autogen_agentchat.base import TaskResult
from autogen_agentchat.messages import BaseChatMessage, HandoffMessage
from autogen_agentchat.teams import BaseGroupChat

from stepfast import Answer
from stepfast.adapters import RETRY

from ._attempt import Actor, Halt, TeamAttempt, halting
from ._tools import perform

_SHOWN = 2000  # characters of a message
OUTCOMES = ("approved", "rejected")
_WORDS = {"approved": "APPROVE", "rejected": "REJECT"}  # what AutoGen's own examples have people say


def words_of(answer: Answer) -> str:
    """Return an answer as the text that an agent gets: its value, its comment, or else a word for its outcome."""
    if isinstance(answer.value, str):
        return answer.value
    return answer.comment or _WORDS.get(answer.outcome, answer.outcome)


def durable_input(agent: Any, actor: Actor) -> None:
    """Make the input of a UserProxyAgent a decision of the run; or a recorded call, if it has a function of its own."""
    original, turn = agent._get_input, agent.on_messages_stream
    heard: list[Any] = []
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
        evidence = {"agent": agent.name, "messages": shown(heard)}
        return words_of(await asking(actor.scope, attempt, f"{agent.name}: {prompt.strip()}", key, evidence))

    async def on_messages_stream(messages: Any, cancellation_token: Any) -> AsyncGenerator[Any, None]:
        heard[:] = messages
        async for item in turn(messages, cancellation_token):
            yield item

    agent._get_input, agent.on_messages_stream = get_input, on_messages_stream


def shown(messages: Iterable[Any]) -> dict[str, str]:
    """Return what each of the others has said last, for the person who is asked.

    By source, because agents that speak at once come in any order, and the question must be the same on every pass.
    """
    last = {each.source: each.to_text()[:_SHOWN] for each in messages if isinstance(each, BaseChatMessage)}
    return dict(sorted(last.items()))


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
