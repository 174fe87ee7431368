"""Waiting over processes and stores: those that wait are killed, others ask and answer, and a worker goes on."""

# ruff: noqa: PT012 - what is raised leaves the run, so the run is inside the block

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from stepfast import Stepfast, Suspended, open_store
from tests.contract.http_places import Served

ADDRESS = "agent://acme/prod/release"

PROGRAM = """
import json, sys
from stepfast import Stepfast, Suspended, current_run, durable

url, way = sys.argv[1:]

def say(*words):
    print(json.dumps(words), flush=True)

with Stepfast(url) as sf:
    @durable(client=sf, run_id="release", on_wait=way)
    def release():
        run = current_run()
        run.step(say, "built")
        run.pose("Tell the press?", key="press")
        say("asks")
        return [run.ask(question, key=key).outcome for key, question in
                (("go", "Deploy?"), ("press", "Tell the press?"))]

    try:
        result = release()
        if result:
            say("done", result)
        else:
            say("returns", [result.run_id, result.intent_id, result.decisions])
    except Exception as error:
        say("raises", type(error).__name__, error.decisions)
"""


@pytest.fixture(params=["sqlite", "postgres", "server"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/stepfast.db"
    elif request.param == "postgres":
        server: str = request.getfixturevalue("postgres_url")
        schema = f"w_{uuid4().hex[:12]}"
        yield f"{server}{'&' if '?' in server else '?'}schema={schema}"
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')
    else:
        monkeypatch.setenv("STEPFAST_API_KEY", uuid4().hex.encode().hex())
        with open_store(f"sqlite:///{tmp_path}/served.db") as store:
            served = Served(store)
            yield served.url
            served.stop()


def start(url: str, way: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, url, way], stdout=subprocess.PIPE, text=True, env=environment
    )


def ended(url: str, way: str) -> list[Any]:
    """What a process of its own says, from its start to its end."""
    out, _ = start(url, way).communicate(timeout=60)
    return [json.loads(line) for line in out.splitlines()]


def test_each_process_finds_the_run_waiting_in_the_same_way(url: str) -> None:
    first = start(url, "block")
    assert first.stdout is not None
    with Stepfast(url) as sf:
        assert [json.loads(first.stdout.readline())[0] for _ in range(2)] == ["built", "asks"]
        for event in sf.observe("release"):
            if event["event_type"] == "intent.waiting":
                break
        first.kill()
        first.communicate()
        asked = sf.decisions("release")
        assert [d["key"] for d in asked] == ["ask:press", "ask:go"]
        for _ in range(2):
            assert ended(url, "suspend") == [["raises", "Suspended", ["ask:press", "ask:go"]]]
            intent_id = sf.get_intent("release")["intent_id"]
            assert ended(url, "return") == [["returns", ["release", intent_id, asked]]]
            assert sf.decisions("release") == asked
        sf.answer("release", "approved", "ask:press")  # not the one that it waits for first
        for _ in range(2):
            [*_, last] = ended(url, "return")
            assert (last[0], [d["key"] for d in last[1][2]]) == ("returns", ["ask:go"])
        sf.answer("release", "rejected", "ask:go")
        assert ended(url, "return")[-1] == ["done", ["rejected", "approved"]]
        seen = sf.get_intent("release")
        assert (seen["status"], seen["lost_deliveries"]) == ("COMPLETED", 0)


def test_two_processes_look_at_a_run_that_waits_at_the_same_time(url: str) -> None:
    with Stepfast(url) as one, Stepfast(url) as two:
        with pytest.raises(Suspended), one.run("r", on_wait="view") as run:
            run.step(len, "abc")
            run.ask("Deploy?", key="go")
        with pytest.raises(Suspended), one.run("r", on_wait="view") as here:
            with pytest.raises(Suspended), two.run("r", on_wait="view") as there:
                assert here.waiting
                assert there.waiting
                assert here.step(len, "abc") == there.step(len, "abc") == 3
                there.ask("Deploy?", key="go")
            two.answer("r", "approved")
            with two.run("r", on_wait="view") as run:  # the one that looks holds nothing
                assert run.step(len, "abc") == 3
                assert run.ask("Deploy?", key="go")
            here.ask("Deploy?", key="go")
        assert one.get_intent("r")["status"] == "COMPLETED"


def test_a_worker_claims_it_after_the_answer(url: str) -> None:
    with Stepfast(url) as sf:
        intent_id = sf.send_intent({"intent_type": "t.v1", "to_agent": ADDRESS, "payload": 7})
        with pytest.raises(Suspended) as raised:
            run = sf.claim(ADDRESS)
            assert run is not None
            with run:
                run.ask("Deploy?", key="go")
        assert (raised.value.run_id, raised.value.intent_id) == (intent_id, intent_id)
        assert sf.claim(ADDRESS) is None
        assert [d["key"] for d in sf.waiting(raised.value).decisions] == ["ask:go"]

        @sf.worker(ADDRESS)
        def handle(run: Any, payload: Any) -> Any:
            return payload if run.ask("Deploy?", key="go") else None

        handle.start()
        assert [d["key"] for d in sf.decisions(intent_id)] == ["ask:go"]
        sf.answer(intent_id, "approved")
        assert sf.wait_for(intent_id, timeout=60)["result"] == 7
