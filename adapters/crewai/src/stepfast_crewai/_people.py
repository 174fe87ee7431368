"""Where CrewAI asks a person, a durable decision: the process may end, and the next kickoff goes on with the answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from crewai.core.providers.human_input import SyncHumanInputProvider, reset_provider, set_provider

from stepfast import Answer
from stepfast.flow import Flow

from ._place import Place, here

_QUESTION = "Is the result as you want it? Approve it, or reject it with a comment that says what to change."


def asking(place: Place, name: str, question: str, evidence: Any, outcomes: tuple[str, ...]) -> Flow[Answer]:
    """Return the flow that poses a question in a place and returns its answer, or suspends the run."""
    place.attempt.check()
    key = place.occurrences.key("ask", name)
    question, evidence = place.attempt.redacted([question, evidence])
    with place.attempt.guarded():
        return (yield from place.scope.asking(question, key=key, evidence=evidence, outcomes=outcomes))


class DurableHumanInput(SyncHumanInputProvider):
    """Asks for the feedback of tasks with ``human_input=True``: a rejection with a comment is CrewAI's feedback."""

    def handle_feedback(self, formatted_answer: Any, context: Any) -> Any:
        place = here()
        if place is None or context._is_training_mode():
            return super().handle_feedback(formatted_answer, context)
        answer = formatted_answer
        while context.ask_for_human_input:
            feedback = _words(place.drive(_feedback(place, answer, context)))
            if not feedback:
                context.ask_for_human_input = False
            else:
                context.messages.append(context._format_feedback_message(feedback))
                answer = context._invoke_loop()
        return answer

    async def handle_feedback_async(self, formatted_answer: Any, context: Any) -> Any:
        place = here()
        if place is None or context._is_training_mode():
            return await super().handle_feedback_async(formatted_answer, context)
        answer = formatted_answer
        while context.ask_for_human_input:
            feedback = _words(await place.adrive(_feedback(place, answer, context)))
            if not feedback:
                context.ask_for_human_input = False
            else:
                context.messages.append(context._format_feedback_message(feedback))
                answer = await context._ainvoke_loop()
        return answer


def _feedback(place: Place, answer: Any, context: Any) -> Flow[Answer]:
    task = context.task
    evidence = {
        "task": None if task is None else str(task.name or task.description)[:200],
        "agent": str(getattr(context.agent, "role", "")).strip(),
        "result": SyncHumanInputProvider._get_output_string(answer),
    }
    return asking(place, "human_input", _QUESTION, evidence, ("approved", "rejected"))


def _words(answer: Answer) -> str:
    """Return CrewAI's feedback: nothing where the result is accepted."""
    if answer.outcome == "approved":
        return ""
    said = answer.value if isinstance(answer.value, str) else answer.comment
    return said or "The result was rejected. Improve it."


@contextmanager
def people() -> Iterator[None]:
    """Have people asked by durable decisions for the length of a ``with`` block."""
    token = set_provider(DurableHumanInput())
    try:
        yield
    finally:
        reset_provider(token)
