"""What AXME keeps with an intent and an `Intent` has no column for: the record "extra".

Controls and policy are merge patches under one counter, ``policy_generation``. It rises with each accepted write;
whoever names the generation they read gets ``applied: false`` when somebody else was first.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

import msgspec

from stepfast.clock import new_id
from stepfast.errors import AlreadyFinished, Conflict
from stepfast.intents import Intent
from stepfast.ops import AppendEvent, GetIntent, GetRecord, Op, PutRecord, Record
from stepfast.server.caller import Caller
from stepfast.server.errors import TooLarge
from stepfast.server.state import Platform

EXTRA = "extra"
MAX_CONTROLS_BYTES = 256 * 1024
_REMEMBERED = 32  # idempotency keys of an intent's later writes
_TRIES = 20
_TOLD_BYTES = 4096


class Extra(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The body of the record; unknown fields of other writers are kept in ``more``."""

    reply_to: str | None = None
    human_task: dict[str, Any] | None = None
    remind_after_seconds: float | None = None
    remind_interval_seconds: float | None = None
    max_reminders: int | None = None
    remind_count: int = 0
    escalate_to: str | None = None
    pending_with: dict[str, Any] | None = None
    controls: dict[str, Any] = {}
    policy: dict[str, Any] = {}
    policy_generation: int = 0
    # Idempotency key -> hash of the request it came with.
    writes: dict[str, str] = {}
    more: dict[str, Any] = {}

    def shown(self) -> dict[str, Any]:
        return {
            "reply_to": self.reply_to,
            "human_task": self.human_task,
            "remind_after_seconds": self.remind_after_seconds,
            "remind_interval_seconds": self.remind_interval_seconds,
            "max_reminders": self.max_reminders,
            "remind_count": self.remind_count,
            "escalate_to": self.escalate_to,
            "pending_with": self.pending_with,
            "controls": self.controls,
            "policy": self.policy,
            "policy_generation": self.policy_generation,
        }


_FIELDS = frozenset(f.name for f in msgspec.structs.fields(Extra))
_PREPARED = msgspec.json.Decoder(dict[str, Any])  # made before threads meet


def read_extra(record: Record | None) -> Extra:
    """The extras of an intent; defaults where there is no record."""
    if record is None:
        return Extra()
    body = _PREPARED.decode(record.body)
    more = dict(body.pop("more", {}))
    more |= {name: body.pop(name) for name in list(body) if name not in _FIELDS}
    return msgspec.convert({**body, "more": more}, Extra)


def put_extra(intent_id: str, extra: Extra, *, expected: int | None, due_at: int | None = None) -> PutRecord:
    """The write of a record. Pass the version that was read, and its due time where it has one."""
    body = msgspec.to_builtins(extra)
    body |= body.pop("more", {})
    return PutRecord(
        kind=EXTRA,
        record_id=intent_id,
        body=json.dumps(body, ensure_ascii=True).encode(),
        write_id=new_id(),
        expected=expected,
        belongs_to=intent_id,
        due_at=due_at,
    )


async def load(platform: Platform, caller: Caller, intent_id: str) -> tuple[Intent, Extra, Record | None]:
    """An intent the caller may see, and its extras."""
    intent, record = await platform.store.execute(
        [GetIntent(intent_id=intent_id), GetRecord(kind=EXTRA, record_id=intent_id)], tenant=caller.tenant
    )
    caller.check_touch(intent)
    return intent, read_extra(record), record


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386: null removes, objects merge, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def hash_of(body: Any) -> bytes:
    """A hash of a request's canonical form."""
    return blake2b(json.dumps(body, sort_keys=True, ensure_ascii=True).encode(), digest_size=16).digest()


def remember(extra: Extra, key: str | None, body: Any) -> None:
    """Note the key of a write, so that a repeat of the request is known as one."""
    if key is not None:
        writes = {**extra.writes, key: hash_of(body).hex()}
        extra.writes = dict(list(writes.items())[-_REMEMBERED:])


