"""The published axme SDK, unmodified, as client and as agent: real processes, a real server, real kills."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from axme import (  # type: ignore[import-untyped]
    AxmeAuthError,
    AxmeClient,
    AxmeClientConfig,
    AxmeHttpError,
    AxmeValidationError,
)

from stepfast.clock import new_id
from stepfast.server.keys import create_key
from stepfast.stores import AsyncStore, open_store
from tests.server.live import Live

Starter = Callable[..., Live]
PROGRAM = Path(__file__).with_name("sdk_agent.py")
ADDRESS = "agent://acme/prod/worker"
SOON = 5.0
# With the other tests that kill servers under load, one after the other.
pytestmark = pytest.mark.xdist_group("killed servers")


class Agents:
    """Agent processes that write to one log."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.processes: list[subprocess.Popen[bytes]] = []
        self.keep = False
        self._guards: list[threading.Thread] = []

    def start(self, url: str, mode: str, address: str = "worker", key: str = "any") -> subprocess.Popen[bytes]:
        command = [sys.executable, str(PROGRAM), url, key, address, mode, str(self.log)]
        process = subprocess.Popen(command, stderr=subprocess.PIPE)
        self.processes.append(process)
        self.wait(lambda: any(line["pid"] == process.pid for line in self.lines()))
        return process

    def supervise(self, count: int, url: Callable[[], str], mode: str) -> None:
        """Start so many, and start each again when it ends, as a service manager does."""
        self.keep = True

        def guard() -> None:
            while self.keep:
                command = [sys.executable, str(PROGRAM), url(), "any", "worker", mode, str(self.log)]
                with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
                    self.processes.append(process)
                    process.wait()
                time.sleep(0.1)

        self._guards = [threading.Thread(target=guard) for _ in range(count)]
        for each in self._guards:
            each.start()

    def lines(self) -> list[dict[str, Any]]:
        if not self.log.exists():
            return []
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.endswith("}")]

    def of(self, what: str) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line["what"] == what]

    def wait(self, what: Callable[[], Any], seconds: float = 30.0) -> Any:
        end = time.monotonic() + seconds
        while not (found := what()):
            assert time.monotonic() < end, f"it did not come about: {self.lines()[-10:]}"
            time.sleep(0.01)
        return found

    def close(self) -> None:
        self.keep = False
        while any(guard.is_alive() for guard in self._guards) or any(p.poll() is None for p in self.processes):
            for process in list(self.processes):
                if process.poll() is None:
                    process.kill()
            time.sleep(0.02)
        for process in self.processes:
            process.wait()
            if process.stderr is not None:
                process.stderr.close()


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Agents]:
    made = Agents(tmp_path / "agents.log")
    yield made
    made.close()


def client_of(server: Live, key: str = "any") -> Any:
    return AxmeClient(AxmeClientConfig(base_url=server.url, api_key=key))


def send(client: Any, **more: Any) -> str:
    asked = {"intent_type": "intent.demo.v1", "to_agent": ADDRESS, "payload": {"x": 1}, **more}
    intent_id: str = client.send_intent(asked)
    return intent_id


def kinds(client: Any, intent_id: str) -> list[str]:
    return [event["event_type"] for event in client.list_intent_events(intent_id)["events"]]


def test_send_and_wait(live: Starter, agents: Agents) -> None:
    server = live()
    agents.start(server.url, "0")
    with client_of(server) as client:
        payload = {"text": "line\u2028separator \u0085 \U0001f600", "big": 2**60}
        intent_id = send(client, payload=payload)
        event = client.wait_for(intent_id, timeout_seconds=20)
        assert event["status"] == "COMPLETED"
        assert event["result"] == {"echo": payload}
        assert client.get_intent(intent_id)["result"] == {"echo": payload}
        seen = [each["seq"] for each in client.observe(intent_id, timeout_seconds=20)]
        assert seen == list(range(1, len(seen) + 1))
        assert kinds(client, intent_id)[:4] == [
            "intent.created",
            "intent.submitted",
            "intent.delivered",
            "intent.in_progress",
        ]


