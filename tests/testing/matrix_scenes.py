"""Scenes for the tests of the crash matrix: a toy framework that journals into files, and faults planted in it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepfast.testing import Stage, scene


def journal(stage: Stage, name: str, call: Callable[[], str], key: str = "") -> str:
    """What a framework's adapter does: answers from the record, or makes the call and records it."""
    path = stage.folder / f"{name} {key}.record"
    if path.exists():
        return path.read_text()
    value = call()
    stage.boundary("record.before")
    draft = path.with_suffix(".draft")
    draft.write_text(value)
    draft.rename(path)
    stage.boundary("record.after")
    return value


def records(stage: Stage) -> list[str]:
    return [path.name.partition(" ")[0] for path in stage.folder.glob("*.record")]


def ended(stage: Stage) -> bool:
    return any("end" in line for line in stage.story())


def resumed(stage: Stage) -> bool:
    """After a kill: the faults show then, and not in a run that was never killed."""
    return stage.life > 1 and not ended(stage)


def model(stage: Stage, name: str, request: Any = None) -> str:
    with stage.model(name, request) as receipt:
        return receipt


def trip(stage: Stage, *, plan_key: str = "", book: Callable[[], str] | None = None) -> list[str]:
    """A model, a tool, and a model that is shown both answers."""
    plan = journal(stage, "model:plan", lambda: model(stage, "plan"), plan_key)
    booked = book() if book else journal(stage, "book", lambda: stage.effect("book"))
    journal(stage, "model:sum", lambda: model(stage, "sum", [plan, booked]))
    return [booked, "over"]


@scene(finished=records)
def right(stage: Stage) -> Any:
    return trip(stage)


@scene(finished=records, at_once=9)
def repeats_a_recorded_model_call(stage: Stage) -> Any:
    return trip(stage, plan_key="again" * resumed(stage))


@scene(at_once=9, finished=lambda stage: set(records(stage)) - {"book"})
def forgets_a_tool_whose_answer_the_model_was_shown(stage: Stage) -> Any:
    return trip(stage, book=lambda: "book done" if ended(stage) else stage.effect("book"))


@scene(finished=lambda stage: records(stage) if ended(stage) else [])
def repeats_more_than_was_under_way(stage: Stage) -> Any:
    return trip(stage, plan_key="again" * resumed(stage))


@scene(once=["book"], finished=records)
def doubles_a_one_shot(stage: Stage) -> Any:
    return trip(stage)


@scene(finished=records)
def ends_with_another_result(stage: Stage) -> Any:
    return [*trip(stage), *["by the way"] * resumed(stage)]


@scene(finished=records)
def leaves_out_what_was_under_way(stage: Stage) -> Any:
    def book() -> str:
        return journal(stage, "book", lambda: "book done" if resumed(stage) else stage.effect("book"))

    return trip(stage, book=book)


@scene(finished=records)
def changes_its_key(stage: Stage) -> Any:
    return trip(stage, book=lambda: journal(stage, "book", lambda: stage.effect("book", key=f"key {stage.life}")))


@scene(finished=records)
def hangs_when_resumed(stage: Stage) -> Any:
    if resumed(stage):
        time.sleep(3600)
    return trip(stage)


@scene(finished=records)
def fails_when_resumed(stage: Stage) -> Any:
    if resumed(stage):
        raise KeyError("plan")
    return trip(stage)


@scene(finished=lambda stage: [*records(stage), "book"])
def shows_what_never_happened(stage: Stage) -> Any:
    return trip(stage)


@scene(finished=records)
def works_after_its_end(stage: Stage) -> Any:
    if ended(stage) and stage.life > 2:
        stage.effect("book")
    return trip(stage)


@scene(finished=records)
def is_wrong_already(stage: Stage) -> Any:
    return [*trip(stage), stage.life]


@scene()
def is_never_judged(stage: Stage) -> Any:
    return ["book done" if ended(stage) else stage.effect("book")]


@scene(finished=records)
def leaves_a_thread(stage: Stage) -> Any:
    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
    return trip(stage)


@scene(finished=records)
def waits_for_nobody(stage: Stage) -> Any:
    trip(stage)
    return stage.waiting


@scene(finished=records)
def has_options(stage: Stage) -> Any:
    stage.boundary(f"option {json.dumps(stage.options)}")
    assert Path(stage.folder).is_dir()
    return [*trip(stage), stage.options["mood"]]
