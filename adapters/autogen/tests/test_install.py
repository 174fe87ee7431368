"""Installed from a clone, the adapter takes the library from the clone, and the library's extra takes the adapter."""

from __future__ import annotations

import pytest

from tests.installing import of_the_clone, would_install


@pytest.mark.parametrize(
    "wanted",
    [
        ["./adapters/autogen"],
        [".[autogen]"],
        ["-e", ".", "-e", "adapters/autogen"],
    ],
    ids=" ".join,
)
def test_pip_takes_both_from_the_clone(wanted: list[str]) -> None:
    assert sorted(would_install(*wanted).values()) == of_the_clone(".", "adapters/autogen")
