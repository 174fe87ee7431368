"""Where in a graph the caller stands: what LangGraph tells a node about its task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.config import get_config

# The names by which the runtime hands a task its surroundings, the same since langgraph 1.0.
_TASK, _SAVER, _PAD, _RUNTIME = (
    "__pregel_task_id",
    "__pregel_checkpointer",
    "__pregel_scratchpad",
    "__pregel_runtime",
)
_SEND, _ANSWERS = "__pregel_send", "__pregel_resume_map"
_NOT_OUTPUT = frozenset(("__error__", "__error_source_node__", "__interrupt__", "__resume__"))


class Task(NamedTuple):
    """One task of a graph, as the code inside it sees it."""

    thread: str | None
    task_id: str
    checkpoint: str
    node: str
    place: str  # which task of the graph it is, in words that do not change when the graph starts over
    saver: BaseCheckpointSaver[Any] | None
    execution: object  # the same object as long as the node runs, another one when it is run again
    writes: Any  # what the node has put out so far
    answers: Mapping[str, Any]  # what a person answered, by the id of the interrupt
    pad: Any

    @property
    def durable(self) -> bool:
        """Whether the task can be met again: only what a checkpointer keeps has the same id after a crash."""
        return self.thread is not None and self.saver is not None

    def bare_answer(self, *, take: bool) -> Any:
        """The answer that was given without naming an interrupt, if nobody has taken it."""
        ask: Callable[[bool], Any] | None = getattr(self.pad, "get_null_resume", None)
        return None if ask is None else ask(take)

    def answered_before(self) -> Iterable[Any]:
        """The answers that interrupts of this task have had."""
        return list(getattr(self.pad, "resume", ()))

    def state(self) -> str:
        """*finished* if the node has returned, *failed* if it raised, else *open*."""
        channels = [write[0] for write in list(self.writes)] if self.writes is not None else []
        if "__error__" in channels:
            return "failed"
        return "finished" if any(channel not in _NOT_OUTPUT for channel in channels) else "open"


def current_task() -> Task | None:
    """The task that the caller stands in; None outside of a graph."""
    try:
        config = get_config()
    except RuntimeError:
        return None
    conf = config.get("configurable") or {}
    task_id = conf.get(_TASK)
    if task_id is None:
        return None
    meta = config.get("metadata") or {}
    namespace = str(conf.get("checkpoint_ns") or meta.get("langgraph_checkpoint_ns") or "")
    checkpoints = conf.get("checkpoint_map") or {}
    parents = namespace.rpartition("|")[0]
    saver, thread, runtime = conf.get(_SAVER), conf.get("thread_id"), conf.get(_RUNTIME)
    info = getattr(runtime, "execution_info", None)
    return Task(
        thread=None if thread is None else str(thread),
        task_id=task_id,
        checkpoint=str(checkpoints.get(parents) or ""),
        node=str(meta.get("langgraph_node") or namespace.rpartition("|")[2].partition(":")[0]),
        place=_in_words(namespace, meta),
        saver=saver if isinstance(saver, BaseCheckpointSaver) else None,
        execution=runtime if getattr(info, "node_attempt", None) is not None else None,
        writes=getattr(conf.get(_SEND), "__self__", None),
        answers=conf.get(_ANSWERS) or {},
        pad=conf.get(_PAD),
    )


def _in_words(namespace: str, meta: Mapping[str, Any]) -> str:
    names = "|".join(part.partition(":")[0] for part in namespace.split("|"))
    path = ".".join(str(part) for part in meta.get("langgraph_path") or ())
    return f"{names}:{meta.get('langgraph_step', '')}:{path}"
