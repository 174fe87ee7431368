"""What an agent's own key may ask of the store: its own address, and nothing else of its workspace.

A lease is proof enough for what is written under it: its token is random, and only the claim gave it away. All
else is looked up first, and an intent of another address is as one that does not exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from stepfast import ops
from stepfast.addresses import same_agent
from stepfast.errors import AccessDenied, NotFound
from stepfast.intents import Intent
from stepfast.server.caller import Caller, missing_intent
from stepfast.server.errors import Forbidden
from stepfast.server.mesh import Mesh
from stepfast.server.state import Platform

_FREE = (ops.RenewLease, ops.ReleaseIntent, ops.RecordStep, ops.SettleStep, ops.VoidSteps, ops.AskDecision)
_ALSO_FREE = (ops.SuspendIntent, ops.PutCheckpoint, ops.Sweep, ops.CheckWritable)
_OF_JOURNAL = (ops.ReadJournal, ops.ReadCheckpoints, ops.ReadPiece, ops.PutPiece)
_OF_INTENT = (ops.ReadEvents, ops.GetProgress)


async def admit(platform: Platform, caller: Caller, batch: Sequence[ops.AnyOp]) -> list[ops.AnyOp]:
    """The batch as this caller may have it done; AccessDenied or NotFound if it may not."""
    if caller.agent is None:
        caller.require("ops")
        return [await _unless_killed(platform, caller, op) for op in batch]
    admitted = [await _unless_killed(platform, caller, _rewritten(caller, op)) for op in batch]
    ids = {name for op in admitted for name in _looked_up(op)}
    for intent_id in ids:
        await _check(platform, caller, intent_id)
    return admitted


def let_through(caller: Caller, results: list[Any]) -> list[Any]:
    """The results without what belongs to other addresses."""
    if caller.agent is None:
        return results
    for result in results:
        if isinstance(result, Intent):
            caller.check_touch(result)
        elif isinstance(result, ops.Opened | ops.Created):
            caller.check_touch(result.intent)
    return [_own(caller, result) for result in results]


def _own(caller: Caller, result: Any) -> Any:
    agent = caller.agent or ""
    if isinstance(result, list) and result and isinstance(result[0], str):
        return [address for address in result if same_agent(agent, address)]
    if isinstance(result, list) and result and isinstance(result[0], Intent):
        return [intent for intent in result if caller.can_touch(intent)]
    return result


def _rewritten(caller: Caller, op: ops.AnyOp) -> ops.AnyOp:
    agent = caller.agent or ""
    if isinstance(op, ops.CreateIntent):
        return msgspec.structs.replace(op, new=msgspec.structs.replace(op.new, from_agent=agent))
    if isinstance(op, ops.OpenIntent) and op.new is not None:
        return msgspec.structs.replace(op, new=msgspec.structs.replace(op.new, from_agent=agent))
    if isinstance(op, ops.Claim) and not same_agent(agent, op.to_agent):
        raise _refused(f"claim work for {op.to_agent}")
    return op


def _looked_up(op: ops.AnyOp) -> list[str]:
    """The intents that must be the caller's own before this is done."""
    if isinstance(op, _FREE + _ALSO_FREE):
        return []
    if isinstance(op, ops.CreateIntent | ops.Claim | ops.ListAddresses | ops.ListIntents | ops.GetIntent):
        return []  # checked before, or what they give is
    if isinstance(op, _OF_JOURNAL):
        return [op.journal_id]
    if isinstance(op, _OF_INTENT):
        return [op.intent_id]
    if isinstance(op, ops.ListDecisions) and op.journal_id is not None:
        return [op.journal_id]
    if isinstance(op, ops.OpenIntent):
        return [] if op.intent_id is None else [op.intent_id]
    if isinstance(op, ops.FinishIntent | ops.AppendEvent):
        return [] if op.lease is not None else [op.intent_id]
    raise _refused(type(op).__name__)


async def _unless_killed(platform: Platform, caller: Caller, op: ops.AnyOp) -> ops.AnyOp:
    """Nothing is sent to or from an agent that was switched off, and its workers find no work."""
    mesh = platform.part(Mesh)
    if isinstance(op, ops.CreateIntent):
        try:
            await mesh.check(caller.tenant, op.new.to_agent, op.new.from_agent)
        except Forbidden as error:
            raise AccessDenied(error.message) from None
    elif isinstance(op, ops.Claim) and await mesh.is_killed(caller.tenant, op.to_agent):
        return msgspec.structs.replace(op, to_agent="")
    return op


async def _check(platform: Platform, caller: Caller, intent_id: str) -> None:
    try:
        intent = await platform.store.one(ops.GetIntent(intent_id=intent_id), tenant=caller.tenant)
    except NotFound:
        raise missing_intent(intent_id) from None
    caller.check_touch(intent)


def _refused(what: str) -> AccessDenied:
    return AccessDenied(f"an agent's key may not do this: {what}. Use a key of the workspace.")
