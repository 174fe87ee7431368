"""The whole story from the shell: serve, worker, send, watch."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.kit import Cli


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in reversed(processes):
        if process.poll() is None:
            process.kill()
        process.communicate()


def first_lines(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().strip() for _ in range(count)]


def test_serve_worker_send_and_watch(tmp_path: Path, started: list[subprocess.Popen[str]]) -> None:
    store = f"sqlite:///{tmp_path / 'store.db'}"
    shell = Cli("", tmp_path)
    server = shell.process("serve", "--port", "0", "--store", store, "--log-format", "json")
    started.append(server)
    url, key, hint = first_lines(server, 3)
    found = re.search(r"http://127\.0\.0\.1:\d+", url)
    assert found is not None
    assert key.startswith("Key: any")
    assert hint.endswith(f"stepfast --url {store} keys create")

    cli = Cli(found.group(), tmp_path)
    worker = cli.process("worker", "pipeline:handle_async", "--agent", "agent://acme/prod/doubler")
    started.append(worker)
    sent = cli.run(
        "intents", "send", "--to", "doubler", "--type", "intent.double.v1", "--data", '{"n": 4}', "--watch", "--json"
    )
    assert sent.returncode == 0, sent.stderr
    events = [json.loads(line) for line in sent.stdout.splitlines()]
    assert events[-1]["event_type"] == "intent.completed"
    assert cli.json("intents", "get", events[-1]["intent_id"])["result"] == {"doubled": 8}
    # The store itself shows the same while the server runs.
    assert shell.json("intents", "list", "--url", store)["intents"][0]["status"] == "COMPLETED"

    for process in (worker, server):
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 0, err
        assert "Traceback" not in err


def test_the_first_start_with_keys_prints_one(tmp_path: Path, started: list[subprocess.Popen[str]]) -> None:
    shell = Cli(f"sqlite:///{tmp_path / 'store.db'}", tmp_path)
    server = shell.process("serve", "--port", "0", "--require-keys")
    started.append(server)
    url, key = first_lines(server, 2)
    token = key.rpartition(" ")[2]
    assert token.startswith("axme_sa_sak_")
    assert Cli(url.rpartition(" ")[2], tmp_path, token)("intents", "list").exit_code == 0
    server.send_signal(signal.SIGINT)
    out, err = server.communicate(timeout=30)
    assert server.returncode == 0
    assert token.rpartition("_")[2] not in out + err


def test_what_would_leave_a_server_open_is_refused(tmp_path: Path) -> None:
    shell = Cli(f"sqlite:///{tmp_path / 'store.db'}", tmp_path)
    assert "certificate" in shell.error("serve", "--host", "0.0.0.0", "--port", "0", code=2)["message"]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        told = shell.error("serve", "--port", str(taken.getsockname()[1]), code=2)
    assert "another port" in told["message"]
    assert "is a server already" in Cli("http://127.0.0.1:1", tmp_path).error("serve", code=2)["message"]
