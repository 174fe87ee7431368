"""``stepfast worker``: a function from the shell, killed and gone on with."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.cli.kit import Cli, wait_until


def test_a_killed_worker_is_gone_on_with_by_the_next(cli: Cli, address: str, tmp_path: Path) -> None:
    """kill -9 in the middle: the next worker runs the steps that were not finished, and no other."""
    file, gate = tmp_path / "steps", tmp_path / "gate"
    payload = {"steps": 5, "stop_at": 3, "file": str(file), "gate": str(gate)}
    intent_id = cli.send(address, payload)
    first = cli.process("worker", "pipeline:handle", "--agent", address)
    wait_until(Path(f"{file}.here").exists)
    first.kill()
    first.communicate()
    gate.touch()
    second = cli.process("worker", "pipeline:handle", "--agent", address)
    try:
        cli("intents", "watch", intent_id, "--timeout", "60")
    finally:
        second.send_signal(signal.SIGTERM)
        _, err = second.communicate(timeout=30)
    assert second.returncode == 0
    assert f"works for {address}" in err
    shown = cli.json("intents", "get", intent_id)
    assert shown["result"] == {"done": [0, 1, 2, 3, 4]}
    assert shown["delivery_attempt"] == 2
    numbers = [int(line.split()[0]) for line in file.read_text().splitlines()]
    assert numbers == [0, 1, 2, 3, 4]


def test_an_async_function_works_too(embedded: Cli) -> None:
    worker = embedded.process("worker", "pipeline:handle_async", "--agent", "doubler", "--concurrency", "4")
    try:
        ids = [embedded.send("doubler", {"n": n}) for n in range(3)]
        for intent_id in ids:
            embedded("intents", "watch", intent_id, "--timeout", "30")
        results = [embedded.json("intents", "get", intent_id)["result"] for intent_id in ids]
        assert results == [{"doubled": 0}, {"doubled": 2}, {"doubled": 4}]
    finally:
        worker.send_signal(signal.SIGTERM)
        _, err = worker.communicate(timeout=30)
    assert worker.returncode == 0, err


def test_what_a_handler_raises_is_logged_without_its_sequences(embedded: Cli) -> None:
    intent_id = embedded.send("failing", {"why": "\x1b]0;owned\x07bad\u202e"}, "--max-delivery-attempts", "1")
    worker = embedded.process("worker", "pipeline:fail", "--agent", "failing")
    try:
        shown = embedded("intents", "watch", intent_id, "--timeout", "30", code=1).stdout
    finally:
        worker.send_signal(signal.SIGINT)
        _, err = worker.communicate(timeout=30)
    assert "Final status: FAILED" in shown
    assert "bad<U+202E>" in err
    assert not set(shown + err) & {"\x1b", "\x07", "\u202e"}


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("pipeline", "MODULE:FUNCTION"),
        (":handle", "MODULE:FUNCTION"),
        ("no_such_module_here:handle", "no such module"),
        ("pipeline:missing", "has no missing"),
        ("pipeline:NOT_A_FUNCTION", "is no function"),
        ("broken:handle", "no luck today"),
    ],
)
def test_a_target_that_is_none_is_wrong_usage(
    embedded: Cli, monkeypatch: pytest.MonkeyPatch, target: str, said: str
) -> None:
    from tests.cli.kit import HANDLERS

    monkeypatch.chdir(HANDLERS)
    monkeypatch.syspath_prepend(str(HANDLERS))
    assert said in embedded.error("worker", target, "--agent", "a", code=2)["message"]
