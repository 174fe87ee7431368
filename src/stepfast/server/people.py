"""People's tasks: human tasks of intents and scenarios, and the questions of runs, as one list with one way to answer.

An answer may name the ``content_hash`` of what its author was shown. Then it counts only for that: where the task has
changed since, it is refused.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from stepfast import bindings
from stepfast.core import iso
from stepfast.errors import AlreadyFinished, CodecError, Conflict, InvalidInput, KeyUnavailable, NotFound
from stepfast.intents import Intent, Status
from stepfast.ops import (
    AnswerDecision,
    Decision,
    Filter,
    FinishIntent,
    GetIntent,
    GetRecord,
    ListDecisions,
    ListIntents,
    Op,
    Record,
)
from stepfast.server import views
from stepfast.server.caller import Caller, missing_intent
from stepfast.server.controls import EXTRA, Extra, put_extra, read_extra
from stepfast.server.human_tasks import check_answer, content_hash, is_positive, outcomes_of
from stepfast.server.scenario_runs import Runs, waits_for_person
from stepfast.server.scenarios import Answered
from stepfast.server.state import Platform

_TRIES = 20
_PAGE = 500
_MOST_DECISIONS = 1000


def task_of(intent: Intent, extra: Extra) -> dict[str, Any]:
    """What a person is asked; an intent that waits for one without saying more asks for approval."""
    return extra.human_task or {"title": f"Approve {intent.intent_type}"[:255], "task_type": "approval"}


def hash_of_task(intent: Intent, extra: Extra) -> str:
    payload = sha256(intent.payload or b"").hexdigest()
    asked = extra.more.get("asked") or {}
    return content_hash(
        intent.intent_id,
        task_of(intent, extra),
        payload,
        extra.more.get("step_id"),
        asked.get("taken"),
        asked.get("seen"),
    )


def hash_of_decision(decision: Decision) -> str:
    question = sha256(decision.question).hexdigest()
    return content_hash(decision.journal_id, decision.key, decision.kind, question, decision.outcomes)


def actor_of(caller: Caller, name: Any) -> str:
    """Who answered: what the key says, with the person's name where it was given."""
    shown = "".join(c for c in name if c.isprintable()).strip()[:200] if isinstance(name, str) else ""
    return f"{shown} ({caller.actor})" if shown else caller.actor


# --- answering human tasks --------------------------------------------------------------------------


async def answer_task(
    platform: Platform,
    caller: Caller,
    intent: Intent,
    task_result: Any,
    *,
    shown: str | None = None,
    actor: str | None = None,
) -> Intent:
    """Take a person's decision on what an intent waits for; gives the intent as it is then.

    ``shown`` is the content hash of what the person saw. InvalidInput where the answer lacks something, Conflict where
    nobody is asked, or something else than was shown.
    """
    caller.require("answer")
    caller.check_touch(intent)
    runs, tenant, intent_id = platform.part(Runs), caller.tenant, intent.intent_id
    who = actor or caller.actor
    for _ in range(_TRIES):
        seen = await runs.read(tenant, intent_id)
        if seen is None:
            current, record = await platform.store.execute(
                [GetIntent(intent_id=intent_id), GetRecord(kind=EXTRA, record_id=intent_id)], tenant=tenant
            )
            extra = read_extra(record)
        else:
            current, extra, record = seen.parent, seen.extra, seen.extra_record
        _check_open(current)
        if seen is None and extra.human_task is None:
            decisions = await _open_decisions(platform, tenant, current)
            if decisions:
                return await _answer_only(platform, caller, current, decisions, task_result, shown, who)
        if seen is not None and seen.state.phase == "agent":
            # The agent at work has itself asked for a person: the answer is its intent's.
            child = await platform.store.one(GetIntent(intent_id=seen.state.child_id), tenant=tenant)
            if waits_for_person(child):
                await answer_task(platform, caller, child, task_result, shown=shown, actor=actor)
                return seen.parent
        if not waits_for_person(current):
            raise Conflict(f"intent {intent_id} waits for no person: it is {current.status}.", intent_id=intent_id)
        if shown is not None and shown != hash_of_task(current, extra):
            raise _changed()
        answer = check_answer(task_of(current, extra), task_result)
        positive = is_positive(answer["outcome"])
        if seen is not None:
            happening = Answered(positive=positive, task_result=answer, actor=who, taken=seen.state.taken)
            if not await runs.answer(tenant, seen, happening):
                continue
        else:
            try:
                await platform.store.execute(
                    _ending(platform, tenant, current, extra, record, answer, who), tenant=tenant
                )
            except AlreadyFinished:
                raise
            except Conflict:
                continue
        return await platform.store.one(GetIntent(intent_id=intent_id), tenant=tenant)
    raise Conflict(f"intent {intent_id} is answered by many at once; look at it again.", intent_id=intent_id)


