"""A process that has imported everything and forks a test run for each bug it is told of.

It reads lines of JSON (``{"bug": name or null, "tests": […]}``) and answers each with ``{"outcomes", "text"}``:
what became of each test, and what pytest said. Starting pytest anew for each bug would take most of the time.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from pathlib import Path

import pytest

from stepfast.testing.processes import Child, Note
from tests.seeded.bugs import BUGS

# Each fork loads pytest's plugins anew, and the one that is left out takes longer than most of the tests.
OPTIONS = ("-q", "--no-header", "--tb=line", "-p", "no:cacheprovider", "-p", "no:schemathesis", "--timeout=100")


class Outcomes:
    """What became of each test, by the worst of its phases."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.found[report.nodeid] = report.outcome


def answer(bug: str | None, tests: list[str]) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="stepfast-seeded-") as folder:
        said = Path(folder, "said")

        def life(note: Note) -> None:
            if bug is not None:
                BUGS[bug].plant()
            outcomes = Outcomes()
            with said.open("w") as out, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                pytest.main([*OPTIONS, f"--basetemp={folder}/tmp", *tests], plugins=[outcomes])
            note(outcomes.found)

        ended = Child(life).wait(110)
        text = said.read_text()[-4000:] if said.exists() else ""
        return {"outcomes": ended.notes[-1] if ended.notes and not ended.code else {}, "text": text + ended.error}


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(answer(asked["bug"], asked["tests"])), flush=True)


if __name__ == "__main__":
    main()
