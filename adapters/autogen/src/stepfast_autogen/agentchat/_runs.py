"""A run of a conversation, from its opening to its end or to where it waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from autogen_agentchat.base import TaskResult
from autogen_agentchat.messages import (
    BaseChatMessage,
    HandoffMessage,
    MessageFactory,
    ModelClientStreamingChunkEvent,
)

from stepfast import AsyncRun, Conflict, InvalidInput, Suspended, Suspension
from stepfast.adapters import Settings, adrive, mark_replayed

from ._agents import Thing, prepare
from ._attempt import Stage, TeamAttempt
from ._conversation import END, Head, Memory, name_of, recorded_end
from ._messages import Item, Naming, Task, factory_of, pack_result, pack_task, unpack, unpack_result
from ._people import asking, handed_to_person, shown, words_of
from ._state import load, renew, save

_FRAMEWORK = "autogen"
_SHOWN = 2000  # characters of a message, in the result that is shown to people


class Handle:
    """One call of a durable team: where its items go, and how it is left."""

    def __init__(self, settings: Settings, output_task_messages: bool) -> None:
        self.settings = settings
        self.output_task_messages = output_task_messages
        self.sink: Callable[[Any], None] | None = None
        self.task: asyncio.Future[Any] | None = None
        self.attempt: TeamAttempt | None = None
        self.pending: TaskResult | None = None  # the result so far, where a person has the word
        self.suspended: dict[str, Any] = {}
        self._left = False
        self._delivered: set[str] = set()

    def make(self, run: AsyncRun) -> TeamAttempt:
        """Make the attempt of a pass."""
        self.attempt = TeamAttempt(run, self.settings)
        if self._left:
            self.attempt.abandon()
        return self.attempt

    def leave(self) -> None:
        """Stop the run as soon as possible, and hand it back."""
        self._left = True
        if self.attempt is not None:
            self.attempt.abandon()
        elif self.task is not None:
            self.task.cancel()

    def deliver(self, item: Item, old: bool) -> None:
        """Hand an item on, unless an earlier pass of this call has done so."""
        if self.sink is None:
            return
        if not isinstance(item, ModelClientStreamingChunkEvent):
            if item.id in self._delivered:
                return
            self._delivered.add(item.id)
        self.sink(mark_replayed(item, old))


class Runs:
    """Makes the team, and carries runs out with it."""

    def __init__(self, given: Thing | Callable[[], Thing], settings: Settings, own_input: bool) -> None:
        self._given = given
        self._settings = settings
        self._own_input = own_input
        self._stage: Stage | None = None  # of a team that was passed as an object
        self._initial: Any = None
        self._factory: MessageFactory | None = None
        self._live: tuple[str, int, Thing, Stage] | None = None  # the team as the last run of a conversation left it

    @property
    def settings(self) -> Settings:
        return self._settings

    @property
    def factory(self) -> MessageFactory:
        """What makes the team's messages from data; a team is made once for it."""
        if self._factory is None:
            self._factory = factory_of(self.example())
        return self._factory

    def forget(self) -> None:
        """Make the team of the next run anew."""
        self._live = None

    def example(self) -> Any:
        """Return a team, to look at only."""
        return self._given() if callable(self._given) else self._given

    # --- which run it is ---------------------------------------------------------------------------

    async def place(self, memory: Memory, position: int, task: Task, *, append: bool) -> tuple[int, Head, Any]:
        """Return which run of the conversation a call is about, where that stands, and the task as it is recorded."""
        given = pack_task(task)
        head = await memory.head()
        number = head.runs + 1 if append and not position else position + 1
        recorded = await memory.begun(memory.name(head, number))
        if recorded not in (None, (given,)) and not position and number <= head.runs:
            # Another process's conversation goes on.
            number = head.runs + 1
            recorded = await memory.begun(memory.name(head, number))
        if recorded is None or recorded == (given,):
            return number, head, given
        name = memory.name(head, number)
        if number > head.runs and await _answered(memory, name, task):
            return number, head, recorded[0]
        why = "is finished" if number <= head.runs else "is not finished: resume() it, or answer what it waits for"
        raise Conflict(f"task: run {name} of the conversation was begun with another task, and {why}.")

    # --- carrying it out ---------------------------------------------------------------------------

    async def open(self, handle: Handle, memory: Memory, conversation: str, number: int, head: Head, given: Any) -> Any:
        """Open a run of the conversation, and drive it to its end or to where it waits."""
        name = memory.name(head, number)
        if name != name_of(conversation, number):  # a worker has carried it out, under the name of the intent
            return self._again(handle, await memory.end(name))
        options = self._settings.run_options(_FRAMEWORK, team=self._name(), conversation=conversation)
        try:
            async with memory.client.run(name, payload={"task": given}, **options) as run:
                result = await self.carry_out(run, handle, memory, conversation, number, head, given)
                if not run.replaying:
                    run.complete(await summary(run, handle, result))
                return result
        except (Suspended, Suspension) as waits:
            if self._settings.on_wait == "return" and handle.pending is not None:
                return handle.pending
            # A stream has no place for what a run waits for.
            if handle.sink is None and isinstance(waits, Suspended) and self._settings.returns(waits, name):
                return await memory.client.waiting(waits)
            raise

    async def carry_out(
        self, run: AsyncRun, handle: Handle, memory: Memory, conversation: str, number: int, head: Head, given: Any
    ) -> TaskResult:
        """Drive an open run to its end, and move the conversation on by it."""
        end = await recorded_end(run)
        if end is not None:
            return self._again(handle, end)
        if number != head.runs + 1:
            raise Conflict(f"run {run.run_id}: the conversation has moved on to run {head.runs}.")
        played: list[tuple[Thing, Stage]] = []

        async def one_pass(attempt: TeamAttempt) -> TaskResult:
            thing, stage = await self._fresh(conversation, number, head)
            played[:] = [(thing, stage)]
            self._settings.policies.announce(stage.tools)
            async with stage.playing(attempt):
                return await _play(attempt, handle, thing, stage, given)

        result = await adrive(run, one_pass, make=handle.make)
        thing, stage = played[0]
        state = await save(thing)
        await run.record(pack_result(result), key=END, kind="end", also=[memory.following(head, run.run_id, state)])
        self._live = (conversation, number, thing, stage)
        return result

    def _again(self, handle: Handle, end: dict[str, Any]) -> TaskResult:
        """Return the recorded result of a run."""
        result = unpack_result(self.factory, end)
        for item in result.messages:
            handle.deliver(item, True)
        return result

    async def _fresh(self, conversation: str, number: int, head: Head) -> tuple[Thing, Stage]:
        """Return the team in the state before a run; a failed pass leaves none that could be used again."""
        live, self._live = self._live, None
        if live is not None and live[:2] == (conversation, number - 1):
            return live[2], live[3]
        if callable(self._given):
            thing = self._given()
            if not hasattr(thing, "run_stream"):
                raise InvalidInput(f"team: the function must return a team or an agent, not {type(thing).__name__}.")
            stage = prepare(thing, own_input=self._own_input)
            if head.state is not None:
                await load(thing, head.state)
            return thing, stage
        thing = self._given
        if self._stage is None:
            self._stage = prepare(thing, own_input=self._own_input)
            self._initial = await save(thing)
            if head.state is not None:
                await load(thing, head.state)
        else:
            await renew(thing, self._initial if head.state is None else head.state)
        return thing, self._stage

    def _name(self) -> str:
        name = getattr(self._given, "name", "") or getattr(self._given, "__name__", "")
        return name if isinstance(name, str) and name != "<lambda>" else ""


