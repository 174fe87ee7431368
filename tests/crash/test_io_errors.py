"""A disk that fails or is full at any single call: nothing acknowledged is lost, and every error is of a known kind."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from stepfast import OutcomeUnknown, Stepfast, StoreFull, StoreUnavailable, Suspended
from stepfast.codec import Codec
from stepfast.intents import Status
from stepfast.journal import Step, StepStatus
from stepfast.ops import (
    AnswerDecision,
    AskDecision,
    Checkpoint,
    Claim,
    CreateIntent,
    FinishIntent,
    GetIntent,
    Lease,
    NewIntent,
    Op,
    PutCheckpoint,
    ReadEvents,
    ReadJournal,
    RecordStep,
    SettleStep,
)
from stepfast.stores.sqlite import SqliteStore
from stepfast.testing import Effects, explore_faults
from stepfast.testing.contract_kit import check_history
from stepfast.testing.processes import Child
from stepfast.testing.ptrace import Fault
from tests.crash.proofs import Proof
from tests.crash.scenarios import ENOUGH, empty_store, nothing, person
from tests.crash.stage import STORE, Laws, Stage, at_the_cut, at_the_end, orphans

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs ptrace as Linux has it")

R = TypeVar("R")
TYPED = (StoreFull, StoreUnavailable, OutcomeUnknown)
OPS = ("write", "truncate", "sync")


def excused(folder: Path, work: Callable[[], R]) -> R:
    """Do this again until the disk lets us. Only the three kinds of error are excused, and each is noted."""
    for _ in range(ENOUGH):
        try:
            return work()
        except TYPED as error:
            Effects(folder, "refused").record(type(error).__name__)
    raise AssertionError("the fault is gone, and the store still refuses")


def witnessed(body: Callable[[Path], None]) -> Callable[[Path], None]:
    """Leave word of any error that a caller was not told to expect; the harness lets a scenario fail."""

    def run(folder: Path) -> None:
        try:
            body(folder)
        except BaseException:
            (folder / "untyped").write_text(traceback.format_exc())
            raise

    return run


def check_typed(folder: Path) -> None:
    untyped = folder / "untyped"
    assert not untyped.exists(), f"an error of no known kind:\n{untyped.read_text()}"


# A run


RUN = Laws(("a", "charge", "b", "end"), in_flight=1, once=("charge",))


def stubborn_run(folder: Path) -> None:
    """Whatever the store refuses, the same client opens the run again and goes on."""
    stage = Stage(folder)
    sf = excused(folder, lambda: Stepfast(stage.url, lease_seconds=1))

    def attempt() -> None:
        try:
            # Where the store could not even take the run back, its lease has to run out.
            with stage.run(sf, on_wait="suspend", wait=10) as run:
                run.step(stage.act, "a")
                stage.kept("a")
                run.options(key="charge").once(stage.act, "charge")
                stage.kept("charge")
                run.step(stage.act, "b")
                stage.kept("b")
                run.complete({"did": "end"})
            stage.kept("end")
        except Suspended:
            person(stage, sf, "done")
            attempt()

    excused(folder, attempt)
    sf.close()


def check_run(folder: Path) -> None:
    check_typed(folder)
    at_the_end(Stage(folder), RUN, refused=len(Effects(folder, "refused").lines()))


def cut_run(folder: Path) -> None:
    at_the_cut(Stage(folder), RUN)


def set_up(folder: Path) -> None:
    empty_store(Stage(folder))


LONG = [pytest.param(fault, 1, marks=pytest.mark.chaos) for fault in ("EIO", "ENOSPC", "EDQUOT", "EROFS")]


@pytest.mark.parametrize(("fault", "stride"), [("EIO", 3), ("ENOSPC", 5), *LONG])
def test_a_run_outlives_any_call_that_fails_once(fault: Fault, stride: int, proof: Proof) -> None:
    result = explore_faults(
        witnessed(stubborn_run),
        check_run,
        fault=fault,
        ops=OPS,
        setup=set_up,
        recover=1,
        path=f"{STORE}*",
        stride=stride,
    )
    assert result.hits >= result.calls // stride - 2
    proof(f"{fault} at each call in turn, a run", faults=result.hits, calls=result.calls, stride=stride)


# Plain operations, each repeated as it is


def operations(codec: Codec) -> Callable[[Lease | None], list[Op[Any]]]:
    """One intent from its creation to its end; the same bytes whenever it is asked."""

    def sealed(number: int, status: StepStatus, attempt: int) -> Step:
        done = status is StepStatus.FINISHED
        return Step(
            f"step-{number}",
            0,
            number,
            "step",
            "work",
            "",
            status,
            b"input",
            b"",
            codec.encode({"did": f"step-{number}"}, bind=b"") if done else None,
            None,
            None,
            attempt,
            1000 + number,
            2000 + number if done else None,
            b"seal%d" % number + status.value.encode(),
        )

    def listed(lease: Lease | None) -> list[Op[Any]]:
        if lease is None:
            new = NewIntent(
                intent_id="intent-1", intent_type="t", to_agent="agent://x", idempotency_key="k", body_hash=b"h"
            )
            return [
                CreateIntent(new=new),
                Claim(to_agent="agent://x", token="token-1", owner="me", lease_seconds=3600.0),
            ]
        journal = "intent-1"
        checkpoint = Checkpoint(
            journal_id=journal,
            version=1,
            pin=None,
            state=b"state",
            meta=b"meta",
            blob_id=None,
            attempt=lease.attempt,
            at=5,
            seal=b"seal",
        )
        return [
            RecordStep(lease=lease, journal_id=journal, step=sealed(1, StepStatus.FINISHED, lease.attempt)),
            RecordStep(lease=lease, journal_id=journal, step=sealed(2, StepStatus.STARTED, lease.attempt)),
            SettleStep(lease=lease, journal_id=journal, step=sealed(2, StepStatus.FINISHED, lease.attempt)),
            PutCheckpoint(lease=lease, checkpoint=checkpoint),
            AskDecision(lease=lease, journal_id=journal, key="q", kind="ask", question=b"?", outcomes=["yes", "no"]),
            AnswerDecision(journal_id=journal, key="q", outcome="yes", actor="ann"),
            FinishIntent(intent_id="intent-1", status=Status.COMPLETED, lease=lease, result=b"result"),
        ]

    return listed


EVENTS = [
    "intent.created",
    "intent.submitted",
    "intent.delivered",
    "intent.in_progress",
    "intent.human_task_assigned",
    "intent.answered",
    "intent.completed",
]


def repeated_operations(folder: Path) -> None:
    """Each operation is sent again, as it is, until it is acknowledged; and once more after that."""
    listed = operations(Codec())
    store = excused(folder, lambda: SqliteStore(folder / STORE))

    def acknowledged(op: Op[Any]) -> Any:
        answer = excused(folder, lambda: store.one(op))
        Effects(folder, "acks").record(type(op).__name__)
        return answer

    create, claim = listed(None)
    acknowledged(create)
    (intent,) = acknowledged(claim) or excused(folder, lambda: [store.one(GetIntent(intent_id="intent-1"))])
    lease = Lease("intent-1", 1, "token-1")
    assert (intent.attempt, intent.intent_id) == (1, "intent-1")
    for op in listed(lease):
        acknowledged(op)
        excused(folder, lambda op=op: store.one(op))  # type: ignore[misc]
    store.close()


def check_operations(folder: Path) -> None:
    """Everything is there, and nothing is there twice."""
    check_typed(folder)
    with SqliteStore(folder / STORE) as store:
        intent = store.one(GetIntent(intent_id="intent-1"))
        events = store.one(ReadEvents(intent_id="intent-1"))
        steps = store.one(ReadJournal(journal_id="intent-1"))
    check_history(intent, events)
    assert [event.event_type for event in events] == EVENTS
    assert (intent.status, intent.result, intent.attempt, intent.lost) == (Status.COMPLETED, b"result", 1, 0)
    assert [(step.key, step.status) for step in steps] == [
        ("step-1", StepStatus.FINISHED),
        ("step-2", StepStatus.FINISHED),
    ]
    assert orphans(folder / STORE) == []


@pytest.mark.parametrize(("fault", "stride"), [("EIO", 5), ("ENOSPC", 7), *LONG])
def test_an_operation_repeated_after_an_error_is_not_done_twice(fault: Fault, stride: int, proof: Proof) -> None:
    result = explore_faults(
        witnessed(repeated_operations),
        check_operations,
        fault=fault,
        ops=OPS,
        setup=set_up,
        recover=1,
        recovery=nothing,
        path=f"{STORE}*",
        stride=stride,
    )
    assert result.hits >= result.calls // stride - 2
    proof(f"{fault} at each call in turn, operations repeated", faults=result.hits, calls=result.calls, stride=stride)


# A disk that stays full


def gives_up(folder: Path) -> None:
    """On a disk that stays full the run ends with an error of a known kind; whoever comes later goes on."""
    stage = Stage(folder)
    try:
        with stage.client() as sf, stage.run(sf, on_wait="suspend") as run:
            run.step(stage.act, "a")
            stage.kept("a")
            run.options(key="charge").once(stage.act, "charge")
            stage.kept("charge")
            run.step(stage.act, "b")
            stage.kept("b")
            run.complete({"did": "end"})
        stage.kept("end")
    except TYPED as error:
        Effects(folder, "refused").record(type(error).__name__)


def goes_on(folder: Path) -> None:
    cut_run(folder)
    stubborn_run(folder)
    check_run(folder)


def test_a_disk_that_stays_full_loses_nothing_acknowledged(proof: Proof) -> None:
    result = explore_faults(
        witnessed(gives_up),
        nothing,
        fault="ENOSPC",
        ops=OPS,
        sticky=True,
        setup=set_up,
        recovery=goes_on,
        path=f"{STORE}*",
        stride=4,
    )
    proof("ENOSPC from every fourth call on", faults=result.hits, calls=result.calls)


def test_the_same_store_goes_on_when_there_is_room_again(memory: Path) -> None:
    """A limit on the size of files stands for a full disk, and is then lifted under the very same object."""
    import resource

    def life(_: Any) -> None:
        stage = Stage(memory)
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        with stage.client() as sf:
            with stage.run(sf) as run:
                run.step(stage.act, "a")
                stage.kept("a")
                size = (memory / f"{STORE}-wal").stat().st_size
                resource.setrlimit(resource.RLIMIT_FSIZE, (size + 8192, hard))
                failures = 0
                for number in range(200):
                    try:
                        sf.check()
                        run.options(key=f"fill-{number}").step(lambda: "x" * 3000)
                    except TYPED:
                        failures += 1
                        if failures == 3:
                            break
                assert failures == 3, "the limit was to be met"
                resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
                sf.check()
                run.options(key="b").step(stage.act, "b")
                stage.kept("b")
                run.complete({"did": "end"})
            stage.kept("end")

    ended = Child(life).wait(60)
    assert ended.code == 0, ended.why
    seen = at_the_end(Stage(memory), Laws(("a", "b", "end")))
    assert {str(intent.status) for intent in seen.intents} == {"COMPLETED"}
