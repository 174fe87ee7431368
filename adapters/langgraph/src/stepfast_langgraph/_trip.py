"""One attempt of a run through its graph: what it does next is decided here, and done by whoever drives it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import langgraph.types
from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.constants import START
from langgraph.types import Command

from stepfast import AsyncRun, AsyncStepfast, Codec, Conflict, InvalidInput, NotFound, Run, Stepfast, Suspension
from stepfast.adapters import OnInDoubt, Settings
from stepfast.flow import END, Call, Close, Emit, Flow, Next
from stepfast.stored_names import GRAPH_RUN_MARK

from . import _questions as questions
from ._chunks import INTERRUPT, Chunks

_RESUME = "__resume__"
# Since then each interrupt of a node has an id of its own, and a state shows only those that wait. Before, all of a
# node had the same, and those that were answered stayed in sight.
_IDS_TELL_ANSWERS = hasattr(langgraph.types, "_interrupt_id")


class Ask(NamedTuple):
    """Call a method of a graph or a saver; on an event loop its twin, whose name begins with *a*."""

    whom: Any
    method: str
    config: Mapping[str, Any]

    def perform(self, *_store: Any) -> Any:
        return getattr(self.whom, self.method)(self.config)

    async def aperform(self, *_store: Any) -> Any:
        return await getattr(self.whom, f"a{self.method}")(self.config)


class HasMark(NamedTuple):
    """The answer is whether the thread has a checkpoint with this mark."""

    saver: Any
    config: Mapping[str, Any]
    mark: str

    def perform(self, *_store: Any) -> bool:
        return any(True for _ in self.saver.list(*self._asked[0], **self._asked[1]))

    async def aperform(self, *_store: Any) -> bool:
        async for _ in self.saver.alist(*self._asked[0], **self._asked[1]):
            return True
        return False

    @property
    def _asked(self) -> tuple[tuple[Any], dict[str, Any]]:
        place = {"configurable": {**self.config["configurable"], "checkpoint_ns": ""}}
        return (place,), {"filter": {GRAPH_RUN_MARK: self.mark}, "limit": 1}


class Trip:
    """Where a run is in its graph."""

    def __init__(
        self,
        client: Stepfast | AsyncStepfast | None,
        run: Run | AsyncRun,
        graph: Any,
        config: Mapping[str, Any],
        chunks: Chunks,
        options: Mapping[str, Any],
        resume: Command[Any] | None,
        settings: Settings,
        on_in_doubt: OnInDoubt,
    ) -> None:
        self.client = client
        self.run = run
        self.graph = graph
        self.chunks = chunks
        self.options = {**options, **chunks.options}
        self.output: Any = None
        self.stopped = False
        self.doing = ""
        self.unanswered: list[str] = []
        self.step: int | None = None
        self.codec: Codec = run.codec
        self._mark: str = run.intent.journal_id
        self._resume = resume
        self.policies, self.on_drift, self.on_in_doubt = settings.policies, settings.on_drift, on_in_doubt
        self._nodes: dict[str, None] = {}
        self._step_ended = False
        self._got_on = False
        self.progress: Any = run.scope("progress", shared=True)
        self.thread_id = thread_of(run, config)
        # A checkpoint that the caller names is where the run begins; later it goes on from its own last one.
        self._first_config = self._own(config)
        self.config = _without_checkpoint(self._first_config)

    def _own(self, config: Mapping[str, Any]) -> dict[str, Any]:
        metadata = {"run_id": self._mark, **config.get("metadata", {})}
        configurable = {**config.get("configurable", {}), "thread_id": self.thread_id}
        return {**config, "configurable": configurable, "metadata": metadata}

    # --- what passes by ------------------------------------------------------------------------------

    def see(self, chunk: Any) -> Iterator[Any]:
        """Take from a chunk what the run needs, and give what its caller asked for."""
        seen = self.chunks.see(chunk)
        if not seen.inside:
            if seen.mode == "values":
                self.output, self._step_ended = seen.data, True
            elif seen.mode == "updates" and isinstance(seen.data, dict):
                if INTERRUPT in seen.data:
                    self.stopped = True
                self._note([name for name in seen.data if name != INTERRUPT])
        return self.chunks.show(chunk, seen)

    def _note(self, nodes: list[str]) -> None:
        """Nodes that have just finished, shown together with those of the same superstep."""
        if nodes:
            self._nodes = dict.fromkeys([*([] if self._step_ended else self._nodes), *nodes])
            self._step_ended = False
            self.doing = ", ".join(self._nodes)

    def mark(self, config: Mapping[str, Any], metadata: Mapping[str, Any]) -> Any:
        """A checkpoint is about to be written: its metadata, with the mark of this run."""
        if not config["configurable"].get("checkpoint_ns"):
            self.step = max(metadata.get("step", 0), 0)
        return {**metadata, GRAPH_RUN_MARK: self._mark}

    def gets_on(self, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str) -> bool:
        """Returns whether these are the writes of the first task in this attempt that finished in no earlier one.

        It is then recorded as a step, so that the store sees progress if this attempt is lost. A task has the same id
        in every attempt: one whose writes were lost and that is made again is no progress.
        """
        if self._got_on or task_path.endswith(f", {START}") or any(channel in WRITES_IDX_MAP for channel, _ in writes):
            return False
        self._got_on = self.progress.recorded(task_id) is None
        return self._got_on

    @property
    def result(self) -> Any:
        """What ``invoke`` would have given."""
        return self.output if self.options.get("output_keys") is not None else output_of(self.graph, self.output)

    # --- what is done --------------------------------------------------------------------------------

    def course(self, given: Any) -> Flow[None]:
        """Begin, or go on where an earlier attempt stopped; ask people where the graph does; to the end."""
        run = self.run
        # The first attempt finds nothing of an earlier one.
        began = run.resumed and (yield HasMark(self.graph.checkpointer, self.config, self._mark))
        if not began and self._resume is not None:
            raise NotFound(f"run {run.run_id} waits for no answer: it has not begun. Start it with its input.")
        stopped = True if began else (yield from self._go(given, self._first_config))
        while stopped:
            state = yield Ask(self.graph, "get_state", self.config)
            if state.metadata is not None:
                self.step = max(state.metadata.get("step", 0), 0)
            answered = {} if _IDS_TELL_ANSWERS else (yield from self._count_answers(state))
            # After a crash an old langgraph shows what was answered, too: then let the node itself ask again.
            again = None if began and answered else (yield from self._ask(state, answered))
            began, self._resume = False, None  # the word was meant for what waited then, not for what comes later
            stopped = yield from self._go(again, self.config)

    def _go(self, given: Any, config: Mapping[str, Any]) -> Flow[bool]:
        """Run the graph with this input; returns whether it stopped before its end."""
        self.stopped = False
        start = self.graph.stream if isinstance(self.run, Run) else self.graph.astream
        chunks = start(given, config, **self.options)
        try:
            while (chunk := (yield Next(chunks))) is not END:
                shown = self.see(chunk)
                yield self.report()
                for each in shown:
                    yield Emit(each)
        finally:
            yield Close(chunks)
        return self.stopped

    def report(self) -> Call:
        return Call(self.run.report, (self.doing,), {"step": self.step})

    def _count_answers(self, state: Any) -> Flow[dict[str, int]]:
        """How many interrupts of each task have had their answer."""
        if not state.interrupts:
            return {}
        saved = yield Ask(self.graph.checkpointer, "get_tuple", state.config)
        found = {} if saved is None else {w[0]: len(w[2]) for w in saved.pending_writes or () if w[1] == _RESUME}
        return {task.id: found[task.id] for task in state.tasks if task.interrupts and found.get(task.id)}

    def _ask(self, state: Any, answered: Mapping[str, int]) -> Flow[Any]:
        """Ask all that the graph waits for, then wait for all of the answers; gives what it resumes with."""
        asked = [
            questions.of_interrupt(interrupt, task.name, self.codec, answered.get(task.id, 0))
            for task in state.tasks
            for interrupt in task.interrupts
            if any(interrupt.id == waiting.id for waiting in state.interrupts)
        ]
        if not asked:
            asked = yield from self._breakpoints(state)
        if not asked:
            return None
        yield from self._pose(asked)
        resume: dict[str, Any] = {}
        for question in asked:
            try:
                answer = yield Call(self.run.ask, (question.text,), _words(question))
            except Suspension as waiting:
                waiting.decisions = self.unanswered or waiting.decisions
                raise
            if question.interrupt_id is not None:
                resume[question.interrupt_id] = question.resume(answer)
        if any(question.in_doubt for question in asked):
            yield Call(self.run.settle)  # a call that this very attempt left in doubt may be made again
        return Command(resume=resume) if resume else None

    def _pose(self, asked: list[questions.Question]) -> Flow[None]:
        """All at once, before the first is waited for; what the caller has brought along is answered here."""
        waiting = {}
        self.unanswered = []
        for question in asked:
            if (yield Call(self.run.pose, (question.text,), _words(question))) is None:
                self.unanswered.append(f"ask:{question.key}")
                if question.interrupt_id is not None:
                    waiting[question.interrupt_id] = question
        if self._resume is not None:
            for interrupt_id, value in questions.share_out(self._resume.resume, waiting).items():
                question = waiting[interrupt_id]
                yield give_answer(self.client, self.run.run_id, f"ask:{question.key}", value, question.outcomes)
                self.unanswered.remove(f"ask:{question.key}")

    def _breakpoints(self, state: Any) -> Flow[list[questions.Question]]:
        """A breakpoint that the graph stands at, asked about under its checkpoint, so that each is asked once."""
        before = self._nodes_at("interrupt_before")
        after = self._nodes_at("interrupt_after")
        if not before and not after:
            return []
        checkpoint_id = state.config["configurable"]["checkpoint_id"]
        stands = [name for name in state.next if before == "*" or name in before]
        if stands:
            return [questions.of_breakpoint(checkpoint_id, stands, "before")]
        if after and state.next and state.parent_config is not None:
            now = yield Ask(self.graph.checkpointer, "get_tuple", state.config)
            earlier = yield Ask(self.graph.checkpointer, "get_tuple", state.parent_config)
            ran = [name for name in _ran(earlier, now) if after == "*" or name in after]
            if ran:
                return [questions.of_breakpoint(checkpoint_id, ran, "after")]
        return []

    def _nodes_at(self, option: str) -> Any:
        return self.options.get(option) or getattr(self.graph, f"{option}_nodes") or ()


def output_of(graph: Any, values: Any) -> Any:
    """What ``invoke`` returns of a graph's values."""
    keys = graph.output_channels
    if isinstance(keys, str) or not isinstance(values, dict):
        return values
    return {key: values[key] for key in keys if key in values}


