"""The lifecycle, checked as a table and through every kind of walk over it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepfast.errors import AlreadyFinished, InvalidTransition
from stepfast.intents import TERMINAL, TRANSITIONS, Event, Intent, Status, chain, check_transition, fold

ALIVE = frozenset(Status) - TERMINAL
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def reachable(start: Status) -> set[Status]:
    seen = {start}
    waiting = [start]
    while waiting:
        for following in TRANSITIONS[waiting.pop()] - seen:
            seen.add(following)
            waiting.append(following)
    return seen


def history(statuses: list[Status], **fields: Any) -> list[Event]:
    """A chained history that takes these statuses."""
    events: list[Event] = []
    head = b""
    for number, status in enumerate(statuses, 1):
        values = {"event_type": f"intent.{status.lower()}", "at": 1000 + number, "attempt": 1, **fields}
        event = Event(intent_id="i", seq=number, status=status, **values)
        head = chain(head, event)
        events.append(msgspec.structs.replace(event, digest=head))
    return events


@st.composite
def walks(draw: st.DrawFn) -> list[Status]:
    """A legal life: along the arrows, staying where it is at times, with notes after the end."""
    walk = [Status.CREATED]
    for _ in range(draw(st.integers(0, 12))):
        walk.append(draw(st.sampled_from(sorted({walk[-1], *TRANSITIONS[walk[-1]]}))))
    return walk


def test_the_table_names_every_status_and_nothing_else() -> None:
    assert set(TRANSITIONS) == set(Status)
    assert {status for following in TRANSITIONS.values() for status in following} <= set(Status)


def test_every_status_can_be_reached_from_the_first() -> None:
    assert reachable(Status.CREATED) == set(Status)


@pytest.mark.parametrize("status", sorted(ALIVE))
def test_every_ending_can_be_reached_at_once_from_every_living_status(status: Status) -> None:
    assert TRANSITIONS[status] >= TERMINAL


@pytest.mark.parametrize("status", sorted(TERMINAL))
@pytest.mark.parametrize("other", sorted(Status))
def test_nothing_leads_out_of_an_ending(status: Status, other: Status) -> None:
    with pytest.raises(AlreadyFinished) as refused:
        check_transition("i", status, other)
    assert refused.value.details == {"intent_id": "i", "status": str(status)}


@pytest.mark.parametrize("old", sorted(ALIVE))
@pytest.mark.parametrize("new", sorted(Status))
def test_a_move_is_allowed_just_where_the_table_has_an_arrow(old: Status, new: Status) -> None:
    if new in TRANSITIONS[old]:
        check_transition("i", old, new)
    else:
        with pytest.raises(InvalidTransition):
            check_transition("i", old, new)


def test_nothing_returns_to_the_time_before_a_worker_took_it() -> None:
    early = {Status.CREATED, Status.SUBMITTED, Status.DELIVERED}
    assert not reachable(Status.IN_PROGRESS) & early
    assert not reachable(Status.WAITING) & early


def test_waiting_and_working_may_alternate_for_ever() -> None:
    assert Status.WAITING in TRANSITIONS[Status.IN_PROGRESS]
    assert Status.IN_PROGRESS in TRANSITIONS[Status.WAITING]
    assert Status.IN_PROGRESS in TRANSITIONS[Status.IN_PROGRESS], "a redelivery keeps the status"


@given(walks())
def test_a_legal_history_folds_to_its_last_status(walk: list[Status]) -> None:
    events = history(walk)
    assert fold(events) == (walk[-1], len(walk), events[-1].digest)


@given(walks(), st.integers(0, 12))
def test_every_beginning_of_a_history_folds_too(walk: list[Status], length: int) -> None:
    events = history(walk)[:length]
    status, seq, head = fold(events)
    assert (status, seq) == (walk[len(events) - 1] if events else Status.CREATED, len(events))
    assert head == (events[-1].digest if events else b"")


def test_no_history_is_no_history() -> None:
    assert fold([]) == (Status.CREATED, 0, b"")


@given(walks(), st.sampled_from(sorted(Status)))
def test_a_step_where_the_table_has_no_arrow_is_found(walk: list[Status], wrong: Status) -> None:
    if wrong is walk[-1] or wrong in TRANSITIONS[walk[-1]]:
        return
    with pytest.raises(ValueError, match=r"goes from|was final"):
        fold(history([*walk, wrong]))


@given(
    walks(),
    st.data(),
    st.dictionaries(st.text(max_size=5), JSON, max_size=3),
    st.none() | st.binary(max_size=20),
)
def test_a_change_to_any_field_of_any_event_is_found(
    walk: list[Status], data: st.DataObject, details: dict[str, Any], value: bytes | None
) -> None:
    events = history(walk, details=details, data=value)
    number = data.draw(st.integers(0, len(events) - 1))
    event = events[number]
    tampered = {
        "intent_id": event.intent_id + "x",
        "seq": event.seq + 1,
        "event_type": event.event_type + "x",
        "status": Status.FAILED if event.status is not Status.FAILED else Status.CANCELED,
        "at": event.at + 1,
        "attempt": event.attempt + 1,
        "actor": "mallory",
        "details": {**event.details, "more": 1},
        "data": (event.data or b"") + b"x",
        "digest": bytes(16),
    }
    assert set(tampered) == {f.name for f in msgspec.structs.fields(Event)}, "a new field must be chained too"
    field = data.draw(st.sampled_from(sorted(tampered)))
    events[number] = msgspec.structs.replace(event, **{field: tampered[field]})
    with pytest.raises(ValueError, match=f"event {number + 1} of"):
        fold(events)


@given(walks().filter(lambda walk: len(walk) > 2), st.data())
def test_an_event_left_out_moved_or_put_in_twice_is_found(walk: list[Status], data: st.DataObject) -> None:
    events = history(walk)
    number = data.draw(st.integers(0, len(events) - 2))
    gap = events[:number] + events[number + 1 :]
    swapped = [*events[:number], events[number + 1], events[number], *events[number + 2 :]]
    doubled = [*events[: number + 1], events[number], *events[number + 1 :]]
    for wrong in (gap, swapped, doubled):
        with pytest.raises(ValueError, match="event"):
            fold(wrong)


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=4))
def test_details_chain_the_same_after_a_trip_through_the_store(details: dict[str, Any]) -> None:
    event = Event(
        intent_id="i", seq=1, event_type="intent.noted", status=Status.CREATED, at=1, attempt=0, details=details
    )
    stored = msgspec.json.decode(msgspec.json.encode(details))
    assert chain(b"", msgspec.structs.replace(event, details=stored)) == chain(b"", event)


def test_data_of_nothing_and_empty_data_chain_differently() -> None:
    [event] = history([Status.CREATED])
    assert chain(b"", event) != chain(b"", msgspec.structs.replace(event, data=b""))


@pytest.mark.parametrize("status", sorted(Status))
def test_an_intent_is_finished_just_in_an_ending(status: Status) -> None:
    assert Intent(intent_id="i", status=status).finished == (status in TERMINAL)


def test_an_event_shows_its_moment_in_utc() -> None:
    [event] = history([Status.CREATED], at=1_700_000_000_000_000, actor="")
    shown = event.as_dict()
    assert (shown["at"], shown["actor"], shown["status"]) == ("2023-11-14T22:13:20Z", None, "CREATED")