def _check_open(intent: Intent) -> None:
    if intent.finished:
        raise AlreadyFinished(
            f"intent {intent.intent_id} is {intent.status} and stays so.",
            intent_id=intent.intent_id,
            status=str(intent.status),
        )


def _changed() -> Conflict:
    error = Conflict("content_hash: the task is no longer what you were shown. Look at it again before you answer.")
    error.code = "content_changed"
    return error


def _ending(
    platform: Platform,
    tenant: str,
    intent: Intent,
    extra: Extra,
    record: Record | None,
    answer: dict[str, Any],
    actor: str,
) -> list[Op[Any]]:
    """A plain intent ends with its answer; together with its reminders."""
    extra.pending_with = None
    version = 0 if record is None else record.version
    outcome = answer["outcome"]
    if is_positive(outcome):
        result = platform.codec.encode(answer, bind=bindings.of_result(tenant, intent.journal_id))
        end = FinishIntent(intent_id=intent.intent_id, status=Status.COMPLETED, result=result, actor=actor)
    else:
        error = platform.codec.encode(answer, bind=bindings.of_error(tenant, intent.journal_id))
        comment = answer.get("comment")
        reason = f"answered {outcome!r}" + (f": {comment}" if comment else "")
        end = FinishIntent(
            intent_id=intent.intent_id, status=Status.FAILED, error=error, reason=reason[:2000], actor=actor
        )
    return [put_extra(intent.intent_id, extra, expected=version), end]


# --- questions of runs ------------------------------------------------------------------------------


