from __future__ import annotations

import timeit
from collections.abc import Iterator

import pytest

from stepfast import _failpoints
from stepfast._failpoints import declare, declared, failpoint, install, uninstall
from stepfast.testing import on_failpoint
from tests.testing import toys


@pytest.fixture(autouse=True)
def _no_hook_left() -> Iterator[None]:
    yield
    assert _failpoints._hook is None


def test_without_a_hook_any_name_passes() -> None:
    failpoint("toy.started")
    failpoint("never declared")


def test_a_hook_hears_each_name_in_order_until_it_is_uninstalled() -> None:
    heard: list[str] = []
    install(heard.append)
    failpoint("toy.started")
    failpoint("toy.finished")
    uninstall()
    failpoint("toy.started")
    assert heard == ["toy.started", "toy.finished"]


def test_under_a_hook_an_undeclared_name_is_an_error() -> None:
    install(lambda name: None)
    try:
        with pytest.raises(LookupError, match=r"toy\.mistyped.*declare"):
            failpoint("toy.mistyped")
    finally:
        uninstall()


def test_declared_names_add_up() -> None:
    declare("toy.extra", "toy.started")
    assert declared() == toys.FAILPOINTS | {"toy.extra"}


def test_a_second_hook_is_refused() -> None:
    install(lambda name: None)
    try:
        with pytest.raises(RuntimeError, match="already installed"):
            install(lambda name: None)
    finally:
        uninstall()


def test_a_failpoint_that_is_off_costs_less_than_100_ns() -> None:
    # Many short rounds, of which one at least is left alone by the rest of the machine.
    rounds = timeit.repeat('failpoint("toy.started")', globals={"failpoint": failpoint}, number=2_000, repeat=100)
    assert min(rounds) / 2_000 < 100e-9


def test_on_failpoint_acts_at_the_hit_asked_for_and_only_there() -> None:
    acted: list[int] = []
    with on_failpoint("toy.acted", lambda: acted.append(1), hit=2):
        failpoint("toy.acted")
        failpoint("toy.started")
        assert acted == []
        failpoint("toy.acted")
        failpoint("toy.acted")
    assert acted == [1]


def test_on_failpoint_may_raise_into_the_code_under_test() -> None:
    def fail() -> None:
        raise OSError("injected")

    with pytest.raises(OSError, match="injected"), on_failpoint("toy.acted", fail):
        failpoint("toy.acted")


def test_on_failpoint_refuses_a_name_that_nobody_declared() -> None:
    with pytest.raises(LookupError), on_failpoint("toy.mistyped", lambda: None):
        pass
