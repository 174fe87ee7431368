"""What agents and people answer: ``resume``, which means many things, and ``resolve``, which means one."""

from __future__ import annotations

from typing import Any

from stepfast.clock import new_id
from stepfast.errors import AlreadyFinished, Conflict, InvalidInput
from stepfast.intents import Intent, Status
from stepfast.ops import AppendEvent, Lease, MoveIntent, Op, ReadEvents, Record, SuspendIntent
from stepfast.server import human_tasks
from stepfast.server.caller import Caller
from stepfast.server.controls import Extra, is_repeat, load, put_extra, remember, stale
from stepfast.server.delivery import Hub, finish
from stepfast.server.errors import Forbidden
from stepfast.server.people import answer_task
from stepfast.server.scenario_runs import Runs
from stepfast.server.state import Platform
from stepfast.server.store_time import StoreTime
from stepfast.server.views import show, show_event

HUMAN = "WAITING_FOR_HUMAN"
# Of the request, not of the answer.
_ABOUT = ("action", "attempt_token", "expected_policy_generation")


class Answer:
    """One request that answers for an intent, with all that is needed to judge it."""

    def __init__(
        self,
        platform: Platform,
        caller: Caller,
        intent_id: str,
        body: dict[str, Any],
        *,
        key: str | None,
        token: str | None,
        actor: str,
    ) -> None:
        self.platform = platform
        self.caller = caller
        self.intent_id = intent_id
        self.body = body
        self.key = key
        self.actor = actor
        self.lease = None if token is None else lease_of(intent_id, token)
        self.intent = Intent(intent_id=intent_id)
        self.extra = Extra()
        self.record: Record | None = None

    async def begin(self) -> dict[str, Any] | None:
        """Read what there is. A repeat and a stale one have their answer at once."""
        self.intent, self.extra, self.record = await load(self.platform, self.caller, self.intent_id)
        if is_repeat(self.extra, self.key, self.body):
            return self.applied(self.intent)
        expected = self.body.get("expected_policy_generation")
        if expected is not None and expected != self.extra.policy_generation:
            return {**stale(self.extra), "intent": self.shown(self.intent)}
        if self.intent.finished:
            raise AlreadyFinished(
                f"intent {self.intent_id} is {self.intent.status} and stays so.",
                intent_id=self.intent_id,
                status=str(self.intent.status),
            )
        return None

    def shown(self, intent: Intent) -> dict[str, Any]:
        return show(self.platform.codec, self.caller.tenant, intent, self.extra)

    def applied(self, intent: Intent) -> dict[str, Any]:
        generation = self.extra.policy_generation
        return {"ok": True, "applied": True, "policy_generation": generation, "intent": self.shown(intent)}

    def noted(self, due_at: int | None = None) -> list[Op[Any]]:
        """The extras as they are now, if there is anything to write: with the key of this request."""
        remember(self.extra, self.key, self.body)
        version = 0 if self.record is None else self.record.version
        if self.record is None and self.extra == Extra():
            return []
        return [put_extra(self.intent_id, self.extra, expected=version, due_at=due_at)]

    async def finish(self, status: Status, **ending: Any) -> Intent:
        self.extra.pending_with = None
        # An ending is what it is, whoever patched the controls meanwhile: nobody else's fields are written back.
        also = self.noted() if self.key is not None or self.record is not None else []
        try:
            return await finish(
                self.platform, self.caller, self.intent, status, actor=self.actor, lease=self.lease, also=also, **ending
            )
        except AlreadyFinished:
            raise
        except Conflict:
            if not also:
                raise
            _, self.extra, self.record = await load(self.platform, self.caller, self.intent_id)
            return await self.finish(status, **ending)


def lease_of(intent_id: str, token: str) -> Lease:
    number, _, secret = token.partition(".")
    if not (number.isdecimal() and len(number) < 10 and secret):
        raise InvalidInput("attempt_token: is not one that a delivery carried.")
    return Lease(intent_id, int(number), secret)


# --- resume --------------------------------------------------------------------------------------


