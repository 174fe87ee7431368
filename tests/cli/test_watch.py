"""``stepfast intents watch``: to the ending, whatever happens on the way."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from stepfast import Stepfast
from tests.cli.kit import Cli, wait_until
from tests.server.live import Live


def lines_of(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_it_ends_with_0_when_the_intent_is_completed(cli: Cli, address: str) -> None:
    intent_id = cli.send(address)
    with Stepfast(cli.url) as sf:
        sf.resolve_intent(intent_id, "COMPLETED", result={"n": 1})
    shown = cli("intents", "watch", intent_id).stdout
    assert "[status:change       ]:  DELIVERED → COMPLETED" in shown
    assert "Final status: COMPLETED" in shown
    assert '"n": 1' in shown
    events = lines_of(cli("intents", "watch", intent_id, "--json").stdout)
    assert [each["seq"] for each in events] == list(range(1, len(events) + 1))
    assert events[-1]["event_type"] == "intent.completed"
    assert lines_of(cli("intents", "watch", intent_id, "--json", "--since", "2").stdout) == events[2:]


def test_it_ends_with_1_when_it_is_not(cli: Cli, address: str) -> None:
    intent_id = cli.send(address)
    cli("intents", "cancel", intent_id, "--reason", "enough")
    shown = cli("intents", "watch", intent_id, code=1).stdout
    assert "Final status: CANCELED" in shown
    assert "enough" in shown


def test_events_come_as_they_happen(cli: Cli, address: str) -> None:
    intent_id = cli.send(address)
    process = cli.process("intents", "watch", intent_id, "--json")
    assert process.stdout is not None
    seen = [json.loads(process.stdout.readline())["event_type"] for _ in range(3)]
    assert seen[-1] == "intent.delivered"
    cli("intents", "cancel", intent_id)
    out, err = process.communicate(timeout=30)
    assert json.loads(out.splitlines()[-1])["event_type"] == "intent.canceled"
    assert err == ""
    assert process.returncode == 1


def test_it_gives_up_when_told_so(embedded: Cli) -> None:
    intent_id = embedded.send("nobody")
    told = embedded("intents", "watch", intent_id, "--timeout", "0.2", code=1)
    assert "has not ended" in told.stderr


def test_a_deadline_ends_it(embedded: Cli) -> None:
    intent_id = embedded.send("nobody", {}, "--ttl", "1s")
    assert "Final status: TIMED_OUT" in embedded("intents", "watch", intent_id, "--timeout", "30", code=1).stdout


def test_send_can_follow_at_once(embedded: Cli) -> None:
    sent = embedded("intents", "send", "--to", "nobody", "--type", "t", "--ttl", "1s", "--watch", code=1).stdout
    assert "Final status: TIMED_OUT" in sent


def test_steps_are_told_where_no_terminal_is(embedded: Cli) -> None:
    with Stepfast(embedded.url) as sf, sf.run("r", total_steps=2) as run:
        run.options(name="first").step(str, 1)
        run.options(name="second").step(str, 2)
    assert "[step:done           ]:  2 of 2: second" in embedded("intents", "watch", "r").stdout


def test_a_terminal_has_a_bar_when_the_total_is_known(embedded: Cli) -> None:
    env = {**embedded.env, "TERM": "xterm", "COLUMNS": "100"}
    parent, child = pty.openpty()
    with Stepfast(embedded.url) as sf:
        with sf.run("r", total_steps=4) as run:
            run.options(name="first").step(str, 1)
            command = [sys.executable, "-m", "stepfast", "intents", "watch", "r"]
            process = subprocess.Popen(command, env=env, stdin=child, stdout=child, stderr=child)
            os.close(child)
            written: list[bytes] = []
            reader = threading.Thread(target=_drain, args=(parent, written))
            reader.start()
            wait_until(lambda: b"1/4" in b"".join(written))
            for n in (2, 3, 4):
                run.options(name=f"step {n}").step(str, n)
        assert process.wait(30) == 0
    reader.join(10)
    os.close(parent)
    shown = b"".join(written).decode()
    assert "4/4" in shown
    assert "━" in shown
    assert "Final status" in shown


def _drain(fd: int, written: list[bytes]) -> None:
    while True:
        try:
            piece = os.read(fd, 65536)
        except OSError:  # the other side is closed
            return
        if not piece:
            return
        written.append(piece)


def test_it_comes_back_after_a_server_was_killed(serve: Callable[..., Live], embedded: Cli) -> None:
    live = serve()
    cli = Cli(live.url, embedded.home)
    intent_id = cli.send("agent://a/b/somebody")
    process = cli.process("intents", "watch", intent_id)
    assert process.stdout is not None
    first = [process.stdout.readline() for _ in range(3)]
    live.kill9()
    line = process.stdout.readline()
    while "reconnect" not in line:
        line = process.stdout.readline()
    live.start()
    cli("intents", "cancel", intent_id)
    rest, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert err == ""
    assert "Final status: CANCELED" in rest
    assert "intent:create" in first[0]
    assert rest.count("intent:create") == 0  # it goes on after what was seen
