"""The command line, called in this process or as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from stepfast.cli.app import app

HANDLERS = Path(__file__).parent / "handlers"
_OURS = ("STEPFAST_", "AXME_", "NO_COLOR", "FORCE_COLOR", "XDG_DATA_HOME", "COLUMNS")


def clean_env(home: Path, **more: str) -> dict[str, str]:
    """This process's environment without anything that the command line reads."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    return {**kept, "HOME": str(home), "XDG_DATA_HOME": str(home), "TERM": "dumb", **more}


class Cli:
    """``cli("intents", "list")`` on a store; ``cli.json(...)`` gives what it printed."""

    def __init__(self, url: str, home: Path, api_key: str | None = None) -> None:
        self.url = url
        self.home = home
        more = {"STEPFAST_URL": url, **({"STEPFAST_API_KEY": api_key} if api_key else {})}
        self.env = clean_env(home, **more)
        self._runner = CliRunner()

    def __call__(self, *arguments: str, code: int | None = 0, given: str | None = None, **env: str) -> Any:
        """In this process, by typer's runner. Unless ``code`` is None it must end with that."""
        hidden = {name: None for name in os.environ if name.startswith(_OURS)}
        result = self._runner.invoke(app, list(arguments), input=given, env={**hidden, **self.env, **env})
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert code is None or result.exit_code == code, (result.exit_code, result.stdout, result.stderr)
        return result

    def json(self, *arguments: str, code: int = 0, **env: str) -> Any:
        result = self(*arguments, "--json", code=code, **env)
        assert result.stdout.isascii()
        return json.loads(result.stdout)

    def error(self, *arguments: str, code: int, **env: str) -> Any:
        """What it says on stderr with --json, where it must end with this code."""
        result = self(*arguments, "--json", code=code, **env)
        assert result.stdout == ""
        told = json.loads(result.stderr)["error"]
        assert told["exit_code"] == code
        return told

    def send(self, to: str, payload: Any = None, *more: str) -> str:
        data = json.dumps({} if payload is None else payload)
        sent = self("intents", "send", "--to", to, "--type", "intent.test.v1", "--data", data, *more)
        return str(sent.stdout.strip())

    def process(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """As a process of its own, in the folder of the handlers."""
        return subprocess.Popen(
            [sys.executable, "-m", "stepfast", *arguments],
            env={**self.env, **options.pop("env", {})},
            cwd=HANDLERS,
            text=True,
            stdout=options.pop("stdout", subprocess.PIPE),
            stderr=options.pop("stderr", subprocess.PIPE),
            **options,
        )

    def run(self, *arguments: str, timeout: float = 60, **options: Any) -> subprocess.CompletedProcess[str]:
        process = self.process(*arguments, **options)
        try:
            out, err = process.communicate(timeout=timeout)
        finally:
            process.kill()
            process.wait()
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def wait_until(true: Callable[[], Any], seconds: float = 30.0) -> Any:
    """What it gives as soon as it gives something."""
    until = time.monotonic() + seconds
    while True:
        found = true()
        if found:
            return found
        assert time.monotonic() < until, "it did not come true in time"
        time.sleep(0.02)
