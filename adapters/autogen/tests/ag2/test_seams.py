"""Canaries: every seam that the adapter rests on is in AG2, and a missing one is refused with a clear message."""

from __future__ import annotations

import pytest
from ag2 import Agent, AgentReply

from adapters.autogen.tests.ag2.kit import Scripted, say
from stepfast import InvalidInput
from stepfast.adapters import Seam, uninstall
from stepfast_autogen.ag2 import _turns, durable


async def test_every_seam_is_in_ag2_and_inert_outside_of_a_run() -> None:
    _turns.install()
    model = Scripted(lambda messages: say("done"))
    reply = await (await Agent("a", config=model).ask("go")).ask("on")
    assert type(reply) is AgentReply
    assert (reply.body, model.calls) == ("done", 2)


@pytest.mark.parametrize(
    "seam", [*_turns.SEAMS, _turns.MCP], ids=lambda seam: f"{seam.owner.rpartition(':')[2]}.{seam.name}"
)
def test_a_missing_seam_is_refused(seam: Seam, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = seam._replace(name=f"{seam.name}_gone")
    monkeypatch.setattr(_turns, "SEAMS", [missing])
    uninstall("ag2")
    try:
        with pytest.raises(InvalidInput, match=rf"ag2 .* has no .*{missing.name}, which its adapter rests on"):
            durable(Agent("a"), "r")
    finally:
        monkeypatch.undo()
        _turns.install()


def test_an_older_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_turns, "VERSIONS", ("999", None))
    uninstall("ag2")
    try:
        with pytest.raises(InvalidInput, match="too old for this adapter; install ag2>=999"):
            durable(Agent("a"), "r")
    finally:
        monkeypatch.undo()
        _turns.install()


def test_the_scope_that_an_agent_run_leaves_open_is_where_it_was() -> None:
    assert "_AgentRun__stack" in vars(Agent("a").run("go"))
