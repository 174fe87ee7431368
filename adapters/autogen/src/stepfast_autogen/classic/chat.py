"""DurableChat: AutoGen's chats, with runs that have a name and outlive their process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from typing import Any, NamedTuple

from autogen import ConversableAgent, GroupChatManager

from stepfast import AsyncRun, InvalidInput, NotFound, Run, Suspended, current_run
from stepfast.adapters import (
    LazyStore,
    OnDrift,
    OnInDoubt,
    OnWait,
    PolicyLike,
    Prices,
    RunName,
    Settings,
    StoreLike,
    StoreOwner,
    naming,
    run_name,
)
from stepfast.faces import awaited

from ._code import NAME as CODE
from ._place import ChatAttempt, Place, standing
from ._record import check, histories_of, known_agents, record_of, restore
from ._seams import install_seams
from ._tools import policy_holder

_FRAMEWORK = "autogen"
_BEGIN = "autogen.begin"
_OWN = ("run_id", "store")


class Options(NamedTuple):
    """What `durable` was called with."""

    run_id: RunName = None
    store: StoreLike = None
    on_in_doubt: OnInDoubt = "ask"
    policies: Mapping[str, PolicyLike] | None = None
    on_drift: OnDrift = "warn"
    on_wait: OnWait = "suspend"
    labels: Mapping[str, str] | None = None
    prices: Prices | None = None
    max_delivery_attempts: int | None = None
    wait: float | None = None


class _Opened:
    """An open run: what it was begun with, and what it returns in the end."""

    def __init__(self, place: Place, inputs: Any) -> None:
        self.place = place
        self.inputs = inputs
        self.result: Any = None


class DurableChat(StoreOwner):
    """Chats that outlive their process. Made by `durable`.

    The methods are those of the agent that begins the chat. The same call starts a run, goes on with it, or returns its
    finished result. ``run_id`` names the run where `durable` got no name; ``run`` is one that is open already, such as
    a worker's.
    """

    def __init__(self, agents: Any, options: Options) -> None:
        self.agents = _checked(agents)
        install_seams()
        self._run_id = naming(options.run_id)
        self._settings = Settings(**{name: each for name, each in options._asdict().items() if name not in _OWN})
        self._store = LazyStore(options.store)
        self.last: dict[str, Any] = {}  # what is seen from outside of the run that ended last

    def rewind(self, step: str, run_id: str | None = None, *, include_once: bool = False) -> int:
        """``sf.rewind`` in this store: set a step and all after it aside, so that they are done again."""
        return self._store.get().client().rewind(run_name(run_id, self._run_id), step, include_once=include_once)

    # --- AutoGen's methods ----------------------------------------------------------------------------

    def initiate_chat(
        self, recipient: Any = None, *, run_id: str | None = None, run: Run | None = None, **options: Any
    ) -> Any:
        """``initiate_chat``; returns a ChatResult.

        Without a recipient, that is the second of the agents that `durable` got. Without a message, a run that was
        begun with one goes on with that.
        """
        sender, other = self._parties(recipient)
        call = _Call("initiate_chat", [sender, other], options.get("message"), options.get("clear_history", True))
        return self._drive(call, run_id, run, lambda said: sender.initiate_chat(other, **options | {"message": said}))

    async def a_initiate_chat(
        self, recipient: Any = None, *, run_id: str | None = None, run: Run | AsyncRun | None = None, **options: Any
    ) -> Any:
        """``a_initiate_chat``; as `initiate_chat`."""
        sender, other = self._parties(recipient)
        call = _Call("initiate_chat", [sender, other], options.get("message"), options.get("clear_history", True))
        return await self._adrive(
            call, run_id, run, lambda said: sender.a_initiate_chat(other, **options | {"message": said})
        )

    def initiate_chats(
        self, chat_queue: list[dict[str, Any]], *, run_id: str | None = None, run: Run | None = None
    ) -> Any:
        """``initiate_chats``: several chats in one run; returns their ChatResults."""
        queue, call = self._queue(chat_queue)
        return self._drive(call, run_id, run, lambda said: self.agents[0].initiate_chats(queue))

    async def a_initiate_chats(
        self, chat_queue: list[dict[str, Any]], *, run_id: str | None = None, run: Run | AsyncRun | None = None
    ) -> Any:
        """``a_initiate_chats``: several chats in one run, side by side as far as they do not need each other."""
        queue, call = self._queue(chat_queue)
        return await self._adrive(call, run_id, run, lambda said: self.agents[0].a_initiate_chats(queue))

    def generate_reply(
        self,
        messages: list[dict[str, Any]] | None = None,
        sender: Any = None,
        *,
        run_id: str | None = None,
        run: Run | None = None,
        **options: Any,
    ) -> Any:
        """``generate_reply``: one answer of the agent, with the tools it calls by itself."""
        agent = self.agents[0]
        call = _Call("generate_reply", [agent], messages)
        return self._drive(call, run_id, run, lambda said: agent.generate_reply(said, sender, **options))

    async def a_generate_reply(
        self,
        messages: list[dict[str, Any]] | None = None,
        sender: Any = None,
        *,
        run_id: str | None = None,
        run: Run | AsyncRun | None = None,
        **options: Any,
    ) -> Any:
        """``a_generate_reply``; as `generate_reply`."""
        agent = self.agents[0]
        call = _Call("generate_reply", [agent], messages)
        return await self._adrive(call, run_id, run, lambda said: agent.a_generate_reply(said, sender, **options))

    def _parties(self, recipient: Any) -> tuple[Any, Any]:
        first = self.agents[0]
        if recipient is None and len(self.agents) > 1:
            return first, self.agents[1]
        if recipient is None and isinstance(first, GroupChatManager):
            return first.groupchat.agents[0], first
        if recipient is None:
            raise InvalidInput("recipient: must be an agent, or durable must get two: durable([sender, recipient], …).")
        return first, recipient

    def _queue(self, given: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], _Call]:
        queue = [dict(chat) for chat in given]  # AutoGen changes them
        parties = [self.agents[0], *(chat["recipient"] for chat in queue if "recipient" in chat)]
        return queue, _Call("initiate_chats", parties, [_text(chat.get("message")) for chat in queue])

    # --- opening --------------------------------------------------------------------------------------

    def _drive(self, call: _Call, run_id: str | None, run: Run | None, go: Callable[[Any], Any]) -> Any:
        try:
            with self._opening(call, run_id, run) as opened:
                opened.result = go(opened.inputs)
            return opened.result
        except Suspended as waits:
            if self._settings.on_wait == "return":
                with suppress(NotFound):
                    return self._store.get().client().waiting(waits)
            raise

    async def _adrive(self, call: _Call, run_id: str | None, run: Any, go: Callable[[Any], Awaitable[Any]]) -> Any:
        try:
            async with self._aopening(call, run_id, run) as opened:
                opened.result = await go(opened.inputs)
            return opened.result
        except Suspended as waits:
            if self._settings.on_wait == "return":
                with suppress(NotFound):
                    return await self._store.get().aclient().waiting(waits)
            raise

    @contextmanager
    def _opening(self, call: _Call, run_id: str | None, run: Run | None) -> Iterator[_Opened]:
        """Open the run, stand in it, and complete it with the result that is set in the block."""
        given = run or (None if run_id or self._run_id else current_run())
        if given is not None and not isinstance(given, Run):
            raise InvalidInput("run: this is a run for an event loop; call a_initiate_chat.")
        opening: Any = nullcontext(given)
        if given is None:
            opening = self._store.get().client().run(run_name(run_id, self._run_id, call.inputs), **self._named(call))
        with opening as opened:
            recorded = opened.record(call.record(), key=_BEGIN)
            found = self._begun(call, recorded, ChatAttempt(opened, self._settings), opened)
            attempt = found.place.attempt
            with attempt.concluding():
                try:
                    with standing.standing(found.place):
                        yield found
                except BaseException as error:
                    attempt.stop_others(error)
                    raise
                finally:
                    attempt.settled()
            usage = opened.drive(attempt.meter.complete(opened))
            self.last = {**summary(found.result), "usage": usage.as_dict()}
            if given is None and not opened.replaying:
                opened.complete(self.last)

    @asynccontextmanager
    async def _aopening(self, call: _Call, run_id: str | None, run: Any) -> AsyncIterator[_Opened]:
        """`_opening` for an event loop."""
        given = run or (None if run_id or self._run_id else current_run())
        opening: Any = nullcontext(given)
        if given is None:
            opening = self._store.get().aclient().run(run_name(run_id, self._run_id, call.inputs), **self._named(call))
        async with opening as opened:
            recorded = await awaited(opened).record(call.record(), key=_BEGIN)
            found = self._begun(call, recorded, ChatAttempt(opened, self._settings), opened)
            attempt = found.place.attempt
            with attempt.concluding():
                try:
                    with standing.standing(found.place):
                        yield found
                except BaseException as error:
                    attempt.stop_others(error)
                    raise
                finally:
                    await asyncio.shield(asyncio.to_thread(attempt.settled))
            usage = await awaited(opened).drive(attempt.meter.complete(opened))
            self.last = {**summary(found.result), "usage": usage.as_dict()}
            if given is None and not opened.replaying:
                opened.complete(self.last)

    def _named(self, call: _Call) -> dict[str, Any]:
        # Without the message: that is compared where `on_drift` has its say.
        parties = [agent.name for agent in call.agents]
        return {"payload": {"agents": parties}, **self._settings.run_options(_FRAMEWORK, agent=parties[0])}

    def _begun(self, call: _Call, recorded: dict[str, Any], attempt: ChatAttempt, run: Any) -> _Opened:
        check(recorded, call.record(), self._settings.on_drift, run.run_id)
        agents = known_agents([*self.agents, *call.agents])
        if recorded["histories"] is not None:
            restore(recorded["histories"], agents)
        tools = [
            (name, policy_holder(tool), None)
            for agent in agents.values()
            for name, tool in getattr(agent, "_function_map", {}).items()
        ]
        code = any(getattr(agent, "_code_execution_config", False) for agent in agents.values())
        self._settings.policies.announce([*tools, *([(CODE, None, None)] if code else [])])
        said = call.inputs if callable(call.inputs) else recorded["inputs"]
        return _Opened(Place(attempt, run), said)


class _Call:
    """A call of one of AutoGen's methods: its agents, and the messages it begins with."""

    def __init__(self, name: str, agents: list[Any], inputs: Any, clear_history: bool = True) -> None:
        self.name = name
        self.agents = agents
        self.inputs = inputs
        self.clear_history = clear_history
        self._record: dict[str, Any] | None = None

    def record(self) -> dict[str, Any]:
        if self._record is None:
            histories = None if self.clear_history else histories_of(known_agents(self.agents))
            parties = [agent.name for agent in self.agents]
            self._record = record_of(self.name, parties, _text(self.inputs), histories)
        return self._record


def _text(message: Any) -> Any:
    """Return a message as it is recorded; a function that makes one is a step by itself."""
    return f"function {getattr(message, '__name__', '')}" if callable(message) else message


def _checked(agents: Any) -> list[Any]:
    found = list(agents) if isinstance(agents, Sequence) and not isinstance(agents, str) else [agents]
    wrong = next((each for each in found if not isinstance(each, ConversableAgent)), None)
    if not found or wrong is not None:
        kind = "an empty list" if not found else f"a {type(wrong).__name__}"
        raise InvalidInput(f"agents: must be a ConversableAgent or a list of them, not {kind}.")
    return found


def summary(result: Any) -> dict[str, Any]:
    """What is seen of a finished run from outside."""
    if isinstance(result, dict) and result and all(hasattr(each, "chat_history") for each in result.values()):
        result = [result[number] for number in sorted(result)]
    if isinstance(result, list):
        return {"chats": [summary(each) for each in result]}
    if hasattr(result, "chat_history"):
        return {"summary": _plain_text(result.summary), "messages": len(result.chat_history or ())}
    return {"summary": _plain_text(result)}


def _plain_text(value: Any) -> Any:
    return value if value is None or isinstance(value, str | dict) else str(value)