async def resume(answer: Answer) -> dict[str, Any]:
    body = answer.body
    known = await answer.begin()
    if known is not None:
        return known
    action = body.get("action")
    if "task_result" in body:
        return await _decide(answer)
    if not answer.caller.can_resume(answer.intent):
        raise Forbidden(
            "this key may not answer for that intent. Use the addressed agent's own key or a workspace key."
        )
    if action == "complete":
        return await _complete(answer)
    if action == "fail":
        return await _fail(answer)
    if "approve_current_step" in body:
        return await _go_on(answer)
    if body.get("status") == "pending_human_approval":
        return await _ask_somebody(answer)
    return await _complete(answer, drop=_ABOUT[1:])


async def _complete(answer: Answer, drop: tuple[str, ...] = _ABOUT) -> dict[str, Any]:
    result = {name: value for name, value in answer.body.items() if name not in drop}
    return answer.applied(await answer.finish(Status.COMPLETED, result=result))


async def _fail(answer: Answer) -> dict[str, Any]:
    error = {name: value for name, value in answer.body.items() if name not in _ABOUT}
    reason = error.get("reason") or error.get("error") or error.get("message")
    text = reason if isinstance(reason, str) and reason else "the agent reported a failure"
    return answer.applied(await answer.finish(Status.FAILED, error=error, reason=text[:2000]))


async def _decide(answer: Answer) -> dict[str, Any]:
    """A person's decision."""
    return await _decided(answer, answer.body["task_result"])


async def _decided(answer: Answer, task_result: Any) -> dict[str, Any]:
    platform, caller = answer.platform, answer.caller
    intent = await answer_task(platform, caller, answer.intent, task_result, actor=answer.actor)
    platform.part(Hub).over(caller.tenant, intent)
    _, answer.extra, answer.record = await load(platform, caller, answer.intent_id)
    if answer.key is not None:
        try:
            due = None if answer.record is None else answer.record.due_at
            await platform.store.execute(answer.noted(due), tenant=caller.tenant)
        except Conflict:  # the task went on meanwhile: a repeat is then told that it is decided
            pass
    return answer.applied(intent)


async def _go_on(answer: Answer) -> dict[str, Any]:
    """Release the current wait. It ends nothing: whoever approved resolves later, or a worker goes on."""
    intent = answer.intent
    if answer.body["approve_current_step"] is not True:
        told = answer.applied(intent)
        return {**told, "applied": False, "reason": "step_not_approved"}
    if await answer.platform.part(Runs).read(answer.caller.tenant, intent.intent_id) is not None:
        outcomes = human_tasks.outcomes_of(answer.extra.human_task or {})
        yes = next((outcome for outcome in outcomes if human_tasks.is_positive(outcome)), outcomes[0])
        return await _decided(answer, {"outcome": yes, "comment": str(answer.body.get("reason") or "approved")})
    if intent.status is Status.IN_PROGRESS or intent.leased:
        return answer.applied(intent)
    answer.extra.pending_with = None
    reason = answer.body.get("reason")
    move = MoveIntent(
        intent_id=intent.intent_id,
        status=Status.IN_PROGRESS,
        note_id=f"approve:{new_id()}",
        claimable=True,
        details={"approved": True, **({"reason": reason} if isinstance(reason, str) else {})},
        actor=answer.actor,
    )
    moved = (await answer.platform.store.execute([move, *answer.noted()], tenant=answer.caller.tenant))[0]
    return answer.applied(moved)


