"""``stepfast doctor``: it finds what is wrong, and says what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stepfast.cli import doctor
from tests.cli.kit import Cli
from tests.server.live import Live


def checks(cli: Cli, code: int = 0, **env: str) -> dict[str, Any]:
    found = cli.json("doctor", code=code, **env)
    assert found["ok"] is (code == 0)
    return {each["name"]: each for each in found["checks"]}


def test_a_sound_store_has_no_problem(cli: Cli) -> None:
    found = checks(cli)
    assert {"versions", "writing", "clock"} <= set(found)
    assert ("key" in found) is cli.url.startswith("http")
    assert "All is well." in cli("doctor").stdout


def test_a_store_that_cannot_be_opened_is_a_problem_with_a_remedy(tmp_path: Path) -> None:
    for url in (f"sqlite:///{tmp_path}", "postgresql://127.0.0.1:9/x?connect_timeout=1", "http://127.0.0.1:9"):
        found = checks(Cli(url, tmp_path), code=1)
        [problem] = [each for each in found.values() if each["state"] == "problem"]
        assert problem["remedy"]
        told = Cli(url, tmp_path)("doctor", code=1)
        assert "problem: " in told.stdout
        assert told.stderr == ""


def test_a_password_is_never_shown(tmp_path: Path) -> None:
    cli = Cli("postgresql://me:hunter2@127.0.0.1:9/x?connect_timeout=1", tmp_path)
    for arguments, code in ((("doctor",), 1), (("doctor", "--json"), 1), (("intents", "list"), 5)):
        told = cli(*arguments, code=code)
        assert "hunter2" not in told.stdout + told.stderr


def test_a_key_that_opens_nothing_is_a_problem(serve: Callable[..., Live], tmp_path: Path) -> None:
    live = serve(require_keys=True)
    key = next(line for line in live.lines if "axme_sa_" in line).rpartition(" ")[2]
    assert checks(Cli(live.url, tmp_path, key))["key"]["state"] == "ok"
    assert checks(Cli(live.url, tmp_path, key[:-4] + "0000"), code=1)["key"]["state"] == "problem"


class Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.mark.parametrize(("free", "state"), [(1 << 20, "problem"), (500 << 20, "warning"), (1 << 40, "ok")])
def test_a_full_disk_is_a_problem(embedded: Cli, monkeypatch: pytest.MonkeyPatch, free: int, state: str) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _path: Usage(1 << 41, 0, free))
    assert checks(embedded, code=1 if state == "problem" else 0)["disk"]["state"] == state


@pytest.mark.parametrize(
    ("version", "state"),
    [((3, 40, 1), "warning"), ((3, 44, 6), "ok"), ((3, 45, 0), "warning"), ((3, 50, 7), "ok"), ((3, 51, 2), "warning"),
     ((3, 51, 3), "ok"), ((3, 60, 0), "ok")],
    ids=str,
)  # fmt: skip
def test_sqlite_versions_with_the_wal_bug_are_told(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...], state: str
) -> None:
    monkeypatch.setattr(doctor, "_sqlite_version", lambda: version)
    assert doctor._sqlite(None)[0].state == state


@pytest.mark.parametrize(("off", "state"), [(0.2, "ok"), (-3.0, "warning"), (3600.0, "problem")])
def test_a_clock_that_is_off_is_told(off: float, state: str) -> None:
    assert doctor._clock(off, 0.01).state == state


def test_a_file_that_others_may_read_is_a_warning(embedded: Cli) -> None:
    embedded.send("a")
    path = Path(embedded.url.removeprefix("sqlite:///"))
    path.chmod(0o604)
    assert checks(embedded)["file"]["remedy"].startswith("Others may read it")


def test_wrong_encryption_keys_are_a_problem(embedded: Cli) -> None:
    found = checks(embedded, code=1, STEPFAST_ENCRYPTION_KEYS="nonsense")
    assert found["encryption keys"]["state"] == "problem"
