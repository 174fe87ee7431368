"""What pip would install, asked of pip itself, without a registry and without installing anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.hygiene import ROOT


def would_install(*wanted: str) -> dict[str, str]:
    """The address of each distribution that ``pip install`` of these, in a clone, would install here, by its name.

    Everything that is not Stepfast's own must be in this environment already: there is no registry to ask.
    """
    flags = ["--isolated", "--no-index", "--no-build-isolation", "--disable-pip-version-check", "--quiet"]
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "install", *flags, "--dry-run", "--report", "-", *wanted],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert asked.returncode == 0, asked.stderr
    report = json.loads(asked.stdout)
    return {each["metadata"]["name"]: each["download_info"]["url"] for each in report["install"]}


def of_the_clone(*folders: str) -> list[str]:
    """The addresses of folders of this clone, as pip reports them."""
    return sorted((ROOT / folder).as_uri() for folder in folders)