def decision_id(decision: Decision) -> str:
    """Fits into a path whatever the key is."""
    mark = sha256(decision.key.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{decision.intent_id}.{mark}"


def _question(platform: Platform, tenant: str, decision: Decision) -> tuple[dict[str, Any], bool]:
    """What was asked, and whether it was encrypted; values that are not plain stay as they are."""
    bind = bindings.of_question(tenant, decision.journal_id, decision.key)
    try:
        asked = platform.codec.decode(decision.question, bind=bind)
    except KeyUnavailable:
        return {"question": None, "evidence": views.opaque("encrypted")}, True
    except CodecError as error:
        return {"question": None, "evidence": views.opaque(error.code)}, False
    shown = views.plain(asked)
    return (shown if isinstance(shown, dict) else {"question": str(shown)}), False


def show_decision(platform: Platform, tenant: str, decision: Decision, intent: Intent) -> dict[str, Any]:
    asked, encrypted = _question(platform, tenant, decision)
    question = asked.pop("question", None)
    evidence = asked.get("evidence")
    if decision.kind == "in_doubt" and not encrypted:
        started = asked.get("started_at")
        evidence = {**asked, "started_at": iso(started) if isinstance(started, int) else None}
    title = question if isinstance(question, str) else f"A question of {intent.run_id or intent.intent_id}"
    return {
        **_frame(intent),
        "task_id": decision_id(decision),
        "kind": decision.kind,
        "key": decision.key.encode("utf-8", "replace").decode(),
        "title": title[:255],
        "description": None,
        "question": question if isinstance(question, str) else None,
        "evidence": evidence,
        "encrypted": encrypted,
        "outcomes": decision.outcomes,
        "comment_required": decision.comment_required,
        "form_schema": None,
        "assignees": [],
        "step_id": None,
        "scenario_id": None,
        "asked_at": iso(decision.asked_at),
        "due_at": iso(decision.expires_at),
        "remind_count": 0,
        "content_hash": hash_of_decision(decision),
        "outcome": decision.outcome,
    }


def _frame(intent: Intent) -> dict[str, Any]:
    return {
        "intent_id": intent.intent_id,
        "run_id": intent.run_id,
        "intent_type": intent.intent_type,
        "from_agent": intent.from_agent,
        "to_agent": intent.to_agent,
        "status": str(intent.status),
    }


async def _open_decisions(platform: Platform, tenant: str, intent: Intent) -> list[Decision]:
    found = ListDecisions(journal_id=intent.journal_id, pending=True, limit=_MOST_DECISIONS)
    return await platform.store.one(found, tenant=tenant)


async def _answer_only(
    platform: Platform,
    caller: Caller,
    intent: Intent,
    decisions: list[Decision],
    answer: Any,
    shown: str | None,
    actor: str,
) -> Intent:
    if len(decisions) > 1:
        ids = ", ".join(decision_id(d) for d in decisions[:10])
        raise Conflict(f"intent {intent.intent_id} waits for several decisions; answer one of the tasks {ids}.")
    await answer_decision(platform, caller, intent, decisions[0], answer, shown=shown, actor=actor)
    return await platform.store.one(GetIntent(intent_id=intent.intent_id), tenant=caller.tenant)


async def answer_decision(
    platform: Platform,
    caller: Caller,
    intent: Intent,
    decision: Decision,
    answer: Any,
    *,
    shown: str | None = None,
    actor: str | None = None,
) -> Decision:
    """Answer a run's question: an outcome, and where wanted a comment and a value, which the run gets as it is."""
    caller.require("answer")
    caller.check_touch(intent)
    if not isinstance(answer, dict) or not isinstance(answer.get("outcome"), str):
        raise InvalidInput(f"outcome: must be one of {', '.join(decision.outcomes)}.", outcomes=decision.outcomes)
    comment, value = answer.get("comment"), answer.get("value")
    if comment is not None and not isinstance(comment, str):
        raise InvalidInput("comment: must be a text.")
    if shown is not None and shown != hash_of_decision(decision):
        raise _changed()
    _, encrypted = _question(platform, caller.tenant, decision)
    if encrypted and (comment or value is not None):
        raise InvalidInput(
            "comment, value: this run encrypts what it keeps, and the server has no key. Answer with the outcome "
            "alone, or with sf.answer() where the key is."
        )
    bind = bindings.of_answer(caller.tenant, decision.journal_id, decision.key)
    op = AnswerDecision(
        journal_id=decision.journal_id,
        key=decision.key,
        outcome=answer["outcome"],
        value=None if value is None else platform.codec.encode(value, bind=bind),
        comment=None if not comment else platform.codec.encode(comment, bind=bind),
        actor=actor or caller.actor,
    )
    return await platform.store.one(op, tenant=caller.tenant)


# --- the list ---------------------------------------------------------------------------------------


def show_task(platform: Platform, tenant: str, intent: Intent, extra: Extra) -> dict[str, Any]:
    task = task_of(intent, extra)
    asked = extra.more.get("asked") or {}
    scenario = extra.more.get("scenario") or {}
    return {
        **_frame(intent),
        "task_id": intent.intent_id,
        "kind": "human_task",
        "key": None,
        "title": task.get("title"),
        "description": task.get("description"),
        "question": task.get("title"),
        "evidence": {"payload": views.payload_of(platform.codec, tenant, intent)},
        "encrypted": False,
        "outcomes": outcomes_of(task),
        "comment_required": bool(task.get("required_comment")),
        "form_schema": task.get("form_schema"),
        "assignees": task.get("assignees") or [],
        "step_id": extra.more.get("step_id"),
        "scenario_id": scenario.get("scenario_id"),
        "asked_at": iso(asked.get("at") or intent.created_at),
        "due_at": iso(asked.get("due_at") or intent.deadline_at),
        "remind_count": extra.remind_count,
        "content_hash": hash_of_task(intent, extra),
        "outcome": None,
        "human_task": task,
        "pending_with": extra.pending_with,
    }


async def list_tasks(platform: Platform, caller: Caller, limit: int) -> list[dict[str, Any]]:
    """What waits for a person now: the newest human tasks, then the questions of runs."""
    tenant = caller.tenant
    decisions = await platform.store.one(ListDecisions(pending=True, limit=_MOST_DECISIONS), tenant=tenant)
    asking = {decision.intent_id for decision in decisions}
    tasks: list[dict[str, Any]] = []
    before: str | None = None
    while len(tasks) < limit:
        where = Filter(statuses=[Status.WAITING], before=before, limit=_PAGE)
        page = await platform.store.one(ListIntents(where=where), tenant=tenant)
        waiting = [each for each in page if waits_for_person(each) and caller.can_touch(each)]
        extras = await _extras(platform, tenant, waiting)
        for intent, extra in zip(waiting, extras, strict=True):
            if extra.human_task is not None or intent.intent_id not in asking:
                tasks.append(show_task(platform, tenant, intent, extra))
        if len(page) < _PAGE:
            break
        before = page[-1].intent_id
    for decision in decisions:
        if len(tasks) >= limit:
            break
        try:
            intent = await platform.store.one(GetIntent(intent_id=decision.intent_id), tenant=tenant)
        except NotFound:
            continue
        if not intent.finished and caller.can_touch(intent):
            tasks.append(show_decision(platform, tenant, decision, intent))
    return tasks[:limit]


async def _extras(platform: Platform, tenant: str, intents: list[Intent]) -> list[Extra]:
    if not intents:
        return []
    ops: list[Op[Any]] = [GetRecord(kind=EXTRA, record_id=intent.intent_id) for intent in intents]
    return [read_extra(record) for record in await platform.store.execute(ops, tenant=tenant)]


async def find_task(platform: Platform, caller: Caller, task_id: str) -> tuple[Intent, Extra, Decision | None]:
    """A task by its id: an intent's, or with a mark behind it the one of a run's question. NotFound if none waits."""
    intent_id, _, mark = task_id.partition(".")
    try:
        intent, record = await platform.store.execute(
            [GetIntent(intent_id=intent_id), GetRecord(kind=EXTRA, record_id=intent_id)], tenant=caller.tenant
        )
    except (NotFound, InvalidInput):
        raise _no_task(task_id) from None
    if not caller.can_touch(intent):
        raise missing_intent(intent_id)
    extra = read_extra(record)
    decisions = await platform.store.one(
        ListDecisions(journal_id=intent.journal_id, pending=False, limit=_MOST_DECISIONS), tenant=caller.tenant
    )
    if mark:
        found = next((d for d in decisions if decision_id(d).partition(".")[2] == mark), None)
        if found is None:
            raise _no_task(task_id)
        return intent, extra, found
    waiting = [d for d in decisions if d.outcome is None]
    if extra.human_task is None and len(waiting) == 1:
        return intent, extra, waiting[0]
    if extra.human_task is None and not waits_for_person(intent):
        raise _no_task(task_id)
    return intent, extra, None


def _no_task(task_id: str) -> NotFound:
    return NotFound(f"there is no task {task_id}.", task_id=task_id)


async def show_one(platform: Platform, caller: Caller, task_id: str) -> dict[str, Any]:
    """A task with all that its person should see: for a scenario also what the steps before it gave."""
    intent, extra, decision = await find_task(platform, caller, task_id)
    if decision is not None:
        return show_decision(platform, caller.tenant, decision, intent)
    shown = show_task(platform, caller.tenant, intent, extra)
    seen = await platform.part(Runs).read(caller.tenant, intent.intent_id)
    if seen is not None:
        shown["evidence"]["previous_results"] = seen.state.results
    return shown
