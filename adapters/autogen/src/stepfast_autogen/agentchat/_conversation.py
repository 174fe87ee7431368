"""A conversation: its runs, one after the other, and the state between them.

Run *n* of the conversation ``c`` is the run ``c`` for the first one, ``c#2`` for the second, and so on. Only the newest
state is kept, in a record of its own: it is replaced in the transaction that ends a run.
"""

from __future__ import annotations

import uuid
from typing import Any

from stepfast import AsyncRun, AsyncStepfast, Codec, NotFound
from stepfast.adapters import OpenStore, value_of
from stepfast.threads import GetRecord, PutRecord

from ._messages import pack_task

KIND = "autogen.conversation"
END = "end"


def name_of(conversation: str, number: int) -> str:
    """Return the name of a run of a conversation, counted from 1."""
    return conversation if number == 1 else f"{conversation}#{number}"


class Head:
    """The finished runs of a conversation, by their names, and the state after the last of them.

    Runs of a worker are named by their intents.
    """

    def __init__(self, version: int = 0, names: list[str] | None = None, state: Any = None) -> None:
        self.version = version
        self.names = names or []
        self.state = state

    @property
    def runs(self) -> int:
        return len(self.names)


class Memory:
    """The record of a conversation in a store."""

    def __init__(self, opened: OpenStore, conversation: str) -> None:
        self._opened = opened
        self._conversation = conversation

    @property
    def client(self) -> AsyncStepfast:
        return self._opened.aclient()

    @property
    def _codec(self) -> Codec:
        return self._opened.codec

    async def head(self) -> Head:
        """Read where the conversation is."""
        asked = GetRecord(kind=KIND, record_id=self._conversation)
        (found,) = await self._opened.astore.execute([asked], tenant=self._opened.tenant)
        if found is None:
            return Head()
        body = self._codec.decode(found.body, bind=self._bind)
        return Head(found.version, body["runs"], body["state"])

    async def set_state(self, head: Head, state: Any) -> None:
        """Replace the state after the last finished run."""
        await self._opened.astore.execute([self._writing(head, head.names, state)], tenant=self._opened.tenant)

    def following(self, head: Head, name: str, state: Any) -> PutRecord:
        """Return the operation that moves the conversation on by one run; a conflict if another one was quicker."""
        return self._writing(head, [*head.names, name], state)

    def _writing(self, head: Head, names: list[str], state: Any) -> PutRecord:
        body = self._codec.encode({"runs": names, "state": state}, bind=self._bind)
        return PutRecord(
            kind=KIND, record_id=self._conversation, body=body, write_id=uuid.uuid4().hex, expected=head.version
        )

    @property
    def _bind(self) -> bytes:
        return f"{KIND}|{self._opened.tenant}|{self._conversation}".encode()

    def name(self, head: Head, number: int) -> str:
        """Return the name of a run of the conversation, finished or not."""
        return head.names[number - 1] if number <= head.runs else name_of(self._conversation, number)

    async def begun(self, name: str) -> tuple[Any] | None:
        """Return the task that a run was begun with, as it is recorded; None if there is no such run."""
        try:
            payload = (await self.client.get_intent(name))["payload"]
        except NotFound:
            return None
        task = payload.get("task") if isinstance(payload, dict) else payload
        return (pack_task(task) if isinstance(task, str) else task,)

    async def end(self, name: str) -> dict[str, Any]:
        """Return what a finished run of the conversation ended with."""
        found: dict[str, Any] = await value_of(self.client, name, END)
        return found


async def recorded_end(run: AsyncRun) -> dict[str, Any] | None:
    """Return what a finished run ended with."""
    if run.recorded(END) is None:
        return None
    return await run.drive(run.performing(lambda: None, key=END, inputs=END, on_drift="accept"))