def thread_of(run: Run | AsyncRun, config: Mapping[str, Any]) -> str:
    """The thread of a run: the one it was begun with, else as its caller says, else one of its own."""
    intent = run.intent
    given = config.get("configurable", {}).get("thread_id")
    begun = intent.labels.get("thread_id")
    if given is not None and begun is not None and str(given) != begun:
        raise Conflict(
            f"thread_id: run {run.run_id} was begun on thread {begun!r}, not {given!r}. Leave it out, or use another "
            "run_id for work on another thread.",
            thread_id=begun,
        )
    return begun or (str(given) if given is not None else intent.run_id or intent.journal_id)


def give_answer(client: Any, run_id: str, key: str, value: Any, outcomes: Sequence[str]) -> Call:
    """Answer a decision for a caller who brought the value."""
    answer = questions.as_answer(value, outcomes)
    options = {"value": answer["value"], "comment": answer.get("comment"), "actor": "Command(resume)"}
    return Call(client.answer, (run_id, answer["outcome"], key), options)


def is_answer(given: Any) -> bool:
    """Whether an input is the answer to an interrupt, and not the input of a run."""
    if not isinstance(given, Command) or given.resume is None:
        return False
    if given.update is not None or given.goto:
        raise InvalidInput(
            "input: Command(resume=…) answers the interrupt of a run and can do nothing else. Change the state with "
            "graph.update_state() before."
        )
    return True


def _words(question: questions.Question) -> dict[str, Any]:
    return {"key": question.key, "outcomes": question.outcomes, "evidence": question.evidence}


def _ran(earlier: Any, now: Any) -> list[str]:
    """The nodes whose turn it was between two checkpoints."""
    if earlier is None or now is None:
        return []
    before, after = earlier.checkpoint["versions_seen"], now.checkpoint["versions_seen"]
    return [name for name, seen in after.items() if seen != before.get(name)]


def _without_checkpoint(config: dict[str, Any]) -> dict[str, Any]:
    kept = {k: v for k, v in config["configurable"].items() if k not in ("checkpoint_id", "checkpoint_ns")}
    return {**config, "configurable": kept}
