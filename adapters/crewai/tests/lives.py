"""A process that has imported CrewAI once, and forks one for each life that a test wants.

``python -m adapters.crewai.tests.lives``: each line of standard input asks for something, each line of standard output
answers. A life calls a function of ``programs``; it may be killed by its process id.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from stepfast import Suspended
from stepfast.testing.processes import Child, Note

ROOT = Path(__file__).parents[3]


class Ended(NamedTuple):
    """How a life ended: its exit code, what its function returned, and what it raised."""

    code: int
    result: Any
    waits: bool
    error: str


class Lives:
    """The process that forks, from outside."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "adapters.crewai.tests.lives"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )

    def start(self, program: str, *arguments: str) -> int:
        """Begin a life; returns its process id."""
        return int(self._ask({"start": program, "arguments": arguments}))

    def ended(self, pid: int, timeout: float = 120.0) -> Ended:
        """Wait for the end of a life, which is killed if it does not come in time."""
        return Ended(*self._ask({"wait": pid, "timeout": timeout}))

    def live(self, program: str, *arguments: str) -> Ended:
        """A whole life."""
        return self.ended(self.start(program, *arguments))

    def close(self) -> None:
        self._process.communicate("")

    def _ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the process that forks has ended; its standard error says why"
        return json.loads(line)


# --- in that process ---------------------------------------------------------------------------------


def main() -> None:
    from adapters.crewai.tests import programs

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    children: dict[int, Child] = {}

    def begin(name: str, arguments: list[str]) -> int:
        def body(note: Note) -> None:
            try:
                note({"result": getattr(programs, name)(*arguments)})
            except Suspended:
                note({"waits": True})

        child = Child(body)
        children[child.pid] = child
        return child.pid

    for line in sys.stdin:
        asked = json.loads(line)
        if "start" in asked:
            answer: Any = begin(asked["start"], asked["arguments"])
        else:
            ended = children.pop(asked["wait"]).wait(asked["timeout"])
            noted = {key: value for note in ended.notes for key, value in note.items()}
            answer = [ended.code, noted.get("result"), noted.get("waits", False), ended.error]
        print(json.dumps(answer), file=answers, flush=True)
    for child in children.values():
        child.kill()


if __name__ == "__main__":
    main()