async def _ask_somebody(answer: Answer) -> dict[str, Any]:
    """The agent says that a person must approve: the intent waits, and appears among the tasks."""
    intent, extra = answer.intent, answer.extra
    task = answer.body.get("human_task")
    if task is None:
        task = {"title": f"Approve {intent.intent_type}"[:255], "task_type": "approval"}
    problems = human_tasks.check_task("human_task", task)
    if problems:
        raise InvalidInput("; ".join(problems[:10]) + ".")
    extra.human_task = task
    extra.pending_with = person_of(task)
    told = {name: value for name, value in answer.body.items() if name not in _ABOUT}
    details = {"waiting_reason": HUMAN, "pending_with": extra.pending_with, "request": told}
    since = answer.platform.part(StoreTime).now()
    due = human_tasks.first_due(extra.shown(), since)
    ops: list[Op[Any]] = []
    if intent.leased:
        lease = answer.lease or Lease(intent.intent_id, intent.attempt, intent.lease_token or "")
        ops.append(SuspendIntent(lease=lease, waiting_reason=HUMAN))
    ops += assign(intent.intent_id, task, details, answer.actor)
    place = len(ops) - 1
    ops += answer.noted(due)
    moved: Intent = (await answer.platform.store.execute(ops, tenant=answer.caller.tenant))[place]
    answer.platform.part(Hub).over(answer.caller.tenant, moved)
    return answer.applied(moved)


def assign(intent_id: str, task: dict[str, Any], details: dict[str, Any], actor: str) -> list[Op[Any]]:
    """An intent becomes a person's task: it is told so, and then it waits."""
    return [
        AppendEvent(
            intent_id=intent_id,
            lease=None,
            note_id=f"assign:{new_id()}",
            event_type="intent.human_task_assigned",
            details={"human_task": task, "pending_with": person_of(task)},
            actor=actor,
        ),
        MoveIntent(
            intent_id=intent_id,
            status=Status.WAITING,
            note_id=f"ask:{new_id()}",
            waiting_reason=HUMAN,
            details=details,
            actor=actor,
        ),
    ]


def person_of(task: dict[str, Any]) -> dict[str, Any]:
    """Whom a task waits for, as ``pending_with`` says it."""
    assignees = task.get("assignees") or []
    who = assignees[0] if assignees else task.get("notify_email") or "human"
    return {"type": "human", "ref": str(who)[:255], "name": str(who)[:255]}


# --- resolve -------------------------------------------------------------------------------------


async def resolve(answer: Answer) -> dict[str, Any]:
    body = answer.body
    word = body.get("status")
    status = Status.__members__.get(word.upper()) if isinstance(word, str) else None
    if status not in (Status.COMPLETED, Status.FAILED, Status.CANCELED):
        raise InvalidInput("status: must be COMPLETED, FAILED or CANCELED.")
    known = await answer.begin()
    if known is not None:
        if not known["applied"]:
            return known
        return await _resolved(answer, answer.intent)
    caller, intent = answer.caller, answer.intent
    if not (caller.can_resume(intent) or (status is Status.CANCELED and caller.can_touch(intent))):
        raise Forbidden(
            "this key may not answer for that intent. Use the addressed agent's own key or a workspace key."
        )
    error = body.get("error") if status is Status.FAILED else None
    reason = body.get("reason")
    if reason is None and status is Status.FAILED:
        reason = error.get("message") if isinstance(error, dict) else error
    reason = str(reason)[:2000] if reason is not None else None
    result = body.get("result") if status is Status.COMPLETED else None
    ended = await answer.finish(status, result=result, error=error, reason=reason)
    return await _resolved(answer, ended)


async def _resolved(answer: Answer, intent: Intent) -> dict[str, Any]:
    codec, tenant = answer.platform.codec, answer.caller.tenant
    last = ReadEvents(intent_id=intent.intent_id, since=max(0, intent.seq - 1), limit=1)
    events = await answer.platform.store.one(last, tenant=tenant)
    told: dict[str, Any] = {
        "ok": True,
        "applied": True,
        "policy_generation": answer.extra.policy_generation,
        "intent": answer.shown(intent),
        "event": show_event(codec, tenant, events[0], intent, answer.extra) if events else None,
    }
    if answer.extra.reply_to is None:
        told["completion_delivery"] = {"delivered": False, "reason": "reply_to_not_set"}
    else:
        told["completion_delivery"] = {
            "delivered": True,
            "reply_to": answer.extra.reply_to,
            "thread_id": intent.intent_id,
            "message_id": f"{intent.intent_id}:{intent.seq}",
        }
    return told
