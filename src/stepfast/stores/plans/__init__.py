"""One plan for each operation; `plan_for` finds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepfast import ops
from stepfast.stores.plans import (
    checkpoints,
    decisions,
    history,
    intents,
    journal,
    leases,
    records,
    thread_lists,
    thread_upkeep,
    threads,
)
from stepfast.stores.sql import Plan

_PLANS: dict[type[Any], Callable[[Any], Plan[Any]]] = {
    ops.CreateIntent: intents.create,
    ops.GetIntent: intents.get,
    ops.ListIntents: intents.list_page,
    ops.FinishIntent: intents.finish,
    ops.ReviveIntent: intents.revive,
    ops.MoveIntent: records.move,
    ops.SetTypePolicy: intents.set_type_policy,
    ops.Claim: leases.claim,
    ops.OpenIntent: leases.open_intent,
    ops.RenewLease: leases.renew,
    ops.ReleaseIntent: leases.release,
    ops.ReleaseOwner: records.release_owner,
    ops.ListAddresses: records.addresses,
    ops.Sweep: leases.sweep,
    ops.ReadJournal: journal.read,
    ops.RecordStep: journal.record,
    ops.SettleStep: journal.settle,
    ops.VoidSteps: journal.void,
    ops.GetProgress: journal.progress,
    ops.PutPiece: journal.put_piece,
    ops.ReadPiece: journal.read_piece,
    ops.AskDecision: decisions.ask,
    ops.SuspendIntent: decisions.suspend,
    ops.AnswerDecision: decisions.answer,
    ops.ListDecisions: decisions.list_open,
    ops.PutCheckpoint: checkpoints.put,
    ops.ReadCheckpoints: checkpoints.read,
    ops.ReadEvents: history.read,
    ops.AppendEvent: history.append,
    ops.Prune: history.prune,
    ops.PutRecord: records.put,
    ops.GetRecord: records.get,
    ops.ListRecords: records.list_page,
    ops.RecentRecords: records.recent,
    ops.DueRecords: records.due,
    ops.DeleteRecord: records.delete,
    ops.DeleteRecords: records.delete_many,
    ops.NextDue: records.next_due,
    ops.Measure: records.measure,
    ops.CheckWritable: history.check_writable,
    ops.PutThread: threads.put,
    ops.ReadThread: threads.read,
    ops.ReadPieces: threads.read_pieces,
    ops.ListCheckpoints: thread_lists.list_page,
    ops.ReadPath: thread_lists.path,
    ops.FindRuns: thread_lists.find_runs,
    ops.ListThreads: thread_lists.list_threads,
    ops.CountThreads: thread_lists.count,
    ops.CopyThread: thread_upkeep.copy,
    ops.DeleteThread: thread_upkeep.delete,
    ops.DropCheckpoints: thread_upkeep.drop,
    ops.SetThreadTtl: thread_upkeep.set_ttl,
    ops.ExpireThreads: thread_upkeep.expire,
}


def plan_for(op: ops.Op[Any]) -> Plan[Any]:
    return _PLANS[type(op)](op)
