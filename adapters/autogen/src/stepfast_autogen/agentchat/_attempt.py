"""One pass of AgentChat over a durable run: who makes calls in it, and how it stops without hanging."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, TypeVar

from autogen_agentchat.messages import MessageFactory

from stepfast import AsyncRun, AsyncScope
from stepfast.adapters import Attempt, Conversation, Occurrences, Ordinals, Settings, Stopped

from ._requests import describe

T = TypeVar("T")


class Halt(Exception):
    """Ends AgentChat's loop at a boundary. The attempt has the reason, and callers of a durable team see that one."""


class Abandoned(asyncio.CancelledError):
    """The caller left the stream, or cancelled it: the run is handed back and goes on when it is started again."""


class TeamAttempt(Attempt):
    """One pass over a run.

    AgentChat hangs where a tool boundary raises, and where a tool is cancelled from outside. So tool boundaries return
    a placeholder once the pass has stopped, and the other boundaries raise `Halt`, an ordinary exception, which ends
    the team. The calls that are under way are kept here, to be waited for or cancelled one by one.
    """

    def __init__(self, run: AsyncRun, settings: Settings) -> None:
        super().__init__(run, settings)
        self.keeper = None
        self.errors: list[Exception] = []  # what models and tools raised; AgentChat keeps only the texts
        self._calls: set[asyncio.Future[Any]] = set()

    @property
    def stopping(self) -> bool:
        return self.stopped_by is not None or self.in_doubt is not None

    async def calling(self, call: Coroutine[Any, Any, T]) -> T:
        """Await a call as a task of its own, which `abandon` can cancel without cancelling AgentChat's task."""
        task = asyncio.ensure_future(call)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        return await task

    def abandon(self) -> None:
        """Stop the pass at once: cancel the calls that are under way, and refuse further ones."""
        self.stop(Abandoned("the caller has left the run"))
        for task in list(self._calls):
            task.cancel()

    async def landed(self) -> None:
        """Wait until no call is under way: its outcome can only be recorded while the run is open."""
        while self._calls:
            await asyncio.wait(list(self._calls))

    def original(self, error: BaseException) -> BaseException:
        """Return what a model or tool raised, for the RuntimeError that AgentChat makes of it."""
        if isinstance(error, RuntimeError):
            text = str(error)
            for each in reversed(self.errors):
                if each is not error and f"{type(each).__name__}: {each}" in text:
                    return each
        return error


class Actor:
    """An agent, or the manager of a team: the calls that one of them makes come in the same order on every pass."""

    def __init__(self, stage: Stage, path: tuple[str, ...], name: str) -> None:
        self.stage = stage
        self.path = path
        self.name = name
        self._attempt: TeamAttempt | None = None

    def begin(self, attempt: TeamAttempt) -> None:
        """Count from the first call again."""
        scope: AsyncScope = attempt.run
        for part in self.path:
            scope = scope.scope(part, shared=True)
        self._attempt = attempt
        self.scope = scope
        self.talk = Conversation(describe)
        self.ordinals = Ordinals()
        self.occurrences = Occurrences()

    @property
    def attempt(self) -> TeamAttempt | None:
        """The pass that is under way; None outside of one, where calls are made as if nothing were durable."""
        return self._attempt if self.stage.attempt is self._attempt else None


class Stage:
    """The actors of one team object, its nested teams included, and what they share."""

    def __init__(self, factory: MessageFactory, own_input: bool) -> None:
        self.factory = factory
        self.own_input = own_input  # functions that the user gave for input are called
        self.attempt: TeamAttempt | None = None
        self.actors: list[Actor] = []
        self.tools: list[tuple[str, Any, Any]] = []  # name, what says its policy, what its kind says

    def actor(self, path: tuple[str, ...], name: str) -> Actor:
        made = Actor(self, path, name)
        self.actors.append(made)
        return made

    @contextlib.asynccontextmanager
    async def playing(self, attempt: TeamAttempt) -> AsyncIterator[None]:
        """Let the team's calls go through the journal of a run for the length of the block."""
        for actor in self.actors:
            actor.begin(attempt)
        self.attempt = attempt
        try:
            yield
        finally:
            await attempt.landed()
            self.attempt = None


@contextlib.contextmanager
def halting() -> Iterator[None]:
    """Turn the kit's signal, which AgentChat does not expect, into an exception that ends the team."""
    try:
        yield
    except Stopped:
        raise Halt("the durable run has stopped here") from None


class _NoHalts(logging.Filter):
    """Keeps reports of `Halt` out of the log: it is how a run stops, and no error.

    After any error AgentChat also reports that each other agent did not know what to do with the news of it.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        while error is not None:
            if isinstance(error, Halt) or (isinstance(error, ValueError) and "GroupChatError" in str(error)):
                return False
            error = error.__cause__ or error.__context__
        return True


def quieten() -> None:
    """Install the filter, once."""
    logger = logging.getLogger("autogen_core")
    if not any(isinstance(each, _NoHalts) for each in logger.filters):
        logger.addFilter(_NoHalts())
