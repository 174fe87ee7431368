"""The AXME wire on intents: create, read, follow, answer, steer."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stepfast import inputs as check
from stepfast.bindings import of_payload
from stepfast.clock import new_id
from stepfast.core import iso
from stepfast.errors import Conflict, InvalidInput, NotFound, StoreError
from stepfast.intents import TERMINAL, Intent, Status
from stepfast.ops import (
    CreateIntent,
    Filter,
    GetIntent,
    GetRecord,
    ListIntents,
    NewIntent,
    Op,
    ReadEvents,
    ReviveIntent,
)
from stepfast.server import human_tasks
from stepfast.server.answers import Answer, assign, person_of, resolve, resume
from stepfast.server.caller import Caller
from stepfast.server.controls import EXTRA, Extra, hash_of, load, put_extra, read_extra, update
from stepfast.server.delivery import Hub, finish
from stepfast.server.errors import BadRequest, HttpError
from stepfast.server.guard import query_int, query_text, read_json
from stepfast.server.intents_docs import DOCS
from stepfast.server.mesh import Mesh
from stepfast.server.sse import KEEP_ALIVE, KEEP_ALIVE_SECONDS, Channel, EventStream, frame, timeout_frame
from stepfast.server.state import Platform
from stepfast.server.store_time import StoreTime
from stepfast.server.views import envelope, reply, show, show_event
from stepfast.server.wakes import Board

__all__ = ["DOCS", "routes"]

_ADDRESS = re.compile(r"(agent://)?[A-Za-z0-9._~@+-]{1,128}(/[A-Za-z0-9._~@+-]{1,128}){0,2}")
_PAGE = 500
_EARLIEST, _LATEST = 0, 253_370_764_800_000_000  # 1970 to the end of 9998: what every calendar can show
_OPEN = [status for status in Status if status not in TERMINAL]
_SENT_AT_ONCE = 50

Text = Annotated[str, Meta(min_length=1, max_length=383)]
Seconds = Annotated[float, Meta(gt=0, le=366 * 86_400)]


class CreateBody(msgspec.Struct, kw_only=True):
    intent_type: Annotated[str, Meta(min_length=1, max_length=255, pattern="^[A-Za-z0-9][A-Za-z0-9_.:/-]*$")]
    to_agent: str
    payload: dict[str, Any] | None = None
    correlation_id: Annotated[str, Meta(min_length=1, max_length=255, pattern="^[!-~]+$")] | None = None
    from_agent: Any = None
    reply_to: Text | None = None
    deadline_at: str | None = None
    ttl_seconds: Seconds | None = None
    remind_after_seconds: Seconds | None = None
    remind_interval_seconds: Seconds | None = None
    max_reminders: Annotated[int, Meta(ge=0, le=1000)] | None = None
    escalate_to: Text | None = None
    max_delivery_attempts: Annotated[int, Meta(ge=1, le=1000)] | None = None
    human_task: dict[str, Any] | None = None


class ControlsBody(msgspec.Struct, kw_only=True):
    controls_patch: dict[str, Any]
    reason: Annotated[str, Meta(max_length=2000)] | None = None
    actor: Annotated[str, Meta(max_length=255)] | None = None
    expected_policy_generation: Annotated[int, Meta(ge=0)] | None = None


class PolicyBody(msgspec.Struct, kw_only=True):
    grants_patch: dict[str, Any] | None = None
    envelope_patch: dict[str, Any] | None = None
    reason: Annotated[str, Meta(max_length=2000)] | None = None
    actor: Annotated[str, Meta(max_length=255)] | None = None
    expected_policy_generation: Annotated[int, Meta(ge=0)] | None = None


class AnswerBody(msgspec.Struct, kw_only=True):
    """What every answer may carry; the rest of it is the answer."""

    actor: Annotated[str, Meta(max_length=255)] | None = None
    attempt_token: Annotated[str, Meta(max_length=255)] | None = None
    expected_policy_generation: Annotated[int, Meta(ge=0)] | None = None


class CancelBody(msgspec.Struct, kw_only=True):
    older_than_hours: Annotated[float, Meta(ge=0.1, le=1e6)] = 24.0
    status_filter: list[str] | None = None
    dry_run: bool = True
    reason: Annotated[str, Meta(max_length=2000)] | None = None
    limit: Annotated[int, Meta(ge=1, le=5000)] = 500


def _convert(body: dict[str, Any], kind: type[Any]) -> Any:
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{error}.") from None


def _context(request: Request) -> tuple[Platform, Caller]:
    return request.app.state.platform, request.state.caller


def _idempotency_key(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is not None and not (1 <= len(key) <= 255 and key.isprintable()):
        raise InvalidInput("Idempotency-Key: must be 1 to 255 printable characters.")
    return key


def _check_owner_agent(request: Request) -> None:
    asked, told = request.query_params.get("owner_agent"), request.headers.get("x-owner-agent")
    if asked and told and asked != told:
        raise BadRequest("owner_agent and x-owner-agent differ; send one of them.")


# --- create --------------------------------------------------------------------------------------


async def create(request: Request) -> Response:
    platform, caller = _context(request)
    caller.require("create")
    body = await read_json(request)
    spec: CreateBody = _convert(body, CreateBody)
    key = _idempotency_key(request)
    new = _new_intent(platform, caller, spec, body, key)
    await platform.part(Mesh).check(caller.tenant, new.to_agent, new.from_agent)
    ops = _creation(platform, caller, spec, new)
    if key is not None:
        # An earlier request made the intent under another id: then nothing else of this one may be written.
        ops.insert(1, GetIntent(intent_id=new.intent_id))
    try:
        created = (await platform.store.execute(ops, tenant=caller.tenant))[0].intent
    except Conflict as error:
        if key is None:
            raise
        raise Conflict("idempotency key reused with different payload", **error.details) from None
    except NotFound:
        created = (await platform.store.one(CreateIntent(new=new), tenant=caller.tenant)).intent
    return reply(
        {
            "ok": True,
            "intent_id": created.intent_id,
            "status": "WAITING" if spec.human_task is not None else "DELIVERED",
            "created_at": iso(created.created_at),
        }
    )


def _new_intent(
    platform: Platform, caller: Caller, spec: CreateBody, body: dict[str, Any], key: str | None
) -> NewIntent:
    if not _ADDRESS.fullmatch(spec.to_agent) or len(spec.to_agent) > 383:
        raise HttpError(
            "to_agent: must be an address such as agent://org/workspace/name or a name.",
            status=422,
            code="invalid_agent_address",
        )
    if spec.deadline_at is not None and spec.ttl_seconds is not None:
        raise InvalidInput("deadline_at, ttl_seconds: give one of them, not both.")
    if spec.human_task is not None:
        problems = human_tasks.check_task("human_task", spec.human_task)
        if problems:
            raise InvalidInput("; ".join(problems[:10]) + ".")
    claimed = spec.from_agent
    known = isinstance(claimed, str) and 1 <= len(claimed) <= 383 and claimed.isprintable()
    same = {name: value for name, value in body.items() if name != "correlation_id"}
    intent_id = new_id()
    return NewIntent(
        intent_id=intent_id,
        intent_type=spec.intent_type,
        to_agent=spec.to_agent,
        from_agent=caller.sender(claimed if known else None),
        correlation_id=spec.correlation_id or new_id(),
        payload=platform.codec.encode(spec.payload or {}, bind=of_payload(caller.tenant, intent_id)),
        idempotency_key=None if key is None else f"{caller.key_id}|POST /v1/intents|{key}",
        body_hash=None if key is None else hash_of(same),
        deadline_at=_moment("deadline_at", spec.deadline_at),
        ttl_seconds=spec.ttl_seconds,
        max_delivery_attempts=spec.max_delivery_attempts,
    )


def _moment(field: str, text: str | None) -> int | None:
    try:
        moment = check.moment(field, text)
    except OverflowError:
        moment = -1
    if moment is not None and not _EARLIEST <= moment <= _LATEST:
        raise InvalidInput(f"{field}: must be from 1970 to 9998.")
    return moment


def _creation(platform: Platform, caller: Caller, spec: CreateBody, new: NewIntent) -> list[Op[Any]]:
    """All that one create writes, in one transaction."""
    task = spec.human_task
    extra = Extra(
        reply_to=spec.reply_to,
        human_task=task,
        remind_after_seconds=spec.remind_after_seconds,
        remind_interval_seconds=spec.remind_interval_seconds,
        max_reminders=spec.max_reminders,
        escalate_to=spec.escalate_to,
        pending_with=None if task is None else person_of(task),
    )
    return [CreateIntent(new=new), *_extras(platform, caller, new.intent_id, extra)]


def _extras(platform: Platform, caller: Caller, intent_id: str, extra: Extra) -> list[Op[Any]]:
    """What a fresh intent needs besides itself; nothing, as a rule."""
    task, due = extra.human_task, None
    ops: list[Op[Any]] = []
    if task is not None:
        ops += assign(intent_id, task, {"pending_with": extra.pending_with}, caller.actor)
        due = human_tasks.first_due(extra.shown(), platform.part(StoreTime).now())
    if extra != Extra():
        ops.append(put_extra(intent_id, extra, expected=0, due_at=due))
    return ops


# --- read ----------------------------------------------------------------------------------------


async def get(request: Request) -> Response:
    platform, caller = _context(request)
    caller.require("read")
    intent, extra, _ = await load(platform, caller, request.path_params["intent_id"])
    if caller.role == "agent":
        await platform.part(Hub).touch(caller, intent)
    return reply(envelope(show(platform.codec, caller.tenant, intent, extra)))


async def list_intents(request: Request) -> Response:
    platform, caller = _context(request)
    caller.require("read")
    limit = query_int(request, "limit", 50, least=1, most=1000, clamp=True)
    where = Filter(
        statuses=_statuses(query_text(request, "status")),
        to_agent=query_text(request, "to_agent"),
        intent_type=query_text(request, "intent_type"),
        before=query_text(request, "before"),
        limit=limit,
    )
    found, last = await _page(platform, caller, where)
    shown = [show(platform.codec, caller.tenant, intent, extra) for intent, extra in found]
    return reply({"ok": True, "intents": shown, "next_before": last})


async def _page(platform: Platform, caller: Caller, where: Filter) -> tuple[list[tuple[Intent, Extra]], str | None]:
    """A page of what the caller may see, with the id after which the next begins."""
    intents: list[Intent] = []
    before, full = where.before, True
    while full and len(intents) < where.limit:
        rest = msgspec.structs.replace(where, before=before)
        page = await platform.store.one(ListIntents(where=rest), tenant=caller.tenant)
        intents += [intent for intent in page if caller.can_touch(intent)]
        full = len(page) == where.limit
        before = page[-1].intent_id if page else None
    cut = intents[: where.limit]
    records = await platform.store.execute(
        [GetRecord(kind=EXTRA, record_id=intent.intent_id) for intent in cut] or [ListIntents(where=Filter(limit=1))],
        tenant=caller.tenant,
    )
    pairs = [(intent, read_extra(record)) for intent, record in zip(cut, records, strict=False)]
    more = full or len(intents) > where.limit
    return pairs, cut[-1].intent_id if cut and more else None


def _statuses(text: str | None) -> list[Status]:
    words = [word.strip().upper() for word in (text or "").split(",") if word.strip()]
    words = ["DELIVERED" if word == "ACKNOWLEDGED" else word for word in words]
    unknown = [word for word in words if word not in Status.__members__]
    if unknown:
        raise InvalidInput(f"status: {unknown[0][:50]!r} is not one of {', '.join(Status.__members__)}.")
    return list(dict.fromkeys(Status(word) for word in words))


async def events(request: Request) -> Response:
    platform, caller = _context(request)
    caller.require("read")
    since = query_int(request, "since", 0, least=0, most=1 << 53)
    limit = query_int(request, "limit", 1000, least=1, most=1000, clamp=True)
    intent, extra, found = await _history(platform, caller, request.path_params["intent_id"], since, limit)
    shown = [show_event(platform.codec, caller.tenant, event, intent, extra) for event in found]
    return reply({"ok": True, "events": shown})


async def _history(
    platform: Platform, caller: Caller, intent_id: str, since: int, limit: int
) -> tuple[Intent, Extra, list[Any]]:
    intent, record, found = await platform.store.execute(
        [
            GetIntent(intent_id=intent_id),
            GetRecord(kind=EXTRA, record_id=intent_id),
            ReadEvents(intent_id=intent_id, since=since, limit=limit),
        ],
        tenant=caller.tenant,
    )
    caller.check_touch(intent)
    return intent, read_extra(record), found


async def follow(request: Request) -> Response:
    """The history as a stream: what there is beyond ``since``, then what comes, until the end or the time is over."""
    platform, caller = _context(request)
    caller.require("read")
    intent_id = request.path_params["intent_id"]
    since = query_int(request, "since", 0, least=0, most=1 << 53)
    wait = query_int(request, "wait_seconds", 15, least=1, most=60, clamp=True)
    caller.check_touch(await platform.store.one(GetIntent(intent_id=intent_id), tenant=caller.tenant))

    async def tell(channel: Channel) -> None:
        loop = asyncio.get_running_loop()
        end, last = loop.time() + wait, since
        bell = platform.part(Board).bell(f"intent:{intent_id}", channel.signal.set)
        try:
            while not channel.over:
                try:
                    intent, extra, found = await _history(platform, caller, intent_id, last, _PAGE)
                except StoreError:  # it comes back, and so does what is to be told
                    if loop.time() >= end:
                        break
                    await _rest(channel, 1.0)
                    continue
                except NotFound:  # pruned meanwhile
                    break
                for event in found:
                    shown = show_event(platform.codec, caller.tenant, event, intent, extra)
                    await channel.write(frame(event.event_type, shown, event.seq))
                    last = event.seq
                if found and intent.finished and last >= intent.seq:
                    return
                left = end - loop.time()
                if left <= 0:
                    break
                if len(found) < _PAGE:
                    await _rest(channel, min(left, KEEP_ALIVE_SECONDS))
        finally:
            bell.close()
        await channel.write(timeout_frame(last))

    return EventStream(platform, request.scope, tell)


async def _rest(channel: Channel, seconds: float) -> None:
    woken = channel.signal.is_set()
    began = asyncio.get_running_loop().time()
    await channel.pause(seconds)
    if not woken and asyncio.get_running_loop().time() - began >= seconds and not channel.over:
        await channel.write(KEEP_ALIVE)


# --- answer and steer ----------------------------------------------------------------------------


async def _answer(request: Request) -> Answer:
    platform, caller = _context(request)
    _check_owner_agent(request)
    body = await read_json(request)
    common: AnswerBody = _convert(body, AnswerBody)
    return Answer(
        platform,
        caller,
        request.path_params["intent_id"],
        body,
        key=_idempotency_key(request),
        token=common.attempt_token or request.headers.get("x-attempt-token"),
        actor=common.actor or caller.actor,
    )


async def resume_intent(request: Request) -> Response:
    return reply(await resume(await _answer(request)))


async def resolve_intent(request: Request) -> Response:
    return reply(await resolve(await _answer(request)))


async def _steer(request: Request, kind: type[Any]) -> Response:
    platform, caller = _context(request)
    _check_owner_agent(request)
    caller.require("resume")
    body = await read_json(request)
    spec = _convert(body, kind)
    intent_id = request.path_params["intent_id"]
    told, intent = await update(
        platform, caller, intent_id, _idempotency_key(request), body, spec.actor or caller.actor
    )
    await platform.part(Hub).touch(caller, intent)
    return reply(told)


async def controls(request: Request) -> Response:
    return await _steer(request, ControlsBody)


async def policy(request: Request) -> Response:
    return await _steer(request, PolicyBody)


async def revive(request: Request) -> Response:
    """A new intent that goes on where one that failed, timed out or was canceled had stopped."""
    platform, caller = _context(request)
    caller.require("admin")
    old, extra, _ = await load(platform, caller, request.path_params["intent_id"])
    if _idempotency_key(request) is not None and old.superseded_by is not None:
        intent, extra, _ = await load(platform, caller, old.superseded_by)  # a repeat: the same answer
        return reply(envelope(show(platform.codec, caller.tenant, intent, extra)))
    task = extra.human_task
    kept = Extra(
        reply_to=extra.reply_to,
        human_task=task,
        remind_after_seconds=extra.remind_after_seconds,
        remind_interval_seconds=extra.remind_interval_seconds,
        max_reminders=extra.max_reminders,
        escalate_to=extra.escalate_to,
        pending_with=None if task is None else person_of(task),
        controls=extra.controls,
        policy=extra.policy,
    )
    fresh = new_id()
    first = ReviveIntent(intent_id=old.intent_id, new_id=fresh, actor=caller.actor)
    results = await platform.store.execute([first, *_extras(platform, caller, fresh, kept)], tenant=caller.tenant)
    intent = next((each for each in reversed(results) if isinstance(each, Intent)), results[0].intent)
    return reply(envelope(show(platform.codec, caller.tenant, intent, kept)))


async def bulk_cancel(request: Request) -> Response:
    platform, caller = _context(request)
    caller.require("admin")
    spec: CancelBody = _convert(await read_json(request), CancelBody)
    statuses = _statuses(",".join(spec.status_filter or [])) or _OPEN
    if any(status in TERMINAL for status in statuses):
        raise InvalidInput("status_filter: what has ended cannot be canceled.")
    oldest = platform.part(StoreTime).now() - int(spec.older_than_hours * 3_600_000_000)
    found: list[Intent] = []
    before: str | None = None
    while len(found) < spec.limit:
        where = Filter(statuses=statuses, before=before, limit=_PAGE)
        page = await platform.store.one(ListIntents(where=where), tenant=caller.tenant)
        found += [intent for intent in page if intent.created_at <= oldest]
        if len(page) < _PAGE:
            break
        before = page[-1].intent_id
    found = found[: spec.limit]
    if spec.dry_run:
        ids = [intent.intent_id for intent in found]
        return reply({"ok": True, "dry_run": True, "would_cancel": len(ids), "intent_ids": ids})

    async def cancel(intent: Intent) -> str | None:
        try:
            await finish(platform, caller, intent, Status.CANCELED, reason=spec.reason or "bulk cancel")
        except (Conflict, NotFound):  # it ended by itself meanwhile
            return None
        return intent.intent_id

    gone: list[str] = []
    for start in range(0, len(found), _SENT_AT_ONCE):
        done = await asyncio.gather(*(cancel(intent) for intent in found[start : start + _SENT_AT_ONCE]))
        gone += [intent_id for intent_id in done if intent_id is not None]
    return reply({"ok": True, "dry_run": False, "canceled": len(gone), "intent_ids": gone})


_ONE = "/v1/intents/{intent_id}"
routes: list[Route] = [
    Route("/v1/intents", create, methods=["POST"]),
    Route("/v1/intents", list_intents, methods=["GET"]),
    Route("/v1/intents/bulk-cancel", bulk_cancel, methods=["POST"]),
    Route(_ONE, get, methods=["GET"]),
    Route(f"{_ONE}/events", events, methods=["GET"]),
    Route(f"{_ONE}/events/stream", follow, methods=["GET"]),
    Route(f"{_ONE}/resume", resume_intent, methods=["POST"]),
    Route(f"{_ONE}/resolve", resolve_intent, methods=["POST"]),
    Route(f"{_ONE}/controls", controls, methods=["POST"]),
    Route(f"{_ONE}/policy", policy, methods=["POST"]),
    Route(f"{_ONE}/revive", revive, methods=["POST"]),
]
