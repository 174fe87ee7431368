"""A store file that is not what it should be: each case has its answer, and none is a surprise."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stepfast import Damaged, SchemaTooNew, Stepfast, StepfastError, StoreError, StoreUnavailable
from stepfast.testing.processes import Child
from tests.crash.stage import STORE, Stage, check_rows, look

NOBODY = 65534


@pytest.fixture
def store(memory: Path) -> Path:
    """A store with a finished run of a hundred steps, all of it in the main file."""
    folder = memory / "home"
    folder.mkdir()
    stage = Stage(folder)
    with stage.client() as sf, stage.run(sf) as run:
        for number in range(100):
            run.options(key=f"s{number}").step(lambda: {"did": "it", "much": "x" * 500})
    return folder / STORE


def ask(path: Path) -> list[dict[str, Any]]:
    with Stepfast(f"sqlite:///{path}") as sf:
        return sf.steps("run")


@pytest.mark.parametrize("part", [0.02, 0.1, 0.3, 0.5, 0.9, 0.99])
def test_a_truncated_file_is_damaged(store: Path, part: float) -> None:
    with store.open("r+b") as file:
        file.truncate(int(store.stat().st_size * part))
    with pytest.raises(Damaged, match="Restore it from a backup"):
        ask(store)


def test_a_file_without_its_log_is_an_older_state_that_is_whole(memory: Path) -> None:
    """Whoever copies only the main file of a living store gets what had been copied into it, and no half of a thing."""
    stage = Stage(memory)
    with stage.client() as sf:
        with stage.run(sf) as run:
            run.step(stage.act, "a")
        copy = memory / "copy"
        copy.mkdir()
        shutil.copy2(memory / STORE, copy / STORE)
        assert (memory / f"{STORE}-wal").exists()
    seen = look(Stage(copy))
    check_rows(seen)


def test_a_log_of_garbage_is_left_aside(store: Path) -> None:
    Path(f"{store}-wal").write_bytes(os.urandom(50_000))
    assert len(ask(store)) == 100


@pytest.mark.parametrize("content", [b"no database at all " * 1000, bytes(8192), os.urandom(8192)])
def test_a_file_of_garbage_is_damaged_and_left_as_it_is(memory: Path, content: bytes) -> None:
    path = memory / STORE
    path.write_bytes(content)
    with pytest.raises(Damaged):
        ask(path)
    assert path.read_bytes() == content


def test_an_empty_file_is_an_empty_store(memory: Path) -> None:
    (memory / STORE).touch()
    with Stepfast(f"sqlite:///{memory / STORE}") as sf:
        assert sf.list_intents() == []


@pytest.mark.parametrize("version", [0, 1, 7])
def test_another_programs_database_is_refused_and_left_as_it_is(memory: Path, version: int) -> None:
    path = memory / "places.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE bookmarks (url TEXT)")
        db.execute(f"PRAGMA user_version={version}")
        db.commit()
    with pytest.raises(StoreError, match=r"another program's|schema version"):
        ask(path)
    with closing(sqlite3.connect(path)) as db:
        assert [row[0] for row in db.execute("SELECT name FROM sqlite_schema")] == ["bookmarks"]
        assert db.execute("PRAGMA user_version").fetchone() == (version,)


def test_a_newer_schema_is_left_alone(store: Path) -> None:
    with closing(sqlite3.connect(store)) as db:
        db.execute("PRAGMA user_version=99")
        db.commit()
    with pytest.raises(SchemaTooNew, match="upgrade stepfast"):
        ask(store)
    with closing(sqlite3.connect(store)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (99,)
        assert db.execute("SELECT count(*) FROM steps").fetchone() == (100,)


def test_a_folder_or_a_link_in_its_place_is_refused(memory: Path) -> None:
    (memory / "folder.db").mkdir()
    with pytest.raises(StoreUnavailable, match="folder"):
        ask(memory / "folder.db")
    (memory / "link.db").symlink_to(memory / "elsewhere.db")
    with pytest.raises(StoreUnavailable, match="symbolic link"):
        ask(memory / "link.db")
    assert not (memory / "elsewhere.db").exists()


def test_a_folder_in_the_place_of_the_lock_is_refused(memory: Path) -> None:
    (memory / f"{STORE}.lock").mkdir()
    with pytest.raises(StoreUnavailable):
        ask(memory / STORE)


# Rights


def as_nobody(body: Callable[[], object]) -> str:
    """What comes of a call for a user without rights: the error's kind, or ``fine``."""

    def life(note: Any) -> None:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        try:
            body()
        except StepfastError as error:
            note({"answer": type(error).__name__, "says": str(error)})
        except BaseException as error:
            note({"answer": f"untyped {type(error).__name__}", "says": str(error)})
        else:
            note({"answer": "fine"})

    ended = Child(life).wait(60)
    return str(ended.notes[-1]["answer"])


def open_to_all(path: Path) -> None:
    for folder in (path, *path.parents):
        if folder.is_dir() and folder.stat().st_uid == os.getuid() and folder.name.startswith(("stepfast", "home")):
            folder.chmod(0o755)


@pytest.mark.skipif(not hasattr(os, "setuid"), reason="needs POSIX users")
def test_a_file_or_folder_that_may_not_be_written_is_unavailable(store: Path) -> None:
    open_to_all(store.parent)
    for path in store.parent.iterdir():
        path.chmod(0o444)
    store.parent.chmod(0o555)
    try:
        assert as_nobody(lambda: ask(store)) == "StoreUnavailable"
        assert as_nobody(lambda: ask(store.parent / "new.db")) == "StoreUnavailable"
        assert as_nobody(lambda: ask(store.parent / "deeper" / "new.db")) == "StoreUnavailable"
        for path in store.parent.iterdir():
            path.chmod(0o600)
        assert as_nobody(lambda: ask(store)) == ("StoreUnavailable" if os.geteuid() == 0 else "fine")
    finally:
        store.parent.chmod(0o755)
        for path in store.parent.iterdir():
            path.chmod(0o644)
    assert len(ask(store)) == 100
