"""Canaries: every seam that the adapter rests on is in AutoGen, and a missing one is refused with a clear message."""

from __future__ import annotations

import pytest

from adapters.autogen.tests.classic import kit
from adapters.autogen.tests.classic.kit import pair
from stepfast import InvalidInput
from stepfast.adapters import Seam, uninstall
from stepfast_autogen.classic import _seams, durable

PACKAGE = _seams.distribution()


def test_every_seam_is_in_autogen_and_inert_outside_of_a_run() -> None:
    _seams.install_seams()
    kit.requests.clear()
    user, assistant = pair(lambda messages: "done TERMINATE")
    assert user.initiate_chat(assistant, message="Go.", silent=True).summary == "done "
    assert kit.requests == ["assistant"]


@pytest.mark.parametrize("seam", _seams.seams(PACKAGE), ids=lambda seam: f"{seam.owner.rpartition(':')[2]}.{seam.name}")
def test_a_missing_seam_is_refused(seam: Seam, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = seam._replace(name=f"{seam.name}_gone")
    monkeypatch.setattr(_seams, "seams", lambda package: [missing])
    uninstall(PACKAGE)
    try:
        with pytest.raises(InvalidInput, match=rf"{PACKAGE} .* has no .*{missing.name}, which its adapter rests on"):
            durable(pair(lambda messages: "TERMINATE"), "r")
    finally:
        monkeypatch.undo()
        _seams.install_seams()


def test_an_older_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_seams.VERSIONS, PACKAGE, ("99", "100"))
    uninstall(PACKAGE)
    try:
        with pytest.raises(InvalidInput, match="is too old for this adapter"):
            durable(pair(lambda messages: "TERMINATE"), "r")
    finally:
        monkeypatch.undo()
        _seams.install_seams()