def is_repeat(extra: Extra, key: str | None, body: Any) -> bool:
    """Whether this very request was served before; the same key with another body is a Conflict."""
    seen = None if key is None else extra.writes.get(key)
    if seen is None:
        return False
    if seen != hash_of(body).hex():
        raise Conflict("idempotency key reused with different payload")
    return True


def stale(extra: Extra) -> dict[str, Any]:
    return {
        "ok": True,
        "applied": False,
        "reason": "stale_policy_generation",
        "policy_generation": extra.policy_generation,
    }


async def update(
    platform: Platform, caller: Caller, intent_id: str, key: str | None, body: dict[str, Any], actor: str
) -> tuple[dict[str, Any], Intent]:
    """Patch controls or policy, and tell it in the history, in one transaction."""
    for _ in range(_TRIES):
        intent, extra, record = await load(platform, caller, intent_id)
        if is_repeat(extra, key, body):
            return _applied(extra), intent
        expected = body.get("expected_policy_generation")
        if expected is not None and expected != extra.policy_generation:
            return stale(extra), intent
        if intent.finished:
            raise AlreadyFinished(
                f"intent {intent_id} is {intent.status}; its controls and policy stay as they are.",
                intent_id=intent_id,
                status=str(intent.status),
            )
        event_type, details = _patch(extra, body)
        extra.policy_generation += 1
        remember(extra, key, body)
        details |= {"policy_generation": extra.policy_generation}
        if body.get("reason") is not None:
            details["reason"] = body["reason"]
        ops: list[Op[Any]] = [
            put_extra(
                intent_id,
                extra,
                expected=0 if record is None else record.version,
                due_at=None if record is None else record.due_at,
            ),
            AppendEvent(
                intent_id=intent_id,
                lease=None,
                note_id=f"controls:{extra.policy_generation}",
                event_type=event_type,
                details=details,
                actor=actor,
            ),
        ]
        try:
            await platform.store.execute(ops, tenant=caller.tenant)
        except AlreadyFinished:
            raise
        except Conflict:
            continue  # somebody wrote in between: judge anew
        return _applied(extra), intent
    raise Conflict(f"intent {intent_id} is written by many at once; try again.", intent_id=intent_id)


def _applied(extra: Extra) -> dict[str, Any]:
    return {"ok": True, "applied": True, "policy_generation": extra.policy_generation}


def _patch(extra: Extra, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Apply a request's patches; gives the event that tells of it."""
    patch = body.get("controls_patch")
    if patch is not None:
        extra.controls = _checked("controls", merge_patch(extra.controls, patch))
        if "checkpoint" in patch:
            return "intent.checkpoint", {"checkpoint": _told(patch["checkpoint"]), "keys": sorted(patch)[:50]}
        return "intent.controls_updated", {"keys": sorted(patch)[:50]}
    policy = dict(extra.policy)
    for name in ("grants", "envelope"):
        change = body.get(f"{name}_patch")
        if change is not None:
            policy[name] = merge_patch(policy.get(name, {}), change)
    extra.policy = _checked("policy", policy)
    return "intent.policy_updated", {"keys": sorted(policy)}


def _told(checkpoint: Any) -> Any:
    """Progress for the history; what is large stands in the controls alone, not once for each write."""
    size = len(json.dumps(checkpoint, ensure_ascii=True))
    return checkpoint if size <= _TOLD_BYTES else {"$opaque": f"{size} bytes, see controls.checkpoint"}


def _checked(what: str, value: dict[str, Any]) -> dict[str, Any]:
    size = len(json.dumps(value, ensure_ascii=True))
    if size > MAX_CONTROLS_BYTES:
        raise TooLarge(
            f"{what}: would be {size:,} bytes; {MAX_CONTROLS_BYTES:,} is the most. Keep large state elsewhere and "
            "store where it is.",
            limit=MAX_CONTROLS_BYTES,
        )
    return value
