"""The benchmark harness: that it runs, and that its arithmetic is honest. No time is ever asserted here."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench import agents, agents_stage, crews, places, report, run
from tests.bench.remote import REMOTE_SECTIONS
from tests.bench.rounds import Contender, Samples, alternate
from tests.bench.sections import CORE_SECTIONS, FULL, Figure, Workshop
from tests.bench.targets import Verdict, judge


def test_a_ratio_is_the_median_of_same_round_ratios() -> None:
    samples = Samples(["ours", "floor"])
    # The disk was slow in the third round, for both; the medians of each alone would give 2 / 1.
    for ours, floor in ((2.0, 1.0), (3.0, 1.0), (30.0, 10.0), (1.0, 1.0), (6.0, 2.0)):
        samples.rounds.append({"ours": ours, "floor": floor})
    assert samples.ratios("ours", "floor") == [2.0, 3.0, 3.0, 1.0, 3.0]
    assert samples.ratio("ours", "floor") == 3.0


def test_a_contender_that_sat_a_round_out_has_no_ratio_in_it() -> None:
    samples = Samples(["ours", "peer"], [{"ours": 1.0, "peer": None}, {"ours": 2.0, "peer": 8.0}])
    assert samples.ratios("peer", "ours") == [4.0]
    assert samples.of("peer") == [8.0]


def test_contenders_take_turns_within_each_round() -> None:
    order: list[str] = []

    def contender(name: str, every: int = 1) -> Contender:
        def block() -> float:
            order.append(name)
            return 1.0

        return Contender(name, block, every)

    alternate([contender("a"), contender("b"), contender("c", every=2)], rounds=3)
    assert order == ["a", "b", "c", "b", "a", "c", "a", "b"]


@pytest.mark.parametrize(("value", "word"), [(1.3, "pass"), (1.3001, "MISS"), (None, "not measured")])
def test_a_miss_is_a_miss_however_small(value: float | None, word: str) -> None:
    assert Verdict("a step", "<=", 1.3, "x", value, None).word == word


def test_what_is_shown_is_never_rounded_in_our_favour() -> None:
    verdicts = [Verdict("a", "<=", 1.3, "x", 1.3001, None), Verdict("b", ">=", 10_000, "x", 9_999.9, None)]
    table = report.as_text(report.Document({}, FULL, []), verdicts)
    assert "1.31" in table
    assert "9,999" in table
    assert "0 targets met, 2 missed" in table


def test_a_target_is_judged_on_the_disk_and_by_the_better_of_threads_and_asyncio() -> None:
    figures = [
        Figure("many", "disk", "SQLite", "threads", 1 / 9_000, ratio=2.5, dbos=39.9),
        Figure("many", "disk", "SQLite", "asyncio", 1 / 11_000, ratio=2.0, dbos=41.0),
        Figure("many", "tmpfs", "SQLite", "threads", 1 / 20_000, ratio=9.0, dbos=50.0),
    ]
    verdicts = [v for v in judge(figures, FULL) if v.value is not None]
    assert [(round(v.value or math.nan, 6), v.word) for v in verdicts] == [
        (2.0, "pass"),
        (11_000, "pass"),
        (41.0, "pass"),
    ]
    assert {v.remark for v in verdicts} == {"asyncio on disk, threads on tmpfs"}


@pytest.mark.parametrize(
    ("lines", "kill", "found"),
    [
        # The call that was under way when the process died does not count as made again.
        (["m1 asked", "m1 returned", "m1 asked", "m1 returned", "t1 done", "t2 done"], "m1 returned", (0, 0)),
        (["m1 asked", "m1 returned", "t1 done", "t1 done", "t2 done"], "t1 done", (0, 1)),
        (["m1 asked", "m1 returned", "t1 done", "m2 asked", "t1 done", "m2 asked", "t2 done"], "m2 asked", (1, 1)),
        (["m1 asked", "t1 done", "m2 asked", "m1 asked", "t1 done", "m2 asked", "t2 done"], "m2 asked", (2, 1)),
    ],
)
def test_what_a_killed_agent_did_twice_is_counted(lines: list[str], kill: str, found: tuple[int, int]) -> None:
    assert agents_stage.repeated(lines, kill) == found


def test_what_durability_adds_to_a_call_is_told_from_turns_with_few_and_with_many_tools(tmp_path: Path) -> None:
    shop = Workshop(places.Place("disk", "SQLite", tmp_path), FULL, None, lambda _: None)
    turns, most = FULL.agent_turns, FULL.agent_tools
    model, tool, bare = 0.002, 0.001, 0.010
    taken: dict[str, float | None] = {}
    for tools in (1, most):
        # A run has one model call more than turns with tools; what is given is the time of a turn.
        durable = ((turns + 1) * (bare + model) + turns * tools * tool) / (turns + 1)
        taken |= {agents.at_once(agents.BARE, tools): bare, agents.at_once(agents.OURS, tools): durable}

    figures = agents.added(shop, Samples(list(taken), [taken]), [agents.OURS])

    assert [(f.contender, round(f.value, 9)) for f in figures] == [
        ("Stepfast, a model call", model),
        ("Stepfast, a tool call", tool),
    ]


def test_what_durability_adds_to_calls_and_runs_of_crews_is_told_from_short_wide_and_long_runs() -> None:
    shapes = (crews.Shape(10, 1), crews.Shape(10, 8), crews.Shape(30, 1))
    model, tool, run_alone, bare = 0.002, 0.001, 0.050, 0.010
    taken: dict[str, float] = {}
    for shape in shapes:
        more = run_alone + (shape.turns + 1) * model + shape.turns * shape.tools * tool
        taken[crews.shown(crews.BARE, shape)] = bare
        taken[crews.shown(agents.OURS, shape)] = bare + more / (shape.turns + 1)

    found = crews.added([taken], agents.OURS, shapes)

    assert {what: round(value, 9) for what, [value] in found.items()} == {
        crews.MODEL: model,
        agents.TOOL: tool,
        crews.A_RUN: run_alone,
    }


def test_the_tables_replace_what_stands_between_the_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    report.put_between_markers(page, "new\n")
    assert page.read_text() == f"before\n{report.BEGIN}\n\nnew\n\n{report.END}\nafter\n"


@pytest.fixture
def quick_folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is such a place: this is about the harness, and a busy disk only makes it slow."""
    folder = places.folder_in_memory()
    yield folder or tmp_path
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def test_every_section_runs_and_comes_out_as_table_and_json(
    tmp_path: Path, quick_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    page = tmp_path / "page.md"
    page.write_text(f"{report.BEGIN}\n{report.END}\n")
    code = run.main(
        [
            *("--smoke", "--no-dbos", "--medium", "disk", "--folder", str(quick_folder)),
            *("--json", str(out), "--markdown", str(page)),
        ]
    )
    assert code == 0
    table = capsys.readouterr().out
    assert "Targets, judged on disk" in table
    assert "fsync on, synchronous_commit on" in table
    assert "| pass |" in page.read_text()
    document = json.loads(out.read_text())
    measured = {(f["section"], f["store"]) for f in document["figures"]}
    both = {(section, store) for section in CORE_SECTIONS for store in ("SQLite", "PostgreSQL")}
    assert measured == both | {(section, "PostgreSQL") for section in REMOTE_SECTIONS}
    differences = ("remote", "blocked")  # one is a time beyond another, the other counts what must not happen
    assert all(f["value"] > 0 for f in document["figures"] if f["section"] not in differences)
    unmeasured = {t["unit"] for t in document["targets"] if t["met"] is None}
    assert unmeasured <= {"x DBOS"}
