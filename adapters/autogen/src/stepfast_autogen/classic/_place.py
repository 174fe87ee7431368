"""Where in a durable run AutoGen's code stands, and the state of one pass over the run."""

from __future__ import annotations

from typing import Any

from stepfast import AsyncRun, Run, Scope
from stepfast.adapters import Attempt, Conversation, Occurrences, Settings, Standing
from stepfast.faces import awaited, blocking
from stepfast.flow import Flow


class ChatAttempt(Attempt):
    """One pass of AutoGen over a run. It lets BaseExceptions pass everywhere, so a run stops at once."""

    def __init__(self, run: Run | AsyncRun, settings: Settings) -> None:
        super().__init__(run, settings, tools_may_raise=True)
        self.entered: set[str] = set()  # scopes in which earlier attempts have recorded something
        for step in run.journal():
            path = step.scope
            while path and path not in self.entered:
                self.entered.add(path)
                path = path.rpartition("/")[0]

    def stop_others(self, error: BaseException) -> None:
        """Stop chats that go on beside one that has ended with an error; where the run has stopped, that counts."""
        if self.stopped_by is None and self.in_doubt is None:
            self.stop(error)


class Place:
    """A scope of the run: the run itself, a chat, or a function that runs agents.

    Chats may go on side by side, and a model may ask for several tools at once. A call is known by the chat it is
    made in, by who makes it, and by how many such calls came before it there.
    """

    def __init__(self, attempt: ChatAttempt, scope: Any) -> None:
        self.attempt = attempt
        self.scope: Scope = blocking(scope)
        self.occurrences = Occurrences()
        self.talks: dict[str, Conversation] = {}
        self.heard: dict[str, dict[str, Any]] = {}  # the message that an agent answers now, for those who are asked
        self.entering: Any = None  # the call for which a tool was entered

    def inner(self, name: str) -> Place:
        """Return a place inside this one; the name must be the same on every pass."""
        return Place(self.attempt, self.scope.scope(name, shared=True))

    @property
    def known(self) -> bool:
        """Whether earlier attempts have recorded something here."""
        return self.scope.path in self.attempt.entered

    def talk(self, agent: str) -> Conversation:
        """Return the state between the model calls of an agent in this place."""
        return self.talks.setdefault(agent, Conversation())

    def drive(self, flow: Flow[Any]) -> Any:
        with self.attempt.flying():
            return self.scope.drive(flow)

    async def adrive(self, flow: Flow[Any]) -> Any:
        with self.attempt.flying():
            return await awaited(self.scope).drive(flow)


standing: Standing[Place] = Standing("stepfast_autogen.classic")
here = standing.here