def test_an_agent_killed_in_the_middle_is_replaced_at_once(live: Starter, agents: Agents) -> None:
    server = live()
    with client_of(server) as client:
        took = []
        for _ in range(3):
            busy = agents.start(server.url, "hang")
            intent_id = send(client)
            agents.wait(lambda: [each for each in agents.of("delivered") if each["intent_id"] == intent_id])  # noqa: B023
            standby = agents.start(server.url, "0")
            busy.kill()
            killed = time.time()
            event = client.wait_for(intent_id, timeout_seconds=20)
            assert event["status"] == "COMPLETED"
            first, second = (each for each in agents.of("delivered") if each["intent_id"] == intent_id)
            assert (first["attempt"], first["status"]) == (1, "DELIVERED")
            assert (second["attempt"], second["status"]) == (2, "IN_PROGRESS")
            took.append(second["at"] - killed)
            standby.kill()
            busy.wait()
            standby.wait()
        print("redelivered after kill -9:", ", ".join(f"{each * 1000:.0f} ms" for each in took))
        assert max(took) < SOON


def test_three_crashes_fail_it_and_it_can_be_revived(live: Starter, agents: Agents) -> None:
    server = live()
    with client_of(server) as client:
        intent_id = send(client)
        for attempt in range(1, 4):
            crashing = agents.start(server.url, "hang")
            agents.wait(lambda: len(agents.of("delivered")) == attempt)  # noqa: B023
            crashing.kill()
            crashing.wait()
        event = client.wait_for(intent_id, timeout_seconds=20)
        assert event["event_type"] == "intent.failed"
        assert "3 of 3 deliveries were lost" in event["error"]["reason"]
        assert kinds(client, intent_id).count("intent.delivery_lost") == 2
        assert "intent.delivery_failed" in kinds(client, intent_id)
        revived = client._request_json("POST", f"/v1/intents/{intent_id}/revive", retryable=False)["intent_id"]
        agents.start(server.url, "0")
        assert client.wait_for(revived, timeout_seconds=20)["status"] == "COMPLETED"


def test_a_forgetful_agent_is_asked_again_until_it_fails(live: Starter, agents: Agents) -> None:
    server = live()
    agents.start(server.url, "forget")
    with client_of(server) as client:
        intent_id = send(client, max_delivery_attempts=2)
        event = client.wait_for(intent_id, timeout_seconds=40)
        assert event["status"] == "FAILED"
        assert "returned without an answer" in event["error"]["reason"]
        assert [each["attempt"] for each in agents.of("delivered")] == [1, 2]


def test_an_agent_that_keeps_its_place_in_the_controls_goes_on_there(live: Starter, agents: Agents) -> None:
    server = live()
    with client_of(server) as client:
        first = agents.start(server.url, "steps")
        intent_id = send(client)
        agents.wait(lambda: client.get_intent(intent_id)["intent"]["controls"] == {"checkpoint": {"done": 2}})
        first.kill()
        first.wait()
        agents.start(server.url, "steps")
        assert client.wait_for(intent_id, timeout_seconds=20)["status"] == "COMPLETED"
        assert [each["step"] for each in agents.of("step")] == [0, 1, 2, 3]
        assert kinds(client, intent_id).count("intent.checkpoint") == 4


def test_a_busy_agent_survives_a_restart_of_the_server(live: Starter, agents: Agents) -> None:
    server = live()
    with client_of(server) as client:
        agent = agents.start(server.url, "6")
        intent_id = send(client)
        agents.wait(lambda: agents.of("delivered"))
        server.restart()
        assert client.wait_for(intent_id, timeout_seconds=30)["status"] == "COMPLETED"
        intent = client.get_intent(intent_id)["intent"]
        assert (intent["delivery_attempt"], intent["lost_deliveries"]) == (1, 0)
        again = send(client)
        agents.wait(lambda: len(agents.of("delivered")) == 2)
        assert agents.of("delivered")[1]["intent_id"] == again
        assert agent.poll() is None


