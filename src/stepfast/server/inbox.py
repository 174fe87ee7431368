"""The inbox: intents as threads, for those who read them there. A view of the same intents, with no state of its own
but which messages somebody does not want to see any more.
"""

from __future__ import annotations

from typing import Any
from uuid import NAMESPACE_URL, uuid5

import msgspec

from stepfast.addresses import same_agent
from stepfast.clock import new_id
from stepfast.core import iso
from stepfast.errors import AlreadyFinished, Conflict, NotFound
from stepfast.intents import Event, Intent, Status
from stepfast.ops import AppendEvent, Filter, GetIntent, GetRecord, ListIntents, Op, PutRecord, ReadEvents, Record
from stepfast.server import views
from stepfast.server.caller import Caller
from stepfast.server.controls import EXTRA, Extra, put_extra, read_extra
from stepfast.server.errors import Forbidden
from stepfast.server.state import Platform

HIDDEN = "inbox_hidden"
_PAGE = 200
_MOST_SCANNED = 10_000
_MOST_EVENTS = 200
_TRIES = 20
_CURSOR = "u"


class Thread(msgspec.Struct, frozen=True):
    """An intent as its reader sees it."""

    intent: Intent
    extra: Extra


def owner_of(caller: Caller, asked: str | None) -> str | None:
    """Whose inbox: an agent's key sees its own; a workspace's any, or all at once."""
    if caller.agent is None:
        return asked
    if asked is not None and not same_agent(caller.agent, asked):
        raise Forbidden("this key reads the inbox of its own agent only.")
    return caller.agent


def belongs(thread: Thread, owner: str | None) -> bool:
    """What was sent to the owner, handed to it, or is an answer to it."""
    if owner is None:
        return True
    intent, extra = thread.intent, thread.extra
    delegated = extra.more.get("delegated_to")
    if same_agent(intent.to_agent, owner) or (isinstance(delegated, str) and same_agent(delegated, owner)):
        return True
    return intent.finished and extra.reply_to is not None and same_agent(extra.reply_to, owner)


async def scan(platform: Platform, caller: Caller, owner: str | None, limit: int, since: int = -1) -> list[Thread]:
    """Threads of an owner that changed after a moment; the newest intents first."""
    found: list[Thread] = []
    before: str | None = None
    seen = 0
    while len(found) < limit and seen < _MOST_SCANNED:
        page = await platform.store.one(ListIntents(where=Filter(before=before, limit=_PAGE)), tenant=caller.tenant)
        seen += len(page)
        fresh = [intent for intent in page if intent.updated_at > since]
        ops: list[Op[Any]] = [GetRecord(kind=EXTRA, record_id=intent.intent_id) for intent in fresh]
        records = await platform.store.execute(ops, tenant=caller.tenant) if ops else []
        threads = [Thread(i, read_extra(r)) for i, r in zip(fresh, records, strict=True)]
        found += [thread for thread in threads if belongs(thread, owner)]
        if len(page) < _PAGE:
            break
        before = page[-1].intent_id
    return found[:limit]


async def find(platform: Platform, caller: Caller, thread_id: str, owner: str | None) -> tuple[Thread, Record | None]:
    try:
        intent, record = await platform.store.execute(
            [GetIntent(intent_id=thread_id), GetRecord(kind=EXTRA, record_id=thread_id)], tenant=caller.tenant
        )
    except NotFound:
        raise NotFound(f"there is no thread {thread_id}.") from None
    thread = Thread(intent, read_extra(record))
    if not belongs(thread, owner):
        if caller.agent is not None and not caller.can_touch(intent):
            raise NotFound(f"there is no thread {thread_id}.")
        raise Forbidden(f"thread {thread_id} is in another inbox.")
    return thread, record


async def show_all(
    platform: Platform, caller: Caller, threads: list[Thread], owner: str | None
) -> list[dict[str, Any]]:
    shown = []
    for thread in threads:
        ops: list[Op[Any]] = [ReadEvents(intent_id=thread.intent.intent_id, limit=_MOST_EVENTS)]
        ops += [GetRecord(kind=HIDDEN, record_id=_hidden_id(thread, who)) for who in (owner or "*", "*")]
        history, own, everybody = await platform.store.execute(ops, tenant=caller.tenant)
        hidden = _ids(own) | _ids(everybody)
        shown.append(_show(platform, caller, thread, history, hidden, owner))
    return shown


def _hidden_id(thread: Thread, who: str) -> str:
    return f"{thread.intent.intent_id}|{who}"


def _ids(record: Record | None) -> set[str]:
    return set() if record is None else set(msgspec.json.decode(record.body, type=list[str]))


def event_id(event: Event) -> str:
    return str(uuid5(NAMESPACE_URL, f"{event.intent_id}/{event.seq}"))


def _status(intent: Intent) -> str:
    if intent.finished:
        return "done"
    return "active" if intent.status in (Status.IN_PROGRESS, Status.WAITING) else "pending"


