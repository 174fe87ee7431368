"""``durable``: a team or an agent whose conversation outlives its process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import partial
from typing import Any, Literal, cast

from autogen_agentchat.agents import BaseChatAgent
from autogen_agentchat.base import TaskResult
from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage
from autogen_agentchat.teams import BaseGroupChat
from autogen_core import CancellationToken

from stepfast import AsyncStepfast, AsyncWorker, InvalidInput, NotFound
from stepfast import inputs as check
from stepfast.adapters import (
    LazyStore,
    OnDrift,
    OnInDoubt,
    OnWait,
    PolicyLike,
    Prices,
    Settings,
    StoreLike,
    StoreOwner,
    choice,
    flag,
)

from ._agents import Thing
from ._attempt import quieten
from ._conversation import Memory, name_of
from ._messages import Item, Task, unpack
from ._runs import Handle, Runs
from .worker import serving

OnInput = Literal["own", "ask"]
_END = object()


def durable(
    team: Thing | Callable[[], Thing],
    run_id: str | None = None,
    store: StoreLike = None,
    *,
    on_in_doubt: OnInDoubt = "ask",
    policies: Mapping[str, PolicyLike] | None = None,
    on_drift: OnDrift = "warn",
    on_wait: OnWait = "suspend",
    on_input: OnInput = "own",
    append: bool = False,
    labels: Mapping[str, str] | None = None,
    prices: Prices | None = None,
    max_delivery_attempts: int | None = None,
    wait: float | None = None,
) -> DurableTeam:
    """Make the conversation of a team durable: it has a name, and started again it goes on where it stopped.

    ``team`` is a function that makes a team or an agent with everything in it, or one that was not used yet. ``run_id``
    is the name of the conversation. Each call of ``run`` is the next run of the conversation: one that is finished
    returns its recorded result without any call, one that was interrupted goes on. The first call of an object may also
    bring a new task to a conversation of finished runs; with ``append`` it always does, even if the first run had the
    same one. ``on_input="ask"`` asks people by durable decisions also where a UserProxyAgent has an ``input_func`` of
    its own. The other options are described in ``docs/adapters.md``.
    """
    if not callable(team) and not isinstance(team, BaseGroupChat | BaseChatAgent):
        raise InvalidInput(f"team: must be a team, an agent, or a function that makes one, not {type(team).__name__}.")
    settings = Settings(
        on_in_doubt=on_in_doubt,
        policies=policies,
        on_drift=on_drift,
        on_wait=on_wait,
        labels=labels,
        prices=prices,
        max_delivery_attempts=max_delivery_attempts,
        wait=wait,
    )
    own_input = choice("on_input", on_input, ("own", "ask")) == "own"
    check.name("run_id", run_id, optional=True)
    return DurableTeam(team, run_id, LazyStore(store), settings, flag("append", append), own_input)


class DurableTeam(StoreOwner):
    """A team or an agent whose conversation outlives its process; made by `durable`.

    ``run`` and ``run_stream`` have the arguments, items and results of a team's own.
    """

    def __init__(
        self,
        team: Thing | Callable[[], Thing],
        run_id: str | None,
        store: LazyStore,
        settings: Settings,
        append: bool,
        own_input: bool,
    ) -> None:
        quieten()
        self._run_id = run_id
        self._store = store
        self._settings = settings
        self._runs = Runs(team, settings, own_input)
        self._append = append
        self._position = 0  # runs of the conversation that this object has come by

    # --- runs --------------------------------------------------------------------------------------

    async def run(
        self,
        *,
        task: Task = None,
        cancellation_token: CancellationToken | None = None,
        output_task_messages: bool = True,
    ) -> TaskResult:
        """Start the next run of the conversation, go on with it, or return its finished result.

        With ``on_wait="return"`` a run that waits for a person returns a `stepfast.Waiting`; one in which the team
        handed the conversation to a person, the result so far.
        """
        handle = Handle(self._settings, output_task_messages)
        return await self._supervised(handle, self._next(handle, task), cancellation_token)

    async def run_stream(
        self,
        *,
        task: Task = None,
        cancellation_token: CancellationToken | None = None,
        output_task_messages: bool = True,
    ) -> AsyncGenerator[BaseAgentEvent | BaseChatMessage | TaskResult, None]:
        """`run` as a stream, which ends with the result.

        What an interrupted run had said before comes first; ``replayed(item)`` finds out which items these are. Leaving
        the stream early hands the run back: it goes on when it is started again.
        """
        handle = Handle(self._settings, output_task_messages)
        items: asyncio.Queue[Any] = asyncio.Queue()
        handle.sink = items.put_nowait
        task_ = asyncio.create_task(self._supervised(handle, self._next(handle, task), cancellation_token))
        task_.add_done_callback(lambda _: items.put_nowait(_END))
        try:
            while (item := await items.get()) is not _END:
                yield item
            yield task_.result()
        finally:
            if not task_.done():
                task_.cancel()
                await asyncio.wait([task_])

    async def resume(self, *, cancellation_token: CancellationToken | None = None) -> TaskResult:
        """Finish the run that was interrupted, with the task that it was begun with.

        Returns the result of the last run if all are finished. `NotFound` if the conversation has none.
        """
        handle = Handle(self._settings, True)
        return await self._supervised(handle, self._resume(handle), cancellation_token)

    async def _next(self, handle: Handle, task: Task) -> Any:
        memory = self._memory
        number, head, given = await self._runs.place(memory, self._position, task, append=self._append)
        return await self._at(number, handle, self._runs.open(handle, memory, self._named, number, head, given))

    async def _resume(self, handle: Handle) -> Any:
        memory = self._memory
        head = await memory.head()
        number = head.runs + 1
        begun = await memory.begun(memory.name(head, number))
        if begun is None and head.runs:
            number = head.runs
            begun = await memory.begun(memory.name(head, number))
        if begun is None:
            raise NotFound(f"conversation {self._named} has no run that could go on.")
        opening = self._runs.open(handle, memory, self._named, number, head, begun[0])
        return await self._at(number, handle, opening)

    async def _at(self, number: int, handle: Handle, opening: Any) -> Any:
        """Come by a run: once it is finished, the next call is about the one after it."""
        result = await opening
        if isinstance(result, TaskResult) and handle.pending is None:
            self._position = number
        return result

    async def _supervised(self, handle: Handle, call: Any, token: CancellationToken | None) -> TaskResult:
        """Await a run; where the caller is cancelled, stop it in a way that AgentChat does not hang at."""
        handle.task = asyncio.ensure_future(call)
        if token is not None:
            loop = asyncio.get_running_loop()
            token.add_callback(partial(_soon, loop, handle.leave))
        try:
            return await asyncio.shield(handle.task)
        except asyncio.CancelledError:
            if not handle.task.done():
                handle.leave()
                await asyncio.wait([handle.task])
            raise

    # --- looking at it -----------------------------------------------------------------------------

    async def messages(self) -> list[Item]:
        """Return the messages of the conversation's finished runs, and the task of an unfinished one."""
        memory, found = self._memory, cast("list[Item]", [])
        head = await memory.head()
        factory = self._runs.factory
        for name in head.names:
            found += unpack(factory, (await memory.end(name))["messages"])
        begun = await memory.begun(memory.name(head, head.runs + 1))
        return [*found, *unpack(factory, (begun and begun[0]) or ())]

    async def status(self) -> dict[str, Any]:
        """Return how the conversation stands: its finished runs, and the newest run as ``sf.describe`` shows it."""
        memory = self._memory
        head = await memory.head()
        begun = await memory.begun(memory.name(head, head.runs + 1)) is not None
        number = head.runs + begun
        run = await memory.client.describe(memory.name(head, number)) if number else None
        return {"conversation": self._named, "finished_runs": head.runs, "status": run and run["status"], "run": run}

    async def rewind(self, step: str, *, include_once: bool = False) -> int:
        """Set a step of the unfinished run and all after it aside, so that they are done again: see ``sf.rewind``."""
        head = await self._memory.head()
        name = name_of(self._named, head.runs + 1)
        return await self._memory.client.rewind(name, step, include_once=include_once)

    async def save_state(self) -> Mapping[str, Any]:
        """Return AgentChat's own state of the team after the last finished run; nothing of it is needed to go on."""
        head = await self._memory.head()
        if head.state is None:
            state: Mapping[str, Any] = await self._runs.example().save_state()
            return state
        return cast("Mapping[str, Any]", head.state["state"])

    async def load_state(self, state: Mapping[str, Any]) -> None:
        """Let the next run begin in a state of AgentChat's own ``save_state``; see `reset`."""
        await self._begin_from({"state": dict(state), "extra": {}})

    async def reset(self) -> None:
        """Let the next run begin with a team that knows nothing of the runs before, which stay in the history.

        In a program that is started again, and comes by runs that are finished, this has been done already.
        """
        await self._begin_from(None)

    async def _begin_from(self, state: Any) -> None:
        memory = self._memory
        head = await memory.head()
        if self._append or self._position == head.runs:
            await memory.set_state(head, state)
            self._runs.forget()

    # --- workers -----------------------------------------------------------------------------------

    def worker(self, client: AsyncStepfast, address: str, **options: Any) -> AsyncWorker:
        """Serve an address with this team, which must be a function then; see `team_worker`."""
        return serving(client, address, self._runs, **options)

    @property
    def _named(self) -> str:
        if self._run_id is None:
            raise InvalidInput("run_id: a conversation needs a name, by which it is found again; pass run_id=….")
        return self._run_id

    @property
    def _memory(self) -> Memory:
        return Memory(self._store.get(), self._named)


def _soon(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    """Call a function on the loop, from whatever thread this is."""
    loop.call_soon_threadsafe(function)


make_durable = durable  # `team_worker` has an argument of that name


def team_worker(
    client: AsyncStepfast,
    address: str,
    team: Callable[[], Thing],
    *,
    durable: Mapping[str, Any] | None = None,
    **options: Any,
) -> AsyncWorker:
    """Return a worker that carries out each intent of an address with a team; the run is the intent's own.

    ``team`` is a function that makes the team or agent: each delivery gets a new one. The payload is the task, or
    ``{"task": …}``, with ``"conversation"`` the name of one that the run belongs to. ``durable`` holds options of
    `durable`, ``options`` are those of ``sf.worker``. Where a person is asked, the intent is WAITING and the worker is
    free; any worker goes on after the answer.
    """
    given: Any = team
    if isinstance(given, BaseGroupChat | BaseChatAgent) or not callable(given):
        raise InvalidInput("team: must be a function that makes the team, such as lambda: RoundRobinGroupChat(…).")
    try:
        made = make_durable(team, **(durable or {}))
    except TypeError as error:
        raise InvalidInput(f"durable: must hold options of durable: {error}.") from None
    return made.worker(client, address, **options)
