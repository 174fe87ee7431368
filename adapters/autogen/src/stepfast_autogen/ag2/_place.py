"""Where AG2's own code stands while it drives a durable run: which run, which agent's turn, which tool call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from typing import Any, NamedTuple
from uuid import NAMESPACE_OID, UUID, uuid5

from ag2.events import HumanInputRequest, ModelRequest

from stepfast import AsyncScope
from stepfast.adapters import Attempt, Conversation, Standing

from ._events import describe, pack, unpack


class TurnAttempt(Attempt):
    """One pass of AG2 over a durable run, from its beginning."""

    def __init__(self, run: Any, settings: Any) -> None:
        super().__init__(run, settings)
        self.outermost: Loop | None = None
        self._counts: Counter[str] = Counter()

    @property
    def stopped(self) -> bool:
        return self.stopped_by is not None or self.in_doubt is not None

    def key(self, scope: AsyncScope, kind: str, name: str, fingerprint: str = "") -> str:
        """Return the key of a call in a scope: its name, and how often that has come there."""
        key = f"{kind}:{name}.{fingerprint}" if fingerprint else f"{kind}:{name}"
        path = f"{scope.path}/{key}"
        self._counts[path] += 1
        number = self._counts[path]
        return key if number == 1 else f"{key}.{number}"

    def enter_again(self, scope: AsyncScope) -> None:
        """Have the calls in a scope, and in those below it, begin with their first keys again."""
        for path in [each for each in self._counts if each.startswith(f"{scope.path}/")]:
            del self._counts[path]

    def uuid(self, scope: AsyncScope) -> UUID:
        """Return an id that is the same on every pass, where AG2 would make one at random."""
        return uuid5(NAMESPACE_OID, f"{self.run.intent_id}/{scope.path}/{self.key(scope, 'id', 'uuid')}")


class ToolCall:
    """One call of a tool that a model asked for, with the hooks around it."""

    def __init__(self, key: str, outer: ToolCall | None) -> None:
        self.key = key
        self.outer = outer
        self.cut = False  # the run stopped inside of it: what it returns, if it does, is no result
        self.started = False  # it is a step that has begun
        self.asked: Callable[[], Awaitable[Any]] | None = None  # waits for the answer to a question inside of it
        self.made = 0

    def next_key(self) -> str:
        """Return the key of the tool's next execution; a hook around it may repeat it."""
        self.made += 1
        return self.key if self.made == 1 else f"{self.key}~{self.made}"

    def outermost_started(self) -> ToolCall | None:
        """Return the first of this call and those around it that is a step."""
        around = None if self.outer is None else self.outer.outermost_started()
        return around or (self if self.started else None)

    def cut_short(self) -> None:
        """Mark this call, and those that it was made in."""
        call: ToolCall | None = self
        while call is not None:
            call.cut, call = True, call.outer


class Loop:
    """One turn of an agent: its model calls come one after the other."""

    def __init__(self, attempt: TurnAttempt, scope: AsyncScope, agent: str) -> None:
        self.attempt = attempt
        self.scope = scope
        self.agent = agent
        self.talk = Conversation(describe)
        self.context: Context = copy_context()  # outside of the steps that this turn makes
        self._drains = 0  # how often the inbox was emptied since the last model call
        self._came: dict[int, Any] = {}  # what came that way in this pass, by that number
        self._known: dict[str, Any] | None = None  # the same, as recorded
        self._owed: list[Any] = []  # recorded to have come, and not come again yet

    # Messages that were enqueued while the turn went on. Whether one came before a model call or after it is a matter
    # of moments, so what comes is recorded before the call that sees it. Most often nothing comes, and is not recorded.

    def drain(self, context: Any, original: Any) -> Any:
        """Return the messages that AG2 takes out of the inbox here: the recorded ones, or those that are there."""
        number, self._drains = self._drains, self._drains + 1
        if self._known is not None:
            parts = unpack(self._known.get(str(number), ()))
            self._owed += parts
            self.settle_inbox(context.stream)
            return ModelRequest(parts) if parts else None
        if self.scope.recorded(self.talk.key) is not None:
            return None
        self.settle_inbox(context.stream)
        merged = original(context)
        if merged is not None:
            self._came[number] = merged.parts
        return merged

    def settle_inbox(self, stream: Any) -> None:
        """Take messages out of an inbox that were delivered before: tools that are entered again send them again."""
        self._owed = _take_out(stream.pending_messages, self._owed)

    async def record_inbox(self) -> None:
        """Record what came in since the last model call."""
        if self._came:
            came = {str(number): pack(parts) for number, parts in self._came.items()}
            await self._inbox(came)

    async def next_inbox(self) -> None:
        """Get ready for the next model call: read what is recorded to have come before it."""
        self._drains, self._came, self._known = 0, {}, None
        if self.scope.recorded(self._inbox_key) is not None:
            self._known = await self._inbox({})

    @property
    def _inbox_key(self) -> str:
        return f"inbox:{self.talk.turn}"

    async def _inbox(self, came: dict[str, Any]) -> Any:
        with self.attempt.guarded():
            return await self.scope.drive(
                self.scope.performing(
                    lambda: came, key=self._inbox_key, name="inbox", kind="inbox", inputs="", on_drift="accept"
                )
            )


def _take_out(queue: list[Any], parts: list[Any]) -> list[Any]:
    """Take parts out of the messages of an inbox, and return those that are not there."""
    gone, left = list(parts), []
    for request in queue:
        kept = []
        for part in request.parts:
            if part in gone:
                gone.remove(part)
            else:
                kept.append(part)
        if kept:
            left.append(ModelRequest(kept))
    queue[:] = left
    return gone


class Here(NamedTuple):
    """``scope`` is the turn's, or a tool call's own. ``busy``: inside of the tool itself, not only of its hooks."""

    attempt: TurnAttempt
    scope: AsyncScope
    loop: Loop | None = None
    call: ToolCall | None = None
    busy: bool = False


place: Standing[Here] = Standing("stepfast_autogen.ag2")


class Recording:
    """A stream that notes the events which a model client or a tool sends, beside what the framework sends itself.

    ``hold``: what lasts is kept back, and sent on when it is recorded; pieces of a streamed answer pass at once.
    """

    def __init__(self, stream: Any, *, hold: bool) -> None:
        self.inner = stream
        self.hold = hold
        self.sent: list[Any] = []
        self.enqueued: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("inner", "hold", "sent", "enqueued"):
            object.__setattr__(self, name, value)
        else:
            setattr(self.inner, name, value)

    async def send(self, event: Any, context: Any) -> None:
        if getattr(type(event), "__transient__", False):
            await self.inner.send(event, context)
        elif self.hold:
            self.sent.append(event)
        else:
            if not isinstance(event, HumanInputRequest):  # asked anew where the tool is entered again
                self.sent.append(event)
            await self.inner.send(event, context)

    def enqueue(self, *content: Any) -> None:
        self.enqueued += ModelRequest.ensure_request(list(content)).parts if content else []
        self.inner.enqueue(*content)
