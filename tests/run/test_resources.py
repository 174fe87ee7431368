"""What a run depends on outside of itself is looked at before it goes on."""

# ruff: noqa: ASYNC240 - a scenario has its event loop for itself, or none at all

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepfast import Check, File, InvalidInput, ResumeRefused, RunFailed, Suspended
from tests.run.kit import Calls, Way, both


async def verdicts(sf: Any) -> list[dict[str, Any]]:
    return [e["details"] for e in await sf.events("r") if e["event_type"] == "intent.resume_checked"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "utils.py"
    path.write_text("x = 1\n")
    return path


@both
async def test_a_run_resumes_where_its_resources_are_as_they_were(way: Way, source: Path) -> None:
    sf = way.open(checks={"branch": lambda name: name == "main"})
    async with way.crashing(sf, "r") as run:
        await run.checkpoint({}, resources=[File(source), str(source), source, Check("branch", {"name": "main"})])
    async with sf.run("r") as run:
        assert run.verdict.outcome == "resume"
        assert run.verdict.findings == []
    assert await verdicts(sf) == [{"verdict": "resume", "checkpoint": 1, "findings": []}]


@pytest.mark.parametrize("happens", ["changed", "missing"])
@both
async def test_a_changed_or_missing_file_waits_for_a_person(way: Way, calls: Calls, source: Path, happens: str) -> None:
    sf = way.open()

    async def body(run: Any) -> None:
        await run.step(calls.a)
        await run.checkpoint({"n": 1}, resources=[File(source)])
        await run.step(calls.b)

    async with way.crashing(sf, "r") as run:
        await body(run)
    source.unlink() if happens == "missing" else source.write_text("x = 2\n")
    for _ in range(2):
        with pytest.raises(Suspended):
            await sf.run("r", on_wait="suspend")
    [decision] = await sf.decisions("r")
    assert decision["kind"] == "resume"
    assert str(source) in decision["question"]
    [finding] = decision["evidence"]
    assert finding["look"] == "resource"
    assert finding["detail"].startswith("changed" if happens == "changed" else "cannot be read")
    [verdict] = await verdicts(sf)
    assert verdict["verdict"] == "wait"
    assert verdict["findings"][0]["subject"] == str(source)
    await sf.answer("r", "continue", actor="ann")
    async with way.crashing(sf, "r") as run:
        assert run.restored == {"n": 1}
        await body(run)
    # The same change is not asked about twice.
    async with sf.run("r", on_wait="suspend") as run:
        await body(run)
    assert calls.names == ["a", "b"]


@both
async def test_a_person_may_let_the_run_fail_instead(way: Way, source: Path) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        await run.checkpoint({}, resources=[File(source)])
    source.unlink()
    with pytest.raises(Suspended):
        await sf.run("r", on_wait="suspend")
    await sf.answer("r", "fail")
    with pytest.raises(ResumeRefused, match="cannot be read"):
        await sf.run("r", on_wait="suspend")
    assert (await sf.get_intent("r"))["status"] == "FAILED"
    with pytest.raises(RunFailed, match="revive"):
        await sf.run("r")
    await sf.revive("r")
    with pytest.raises(Suspended):  # whoever revives it is asked again
        await sf.run("r", on_wait="suspend")


@pytest.mark.parametrize("resource", [{"on_change": "fail"}, {"on_missing": "fail"}])
@both
async def test_a_resource_may_be_one_the_run_must_fail_without(
    way: Way, calls: Calls, source: Path, resource: dict[str, Any]
) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        await run.step(calls.a)
        await run.checkpoint({}, resources=[File(source, **resource)])
    was = source.read_text()
    source.write_text("other") if "on_change" in resource else source.unlink()
    with pytest.raises(ResumeRefused, match="Mend this and revive"):
        await sf.run("r")
    intent = await sf.get_intent("r")
    assert intent["status"] == "FAILED"
    assert str(source) in intent["reason"]
    assert [v["verdict"] for v in await verdicts(sf)] == ["fail"]
    source.write_text(was)
    async with sf.run("r", on_failed="revive") as run:
        await run.step(calls.a)
        assert run.restored == {}
    assert calls.names == ["a"]


@both
async def test_a_file_may_change_where_that_does_not_matter(way: Way, source: Path) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        await run.checkpoint({}, resources=[File(source, on_change="resume")])
    source.write_text("other")
    async with sf.run("r", on_wait="suspend") as run:
        assert run.verdict.outcome == "resume"


@pytest.mark.parametrize(
    ("answer", "detail"),
    [(False, "does not hold"), ("on branch dev", "on branch dev"), (OSError("no git"), "OSError: no git")],
    ids=["false", "text", "raises"],
)
@both
async def test_a_check_of_one_s_own_may_say_no(way: Way, answer: Any, detail: str) -> None:
    def check() -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    good = way.open(checks={"git": lambda: True})
    async with way.crashing(good, "r") as run:
        await run.checkpoint({}, resources=[Check("git")])
    sf = way.open(checks={"git": check}, clock=good.store.clock)
    with pytest.raises(Suspended):
        await sf.run("r", on_wait="suspend")
    [verdict] = await verdicts(sf)
    assert [(f["subject"], f["detail"]) for f in verdict["findings"]] == [("git", detail)]


@both
async def test_a_check_may_fail_the_run(way: Way) -> None:
    answers = iter([True, "gone"])
    sf = way.open(checks={"git": lambda: next(answers)})
    async with way.crashing(sf, "r") as run:
        await run.checkpoint({}, resources=[Check("git", on_failure="fail")])
    next(answers)
    answers = iter(["gone"])
    with pytest.raises(ResumeRefused, match="gone"):
        await sf.run("r")


@both
async def test_a_check_that_this_process_does_not_know_is_no_yes(way: Way) -> None:
    sf = way.open(checks={"git": lambda: True})
    async with way.crashing(sf, "r") as run:
        await run.checkpoint({}, resources=[Check("git")])
    other = way.open(clock=sf.store.clock)
    with pytest.raises(Suspended):
        await other.run("r", on_wait="suspend")
    [verdict] = await verdicts(sf)
    assert "not registered" in verdict["findings"][0]["detail"]


@both
async def test_resources_are_those_of_the_newest_whole_checkpoint(way: Way, source: Path) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        await run.checkpoint({}, resources=[File(source)])
        await run.checkpoint({})
    source.unlink()
    async with sf.run("r", on_wait="suspend") as run:
        assert run.verdict.checkpoint == 2


@both
async def test_what_cannot_be_watched_is_refused_at_once(way: Way, tmp_path: Path) -> None:
    sf = way.open()
    async with sf.run("r") as run:
        for wrong, says in (
            (File(tmp_path / "none.py"), "cannot be read"),
            (Check("git"), "no check 'git' is registered"),
            (42, "not int"),
        ):
            with pytest.raises(InvalidInput, match=says):
                await run.checkpoint({}, resources=[wrong])


@both
async def test_a_run_is_seen_from_outside_at_step_n_of_total_with_what_it_holds_open(
    way: Way, calls: Calls, source: Path
) -> None:
    sf, outside = way.open(), way.open()
    async with sf.run("r", total_steps=4, labels={"team": "etl"}) as run:
        assert (await outside.describe("r"))["step"] == 0
        await run.step(calls.extract)
        await run.scope("s").step(calls.inner)
        await run.checkpoint({"cursor": 42}, resources=[File(source)], pending=["commit"])
        await run.step(calls.validate)
        shown = await outside.describe("r")
        assert (shown["step"], shown["total_steps"], shown["last_step"]) == (2, 4, "validate")
        assert shown["records"] == 4
        assert shown["checkpoint"] == 1
        assert shown["pending"] == ["commit"]
        [resource] = shown["resources"]
        assert (resource["kind"], resource["path"]) == ("file", str(source))
        assert shown["status"] == "IN_PROGRESS"
        assert shown["labels"] == {"team": "etl"}
        assert shown["decisions"] == []
