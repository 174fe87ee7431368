"""The demo and the examples do what they say, each in a process of its own, with no key and no network."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stepfast import Stepfast
from tests import hygiene

EXAMPLES = hygiene.ROOT / "examples"
DEMO = EXAMPLES / "killed_at_47" / "demo.py"
WORKER_DEMO = EXAMPLES / "killed_worker" / "demo.py"

# What each story must say at its end, besides exit code 0.
STORIES = {
    "approval": ["--- the person answers while no agent is running", "approved by maria"],
    "async_fan_out": ["second life:", "1 x an outline"],
    "decorators": ["asked once more:"],
    "etl_map": ["'rows': 20000"],
    "one_shot_in_doubt": ["in doubt:", "the person:  done", "COMPLETED", "charges at the bank: 1"],
}

# Each needs a framework: the tests of the adapter run it.
OF_ADAPTERS = {
    "autogen_team": "autogen",
    "crewai_order": "crewai",
    "langgraph_agent": "langgraph",
    "openai_agents_refund": "openai_agents",
}


def run(script: Path, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Start a script with ``folder`` as its home and its place for temporary files."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("STEPFAST_")}
    environment |= {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "TMPDIR": str(folder)}
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(hygiene.ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    )
    return subprocess.run(
        [sys.executable, str(script), *arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
        timeout=60,
    )


def test_the_demo_goes_on_at_step_47_and_repeats_no_finished_step(tmp_path: Path) -> None:
    ended = run(DEMO, "--fast", "--json", folder=tmp_path)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(ended.stdout)
    assert (found["steps"], found["killed_at"], found["resumed_at"]) == (50, 47, 47)
    assert found["first_exit_code"] == -9
    assert found["executions"] == {str(step): 1 for step in range(1, 51)}
    assert found["begun"] == {str(step): 2 if step == 47 else 1 for step in range(1, 51)}
    assert found["saved"]["steps"] == 46
    assert found["saved"]["model_calls"] > 10


def test_the_demo_shows_plain_lines_where_there_is_no_terminal_and_cleans_up(tmp_path: Path) -> None:
    ended = run(DEMO, "--fast", "--steps", "12", folder=tmp_path)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "\x1b" not in ended.stdout
    assert "step   9/12" in ended.stdout
    assert "going on at step 9" in ended.stdout
    assert "Every claim above was checked" in ended.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_store_that_the_demo_keeps_can_be_looked_into(tmp_path: Path) -> None:
    ended = run(DEMO, "--fast", "--steps", "10", "--kill-at", "5", "--keep", folder=tmp_path)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    snippet = re.search(r"print\(Stepfast\('(.+)'\)\.describe\('(.+)'\)\)", ended.stdout)
    assert snippet is not None
    with Stepfast(snippet[1]) as sf:
        seen = sf.describe(snippet[2])
    assert (seen["status"], seen["step"], seen["lost_deliveries"]) == ("COMPLETED", 10, 0)


def test_the_demo_runs_on_postgresql(tmp_path: Path, postgres_url: str) -> None:
    ended = run(DEMO, "--fast", "--steps", "10", "--json", "--store", postgres_url, folder=tmp_path)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert json.loads(ended.stdout)["store"].startswith("postgresql://")


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_the_workers_demo_goes_on_where_the_first_worker_died(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    store = ["--store", request.getfixturevalue("postgres_url")] if kind == "postgres" else []
    ended = run(WORKER_DEMO, "--fast", "--json", *store, folder=tmp_path)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(ended.stdout)
    assert (found["killed_at"], found["resumed_at"], found["delivery_attempt"]) == (8, 8, 2)
    assert found["executions"] == {str(step): 1 for step in range(1, 13)}
    print(f"{kind}: resumed {found['seconds_to_resume']} s after the kill")


def test_the_workers_demo_fails_where_its_claim_does(tmp_path: Path) -> None:
    folder = tmp_path / "sabotaged"
    shutil.copytree(WORKER_DEMO.parent, folder)
    worker = folder / "worker.py"
    whole = worker.read_text()
    broken = whole.replace("run.step(process, step)", "process(step)")
    assert broken != whole
    worker.write_text(broken)
    ended = run(folder / "demo.py", "--fast", folder=tmp_path)

    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "WRONG: the second worker began at step 1, not at 8" in ended.stdout


# Ways to break the pipeline, and what the demo must then complain of.
SABOTAGE = {
    "steps that are not found again": (
        {"run.options(name=": "run.options(key=f'{task.number}-{run.attempt}', name="},
        "step 1 took effect 2 times, not once",
    ),
    "steps that are not recorded": (
        {'named.once if task.kind == "mail" else named.step': "lambda function, *args: function(*args)"},
        "the store held 0 finished steps, not 6",
    ),
    "effects that do not happen": (
        {'self._append("done"': 'self._append("gone"'},
        "before the kill, steps took effect as {}",
    ),
}


@pytest.mark.parametrize("sabotage", SABOTAGE)
def test_the_demo_fails_where_its_claim_does(sabotage: str, tmp_path: Path) -> None:
    changes, complaint = SABOTAGE[sabotage]
    folder = tmp_path / "broken"
    shutil.copytree(DEMO.parent, folder)
    source = (folder / "pipeline.py").read_text(encoding="utf-8")
    for right, wrong in changes.items():
        assert right in source
        source = source.replace(right, wrong)
    (folder / "pipeline.py").write_text(source, encoding="utf-8")

    ended = run(folder / "demo.py", "--fast", "--steps", "10", folder=tmp_path)

    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert f"FAILED: {complaint}" in ended.stderr


def test_every_example_is_among_the_tested_ones_and_has_a_page() -> None:
    folders = {folder.name for folder in EXAMPLES.iterdir() if folder.is_dir() and folder.name != "__pycache__"}

    assert folders == {*STORIES, *OF_ADAPTERS, "killed_at_47", "killed_worker"}
    for story, adapter in OF_ADAPTERS.items():
        assert story in (hygiene.ROOT / "adapters" / adapter / "tests" / "test_example.py").read_text()
    assert [name for name in folders if not (EXAMPLES / name / "README.md").exists()] == []


@pytest.mark.parametrize("story", STORIES)
def test_an_example_tells_its_story(story: str, tmp_path: Path) -> None:
    ended = run(EXAMPLES / story / "main.py", folder=tmp_path)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert [line for line in STORIES[story] if line not in ended.stdout] == []


def test_a_probe_spares_the_person(tmp_path: Path) -> None:
    ended = run(EXAMPLES / "one_shot_in_doubt" / "main.py", "probe", folder=tmp_path)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "in doubt" not in ended.stdout
    assert "charges at the bank: 1" in ended.stdout
