"""Which tests `make test` runs, and which are left to `make test-all`.

Most tests run on several stores, blocking and async. The sample has each of them on SQLite, on PostgreSQL and over HTTP
as far as it goes, once on each, blocking or async in turn; the rest has all other combinations. Tests marked
``thorough`` are in the rest only. The choice is by name, so it is the same on every machine.
"""

from __future__ import annotations

import re
import zlib
from collections import defaultdict

import pytest

# The parts of a test's id that say where and how it runs.
_STORES = ("http+postgres", "http+sqlite", "http", "remote", "postgres", "sqlite", "file", "memory", "embedded")
_WAYS = ("sync", "async", "blocking", "awaited")
_FAMILIES = {
    "http+postgres": "http",
    "http+sqlite": "http",
    "remote": "http",
    "file": "sqlite",
    "memory": "sqlite",
    "embedded": "sqlite",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("sampling")
    group.addoption("--sample", action="store_true", help="only the sample that make test runs")
    group.addoption("--rest", action="store_true", help="only what make test leaves out")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "thorough: left out of `make test`, run by `make test-all`")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    sample, rest = config.getoption("--sample"), config.getoption("--rest")
    if sample == rest:
        return
    chosen = _sample(items)
    kept = [item for item in items if (item.nodeid in chosen) == sample]
    config.hook.pytest_deselected(items=[item for item in items if (item.nodeid in chosen) != sample])
    items[:] = kept


def _sample(items: list[pytest.Item]) -> set[str]:
    alike: dict[tuple[str, str], list[str]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("thorough") is None:
            alike[_kind(item.nodeid)].append(item.nodeid)
    return {
        names[zlib.crc32(test.encode()) % len(names)] for (test, _), names in alike.items() for names in [sorted(names)]
    }


def _kind(nodeid: str) -> tuple[str, str]:
    """A test without where and how it runs, and the family of stores that it runs on."""
    name, bracket, parameters = nodeid.partition("[")
    if not bracket:
        return nodeid, ""
    family = ""
    left = []
    for word in re.split(r"[-\]]", parameters):
        if word in _STORES:
            family = _FAMILIES.get(word, word)
        elif word not in _WAYS:
            left.append(word)
    return f"{name}[{'-'.join(left)}", family
