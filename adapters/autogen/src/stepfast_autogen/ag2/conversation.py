"""A conversation: its turns, each a run of its own, and the state that one hands to the next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Self, cast

from ag2 import AgentReply, MemoryStream
from ag2.context import ConversationContext
from ag2.types import omit
from ag2.utils import AGENT_CONTEXT_DEPENDENCY_KEY

from stepfast import AsyncRun
from stepfast.codec import Codec

from ._events import pack, storable, unpack

if TYPE_CHECKING:
    from .agent import DurableAgent


class Talk:
    """The state of a conversation between its turns. The run of turn *n* is called after the first, with ``#n``."""

    def __init__(self, name: str, stream: Any = None) -> None:
        self.name = name
        self.given = stream is not None  # a stream of the caller's may have a history already
        self.stream = MemoryStream() if stream is None else stream
        self.lock = asyncio.Lock()
        self.turns = 0
        self.events: list[Any] = []
        self.pending: list[Any] = []
        self.options: dict[str, Any] = {}  # what later turns have of earlier ones: variables, prompt, config, …

    def name_of(self, turn: int) -> str:
        return self.name if turn == 1 else f"{self.name}#{turn}"

    async def begin(self, run: AsyncRun) -> None:
        """Note where the next turn begins; of a stream of the caller's, its history is recorded with the run."""
        self.pending = list(self.stream.pending_messages)
        known = run.recorded("start") is not None
        if self.turns == 0 and (known or (self.given and run.recorded("end") is None)):
            self.events = unpack(await run.drive(run.performing(self._history, key="start", kind="state", inputs="")))

    async def rewound(self) -> None:
        """Set the stream back to where the open turn began; a pass before this one may have added to it."""
        await self.stream.history.replace(list(self.events))
        self.stream.pending_messages[:] = list(self.pending)

    async def _history(self) -> list[Any]:
        return pack(await self.stream.history.get_events())

    async def end(self, codec: Codec, reply: Any) -> dict[str, Any]:
        """Return the state at the end of a turn as data: of the events only those that are new."""
        events = list(await self.stream.history.get_events())
        same = 0
        for ours, theirs in zip(events, self.events, strict=False):
            if ours is not theirs:
                break
            same += 1
        return {
            "kept": same,
            "events": pack(events[same:]),
            "pending": pack(self.stream.pending_messages),
            "response": pack([reply.response]),
            "variables": storable(codec, reply.context.variables),
            "prompt": [str(each) for each in reply.context.prompt],
        }

    async def ended(self, end: dict[str, Any], options: dict[str, Any], live: Any) -> Any:
        """Take over the state at the end of a turn, and return its response; ``live``: this pass's reply, if any."""
        if live is None:
            self.events = [*self.events[: end["kept"]], *unpack(end["events"])]
            self.pending = unpack(end["pending"])
            # A stream of the caller's may have it already, and later turns too.
            if not self.given or len(list(await self.stream.history.get_events())) < len(self.events):
                await self.stream.history.replace(list(self.events))
            self.stream.pending_messages[:] = list(self.pending)
            response, variables = unpack(end["response"])[0], {**(options.get("variables") or {}), **end["variables"]}
            dependencies = options.get("dependencies") or {}
        else:
            self.events = list(await self.stream.history.get_events())
            self.pending = list(self.stream.pending_messages)
            response, variables, dependencies = live.response, live.context.variables, live.context.dependencies
        self.turns += 1
        config = options.get("config") or self.options.get("config")
        self.options = {
            "variables": dict(variables),
            "prompt": list(end["prompt"]),
            "dependencies": dict(dependencies),
            "config": config,
        }
        return response

    def carried(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options of the next turn: as AG2 does it, a reply goes on with its context and its client."""
        before = self.options
        return {
            **options,
            "variables": {**before["variables"], **(options.get("variables") or {})},
            "dependencies": {**before["dependencies"], **(options.get("dependencies") or {})},
            "prompt": list(options.get("prompt") or ()) or before["prompt"],
            "config": options.get("config") or before["config"],
        }


class DurableReply(AgentReply[Any, Any]):
    """A reply of a durable agent. Its ``ask`` is the conversation's next turn, which is a run of its own."""

    def __init__(self, owner: DurableAgent, talk: Talk, response: Any, schema: Any) -> None:
        agent = owner.agent
        context = ConversationContext(
            talk.stream,
            dependency_provider=agent.dependency_provider,
            variables=talk.options["variables"],
            dependencies={
                **agent.dependencies,
                **talk.options["dependencies"],
                AGENT_CONTEXT_DEPENDENCY_KEY: agent,
            },
            prompt=talk.options["prompt"],
        )
        super().__init__(
            response,
            context=context,
            client=cast(Any, None),  # `ask` and `run`, which use it, are ours
            agent=agent,
            provider=agent.dependency_provider,
            response_schema=agent.response_schema if schema is omit else schema,
        )
        self._owner = owner
        self._talk = talk
        self.turn = talk.turns

    @property
    def run_id(self) -> str:
        """The name of the run that this turn was."""
        return self._talk.name_of(self.turn)

    async def ask(self, *msg: Any, **options: Any) -> Any:
        """Start the conversation's next turn, go on with it, or return its finished reply; options are AG2's."""
        return await self._owner._next(self._talk, msg, options)

    def run(self, *msg: Any, **options: Any) -> Any:
        """`ask`, to be watched while it goes on."""
        return DurableRun(self._talk.stream, lambda: self.ask(*msg, **options))


class DurableRun:
    """A turn that can be watched, with the methods of ``ag2.AgentRun``: subscribe to ``stream``, then ``result()``."""

    def __init__(self, stream: Any, ask: Callable[[], Awaitable[Any]]) -> None:
        self.stream = stream
        self._ask = ask
        self._task: asyncio.Future[Any] | None = None

    def enqueue(self, *content: Any) -> None:
        """Append a message to the turn's inbox; the next model call sees it."""
        self.stream.enqueue(*content)

    def start(self) -> None:
        """Let the turn go on beside the caller."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._ask())

    async def result(self) -> Any:
        """Return the turn's reply, or raise what ended it."""
        self.start()
        task = cast("asyncio.Future[Any]", self._task)
        try:
            return await task
        except asyncio.CancelledError:
            task.cancel()
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            if not self._task.cancelled():
                self._task.exception()  # seen, if not by `result`
