"""One-shot calls in doubt: each is an interrupt of the graph and a decision of Stepfast, and either may be answered."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

from langgraph.errors import GraphInterrupt
from langgraph.types import Interrupt

from stepfast import (
    DID_NOT_HAPPEN,
    Happened,
    InvalidInput,
    NotFound,
    StepFailed,
    Stepfast,
)

from ._where import Task

OUTCOMES = ("done", "retry", "fail")
NAMED, BARE = "langgraph", "langgraph (interrupt not named)"
"""Who answered, in the decision's record. An answer without an id is told apart, because it stays visible."""

CHECKPOINT = "langgraph.checkpoint"


class Verdict(NamedTuple):
    """What a person said about a call in doubt."""

    outcome: str
    value: Any = None
    comment: str | None = None


def read_answer(answer: Any) -> Verdict | None:
    """``"done"``, ``"retry"``, ``"fail"`` or ``{"outcome": "done", "value": …}``; None for anything else."""
    if isinstance(answer, Mapping):
        comment = answer.get("comment")
        verdict = Verdict(answer.get("outcome", ""), answer.get("value"), None if comment is None else str(comment))
    else:
        verdict = Verdict(answer) if isinstance(answer, str) else Verdict("")
    return verdict if verdict.outcome in OUTCOMES else None


def interrupt_id(run_id: str, key: str) -> str:
    """The same in every process; of the form that ``Command(resume={id: …})`` takes."""
    return blake2b(f"{run_id}\0{key}".encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def interrupt_of(run_id: str, key: str, question: str, evidence: Mapping[str, Any]) -> Interrupt:
    name = interrupt_id(run_id, key)
    value = {
        "kind": "in_doubt",
        "question": question,
        "outcomes": list(OUTCOMES),
        "run_id": run_id,
        "decision": key,
        "answer_with": f"Command(resume={{{name!r}: 'done' | 'retry' | 'fail' | {{'outcome': 'done', 'value': …}}}})",
        **{k: v for k, v in evidence.items() if k not in ("question", "step")},
    }
    return Interrupt(value=value, id=name)


def as_interrupt(run_id: str, decision: Mapping[str, Any]) -> Interrupt:
    """A question that is no interrupt of the graph, such as a breakpoint's, in the form of one."""
    told = {field: decision[field] for field in ("kind", "question", "outcomes", "evidence") if field in decision}
    value = {**told, "run_id": run_id, "decision": decision["key"]}
    return Interrupt(value=value, id=interrupt_id(run_id, decision["key"]))


def interrupt_for(client: Stepfast, run_id: str) -> GraphInterrupt:
    """Everything that a task's run waits for, as one interrupt of the graph."""
    waits_for = client.decisions(run_id)
    return GraphInterrupt(tuple(interrupt_of(run_id, d["key"], d["question"], d["evidence"] or {}) for d in waits_for))


def deliver_answers(client: Stepfast, run_id: str, task: Task) -> None:
    """Write down what was answered through the graph. What is answered differently already stays, and is an error."""
    bare = task.bare_answer(take=False)
    if not task.answers and bare is None:
        return
    try:
        known = client.decisions(run_id, pending=False)
    except NotFound:
        return
    for decision in known:
        name = interrupt_id(run_id, decision["key"])
        if name in task.answers:
            _write(client, run_id, decision, _verdict(decision["key"], task.answers[name]), NAMED)
    verdict = read_answer(bare)
    if verdict is None:
        return
    if any(d["actor"] == BARE and d["outcome"] == verdict.outcome for d in known):
        task.bare_answer(take=True)  # LangGraph keeps it in sight; the next interrupt must not take it for its own
        return
    pending = [d for d in known if d["outcome"] is None]
    if len(pending) == 1 and bare not in task.answered_before() and not _was_taken(client, task):
        _write(client, run_id, pending[0], verdict, BARE)
        task.bare_answer(take=True)


def _write(client: Stepfast, run_id: str, decision: Mapping[str, Any], verdict: Verdict, actor: str) -> None:
    if decision["outcome"] == verdict.outcome:
        return  # said already, by whomever
    client.answer(run_id, verdict.outcome, decision["key"], value=verdict.value, comment=verdict.comment, actor=actor)


def _was_taken(client: Stepfast, task: Task) -> bool:
    """Whether a call of this superstep took an answer without an id: that stays in sight, and looks like a new one."""
    beside = client.list_intents(labels={CHECKPOINT: task.checkpoint}, limit=1000)
    return any(d["actor"] == BARE for i in beside for d in client.decisions(i["run_id"], pending=False))


def ask_in_graph(run_id: str, key: str, name: str, arguments: str) -> GraphInterrupt:
    """In a run that is not the task's own: the question about a call as an interrupt, which the run's driver poses."""
    question = f"Did {name} happen? It was started and never confirmed."
    return GraphInterrupt((interrupt_of(run_id, key, question, {"name": name, "arguments": arguments}),))


def settle_in_graph(task: Task, run_id: str, key: str, name: str, arguments: str) -> Any:
    """Return what was answered to that question; raise the interrupt if nothing was."""
    asked = interrupt_id(run_id, key)
    if asked not in task.answers:
        raise ask_in_graph(run_id, key, name, arguments)
    verdict = _verdict(key, task.answers[asked])
    if verdict.outcome == "done":
        return Happened(verdict.value)
    if verdict.outcome == "retry":
        return DID_NOT_HAPPEN
    raise StepFailed(f"{name} was left in doubt, and somebody decided that it failed.", key=key)


def _verdict(key: str, answer: Any) -> Verdict:
    verdict = read_answer(answer)
    if verdict is None:
        raise InvalidInput(
            f"resume: the call in doubt {key} can be answered 'done', 'retry', 'fail' or "
            f"{{'outcome': 'done', 'value': result}}, not {answer!r}."
        )
    return verdict
