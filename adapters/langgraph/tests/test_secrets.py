"""What must not be in a store is not there, and what was put there by others is refused."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import ormsgpack
import pytest

from adapters.langgraph.tests.kit import checkpoint, counting_graph, on, put
from stepfast import CodecError, KeyRing, KeyUnavailable
from stepfast_langgraph import StepfastSaver
from stepfast_langgraph._metadata import looks_secret

SECRET = "sk-live-0123456789"
NEEDLE = "a needle in the state"


def stored(path: Path) -> bytes:
    """All bytes that are on the disk."""
    return b"".join(one.read_bytes() for one in sorted(path.parent.glob(f"{path.name}*")))


def rows(path: Path, sql: str, *params: Any) -> list[Any]:
    with sqlite3.connect(path) as connection:
        return connection.execute(sql, params).fetchall()


def test_keys_and_tokens_in_configurable_are_not_stored(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    named = {
        "openai_api_key": f"{SECRET}1",
        "accessToken": f"{SECRET}2",
        "PASSWORD": f"{SECRET}3",
        "x-auth": f"{SECRET}4",
        "db_credentials": f"{SECRET}5",
        "client_secret": f"{SECRET}6",
    }
    kept = {"user_id": "ann", "language": "is", "max_tokens": 50, "monkey": "george", "author": "poe"}
    with StepfastSaver(path) as saver:
        config: Any = {
            "configurable": {"thread_id": "t", **named, **kept},
            "metadata": {"github_token": SECRET, "team": "blue"},
        }
        counting_graph(saver).invoke({"number": 1, "log": []}, config)
        metadata: Any = [one.metadata for one in saver.list(on("t"))]
    assert SECRET.encode() not in stored(path)
    for one in metadata:
        assert {name: one[name] for name in kept} == kept
        assert one["team"] == "blue"
        assert not {*named, "github_token"} & set(one)


def test_a_name_that_is_allowed_is_stored_all_the_same(tmp_path: Path) -> None:
    with StepfastSaver(tmp_path / "a.db", allow_metadata=["partition_key"]) as saver:
        config: Any = on("t", partition_key="p1", sort_key="s1")
        saver.put(config, checkpoint(), {"source": "loop"}, {})
        found = saver.get_tuple(on("t"))
        assert found is not None
        assert found.metadata.get("partition_key") == "p1"
        assert "sort_key" not in found.metadata
        assert len(list(saver.list(on("t"), filter={"partition_key": "p1"}))) == 1


@pytest.mark.parametrize(
    "name",
    ["api_key", "apiKey", "OPENAI_API_KEY", "key", "token", "refresh_token", "aws_secret_access_key", "passwd", "auth",
     "authorization", "Authorization", "credentials", "private-key", "session.token", "bearer", "jwt", "auth_header"],
)  # fmt: skip
def test_names_of_secrets_are_known(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize(
    "name",
    ["user_id", "thread", "model", "max_tokens", "total_tokens", "author", "monkey", "keyboard", "assistant_id",
     "run_id", "graph_id", "hockey", "authored_by", "compass"],
)  # fmt: skip
def test_other_names_are_not_taken_for_secrets(name: str) -> None:
    assert not looks_secret(name)


def ring() -> KeyRing:
    return KeyRing({"k1": bytes(range(32))})


def test_with_a_keyring_no_value_write_or_metadata_is_readable(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with StepfastSaver(path, keyring=ring()) as saver:
        config = on("t", customer=NEEDLE)
        values: dict[str, Any] = {"text": NEEDLE, "list": [NEEDLE] * 3, "deep": {"a": (NEEDLE,)}, "number": 7654321}
        saved = put(saver, config, **values)
        saver.put_writes(saved, [("c", NEEDLE), ("__interrupt__", NEEDLE)], "task")
        put(saver, {"configurable": {**saved["configurable"], "customer": NEEDLE}}, step=1, **values)
        found = saver.get_tuple(saved)
        assert found is not None
        assert found.checkpoint["channel_values"] == values
        assert len(list(saver.list(on("t"), filter={"customer": NEEDLE}))) == 2
        assert len(list(saver.list(on("t"), filter={"customer": NEEDLE, "step": 1}))) == 1
        assert not list(saver.list(on("t"), filter={"customer": "somebody else"}))
    assert NEEDLE.encode() not in stored(path)


def test_without_the_key_or_with_another_nothing_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with StepfastSaver(path, keyring=ring()) as saver:
        saved = put(saver, on("t"), x=NEEDLE)
    for other in (None, KeyRing({"k1": bytes(32)}), KeyRing({"k2": bytes(32)})):
        with StepfastSaver(path, keyring=other) as saver, pytest.raises(CodecError):
            saver.get_tuple(saved)


def test_a_plain_row_is_refused_once_there_is_a_key(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with StepfastSaver(path) as saver:
        put(saver, on("t"), x=1)
        saver.put_writes(put(saver, on("u"), x=1), [("c", 1)], "task")
    with StepfastSaver(path, keyring=ring()) as saver:
        with pytest.raises(KeyUnavailable):
            saver.get_tuple(on("t"))
        with pytest.raises(KeyUnavailable):
            list(saver.list(None))


COLUMNS = [("thread_checkpoints", "head"), ("thread_pieces", "data"), ("thread_writes", "body")]


@pytest.mark.parametrize("keyring", [None, ring()], ids=["plain", "encrypted"])
@pytest.mark.parametrize(("table", "column"), COLUMNS)
def test_bytes_moved_to_another_place_are_refused(
    tmp_path: Path, keyring: KeyRing | None, table: str, column: str
) -> None:
    path = tmp_path / "a.db"
    with StepfastSaver(path, keyring=keyring) as saver:
        for thread, text in (("t", "x"), ("u", "y")):
            saver.put_writes(put(saver, on(thread), items=[text * 300]), [("c", text)], "task")
    [first, second] = rows(path, f"SELECT id, {column} FROM {table} ORDER BY id")
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE id = ?", (first[1], second[0]))
    with StepfastSaver(path, keyring=keyring) as saver:
        assert saver.get_tuple(on("t")) is not None
        with pytest.raises(CodecError):
            saver.get_tuple(on("u"))
        with pytest.raises(CodecError):
            list(saver.list(on("u")))


@pytest.mark.parametrize(("table", "column"), COLUMNS)
def test_a_forged_value_is_refused_and_runs_nothing(tmp_path: Path, table: str, column: str) -> None:
    """The value that made the stock serializer run a command is just bytes that nobody wrote."""
    path, proof = tmp_path / "a.db", tmp_path / "proof"
    # A msgpack extension that says: import os, call system() with this text.
    call = ormsgpack.packb(("os", "system", (f"touch {proof}",)))
    forged = ormsgpack.packb(ormsgpack.Ext(0, call))
    with StepfastSaver(path) as saver:
        saver.put_writes(put(saver, on("t"), items=["x" * 300]), [("c", 1)], "task")
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE {table} SET {column} = ?", (forged,))
    with StepfastSaver(path) as saver, pytest.raises(CodecError):
        saver.get_tuple(on("t"))
    assert not proof.exists()