def _show(
    platform: Platform, caller: Caller, thread: Thread, history: list[Event], hidden: set[str], owner: str | None
) -> dict[str, Any]:
    intent, extra = thread.intent, thread.extra
    codec, tenant = platform.codec, caller.tenant
    timeline = []
    for event in history:
        told = views.show_event(codec, tenant, event, intent, extra)
        line = {
            "event_id": event_id(event),
            "event_type": event.event_type,
            "actor": told["actor"],
            "at": told["at"],
            "status": told["status"],
            "details": told["details"],
        }
        if line["event_id"] not in hidden or event.seq == 1:  # a thread has at least its beginning
            timeline.append(line)
    messages = [
        {
            "message_id": line["event_id"],
            "from": line["actor"],
            "message": line["details"]["message"],
            "at": line["at"],
        }
        for line in timeline
        if line["event_type"] == "intent.reply"
    ]
    return {
        "thread_id": intent.intent_id,
        "intent_id": intent.intent_id,
        "intent_type": intent.intent_type,
        "status": _status(intent),
        "lifecycle_status": str(intent.status),
        "owner_agent": owner or extra.more.get("delegated_to") or intent.to_agent,
        "from_agent": intent.from_agent or "",
        "to_agent": intent.to_agent,
        "created_at": iso(intent.created_at),
        "updated_at": iso(intent.updated_at),
        "payload": views.payload_of(codec, tenant, intent),
        "result": views.result_of(codec, tenant, intent),
        "timeline": timeline,
        "messages": messages,
    }


# --- writing ----------------------------------------------------------------------------------------


def _check_open(intent: Intent) -> None:
    if intent.finished:
        raise AlreadyFinished(
            f"thread {intent.intent_id} is done ({intent.status}).",
            intent_id=intent.intent_id,
            status=str(intent.status),
        )


async def reply_to(platform: Platform, caller: Caller, thread: Thread, message: str, key: str | None) -> None:
    _check_open(thread.intent)
    note = AppendEvent(
        intent_id=thread.intent.intent_id,
        lease=None,
        note_id=f"reply:{caller.key_id}:{key}" if key else f"reply:{new_id()}",
        event_type="intent.reply",
        details={"message": message},
        actor=caller.actor,
    )
    await platform.store.one(note, tenant=caller.tenant)


async def delegate(
    platform: Platform, caller: Caller, thread_id: str, owner: str | None, to: str, note: str | None
) -> Thread:
    """Hand a thread to another; who it was sent to is history and stays."""
    for _ in range(_TRIES):
        thread, record = await find(platform, caller, thread_id, owner)
        _check_open(thread.intent)
        thread.extra.more = {**thread.extra.more, "delegated_to": to}
        ops: list[Op[Any]] = [
            put_extra(
                thread_id,
                thread.extra,
                expected=0 if record is None else record.version,
                due_at=None if record is None else record.due_at,
            ),
            AppendEvent(
                intent_id=thread_id,
                lease=None,
                note_id=f"delegate:{new_id()}",
                event_type="intent.transfer",
                details={"delegate_to": to, "handler": to, **({"note": note} if note else {})},
                actor=caller.actor,
            ),
        ]
        try:
            await platform.store.execute(ops, tenant=caller.tenant)
        except Conflict:
            continue
        return Thread(await platform.store.one(GetIntent(intent_id=thread_id), tenant=caller.tenant), thread.extra)
    raise Conflict(f"thread {thread_id} is written by many at once; try again.")


async def hide(
    platform: Platform,
    caller: Caller,
    thread: Thread,
    owner: str | None,
    mode: str,
    wanted: list[str] | None,
    limit: int,
) -> list[str]:
    """Messages out of sight, of the owner or of all. The intent's history keeps them."""
    history = await platform.store.one(
        ReadEvents(intent_id=thread.intent.intent_id, limit=_MOST_EVENTS), tenant=caller.tenant
    )
    ids = [event_id(event) for event in history if event.event_type == "intent.reply"]
    chosen = [each for each in ids if each in wanted] if wanted is not None else ids[:limit]
    name = _hidden_id(thread, "*" if mode == "both" else owner or "*")
    for _ in range(_TRIES):
        record = await platform.store.one(GetRecord(kind=HIDDEN, record_id=name), tenant=caller.tenant)
        known = _ids(record)
        put = PutRecord(
            kind=HIDDEN,
            record_id=name,
            body=msgspec.json.encode(sorted(known | set(chosen))),
            write_id=new_id(),
            expected=0 if record is None else record.version,
            belongs_to=thread.intent.intent_id,
        )
        try:
            await platform.store.one(put, tenant=caller.tenant)
        except Conflict:
            continue
        return [each for each in chosen if each not in known]
    raise Conflict(f"thread {thread.intent.intent_id} is written by many at once; try again.")


# --- changes ----------------------------------------------------------------------------------------


def cursor_of(intent: Intent) -> str:
    return f"{_CURSOR}:{intent.updated_at}:{intent.intent_id}"


def read_cursor(text: str) -> tuple[int, str] | None:
    parts = text.split(":", 2)
    if len(parts) != 3 or parts[0] != _CURSOR or not parts[1].isdecimal() or len(parts[1]) > 18:
        return None
    return int(parts[1]), parts[2]
