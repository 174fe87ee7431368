"""The crash matrix finds what is planted in a scene, and nothing in one that is right. No verdict needs a clock."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from stepfast.testing import CrashTestFailed, Report, Scene, crash_matrix
from stepfast.testing.verdicts import Expected, Kind, judge
from tests.testing import matrix_scenes as scenes


def matrix(scene: Scene, memory: Path, **options: object) -> Report:
    return crash_matrix(scene, **{"folder": memory, **options})  # type: ignore[arg-type]


def test_a_right_scene_is_killed_at_each_of_its_points_and_is_clean(memory: Path) -> None:
    report = matrix(scenes.right, memory)
    report.assert_clean()
    assert report.points == report.tried
    assert report.points[:5] == (
        "model:plan.before#1",
        "model:plan.after#1",
        "record.before#1",
        "record.after#1",
        "book.before#1",
    )
    assert report.kills == len(report.points) == 12
    assert report.lives == 3 * report.kills, "killed, resumed, and once more for nothing"
    assert report.calls == {"model:plan": 1, "book": 1, "model:sum": 1}
    assert report.warm
    assert "12 kills" in str(report)
    assert "nothing found" in str(report)
    assert not list(memory.iterdir()), "evidence is kept only of what was found"


@pytest.mark.parametrize(
    ("scene", "kind", "said"),
    [
        (scenes.repeats_a_recorded_model_call, "repeated model call", "though 1 of them were finished"),
        (scenes.forgets_a_tool_whose_answer_the_model_was_shown, "repeated tool call", "though 1 of them were"),
        (scenes.repeats_more_than_was_under_way, "repeated model call", "at most 1 can be under way"),
        (scenes.doubles_a_one_shot, "doubled one-shot", "book happened 2 times instead of 1"),
        (scenes.ends_with_another_result, "wrong result", "'by the way'"),
        (scenes.leaves_out_what_was_under_way, "lost work", "book was made 0 times of 1"),
        (scenes.changes_its_key, "changed key", "book was repeated with another idempotency key"),
        (scenes.fails_when_resumed, "error", "KeyError: 'plan'"),
        (scenes.shows_what_never_happened, "lost work", "the store shows 1 finished calls of book; 0 were made"),
        (scenes.works_after_its_end, "repeated tool call", "after the run had ended"),
        (scenes.waits_for_nobody, "hang", "no question is open"),
        (scenes.is_wrong_already, "wrong result", "with no kill at all"),
    ],
    ids=lambda value: value.name if isinstance(value, Scene) else "",
)
def test_a_planted_fault_is_found(scene: Scene, kind: Kind, said: str, memory: Path) -> None:
    report = matrix(scene, memory)
    assert said in "\n".join(finding.text for finding in report.of(kind)), report
    with pytest.raises(CrashTestFailed, match=kind):
        report.assert_clean()


def test_a_finding_names_the_point_and_keeps_the_story(memory: Path) -> None:
    report = matrix(scenes.doubles_a_one_shot, memory)
    (finding, *_) = report.of("doubled one-shot")
    assert finding.at == "book.after#1"
    story = (Path(finding.folder) / "story.jsonl").read_text()
    assert story.count('"call": "book"') == 2
    assert '"cut": "book.after#1"' in story


def test_a_hang_is_found_and_shows_where(memory: Path) -> None:
    report = matrix(scenes.hangs_when_resumed, memory, points=1, timeout=3)
    (finding,) = report.of("hang")
    assert "life 2 was still running after 3 s" in finding.text
    assert "hangs_when_resumed" in (Path(finding.folder) / "stacks").read_text()


def test_a_life_that_hangs_before_any_kill_is_judged_too() -> None:
    """Its story has calls, and neither a cut nor an end."""
    expected = Expected(Counter({"charge": 1}), {}, "paid", frozenset({"charge"}), 1)
    assert list(judge([{"life": 1, "call": "charge", "answer": "done"}], expected)) == []


def test_what_is_never_judged_or_never_killed_is_not_clean(memory: Path) -> None:
    with pytest.raises(CrashTestFailed, match="never judged: book"):
        matrix(scenes.is_never_judged, memory, points=2).assert_clean()
    with pytest.raises(CrashTestFailed, match="nothing is proved"):
        matrix(scenes.right, memory, points=0).assert_clean()


def test_a_sample_has_each_label_once_before_any_twice(memory: Path) -> None:
    report = matrix(scenes.right, memory, points=8, seed=3)
    assert len({at.partition("#")[0] for at in report.tried}) == 8
    assert matrix(scenes.right, memory, points=8, seed=3).tried == report.tried


def test_random_moments_lines_and_second_kills_are_judged_alike(memory: Path) -> None:
    report = matrix(
        scenes.right, memory, points=2, moments=3, lines=3, packages=["tests.testing.matrix_scenes"], kills=2
    )
    assert not report.findings, report
    assert sum("ms" in at for at in report.tried) == 3
    assert sum("line" in at for at in report.tried) == 3
    assert sum("and then" in at for at in report.tried) == 2


def test_a_scene_that_leaves_threads_is_forked_from_a_process_that_never_played(memory: Path) -> None:
    report = matrix(scenes.leaves_a_thread, memory, points=4)
    report.assert_clean()
    assert not report.warm


def test_options_reach_the_scene(memory: Path) -> None:
    report = matrix(scenes.has_options, memory, options={"mood": "gay"}, points=1)
    report.assert_clean()
    assert report.scene == "has_options mood=gay"


def test_what_is_not_a_scene_is_refused() -> None:
    with pytest.raises(TypeError, match=r"decorated with @scene\(\)"):
        crash_matrix(print)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="packages: lines= needs"):
        crash_matrix(scenes.right, lines=3)
