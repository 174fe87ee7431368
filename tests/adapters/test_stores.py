"""Opening a store from whatever a user passes, and closing only what was opened here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stepfast import AsyncStepfast, AsyncStore, Codec, InvalidInput, KeyRing, Stepfast, open_store
from stepfast.adapters import LazyStore, choice, close_shared, open_any
from stepfast.errors import StepfastError


def is_open(store: Stepfast) -> bool:
    try:
        store.check()
    except StepfastError:
        return False
    return True


def test_a_url_and_a_path_are_opened_and_closed(tmp_path: Path) -> None:
    for where in (f"sqlite:///{tmp_path}/a.db", tmp_path / "b.db", str(tmp_path / "c.db")):
        opened = open_any(where)
        client = opened.client()
        with client.run("r") as run:
            run.step(lambda: 1)
        assert opened.client() is client
        opened.close()
        assert not is_open(client)


def test_nothing_is_the_store_that_the_environment_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPFAST_URL", f"sqlite:///{tmp_path}/named.db")
    opened = open_any()
    assert opened.store.url.endswith("named.db")
    opened.close()


def test_a_client_is_used_as_it_is_and_left_open(tmp_path: Path) -> None:
    with Stepfast(tmp_path / "a.db") as sf:
        opened = open_any(sf)
        assert opened.client() is sf
        assert opened.codec is sf.codec
        assert opened.aclient().store is sf.store
        opened.close()
        assert is_open(sf)


async def test_an_async_client_is_used_as_it_is_and_left_open(tmp_path: Path) -> None:
    async with AsyncStepfast(tmp_path / "a.db") as sf:
        opened = open_any(sf)
        assert opened.aclient() is sf
        assert opened.client().store is sf.store
        await opened.aclose()
        await sf.check()


def test_a_store_and_its_async_face_are_used_and_left_open(tmp_path: Path) -> None:
    store = open_store(tmp_path / "a.db")
    for given in (store, AsyncStore(store)):
        opened = open_any(given)
        assert opened.store is store
        assert opened.astore.store is store
        assert opened.tenant == store.tenant
        opened.close()
    assert is_open(Stepfast(store=store))
    store.close()


def test_a_codec_is_given_made_or_brought_along(tmp_path: Path) -> None:
    ours = Codec()
    made: list[KeyRing | None] = []

    def make(ring: KeyRing | None) -> Codec:
        made.append(ring)
        return ours

    with Stepfast(tmp_path / "a.db") as sf:
        assert open_any(sf, make_codec=make).codec is sf.codec
        assert open_any(sf, codec=ours).codec is ours
        assert open_any(sf, codec=ours).client() is not sf
        assert open_any(sf.store, make_codec=make).codec is ours
    assert made == [None]


def test_what_is_done_before_closing_finds_the_store_open(tmp_path: Path) -> None:
    opened = open_any(tmp_path / "a.db")
    seen: list[bool] = []
    opened.before_close(lambda: seen.append(is_open(opened.client())))
    opened.close()
    assert seen == [True]


def test_a_shared_store_is_one_per_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    first = open_any(url, shared=True)
    assert open_any(url, shared=True) is first
    assert open_any(f"sqlite:///{tmp_path}/b.db", shared=True) is not first
    monkeypatch.setenv("STEPFAST_URL", url)
    assert open_any(shared=True) is first
    client = first.client()
    close_shared()
    assert not is_open(client)
    assert open_any(url, shared=True) is not first
    close_shared()


def test_a_forked_child_opens_its_own_shared_store(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    first = open_any(url, shared=True)
    first.client().check()
    child = os.fork()
    if child == 0:
        try:
            second = open_any(url, shared=True)
            second.client().check()
            os._exit(0 if second is not first else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert open_any(url, shared=True) is first
    first.client().check()
    close_shared()


def test_a_lazy_store_opens_at_its_first_use_and_again_in_a_child(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="store: must be a URL"):
        LazyStore(5)  # type: ignore[arg-type]
    lazy = LazyStore(tmp_path / "a.db")
    assert not (tmp_path / "a.db").exists()
    opened = lazy.get()
    assert lazy.get() is opened
    child = os.fork()
    if child == 0:
        try:
            lazy.get().client().check()
            os._exit(0 if lazy.get() is not opened else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    client = opened.client()
    lazy.close()
    lazy.close()
    assert not is_open(client)
    lazy.get().client().check()
    lazy.close()


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"store: must be a URL, a path, a client or a store, not int\."):
        open_any(5)  # type: ignore[arg-type]
    with Stepfast(tmp_path / "a.db") as sf, pytest.raises(InvalidInput, match="api_key: the store is open already"):
        open_any(sf, api_key="k")
    with pytest.raises(InvalidInput, match="keyring: the codec has one of its own"):
        open_any(tmp_path / "b.db", codec=Codec(), keyring=KeyRing({"a": b"0" * 32}))


def test_a_choice_names_the_option_and_the_words() -> None:
    assert choice("on_drift", "warn", ("raise", "warn")) == "warn"
    for wrong in ("acept", 5, None, ["warn"]):
        with pytest.raises(InvalidInput, match=r"on_drift: must be one of 'raise', 'warn', not "):
            choice("on_drift", wrong, ("raise", "warn"))
