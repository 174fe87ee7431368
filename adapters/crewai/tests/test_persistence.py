"""CrewAI's own persistence of flows in a Stepfast store; and durable flows on top of it."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from crewai.flow.async_feedback.types import HumanFeedbackPending, PendingFeedbackContext
from crewai.flow.flow import Flow, listen, start
from crewai.flow.human_feedback import human_feedback
from crewai.flow.persistence import persist
from crewai.flow.persistence.factory import default_flow_persistence, set_flow_persistence_factory
from pydantic import BaseModel

from stepfast import InvalidInput, Stepfast
from stepfast.adapters import close_shared
from stepfast.stores import open_store
from stepfast_crewai import StepfastFlowPersistence
from tests.contract.http_places import Served


class Tally(BaseModel):
    id: str = ""
    total: int = 0
    due: datetime.date = datetime.date(2026, 11, 18)


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    set_flow_persistence_factory(None)
    close_shared()


@pytest.fixture(params=["sqlite", "postgres", "http"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/s.db"
    elif request.param == "postgres":
        yield request.getfixturevalue("postgres_url")
    else:
        with open_store(f"sqlite:///{tmp_path}/served.db") as behind:
            served = Served(behind)
            with Stepfast(served.url, api_key=b"crews".hex()) as client:
                yield client
            served.stop()


def context_of(flow_id: str) -> PendingFeedbackContext:
    return PendingFeedbackContext(
        flow_id=flow_id, flow_class="a.Flow", method_name="write", method_output="a text", message="Good?", emit=["yes"]
    )


def test_what_crewai_keeps_of_a_flow_is_read_by_another_process(store: Any) -> None:
    kept = StepfastFlowPersistence(store)
    kept.init_db()
    assert kept.load_state("f") is None
    assert kept.load_pending_feedback("f") is None
    kept.save_state("f", "first", {"n": 1, "on": datetime.date(2026, 1, 2)})
    kept.save_state("f", "second", Tally(id="f", total=2))
    kept.save_state("g", "first", {"n": 9})
    kept.save_pending_feedback("g", context_of("g"), {"n": 10})
    other = StepfastFlowPersistence(store)
    assert other.load_state("f") == {"id": "f", "total": 2, "due": "2026-11-18"}
    assert other.load_state("g") == {"n": 10}
    state, context = other.load_pending_feedback("g") or pytest.fail("it waits")
    assert (state, context.message, context.emit) == ({"n": 10}, "Good?", ["yes"])
    other.clear_pending_feedback("g")
    assert kept.load_pending_feedback("g") is None
    assert kept.load_state("g") == {"n": 10}
    with pytest.raises(InvalidInput, match="state_data: must be a dictionary"):
        kept.save_state("f", "first", [1])


def test_persist_and_the_factory_work_as_with_crewais_own(url: str) -> None:
    set_flow_persistence_factory(lambda: StepfastFlowPersistence(url))

    @persist()
    class Counting(Flow[Tally]):
        _skip_auto_memory: bool = True
        suppress_flow_events: bool = True

        @start()
        def count(self) -> int:
            self.state.total += 1
            return self.state.total

    first = Counting()
    assert first.kickoff() == 1
    again = Counting()
    assert again.kickoff(inputs={"id": first.state.id}) == 2  # CrewAI goes on with the state, not with the methods
    assert isinstance(default_flow_persistence(), StepfastFlowPersistence)
    assert StepfastFlowPersistence(url).load_state(first.state.id)["total"] == 2  # type: ignore[index]


class Later:
    """A provider that asks somewhere else."""

    def request_feedback(self, context: PendingFeedbackContext, flow: Any) -> str:
        raise HumanFeedbackPending(context=context)


def review(done: list[str]) -> Any:
    class Review(Flow):  # type: ignore[type-arg]
        _skip_auto_memory: bool = True
        suppress_flow_events: bool = True

        @human_feedback(message="Good?", provider=Later())
        @start()
        def write(self) -> str:
            done.append("write")
            self.state["text"] = "a text"
            return "a text"

        @listen(write)
        def publish(self, result: Any) -> str:
            done.append("publish")
            return f"published {self.state['text']}: {result.feedback}"

    return Review


def test_a_flow_that_waits_for_feedback_is_resumed_by_another_process(url: str) -> None:
    done: list[str] = []
    flow = review(done)(persistence=StepfastFlowPersistence(url))
    waits = flow.kickoff()
    assert isinstance(waits, HumanFeedbackPending)
    other = review(done).from_pending(waits.context.flow_id, StepfastFlowPersistence(url))
    assert other.resume("looks good") == "published a text: looks good"
    assert done == ["write", "publish"]
    with pytest.raises(ValueError, match="No pending feedback"):
        review(done).from_pending(waits.context.flow_id, StepfastFlowPersistence(url))
