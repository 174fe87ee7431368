"""Serving an address with a framework: intents that are sent there are carried out by an agent, a crew or a team."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

from stepfast.async_client import AsyncStepfast
from stepfast.client import Stepfast
from stepfast.errors import GiveUp, InvalidInput

if TYPE_CHECKING:
    from stepfast.worker import AsyncWorker, Worker

__all__ = ["input_from", "serve"]

Unpack = Callable[[Any], Any]


@overload
def serve(
    client: AsyncStepfast, address: str, handle: Callable[..., Any], *, unpack: Unpack | None = None, **options: Any
) -> AsyncWorker: ...
@overload
def serve(
    client: Stepfast, address: str, handle: Callable[..., Any], *, unpack: Unpack | None = None, **options: Any
) -> Worker: ...
def serve(
    client: Any, address: str, handle: Callable[..., Any], *, unpack: Unpack | None = None, **options: Any
) -> Any:
    """Return a worker that calls ``handle(run, payload)`` for each intent of an address; the run is the intent's own.

    The result of ``handle`` is the intent's result; it is awaited with an `AsyncStepfast`. ``unpack`` makes of the
    payload what ``handle`` gets: `InvalidInput` raised by it fails the intent at once, since a wrong payload does not
    become right. Where the run must wait for a person, ``handle`` lets the suspension pass: the intent is WAITING, the
    worker is free, and any worker goes on after the answer. ``options`` are those of ``sf.worker``.
    """
    if not isinstance(client, Stepfast | AsyncStepfast):
        raise InvalidInput(f"client: must be a Stepfast or an AsyncStepfast, not {type(client).__name__}.")

    def given(payload: Any) -> Any:
        try:
            return payload if unpack is None else unpack(payload)
        except InvalidInput as error:
            raise GiveUp(str(error)) from None

    if isinstance(client, AsyncStepfast):

        async def handle_async(run: Any, payload: Any) -> Any:
            return await handle(run, given(payload))

        return client.worker(address, **options)(handle_async)

    def handle_blocking(run: Any, payload: Any) -> Any:
        return handle(run, given(payload))

    return client.worker(address, **options)(handle_blocking)


def input_from(payload: Any, kinds: tuple[type, ...], what: str, name: str = "input") -> Any:
    """Return the input in a payload: the payload itself, or what it has under ``name``.

    ``what`` describes the kinds that are allowed, for the error.
    """
    given = payload.get(name) if isinstance(payload, dict) and name in payload else payload
    if isinstance(given, kinds):
        return given
    raise InvalidInput(f"payload: must be {what}, or {{{name!r}: …}} with that; not a {type(given).__name__}.")
