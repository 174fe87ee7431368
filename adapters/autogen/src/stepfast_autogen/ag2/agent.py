"""``durable``: the conversations of one agent, with the words that every adapter shares."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ag2 import Agent, ResponseSchema
from ag2.types import omit

from stepfast import AsyncRun, AsyncStepfast, AsyncWorker, InvalidInput, NotFound, Suspended
from stepfast.adapters import (
    LazyStore,
    Meter,
    OnDrift,
    OnInDoubt,
    OnWait,
    PolicyLike,
    Prices,
    RunName,
    Settings,
    Stopped,
    StoreLike,
    StoreOwner,
    adrive,
    input_from,
    naming,
    run_name,
    serve,
)

from ._events import pack, pack_input, timeless, unpack, unpack_input
from ._place import Here, TurnAttempt, place
from ._tools import fallback_of, marked
from ._turns import install
from .conversation import DurableReply, DurableRun, Talk

_OPTIONS = frozenset(inspect.signature(Agent.ask).parameters) - {"self", "msg", "stream"}

Play = Callable[[], Any]


def durable(
    agent: Agent[Any],
    run_id: RunName = None,
    store: StoreLike = None,
    *,
    on_in_doubt: OnInDoubt = "ask",
    policies: Mapping[str, PolicyLike] | None = None,
    on_drift: OnDrift = "warn",
    on_wait: OnWait = "suspend",
    labels: Mapping[str, str] | None = None,
    prices: Prices | None = None,
    max_delivery_attempts: int | None = None,
    wait: float | None = None,
) -> DurableAgent:
    """Make the conversations of an AG2 agent durable: asked again by the same name, one goes on where it stopped.

    ``run_id`` is the name where a call gets none, or a function of what is asked. The options are described in
    ``docs/adapters.md``; ``on_drift`` is *warn* here, because prompts of this family hold text that changes by itself.
    """
    if not isinstance(agent, Agent):
        raise InvalidInput(f"agent: must be an ag2.Agent, not {type(agent).__name__}.")
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
    install()
    return DurableAgent(agent, naming(run_id), LazyStore(store), settings)


class DurableAgent(StoreOwner):
    """An agent whose conversations outlive their process. Made by `durable`; options of its methods are AG2's."""

    def __init__(self, agent: Agent[Any], run_id: RunName, store: LazyStore, settings: Settings) -> None:
        self.agent = agent
        self._run_id = run_id
        self._store = store
        self._settings = settings

    async def ask(self, *msg: Any, run_id: str | None = None, stream: Any = None, **options: Any) -> Any:
        """Start a conversation, go on with its first turn, or return that turn's finished reply."""
        return await self._next(Talk(run_name(run_id, self._run_id, msg), stream), msg, options)

    def run(self, *msg: Any, run_id: str | None = None, stream: Any = None, **options: Any) -> DurableRun:
        """`ask`, to be watched while it goes on."""
        talk = Talk(run_name(run_id, self._run_id, msg), stream)
        return DurableRun(talk.stream, lambda: self._next(talk, msg, options))

    async def resume(self, *events: Any, run_id: str | None = None, stream: Any = None, **options: Any) -> Any:
        """Go on with the turn of a conversation that is not finished; with events, as ``Agent.resume`` does.

        Without events it needs no input, and returns the last reply if all turns are finished.
        """
        name = run_name(run_id, self._run_id, events)
        if events:
            return await self._next(Talk(name, stream), events, options, resumes=True)
        talk, reply, payload = await self._walk(name, stream, options)
        if payload is None:
            if reply is None:
                raise NotFound(f"run_id: there is no conversation {name!r} to resume.")
            return reply
        if "events" in payload:
            return await self._next(talk, unpack(payload["events"]), options, resumes=True)
        return await self._next(talk, unpack_input(payload["input"]), options)

    async def reply(self, run_id: str | None = None, **options: Any) -> DurableReply | None:
        """Return the reply of a conversation's last finished turn, to go on from in any process; None if there is none.

        ``options`` are those that AG2 carries from one turn to the next: ``config`` and ``dependencies``.
        """
        _, reply, _ = await self._walk(run_name(run_id, self._run_id), None, options)
        return reply

    async def rewind(self, step: str, run_id: str | None = None, *, include_once: bool = False) -> int:
        """``sf.rewind``: set a step of a run and all after it aside, so that they are done again when it goes on."""
        return await self._client().rewind(run_name(run_id, self._run_id), step, include_once=include_once)

    def worker(self, client: AsyncStepfast, address: str, **options: Any) -> AsyncWorker:
        """Serve an address with this agent: each intent is a turn; ``options`` are those of ``sf.worker``."""

        async def handle(run: AsyncRun, given: Any) -> Any:
            talk = Talk(run.run_id)
            await self._drive(run, talk, self._asking(talk, unpack_input(given), {}), {})
            return run.result

        def unpacked(payload: Any) -> Any:
            return input_from(payload, (str, list), "a text or a list of parts")

        return serve(client, address, handle, unpack=unpacked, **options)

    def _client(self) -> AsyncStepfast:
        return self._store.get().aclient()

    # --- turns -----------------------------------------------------------------------------------

    async def _next(self, talk: Talk, given: Any, options: dict[str, Any], *, resumes: bool = False) -> Any:
        """Take the next turn of a conversation, from its opening to its end, or to where it waits."""
        unknown = options.keys() - _OPTIONS
        if unknown:
            raise TypeError(f"ask() got an unexpected keyword argument {sorted(unknown)[0]!r}")
        self._announce(options)
        async with talk.lock:
            name = talk.name_of(talk.turns + 1)
            chosen = talk.carried(options) if talk.turns else options
            what = {"events": timeless(pack(given))} if resumes else {"input": pack_input(given)}
            play = self._resuming(talk, given, chosen) if resumes else self._asking(talk, given, chosen)
            try:
                async with self._opened(name, talk, {"agent": self.agent.name, **what}) as run:
                    return await self._drive(run, talk, play, chosen)
            except Suspended as waits:
                if self._settings.returns(waits, name):
                    return await self._client().waiting(waits)
                raise

    def _opened(self, name: str, talk: Talk, payload: Any) -> Any:
        settings = self._settings.run_options("ag2", agent=self.agent.name, conversation=talk.name)
        return self._client().run(name, payload=payload, **settings)

    def _asking(self, talk: Talk, given: Any, options: dict[str, Any]) -> Play:
        return lambda: self.agent.ask(*given, stream=talk.stream, **options)

    def _resuming(self, talk: Talk, events: Any, options: dict[str, Any]) -> Play:
        return lambda: self.agent.resume(*events, stream=talk.stream, **options)

    async def _drive(self, run: AsyncRun, talk: Talk, play: Play, options: dict[str, Any]) -> DurableReply:
        reply = None

        async def one_pass(attempt: TurnAttempt) -> Any:
            await talk.rewound()
            with place.standing(Here(attempt, run)):
                try:
                    made = await play()
                except BaseException as error:
                    if not isinstance(error, Stopped):
                        attempt.stop(error)
                    raise
                finally:
                    await _settled(talk.stream)
            if attempt.outermost is not None:
                attempt.outermost.settle_inbox(talk.stream)
            return made

        await talk.begin(run)
        if run.recorded("end") is None:
            reply = await adrive(run, one_pass, make=lambda run: TurnAttempt(run, self._settings))
        end = await run.drive(
            run.performing(lambda: talk.end(run.codec, reply), key="end", kind="state", inputs="", on_drift="accept")
        )
        response = await talk.ended(end, options, reply)
        if not run.replaying:
            usage = await run.drive(Meter(self._settings.prices).complete(run))
            run.complete(
                {"reply": response.content, "agent": self.agent.name, "turn": talk.turns, "usage": usage.as_dict()}
            )
        schema = options.get("response_schema", omit)
        return DurableReply(self, talk, response, schema if schema is omit else ResponseSchema.ensure_schema(schema))

    async def _walk(
        self, name: str, stream: Any, options: dict[str, Any]
    ) -> tuple[Talk, DurableReply | None, dict[str, Any] | None]:
        """Go through the finished turns: return the state, the last reply, and the payload of an unfinished turn."""
        client, talk, reply = self._client(), Talk(name, stream), None
        while True:
            turn = talk.name_of(talk.turns + 1)
            try:
                intent = await client.get_intent(turn)
            except NotFound:
                return talk, reply, None
            if intent["status"] != "COMPLETED":
                return talk, reply, intent["payload"]
            async with client.run(turn) as run:
                reply = await self._drive(run, talk, _never, {**talk.options, **options})

    def _announce(self, options: dict[str, Any]) -> None:
        tools = [*self.agent.tools, *options.get("tools", ())]
        named = [tool for each in tools for tool in getattr(each, "tools", [each]) if hasattr(tool, "name")]
        self._settings.policies.announce((tool.name, marked(tool), fallback_of(tool)) for tool in named)


async def _settled(stream: Any) -> None:
    """Wait for tasks that a turn has started in the background: after its end nothing more is recorded.

    Where the run has stopped, they end at their next model or tool call.
    """
    while tasks := [task for task in getattr(stream, "_background_tasks", ()) if not task.done()]:
        await asyncio.wait(tasks)


def _never() -> Any:
    raise AssertionError("a finished turn is not played")