async def _answered(memory: Memory, name: str, task: Task) -> bool:
    """Answer what a run waits for with a message that a person was handed the conversation for; whether it did."""
    if not isinstance(task, HandoffMessage):
        return False
    for decision in await memory.client.decisions(name):
        if decision["key"].startswith("ask:handoff:"):
            await memory.client.answer(name, "approved", decision["key"], value=task.content, actor=task.source)
            return True
    return False


async def _play(attempt: TeamAttempt, handle: Handle, thing: Any, stage: Stage, task: Any) -> TaskResult:
    """Let the team run once, and again with the answer of each person that it hands the conversation to."""
    run = attempt.run
    naming = Naming(run.run_id)
    given: Any = None if task is None else unpack(stage.factory, task)
    said: list[Any] = []
    options = {} if handle.output_task_messages else {"output_task_messages": False}
    while True:
        result = await _stream(attempt, handle, thing, naming, given, options)
        said += result.messages
        whole = TaskResult(messages=said, stop_reason=result.stop_reason)
        attempt.check()
        asked = handed_to_person(thing, result)
        if asked is None:
            return whole
        handle.pending = whole
        number = sum(isinstance(each, HandoffMessage) and each.source == asked.target for each in said)
        evidence = {"agent": asked.source, "messages": shown(said)}
        question = f"{asked.source} hands over to {asked.target}: {asked.content}"
        answer = await asking(run, attempt, question, f"handoff:{number}", evidence)
        handle.pending, options = None, {}
        given = [HandoffMessage(content=words_of(answer), source=asked.target, target=asked.source)]


async def _stream(
    attempt: TeamAttempt, handle: Handle, thing: Any, naming: Naming, given: Any, options: Any
) -> TaskResult:
    result: TaskResult | None = None
    try:
        async for item in thing.run_stream(task=given, **options):
            if isinstance(item, TaskResult):
                result = item
            elif not attempt.stopping:
                naming.name(item)
                handle.deliver(item, not attempt.live)
    except Exception as error:
        raise attempt.original(error) from None
    if result is None:
        raise AssertionError("a team's stream ends with a result")
    return result


async def summary(run: AsyncRun, handle: Handle, result: TaskResult) -> dict[str, Any]:
    """Return what is seen of a finished run from outside: what was said, and what it used."""
    said = [
        {"source": each.source, "text": each.to_text()[:_SHOWN]}
        for each in result.messages
        if isinstance(each, BaseChatMessage)
    ]
    about: dict[str, Any] = {"stop_reason": result.stop_reason, "messages": said}
    if handle.attempt is not None:
        usage = await run.drive(handle.attempt.meter.complete(run))
        about["usage"] = usage.as_dict()
    return about
