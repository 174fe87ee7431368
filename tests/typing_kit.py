"""Type checkers over a user's program: what an editor would say of it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
# Of the library's own environment, where an adapter's has none: pyright brings its Node.js along.
OWN = ROOT / ".venv" / "bin"


class Complaint(NamedTuple):
    """An error or a revealed type at a line of the program."""

    line: int
    text: str


def mypy(program: Path, sources: list[Path]) -> list[Complaint]:
    """What ``mypy --strict`` of this environment says."""
    done = subprocess.run(
        [
            sys.executable if find_spec("mypy") else OWN / "python",
            "-m",
            "mypy",
            "--python-executable",
            sys.executable,
            "--strict",
            "--no-error-summary",
            "--cache-dir",
            program.parent / "mypy",
            program,
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=program.parent,
        env={"MYPYPATH": ":".join(map(str, sources)), "PATH": ""},
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = re.findall(rf"^{re.escape(program.name)}:(\d+): (?:error|note): (.*)$", done.stdout, re.MULTILINE)
    return [Complaint(int(line), text) for line, text in found]


def pyright(program: Path, sources: list[Path]) -> list[Complaint]:
    """What pyright says in its own strictest mode, with the packages of this environment."""
    settings = {
        "typeCheckingMode": "strict",
        "extraPaths": [str(s) for s in sources],
        "reportMissingModuleSource": False,
    }
    (program.parent / "pyrightconfig.json").write_text(json.dumps(settings))
    executable = next(p for p in (Path(sys.executable).with_name("basedpyright"), OWN / "basedpyright") if p.exists())
    done = subprocess.run(
        [executable, "--outputjson", "--pythonpath", sys.executable, "--project", program.parent, program],
        capture_output=True,
        text=True,
        check=False,
        cwd=program.parent,
    )
    told = json.loads(done.stdout)
    return [
        Complaint(each["range"]["start"]["line"] + 1, each["message"])
        for each in told["generalDiagnostics"]
        if each["severity"] in ("error", "information")
    ]


def wanted(program: str) -> dict[int, str]:
    """The lines of a program that must be complained about or reveal a type, by their ``# expect: …`` comments."""
    lines = enumerate(program.splitlines(), start=1)
    return {number: line.partition("# expect: ")[2] for number, line in lines if "# expect: " in line}


def check_program(program: Path, sources: list[Path]) -> None:
    """Both checkers say what the comments expect, and nothing else."""
    expected = wanted(program.read_text())
    for checker in (mypy, pyright):
        found: dict[int, str] = {}
        for line, text in checker(program, sources):
            found[line] = f"{found.get(line, '')} {text}"
        unexpected = {line: text for line, text in found.items() if line not in expected}
        assert not unexpected, (checker.__name__, unexpected)
        for line, word in expected.items():
            told = found.get(line, "").replace("builtins.", "").replace("typing.", "")
            assert re.search(word, told), (checker.__name__, line, word, told)
