"""Stores that older versions wrote, as copies that a test may open and go on with.

``tests/fixtures/README.md`` says what they hold and how they were made.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import psycopg
import pytest

FIXTURES = Path(__file__).resolve().parent / "fixtures"
FOLDER = FIXTURES / "846bbbb"
SCHEMA = "holdfast"  # the default of that version
KINDS = ("sqlite", "sealed", "postgres")
SECRETS: dict[str, Any] = json.loads((FOLDER / "secrets.json").read_text(encoding="utf-8"))


def _user_module(name: str) -> ModuleType:
    """Load a module of the user's program under the name by which stored values refer to its classes."""
    spec = importlib.util.spec_from_file_location(name, FIXTURES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


shop = _user_module("shop")


class OldStore:
    """A copy of one stored fixture; ``url`` opens it, ``expected`` is what the old version read in it."""

    def __init__(self, part: str, kind: str, url: str) -> None:
        self.kind = kind
        self.url = url
        self.token: str = SECRETS["tokens"][kind]
        self.expected: Any = json.loads((FOLDER / f"{part}-{kind}.json").read_text(encoding="utf-8"))


def copy_of(
    part: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> OldStore:
    """Copy a part of the fixtures (``library``, ``langgraph``, ``openai_agents``) and set the keys that it needs."""
    monkeypatch.setitem(sys.modules, "shop", shop)  # another test may have taken it out
    if kind == "postgres":
        url: str = request.getfixturevalue("postgres_url")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
            connection.execute((FOLDER / f"{part}-{kind}.sql").read_bytes())
        return OldStore(part, kind, f"{url}{'&' if '?' in url else '?'}schema={SCHEMA}")
    if kind == "sealed":
        monkeypatch.setenv("STEPFAST_ENCRYPTION_KEYS", SECRETS["keys"])
    path = tmp_path / "old.db"
    shutil.copyfile(FOLDER / f"{part}-{kind}.db", path)
    return OldStore(part, kind, f"sqlite:///{path}?durability=process")


def missing(expected: Any, found: Any, where: str = "") -> list[str]:
    """Return what of ``expected`` is not in ``found``; what a newer version shows besides does not count."""
    if isinstance(expected, dict) and isinstance(found, dict):
        return [
            each
            for name, value in expected.items()
            for each in missing(value, found.get(name, "nothing"), f"{where}/{name}")
        ]
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        return [
            each for number, value in enumerate(expected) for each in missing(value, found[number], f"{where}/{number}")
        ]
    return [] if expected == found else [f"{where}: {expected!r} is {found!r}"]
