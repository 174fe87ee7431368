"""Canaries: every seam that the adapter rests on is in CrewAI, and a missing one is refused with a clear message."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.crewai.tests.kit import ScriptedLLM, make_crew
from stepfast import InvalidInput
from stepfast.adapters import Seam, install, uninstall, within
from stepfast_crewai import _seams, durable
from stepfast_crewai._place import here


def test_every_seam_is_in_crewai_and_inert_outside_of_a_run() -> None:
    _seams.install_seams()
    llm = ScriptedLLM(lambda messages: "done")
    assert make_crew(llm, []).kickoff().raw == "done"
    assert llm.calls == 1


@pytest.mark.parametrize("seam", _seams.seams(), ids=lambda seam: f"{seam.owner.rpartition(':')[2]}.{seam.name}")
def test_a_missing_seam_is_refused(seam: Seam, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = seam._replace(name=f"{seam.name}_gone")
    monkeypatch.setattr(_seams, "seams", lambda: [missing])
    uninstall("crewai")
    try:
        with pytest.raises(InvalidInput, match=rf"crewai .* has no .*{missing.name}, which its adapter rests on"):
            durable(make_crew(ScriptedLLM(lambda messages: "done"), []), "r")
    finally:
        monkeypatch.undo()
        _seams.install_seams()


def test_an_llm_class_that_is_defined_later_is_recorded_too(url: str) -> None:
    _seams.install_seams()

    class Later(ScriptedLLM):
        def call(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
            return super().call(messages, *args, **kwargs)

    llm = Later(lambda messages: "done")
    for _ in range(2):
        with durable(make_crew(llm, []), "r", url) as crew:
            assert crew.kickoff().raw == "done"
    assert llm.calls == 1


def test_an_older_version_is_refused() -> None:
    uninstall("crewai")
    try:
        with pytest.raises(InvalidInput, match="is too old for this adapter"):
            install("crewai", ("99", None), [Seam("crewai.crew:Crew", "kickoff", within(here, print))])
    finally:
        _seams.install_seams()
