"""Bugs that somebody might really write, each with the tests that must catch it.

A bug is planted in a process of its own, after the library is imported and before any test is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

import stepfast.client  # noqa: F401 - a public name loads its module only when it is used
from stepfast.codec import Codec, _envelope
from stepfast.flow import Call, Do, Flow
from stepfast.intents import Intent, Status
from stepfast.journal import StepStatus
from stepfast.ledger import StepCall
from stepfast.mapping import Chunks
from stepfast.ops import FinishIntent, GetIntent, PutCheckpoint, RecordStep, SuspendIntent
from stepfast.session import Session
from stepfast.stores import files, plans, sql
from stepfast.stores.group import Request
from stepfast.stores.plans import rows
from stepfast.stores.postgres_link import Link
from stepfast.stores.sql import Plan, load_migrations, load_queries, query, together
from stepfast.stores.sqlite import SqliteStore


@dataclass(frozen=True)
class Bug:
    """``plant`` puts it in; each of ``tests`` must then fail, and pass without it."""

    name: str
    plant: Callable[[], None]
    tests: tuple[str, ...]


CONTRACT = "tests/contract/test_contract.py::TestStore::"
FAILPOINTS = "tests/crash/test_every_failpoint.py::test_nothing_is_lost_or_repeated_when_killed_at_any_failpoint"
BUGS: dict[str, Bug] = {}


def bug(*tests: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def register(plant: Callable[[], None]) -> Callable[[], None]:
        name = plant.__name__.replace("_", " ")
        BUGS[name] = Bug(name, plant, tests)
        return plant

    return register


def everywhere(name: str, new: Any) -> None:
    """Put something else in the place of a function, wherever it was imported to."""
    places = [module for key, module in sys.modules.items() if key.startswith("stepfast.") and hasattr(module, name)]
    assert places, f"the library has no {name} any more: plant this bug anew"
    for module in places:
        setattr(module, name, new)


def reword(name: str, *changes: tuple[str, str]) -> None:
    """Change a query of the embedded store."""
    queries = load_queries("sqlite")
    for old, new in changes:
        assert old in queries[name], f"{name} has no {old!r} any more: plant this bug anew"
        queries[name] = queries[name].replace(old, new)


def replan(operation: type[Any], plan: Callable[[Any], Plan[Any]]) -> None:
    assert operation in plans._PLANS
    plans._PLANS[operation] = plan


# The twelve of the programme


def _any_lease_will_do() -> None:
    reword("record_step", ("AND i.attempt = :lease_attempt", ""), ("AND i.lease_token = :lease_token", ""))
    reword("settle_step", ("AND i.attempt = :lease_attempt", ""), ("AND i.lease_token = :lease_token", ""))
    reword("renew_lease", ("AND attempt = :attempt AND lease_token = :token", ""))


@bug(
    f"{CONTRACT}test_an_attempt_that_lost_its_intent_changes_nothing[record-sqlite-memory-sync]",
    f"{CONTRACT}test_an_attempt_that_lost_its_intent_changes_nothing[complete-sqlite-memory-sync]",
    f"{CONTRACT}test_an_attempt_that_lost_its_intent_changes_nothing[renew-sqlite-memory-sync]",
)
def no_check_of_the_attempt() -> None:
    _any_lease_will_do()
    everywhere("owns", lambda intent, lease: intent.leased)
    everywhere("check_owner", lambda intent, lease: None)


@bug("tests/crash/test_fencing.py::test_a_write_overtaken_on_its_way_is_fenced[record]")
def the_attempt_is_checked_before_the_write_and_not_in_it() -> None:
    _any_lease_will_do()
    execute = SqliteStore.execute

    def looks_first(self: SqliteStore, ops: Any, *, tenant: str = "local") -> list[Any]:
        for op in ops:
            if isinstance(op, RecordStep):
                intent = execute(self, [GetIntent(intent_id=op.lease.intent_id)], tenant=tenant)[0]
                rows.check_owner(intent, op.lease)
        return execute(self, ops, tenant=tenant)

    SqliteStore.execute = looks_first  # type: ignore[method-assign]


@bug(f"{FAILPOINTS}[one-step]")
def a_step_is_acknowledged_before_the_commit() -> None:
    commit, close = SqliteStore._commit_group, SqliteStore.close

    def settle(self: SqliteStore) -> None:
        if self._writer.in_transaction:
            self._writer.execute("COMMIT")

    def early(self: SqliteStore, request: Request) -> bool:
        (op, *others) = request.ops
        if others or not isinstance(op, RecordStep):
            return False
        self._writer.execute("BEGIN IMMEDIATE")
        request.outcome = self._run_ops(self._writer, request.ops, request.tenant, [])
        return True

    def late(self: SqliteStore, group: list[Request]) -> None:
        settle(self)
        commit(self, group)

    def closed(self: SqliteStore) -> None:
        if not self._closed:
            settle(self)
        close(self)

    SqliteStore._record_alone = early  # type: ignore[method-assign]
    SqliteStore._commit_group = late  # type: ignore[method-assign]
    SqliteStore.close = closed  # type: ignore[method-assign]


@bug("tests/crash/test_power_loss.py::test_a_power_cut_at_any_moment_loses_nothing_acknowledged[plain-steps]")
def commits_are_not_flushed() -> None:
    connect = SqliteStore._connect

    def unsynced(self: SqliteStore) -> Any:
        connection = connect(self)
        connection.execute("PRAGMA synchronous=NORMAL")
        return connection

    SqliteStore._connect = unsynced  # type: ignore[method-assign]


@bug(f"{FAILPOINTS}[one-one-shot-step]")
def a_one_shot_that_was_started_is_tried_again() -> None:
    def again(self: Session, step: Any) -> Flow[None]:
        yield from self.void([step], "let us try again")

    Session.settle_one_shot = again  # type: ignore[method-assign]


@bug(f"{CONTRACT}test_an_ending_never_changes[completed-sqlite-memory-sync]")
def an_intent_may_end_twice() -> None:
    for migration in load_migrations("sqlite"):
        migration.statements[:] = [s for s in migration.statements if "events_one_ending" not in s]

    def finish(op: FinishIntent) -> Plan[Intent]:
        intent, now = yield from rows.lock(op.intent_id)
        moment = rows.Moment(intent, now)
        moment.set(status=op.status, result=op.result, error=op.error, reason=op.reason, finished_at=now)
        moment.set(claimable_at=None, leased=False, lease_token=None, owner=None)
        moment.tell(f"intent.{op.status.lower()}")
        return (yield from moment.write())

    replan(FinishIntent, finish)


@bug("tests/crash/test_postgres.py::test_two_stores_at_once_leave_a_gapless_history_on_postgres")
def an_events_number_is_taken_without_a_lock() -> None:
    """And nothing else would say so: where a number is unique, the database refuses it and the store looks again."""
    queries, migrations = sql.load_queries, sql.load_migrations

    def unlocked(dialect: Any, schema: str = "") -> dict[str, str]:
        found = dict(queries(dialect, schema))
        if dialect == "postgres":
            for name, words in (("lock_intent", "FOR UPDATE"), ("update_intent", "AND seq = %(expected_seq)s")):
                assert words in found[name], f"{name} has no {words!r} any more: plant this bug anew"
                found[name] = found[name].replace(words, "")
        return found

    def loose(dialect: Any, schema: str = "") -> list[sql.Migration]:
        unique = ",\n    PRIMARY KEY (tenant, intent_id, seq)"
        found = migrations(dialect, schema)
        assert any(unique in statement for migration in found for statement in migration.statements)
        return [m._replace(statements=[s.replace(unique, "") for s in m.statements]) for m in found]

    everywhere("load_queries", unlocked)
    everywhere("load_migrations", loose)


@bug(
    f"{CONTRACT}test_another_tenants_things_are_as_if_they_did_not_exist[get-sqlite-memory-sync]",
    f"{CONTRACT}test_another_tenants_things_are_as_if_they_did_not_exist[list-sqlite-memory-sync]",
)
def a_tenant_is_not_asked_for() -> None:
    reword("intent_by_id", ("i.tenant = :tenant AND", ""))
    reword("list_intents", ("i.tenant = :tenant", "1 = 1"))


@bug(f"{CONTRACT}test_the_same_key_with_another_body_is_a_conflict[key-sqlite-memory-sync]")
def a_key_is_taken_for_the_same_whatever_the_body() -> None:
    everywhere("_check_same", lambda new, row: rows.to_locked(row))


@bug("tests/stores/test_postgres_outages.py::test_a_warning_at_the_commit_is_looked_up")
def a_warning_at_the_commit_is_ignored() -> None:
    assert hasattr(Link, "_noticed"), "the link does not listen to notices any more: plant this bug anew"
    Link._noticed = lambda self, notice: None  # type: ignore[method-assign]


@bug("tests/run/test_steps.py::test_a_damaged_record_is_not_used_and_its_step_is_not_run_again[sync-name]")
def a_seal_is_not_verified() -> None:
    Codec.verify_seal = lambda self, seal, *parts: True  # type: ignore[method-assign]


@bug("tests/codec/test_envelope.py::test_a_value_that_is_moved_to_another_row_is_refused")
def a_checksum_is_not_verified() -> None:
    _envelope._checksum = lambda head, bind, *body: bytes(16)


@bug(f"{CONTRACT}test_an_expired_lease_is_a_lost_delivery_and_the_intent_is_delivered_again[sqlite-memory-sync]")
def lost_deliveries_are_not_counted() -> None:
    def lose(moment: Any, reason: str, *, data: bytes | None = None, note_id: str | None = None, **_: Any) -> bool:
        moment.set(leased=False, lease_token=None, owner=None)
        moment.tell("intent.delivery_lost", details={"reason": reason}, data=data, note_id=note_id)
        return False

    everywhere("lose_delivery", lose)


@bug(f"{CONTRACT}test_a_delivery_with_a_newly_finished_step_begins_the_count_anew[finished-sqlite-memory-sync]")
def progress_is_not_looked_for() -> None:
    def advanced(moments: list[Any]) -> Plan[list[bool]]:
        return [False for _ in moments]
        yield

    everywhere("advanced", advanced)


# Of runs


@bug(f"{FAILPOINTS}[one-step]")
def the_journal_is_not_consulted() -> None:
    Session.remember = lambda self, step: None  # type: ignore[method-assign]


@bug(f"{FAILPOINTS}[one-one-shot-step]")
def a_one_shot_is_recorded_as_started_only_after_it_was_done() -> None:
    def do_once(self: Session, call: StepCall) -> Flow[Any]:
        value = yield Call(call.function, call.args, call.kwargs)
        row, _ = self._row(call, StepStatus.STARTED, 0)
        yield Do((RecordStep(lease=self.hold(), journal_id=self.journal_id, step=row),))
        self.remember(row)
        yield from self._settle(row, StepStatus.FINISHED, value)
        return value

    Session._do_once = do_once  # type: ignore[method-assign]


@bug(f"{FAILPOINTS}[a-map]")
def a_map_yields_before_its_results_are_kept() -> None:
    write = Chunks._write

    closed = Chunks.close

    def later(self: Chunks, written: list[Any]) -> Flow[None]:
        waiting = self.__dict__.pop("waiting", [])
        self.__dict__["waiting"] = written
        yield from write(self, waiting)

    def close(self: Chunks, count: int) -> Flow[None]:
        yield from write(self, self.__dict__.pop("waiting", []))
        yield from closed(self, count)

    Chunks._write = later  # type: ignore[method-assign]
    Chunks.close = close  # type: ignore[method-assign]


@bug(f"{CONTRACT}test_a_waiting_intent_holds_no_lease_and_is_not_delivered[sqlite-memory-sync]")
def a_waiting_run_keeps_its_lease() -> None:
    def suspend(op: SuspendIntent) -> Plan[Intent]:
        intent, now = yield from rows.lock(op.lease.intent_id)
        rows.check_owner(intent, op.lease)
        moment = rows.Moment(intent, now)
        moment.move(Status.WAITING, "intent.waiting")
        moment.set(waiting_reason=op.waiting_reason)
        return (yield from moment.write())

    replan(SuspendIntent, suspend)


@bug(
    f"{CONTRACT}test_a_checkpoint_is_never_overwritten[sqlite-memory-sync]",
    "tests/run/test_checkpoints.py::test_a_damaged_current_falls_back_to_the_previous_and_says_so[sync-in the row]",
)
def a_checkpoint_is_overwritten_in_place() -> None:
    reword("insert_checkpoint", ("INSERT INTO", "INSERT OR REPLACE INTO"), ("ON CONFLICT DO NOTHING", ""))

    def put(op: PutCheckpoint) -> Plan[int]:
        intent, _ = yield from rows.lock(op.lease.intent_id)
        rows.check_owner(intent, op.lease)
        only = msgspec.structs.replace(op.checkpoint, version=1)
        yield from together(query("insert_checkpoint", **msgspec.structs.asdict(only)))
        return op.checkpoint.version

    replan(PutCheckpoint, put)


@bug("tests/crash/test_wal.py::test_every_write_and_sync_happens_under_the_lock")
def the_file_is_written_without_its_lock() -> None:
    files.WriterLock.acquire = lambda self: None  # type: ignore[method-assign]
    files.WriterLock.release = lambda self: None  # type: ignore[method-assign]


@bug("tests/run/test_owners.py::test_a_living_owner_in_another_process_keeps_its_run")
def a_living_owner_is_taken_for_dead() -> None:
    everywhere("life_of", lambda text: "dead")


@bug(f"{CONTRACT}test_one_refused_operation_leaves_nothing_of_its_batch[fenced-sqlite-memory-sync]")
def a_refused_batch_is_half_kept() -> None:
    def keep(self: SqliteStore) -> None:
        if self._writer.in_transaction:
            self._writer.execute("COMMIT")

    SqliteStore._roll_back = keep  # type: ignore[method-assign]
