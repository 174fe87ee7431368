"""Agents as workers: intents sent to an address are carried out by a chat."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stepfast import AsyncRun, AsyncStepfast, AsyncWorker, InvalidInput, Run, Stepfast, Worker
from stepfast import inputs as check
from stepfast.adapters import input_from, serve

from .chat import DurableChat, Options


def chat_worker(
    client: Stepfast | AsyncStepfast,
    address: str,
    agents: Callable[[Any], Any],
    *,
    durable: Mapping[str, Any] | None = None,
    chat: Mapping[str, Any] | None = None,
    **options: Any,
) -> Worker | AsyncWorker:
    """Return a worker that carries out each intent of an address with a chat; the run is the intent's own.

    ``agents`` is a function that makes the agents of a payload, as `durable` takes them: each delivery gets new ones,
    since AutoGen's agents keep what was said to them. The payload is the first message, or ``{"message": …}``.
    ``durable`` holds options of `durable`, ``chat`` those of ``initiate_chat``, ``options`` are those of ``sf.worker``.
    Where a person must decide, the intent is WAITING and the worker is free; any worker goes on after the answer.
    """
    if not callable(agents):
        raise InvalidInput("agents: must be a function of the payload that makes them, such as lambda payload: [a, b].")
    check.mapping("chat", chat)
    try:
        chosen = Options(**(durable or {}))
    except TypeError as error:
        raise InvalidInput(f"durable: must hold options of durable: {error}.") from None

    def unpack(payload: Any) -> tuple[Any, Any]:
        return payload, input_from(payload, (str, dict, type(None)), "a message", "message")

    def handle(run: Run, given: tuple[Any, Any]) -> Any:
        chats = DurableChat(agents(given[0]), chosen)
        chats.initiate_chat(run=run, message=given[1], **(chat or {}))
        return chats.last

    async def handle_async(run: AsyncRun, given: tuple[Any, Any]) -> Any:
        chats = DurableChat(agents(given[0]), chosen)
        await chats.a_initiate_chat(run=run, message=given[1], **(chat or {}))
        return chats.last

    blocks = isinstance(client, Stepfast)
    return serve(client, address, handle if blocks else handle_async, unpack=unpack, **options)
