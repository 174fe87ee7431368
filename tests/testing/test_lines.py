from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from stepfast._failpoints import failpoint
from stepfast.testing import Boundaries, every_failpoint, every_line
from stepfast.testing.lines import choose

HERE = Path(__file__)


def met(at: Boundaries, body: Callable[[], object]) -> list[str]:
    labels: list[str] = []
    at.start(labels.append)
    try:
        body()
    finally:
        at.stop()
    return labels


def three_lines() -> None:
    first = 1
    second = first + 1
    assert second == 2


def lines_of(function: Callable[[], object]) -> list[int]:
    start = function.__code__.co_firstlineno
    return [start + 1, start + 2, start + 3]


def test_every_executed_line_is_met_in_order() -> None:
    assert met(every_line(HERE), three_lines) == [f"{HERE.name}:{line}" for line in lines_of(three_lines)]


def test_a_line_is_met_each_time_it_runs() -> None:
    def four_times() -> None:
        for _ in range(4):
            three_lines()

    labels = met(every_line(HERE), four_times)
    assert labels.count(f"{HERE.name}:{lines_of(three_lines)[0]}") == 4


def test_lines_of_a_thread_are_met_too() -> None:
    def in_a_thread() -> None:
        thread = threading.Thread(target=three_lines)
        thread.start()
        thread.join()

    labels = met(every_line(HERE), in_a_thread)
    assert {f"{HERE.name}:{line}" for line in lines_of(three_lines)} <= set(labels)


def test_lines_outside_the_watched_places_are_not_met() -> None:
    assert met(every_line("json"), three_lines) == []


def test_a_package_is_watched_by_name_and_its_labels_hold_no_folder_of_the_machine() -> None:
    import json

    labels = met(every_line("json"), lambda: json.dumps({"a": [1]}, indent=1))
    assert labels
    assert all(label.startswith("json/") for label in labels)


def test_the_harness_does_not_cut_itself() -> None:
    assert met(every_line("stepfast"), lambda: failpoint("toy.started")) == []
    assert met(every_line("stepfast") | every_failpoint(), lambda: failpoint("toy.started")) == ["toy.started"]


def test_boundaries_add_up_in_the_order_in_which_they_are_met() -> None:
    def both() -> None:
        three_lines()
        failpoint("toy.started")

    labels = met(every_line(HERE) | every_failpoint(), both)
    assert labels[-1] == "toy.started"
    assert len(labels) == 6


def test_failpoints_are_chosen_by_pattern() -> None:
    def two() -> None:
        failpoint("toy.started")
        failpoint("toy.finished")

    assert met(every_failpoint("*.fin*"), two) == ["toy.finished"]


@pytest.mark.parametrize("place", ["no_such_package_here", Path("no/such/folder"), "_ctypes"])
def test_a_place_without_source_is_refused(place: str | Path) -> None:
    with pytest.raises(ValueError, match="every_line"):
        every_line(place)


def test_every_line_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="package name"):
        every_line()


def test_sampling_tries_each_place_once_before_any_twice() -> None:
    labels = ["loop"] * 50 + ["rare", "rarer"]
    chosen = choose(labels, 1, 3, None, seed=7)
    assert {labels[number - 1] for number in chosen} == {"loop", "rare", "rarer"}
    assert chosen == choose(labels, 1, 3, None, seed=7)


def test_a_stride_skips_evenly() -> None:
    assert choose(["a"] * 10, 3, None, None, seed=0) == [1, 4, 7, 10]


def test_points_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ValueError, match="1 to 10"):
        choose(["a"] * 10, 1, None, [11], seed=0)
