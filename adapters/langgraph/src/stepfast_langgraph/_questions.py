"""Interrupts of a graph as questions of its run, and their answers as what the graph resumes with."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from stepfast import Answer, Codec, InvalidInput, StepfastError

ANSWERED = "answered"
_OUTCOMES = ("approved", "rejected", ANSWERED)
_WORDS = ("question", "message", "description", "title", "prompt", "text")
_MOST = 2000
_IS_ID = re.compile("[0-9a-f]{32}").fullmatch
_KEY = "interrupt:"


class Question(NamedTuple):
    """What a person is asked. ``interrupt_id`` is None at a breakpoint, which takes no value."""

    key: str
    text: str
    outcomes: tuple[str, ...]
    evidence: Any
    interrupt_id: str | None = None
    actions: int = 0
    in_doubt: bool = False

    def resume(self, answer: Answer) -> Any:
        """What ``interrupt()`` gives in the node: the value that was sent, or what the outcome says."""
        if self.in_doubt:
            return {"outcome": answer.outcome, "value": answer.value, "comment": answer.comment}
        if answer.value is not None:
            return answer.value
        if answer.outcome == ANSWERED:
            return answer.comment
        if self.actions:
            word: dict[str, Any] = {"type": "approve" if answer.outcome == "approved" else "reject"}
            if answer.comment and answer.outcome != "approved":
                word["message"] = answer.comment
            return {"decisions": [word] * self.actions}
        return answer.outcome == "approved"


def of_interrupt(interrupt: Any, node: str, codec: Codec, answered: int) -> Question:
    """``answered`` tells the interrupts of a node apart where their ids do not."""
    value = interrupt.value
    evidence = {"node": node, "interrupt_id": interrupt.id, "value": _shown(value, codec)}
    schema = getattr(interrupt, "response_schema", None)
    if isinstance(schema, dict):
        evidence["answer_schema"] = schema
    requests = value.get("action_requests") if isinstance(value, Mapping) else None
    actions = len(requests) if isinstance(requests, list) else 0
    in_doubt = isinstance(value, Mapping) and value.get("kind") == "in_doubt"
    outcomes = tuple(value["outcomes"]) if in_doubt else _OUTCOMES
    key = f"{_KEY}{interrupt.id}:{answered}" if answered else f"{_KEY}{interrupt.id}"
    return Question(key, _text(value, node), outcomes, evidence, interrupt.id, actions, in_doubt)


def of_breakpoint(checkpoint_id: str, nodes: Iterable[str], when: str) -> Question:
    names = ", ".join(sorted(nodes))
    text = f"Go on? The graph stopped {when} {names}, where it has a breakpoint."
    return Question(f"breakpoint:{checkpoint_id}", text, ("continue",), {"nodes": names, "when": when})


def interrupt_of(key: str) -> str | None:
    """The interrupt that a decision of the run stands for."""
    _, found, interrupt_id = key.partition(f"ask:{_KEY}")
    return interrupt_id.partition(":")[0] if found else None


def as_answer(value: Any, outcomes: Sequence[str]) -> dict[str, Any]:
    """The value that a caller resumes with, as the answer to a question with these outcomes."""
    if ANSWERED in outcomes:
        return {"outcome": ANSWERED, "value": value}
    said = value if isinstance(value, Mapping) else {"outcome": value}
    if said.get("outcome") not in outcomes:
        raise InvalidInput(
            f"resume: must be one of {', '.join(map(repr, outcomes))}, or {{'outcome': …, 'value': …}}, not {value!r}."
        )
    return {"outcome": said["outcome"], "value": said.get("value"), "comment": said.get("comment")}


def share_out(resume: Any, waiting: Iterable[str]) -> dict[str, Any]:
    """Which interrupt gets which value, as LangGraph reads ``Command(resume=…)``."""
    ids = list(waiting)
    if isinstance(resume, dict) and resume and all(isinstance(k, str) and _IS_ID(k) for k in resume):
        return {name: value for name, value in resume.items() if name in ids}
    if len(ids) > 1:
        raise InvalidInput(
            f"resume: the run waits for {len(ids)} interrupts. Give each its value: "
            f"Command(resume={{{', '.join(f'{name!r}: …' for name in ids)}}})."
        )
    return dict.fromkeys(ids, resume)


def _text(value: Any, node: str) -> str:
    if isinstance(value, str) and value.strip():
        return value[:_MOST]
    if isinstance(value, Mapping):
        requests = value.get("action_requests")
        if isinstance(requests, list):
            texts = [_text(each, node) if isinstance(each, Mapping) else str(each) for each in requests]
            return "\n".join(texts)[:_MOST] or f"{node} asks."
        found = next((value[word] for word in _WORDS if isinstance(value.get(word), str) and value[word].strip()), None)
        if found is not None:
            return str(found)[:_MOST]
    return f"{node} waits for an answer."


def _shown(value: Any, codec: Codec) -> Any:
    """The value itself if it comes back equal, since a question is compared with the recorded one; else its kind."""
    try:
        if codec.decode(codec.encode(value, bind=b"question"), bind=b"question") == value:
            return value
    except (StepfastError, ValueError, TypeError):
        pass
    return f"<{type(value).__module__}.{type(value).__qualname__}>"
