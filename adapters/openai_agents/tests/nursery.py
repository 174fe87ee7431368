"""A process that has imported the SDK once and forks a child for each request, so that a kill costs milliseconds.

``python -m adapters.openai_agents.tests.nursery STORY``, with the module whose ``play`` a child runs. Each line of
standard input is ``[folder, url, options, kill]``; each line of standard output tells what became of that child: its
exit code and what it said.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]


def main(story: str) -> None:
    play = import_module(story).play
    warm_up(play)
    for line in sys.stdin:
        folder, url, options, kill = json.loads(line)
        told, tell = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(told)
            said = "broken"
            try:
                said = play(Path(folder), url, options, kill)
            except BaseException:
                traceback.print_exc()
            finally:
                os.write(tell, said.encode())
                sys.stderr.flush()
                os._exit(0)
        os.close(tell)
        with os.fdopen(told) as pipe:
            said = pipe.read()
        _, status = os.waitpid(pid, 0)
        print(json.dumps([os.waitstatus_to_exitcode(status), said]), flush=True)


def warm_up(play: Any) -> None:
    """What is built at first use is built once, here: a child would need most of a second for it."""
    from stepfast import _failpoints
    from stepfast_openai_agents._clients import close_clients

    for options in ({"guardrail": True}, {"streamed": True}):
        with tempfile.TemporaryDirectory() as folder:
            play(Path(folder), f"sqlite:///{folder}/warm.db", options, None)
            close_clients()
        _failpoints.uninstall()
    if threading.active_count() > 1:  # a child of fork would have their locks and not them
        raise RuntimeError(f"threads are left: {threading.enumerate()}")


class Nursery:
    """The other side, in a test."""

    def __init__(self, story: str = "adapters.openai_agents.tests.scenes") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "adapters.openai_agents.tests.nursery", story],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "OPENAI_AGENTS_DISABLE_TRACING": "1"},
        )

    def play(self, folder: Path, url: str, options: dict[str, Any], kill: str | None = None) -> tuple[int, str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([str(folder), url, options, kill]) + "\n")
        self._process.stdin.flush()
        code, said = json.loads(self._process.stdout.readline())
        return code, said

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)
        assert self._process.stdout is not None
        self._process.stdout.close()


if __name__ == "__main__":
    main(sys.argv[1])