def test_many_running_intents_outlive_a_killed_server(live: Starter, agents: Agents) -> None:
    server = live(lease_seconds=3.0)
    with client_of(server) as client:
        sent = [send(client, payload={"n": n}) for n in range(200)]
        agents.supervise(6, lambda: server.url, "0.05")
        agents.wait(lambda: len(agents.of("answered")) >= 50)
        server.kill9()
        server.start()
        for number, intent_id in enumerate(sent):
            event = _wait(client, intent_id)
            assert event["status"] == "COMPLETED"
            assert event["result"] == {"echo": {"n": number}}
        _check_history(client, agents, sent, 6)


def test_of_two_servers_one_is_killed(live: Starter, agents: Agents, pg_store_url: str) -> None:
    one, two = (live(store_url=pg_store_url, lease_seconds=3.0) for _ in range(2))
    turns = iter(range(10_000))

    def next_url() -> str:
        """As a load balancer does: to the one that is there."""
        alive = [each for each in (one, two) if each.process is not None]
        return alive[next(turns) % len(alive)].url

    with client_of(two) as client:
        sent = [send(client, payload={"n": n}) for n in range(40)]
        agents.supervise(4, next_url, "0.05")
        agents.wait(lambda: len(agents.of("answered")) >= 10)
        one.kill9()
        for number, intent_id in enumerate(sent):
            assert _wait(client, intent_id)["result"] == {"echo": {"n": number}}
        _check_history(client, agents, sent, 4)


def _wait(client: Any, intent_id: str) -> Any:
    return client.wait_for(intent_id, timeout_seconds=60)


def _check_history(client: Any, agents: Agents, sent: list[str], busy: int) -> None:
    """Nothing was given up, and only what was in hand when the server died came twice."""
    given = Counter(each["intent_id"] for each in agents.of("delivered"))
    assert set(given) == set(sent)
    assert sum(given.values()) - len(sent) <= busy
    for intent_id in sent:
        intent = client.get_intent(intent_id)["intent"]
        assert (intent["delivery_attempt"] <= 2, intent["lost_deliveries"]) == (True, 0)
        events = kinds(client, intent_id)
        assert events.count("intent.completed") == 1
        assert events[-1] == "intent.completed"


def test_errors_are_the_ones_the_sdk_knows(live: Starter, store_url: str) -> None:
    async def make_key(agent: str | None) -> str:
        with open_store(store_url) as store:
            made: Any = {"role": "agent", "agent": agent} if agent else {}
            return (await create_key(AsyncStore(store), "acme", "prod", **made))[1]

    workspace, other = (asyncio.run(make_key(agent)) for agent in (None, "agent://acme/prod/other"))
    server = live(require_keys=True)
    with client_of(server, workspace) as client, client_of(server, other) as stranger:
        intent_id = send(client)
        client.resolve_intent(intent_id, {"status": "COMPLETED", "result": {}})
        with pytest.raises(AxmeValidationError) as caught:
            client.resume_intent(intent_id, {"action": "complete"})
        assert caught.value.status_code == 409
        assert "COMPLETED" in caught.value.message
        with pytest.raises(AxmeHttpError) as missing:
            stranger.get_intent(intent_id)
        assert missing.value.status_code == 404
        with pytest.raises(AxmeAuthError):
            next(stranger.listen(ADDRESS))
        with client_of(server, "axme_sa_nothing_secret") as nobody, pytest.raises(AxmeAuthError):
            nobody.get_intent(intent_id)
        with pytest.raises(AxmeHttpError):
            client.wait_for(new_id(), timeout_seconds=5)
        with pytest.raises(TimeoutError):
            next(client.listen("nobody", wait_seconds=1, timeout_seconds=2))


def test_a_repeated_send_with_its_key_is_one_intent(live: Starter) -> None:
    server = live()
    with client_of(server) as client:
        asked = {"intent_type": "intent.demo.v1", "to_agent": ADDRESS, "payload": {}}
        assert len({client.send_intent(asked, idempotency_key="mine") for _ in range(3)}) == 1
        with pytest.raises(AxmeValidationError):
            client.send_intent({**asked, "payload": {"other": 1}}, idempotency_key="mine")
