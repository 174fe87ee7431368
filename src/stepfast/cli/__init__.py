"""The command line. It is the top of the package: nothing imports it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``stepfast`` and end the process with its exit code."""
    missing = [name for name in ("typer", "rich") if find_spec(name) is None]
    if missing:
        sys.stderr.write(f'error: the command line needs {missing[0]}. Do: pip install "stepfast[cli]"\n')
        sys.exit(1)
    from stepfast.cli.app import run

    sys.exit(run(sys.argv[1:] if arguments is None else list(arguments)))
