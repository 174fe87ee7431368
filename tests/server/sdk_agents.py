"""Agents of the published AXME SDK, as their authors write them, kept running by something that restarts them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
from axme import AxmeClient, AxmeClientConfig, AxmeError  # type: ignore[import-untyped]

Handler = Callable[[dict[str, Any]], dict[str, Any]]


def sdk(url: str, key: str = "any") -> AxmeClient:
    return AxmeClient(AxmeClientConfig(base_url=url, api_key=key))


class Agent:
    """Listens at an address and answers each intent with what ``handler`` gives for its payload.

    An answer with ``action`` is sent as it is; another one completes the intent.
    """

    def __init__(self, url: str, address: str, handler: Handler, key: str = "any") -> None:
        self.handled: list[dict[str, Any]] = []
        self._url, self._address, self._handler, self._key = url, address, handler, key
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"agent-{address}", daemon=True)

    def __enter__(self) -> Agent:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        self._thread.join(15)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stop.is_set():
            with sdk(self._url, self._key) as client:
                try:
                    self._listen(client)
                except (httpx.HTTPError, AxmeError, TimeoutError):
                    time.sleep(0.05)  # the SDK's agents die with their connection; whoever runs them starts them again

    def _listen(self, client: AxmeClient) -> None:
        for delivery in client.listen(self._address, wait_seconds=1, timeout_seconds=2):
            if self._stop.is_set():
                return
            intent = client.get_intent(delivery["intent_id"])["intent"]
            answer = self._handler(intent["payload"])
            self.handled.append(intent)
            self._answer(client, intent["intent_id"], {"action": "complete", **answer})

    def _answer(self, client: AxmeClient, intent_id: str, answer: dict[str, Any]) -> None:
        """Until it is known to have arrived: the work is done, and must not be done again for a lost answer."""
        until = time.monotonic() + 30
        while time.monotonic() < until:
            try:
                client.resume_intent(intent_id, answer)
                return
            except AxmeError as error:
                if getattr(error, "status_code", 500) == 409:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.05)


def until(what: Callable[[], Any], seconds: float = 20.0) -> Any:
    """What the function gives once it is true."""
    end = time.monotonic() + seconds
    while True:
        try:
            found = what()
        except httpx.HTTPError:
            found = None
        if found:
            return found
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)
