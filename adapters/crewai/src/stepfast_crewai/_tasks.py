"""The seams around tasks, agents and crews: each has a scope, and a finished one is answered from the journal."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from crewai.crew import Crew
from crewai.task import Task

from stepfast.adapters import digest, plain

from ._callbacks import callbacks_as_steps
from ._outputs import models_of, pack_output, unpack_output
from ._place import Place
from ._requests import add_tokens
from ._streams import repeat
from ._tools import announce

# --- tasks -------------------------------------------------------------------------------------------


def execute_core(place: Place, original: Callable[..., Any], task: Any, agent: Any, context: Any, tools: Any) -> Any:
    """Take the place of ``Task._execute_core``."""
    inner = _task_place(place, task)

    def make() -> Any:
        _begun(inner, place, task, agent or task.agent, tools)
        return original(task, agent, context, tools)

    restored = functools.partial(_restored, inner, task, agent or task.agent)
    return inner.memo(make, functools.partial(_packed, inner), restored, name=_label(task), kind="task")


async def aexecute_core(
    place: Place, original: Callable[..., Any], task: Any, agent: Any, context: Any, tools: Any
) -> Any:
    """Take the place of ``Task._aexecute_core``."""
    inner = _task_place(place, task)

    async def make() -> Any:
        _begun(inner, place, task, agent or task.agent, tools)
        return await original(task, agent, context, tools)

    restored = functools.partial(_restored, inner, task, agent or task.agent)
    return await inner.amemo(make, functools.partial(_packed, inner), restored, name=_label(task), kind="task")


def execute_in_thread(
    place: Place, original: Callable[..., Any], task: Any, agent: Any, context: Any, tools: Any, future: Future[Any]
) -> None:
    """Take the place of ``Task._execute_task_async``, so that what stops the run reaches the crew, which waits."""
    try:
        original(task, agent, context, tools, future)
    except BaseException as error:
        if future.done():
            raise
        future.set_exception(error)


def _task_place(place: Place, task: Any) -> Place:
    tasks = [] if place.crew is None else place.crew.tasks
    for number, each in enumerate(tasks):
        if each is task:
            # A task can be carried out again, by a conditional crew or by user code.
            return place.inner(place.occurrences.key("task", str(number + 1)), crew=None)
    return place.inner(place.occurrences.key("task", digest(task.key)))


def _begun(inner: Place, place: Place, task: Any, agent: Any, tools: Any) -> None:
    """Prepare a task's place: what each call in it shows to those who look at the run."""
    inner.attempt.check()
    announce(inner, tools or getattr(agent, "tools", None))
    inner.agent = str(getattr(agent, "role", "")).strip()
    tasks = [] if place.crew is None else place.crew.tasks
    number = next((number for number, each in enumerate(tasks, 1) if each is task), None)
    if number is not None:
        shown = f"task {number} of {len(tasks)}"
        inner.number, inner.task = number, f"{place.task}, {shown}" if place.task else shown


def _label(task: Task) -> str:
    return str(task.name or task.description)[:80]


def _packed(place: Place, output: Any) -> dict[str, Any]:
    return {"output": pack_output(output), "tokens": {role: dict(found) for role, found in place.tokens.items()}}


def _restored(inner: Place, task: Any, agent: Any, recorded: dict[str, Any]) -> Any:
    """Return a recorded task's output, with the task as it would be."""
    if agent is not None:
        task.agent = agent
        task.processed_by_agents.add(agent.role)
    task.output = unpack_output(recorded["output"], models_of([task]))
    _recount(inner, getattr(agent, "crew", None), recorded, agent)
    repeat(getattr(agent, "llm", None), task.output.raw, task, agent)
    return task.output


def _recount(place: Place, crew: Any, recorded: dict[str, Any], *agents: Any) -> None:
    known = [*agents, *(crew.agents if isinstance(crew, Crew) else ()), getattr(crew, "manager_agent", None)]
    for role, tokens in recorded["tokens"].items():
        place.spend(role, tokens)
        for agent in known:
            if agent is not None and str(agent.role).strip() == role:
                add_tokens(agent.llm, tokens)
                break


# --- agents ------------------------------------------------------------------------------------------


def execute_task(place: Place, original: Callable[..., Any], agent: Any, *args: Any, **kwargs: Any) -> Any:
    """Take the place of ``Agent.execute_task``: remember where the agent began."""
    place.mark(agent)
    return original(agent, *args, **kwargs)


async def aexecute_task(place: Place, original: Callable[..., Any], agent: Any, *args: Any, **kwargs: Any) -> Any:
    place.mark(agent)
    return await original(agent, *args, **kwargs)


def begin_again(place: Place, original: Callable[..., Any], agent: Any, *args: Any, **kwargs: Any) -> Any:
    """Take the place of ``Agent._handle_execution_error``, by which CrewAI has an agent do its whole task again.

    What the agent had finished is answered from the journal: its tools are not called a second time.
    """
    with place.attempt.guarded():
        place.drive(place.back_to_mark(agent))
    return original(agent, *args, **kwargs)


async def abegin_again(place: Place, original: Callable[..., Any], agent: Any, *args: Any, **kwargs: Any) -> Any:
    with place.attempt.guarded():
        await place.adrive(place.back_to_mark(agent))
    return await original(agent, *args, **kwargs)


# --- crews -------------------------------------------------------------------------------------------


def kickoff(
    place: Place, original: Callable[..., Any], crew: Any, inputs: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """Take the place of ``Crew.kickoff``, also of crews inside flows and composite tools."""
    if crew.stream:  # it comes back here from the thread that makes the pieces
        return original(crew, inputs, *args, **kwargs)
    inner = _crew_place(place, crew, inputs)

    def make() -> Any:
        with callbacks_as_steps(crew):
            return original(crew, inputs, *args, **kwargs)

    try:
        return inner.memo(make, *_keeping(inner, crew), name=crew.name or "crew", kind="crew")
    except BaseException as error:
        if place.ends_thread(error):
            return None
        raise


async def akickoff(
    place: Place, original: Callable[..., Any], crew: Any, inputs: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """Take the place of ``Crew.akickoff``."""
    if crew.stream:
        return await original(crew, inputs, *args, **kwargs)
    inner = _crew_place(place, crew, inputs)

    async def make() -> Any:
        with callbacks_as_steps(crew):
            return await original(crew, inputs, *args, **kwargs)

    return await inner.amemo(make, *_keeping(inner, crew), name=crew.name or "crew", kind="crew")


def _keeping(inner: Place, crew: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    return functools.partial(_packed, inner), functools.partial(_crew_restored, inner, crew)


def _crew_place(place: Place, crew: Any, inputs: Any) -> Place:
    place.attempt.check()
    asked = digest(place.attempt.redacted(plain(inputs or {})))
    return place.inner(place.occurrences.key("crew", crew.name or "crew", asked), crew=crew)


def _crew_restored(inner: Place, crew: Any, recorded: dict[str, Any]) -> Any:
    output = unpack_output(recorded["output"], models_of(crew.tasks))
    _recount(inner, crew, recorded)
    crew.usage_metrics = crew.token_usage = output.token_usage
    for task, found in zip(crew.tasks, output.tasks_output, strict=False):
        task.output = found
        repeat(getattr(task.agent, "llm", None), found.raw, task, task.agent)
    return output
