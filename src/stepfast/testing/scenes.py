"""Scenes for the crash matrix: what a child process plays, and what it reports to a file outside the store.

A scene is a module-level function of a ``Stage``. It builds the framework's objects with scripted models and tools,
drives the run ``stage.run_id`` on the store ``stage.url`` to its end, and returns its result. The scripted models and
tools report each real call, so that calls and effects are counted outside:

    @scene(once=["charge"])
    def order(stage):
        def charge():
            return stage.effect("charge")

        with Stepfast(stage.url) as sf, sf.run(stage.run_id) as run:
            run.once(charge)
            return run.complete("charged")
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepfast.testing.processes import Effects

__all__ = ["Scene", "Stage", "approved_or_by_effect", "recorded", "scene"]

WAITING = {"stepfast": "the run waits"}

Play = Callable[["Stage"], Any]
Finished = Callable[["Stage"], Iterable[str]]
Answer = Callable[["Stage", dict[str, Any]], Mapping[str, Any]]
Runs = Callable[["Stage"], Iterable[str]]


@dataclass(frozen=True)
class Stage:
    """Where one life of a scene works, and what it reports to.

    ``folder`` is a trial's own and outlives its processes; ``life`` counts these from 1. A life that is killed, or
    that ends because its run waits, is followed by another one, which calls the same scene again.
    """

    folder: Path
    url: str
    run_id: str
    options: Mapping[str, Any] = field(default_factory=dict)
    life: int = 1
    hit: Callable[[str], None] = lambda _label: None
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def boundary(self, label: str) -> None:
        """Pass a place at which the matrix may kill this process."""
        self.hit(label)

    @contextmanager
    def model(self, name: str, request: Any = None) -> Iterator[str]:
        """One real call of a scripted model: the body computes its answer.

        Yields a receipt that is unique to this call. A script that puts it into the answer (as the id of a tool call
        or as a part of its text) lets the matrix see when the framework has got that answer: a later ``request``
        contains it, as it contains the answers of tools. Whatever a request contains counts as finished.
        """
        call = f"model:{name}"
        receipt = f"{name}-{self.life}-{next(self._numbers):03d}"
        self.boundary(f"{call}.before")
        if request is not None:
            self.tell(got=self.shown_in(request))
        self.tell(call=call, answer=receipt)
        yield receipt
        self.boundary(f"{call}.after")

    def effect(self, name: str, answer: str = "", *, key: str = "") -> str:
        """Do to the world what a tool does, and return the tool's answer.

        ``key`` is the idempotency key that a tool would pass on; a repeated effect must have the same.
        """
        answer = answer or f"{name} done"
        self.boundary(f"{name}.before")
        self.tell(call=name, answer=answer, **({"key": key} if key else {}))
        self.boundary(f"{name}.after")
        return answer

    @property
    def waiting(self) -> Any:
        """What a scene returns when its run waits for an answer. Raising ``Suspended`` means the same."""
        return WAITING

    # What happened so far, for rules and checks

    def answer_of(self, name: str) -> str | None:
        """What an effect returned, or None if it never happened."""
        return next((line["answer"] for line in self.story() if line.get("call") == name), None)

    def shown_in(self, value: Any) -> list[str]:
        """The calls whose answers occur in the text of a value, a name once for each of its different answers."""
        text = str(value)
        calls = {(line["call"], line["answer"]) for line in self.story() if "call" in line}
        return sorted(call for call, answer in calls if answer in text)

    def tell(self, **what: Any) -> None:
        """Append a line to the trial's story, synced, so that it outlives this process."""
        self._witness.record(json.dumps({"life": self.life, **what}))

    def story(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._witness.lines()]

    @property
    def _witness(self) -> Effects:
        return Effects(self.folder, "story.jsonl")


@dataclass(frozen=True)
class Scene:
    """A function that plays, and what the matrix has to know of it: see ``scene``."""

    play: Play
    once: frozenset[str]
    at_once: int
    finished: Finished
    answer: Answer
    runs: Runs

    @property
    def name(self) -> str:
        return self.play.__name__


def recorded(stage: Stage, *runs: str) -> list[str]:
    """The calls that journals hold as finished, by the names of their steps (``model:`` before a model's).

    Those of the named runs, or of the scene's own.
    """
    from stepfast import NotFound, Stepfast

    steps: list[dict[str, Any]] = []
    with Stepfast(stage.url) as sf:
        for run_id in runs or (stage.run_id,):
            with suppress(NotFound):
                steps += sf.steps(run_id)
    return [
        f"model:{step['name']}" if step["kind"] == "model" else step["name"]
        for step in steps
        if step["status"] == "FINISHED" and not step["voided"]
    ]


def own_run(stage: Stage) -> list[str]:
    """The one run that most scenes drive."""
    return [stage.run_id]


def approved_or_by_effect(stage: Stage, question: dict[str, Any]) -> dict[str, Any]:
    """Approves what is asked. A step in doubt is *done* if the effect of its name has happened, else to *retry*."""
    if "retry" not in question["outcomes"]:
        return {"outcome": "approved"}
    evidence = question["evidence"]
    shown = evidence.get("value")  # what a framework's own interrupt shows
    answer = stage.answer_of((shown if isinstance(shown, dict) else evidence)["name"])
    return {"outcome": "retry"} if answer is None else {"outcome": "done", "value": answer}


def scene(
    *,
    once: Sequence[str] = (),
    at_once: int = 1,
    finished: Finished | None = None,
    answer: Answer = approved_or_by_effect,
    runs: Runs = own_run,
) -> Callable[[Play], Scene]:
    """Make a module-level function a scene for ``crash_matrix``.

    ``once`` names the effects that may never happen twice. ``at_once`` is how many calls can be under way at the same
    moment: so many may be made again after a kill, and only such as were not finished.

    ``finished(stage)`` is called in a process of its own after each kill; it returns the names of the calls that the
    store shows as finished, a name as often as there are such calls; by default, those that `recorded` finds.
    ``answer(stage, question)`` returns the answer to a decision that the run waits for: ``outcome`` and, if need be,
    ``value``. ``runs(stage)`` names the runs of a scene that drives several, such as the turns of a conversation.
    """

    def in_the_journals(stage: Stage) -> list[str]:
        return recorded(stage, *runs(stage))

    def decorate(play: Play) -> Scene:
        return Scene(play, frozenset(once), at_once, finished or in_the_journals, answer, runs)

    return decorate
