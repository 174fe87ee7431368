"""``stepfast intents``: send, look at, follow and end work."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from stepfast.cli import inputs
from stepfast.cli.failures import Problem, Usage
from stepfast.cli.setup import Setup, command
from stepfast.cli.text import as_text

group = typer.Typer(help="Send, look at, follow and end intents (and runs).", no_args_is_help=True)

Id = Annotated[str, typer.Argument(metavar="ID", help="The intent's id, or the name of a run.")]
Labels = Annotated[list[str] | None, typer.Option("--label", help="name=value; may be given again.")]
Statuses = Annotated[list[str] | None, typer.Option("--status", help="Such as FAILED; may be given again.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

_CORE = "agent_core"
_PAGE = 200


def me() -> str:
    """Who is at the keyboard, for the history."""
    import getpass

    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError, ImportError):
        return f"cli:{os.getuid()}" if hasattr(os, "getuid") else "cli"


@command(group, "list")
def list_intents(
    at: Setup,
    status: Statuses = None,
    to: Annotated[str | None, typer.Option("--to", help="Only those to this address.")] = None,
    intent_type: Annotated[str | None, typer.Option("--type", "--intent-type", help="Only those of this type.")] = None,
    label: Labels = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many.")] = 50,
    before: Annotated[str | None, typer.Option(help="The last id of the page before.")] = None,
) -> None:
    """The newest intents first."""
    from stepfast.cli import out
    from stepfast.cli.reach import open_client
    from stepfast.ops import GetProgress

    wanted = [word.strip().upper() for each in status or () for word in each.split(",")]
    with open_client(at) as sf:
        found = sf.list_intents(
            status=wanted,
            to_agent=to,
            intent_type=intent_type,
            labels=inputs.pairs("--label", label or ()),
            before=before,
            limit=limit,
        )
        looks = [GetProgress(intent_id=each["intent_id"]) for each in found]
        progress = sf.store.execute(looks, tenant=sf.store.tenant) if looks else []
        if at.as_json:
            last = found[-1]["intent_id"] if len(found) == limit else None
            shown = [{**each, **_progress(step)} for each, step in zip(found, progress, strict=True)]
            out.show_json({"intents": shown, "next_before": last})
            return
        rows = [
            (
                each["run_id"] or each["intent_id"],
                each["status"],
                out.age(each["created_at"]),
                _last_step(step),
                each["to_agent"] if not each["run_id"] else "-",
            )
            for each, step in zip(found, progress, strict=True)
        ]
    out.table(at, ("ID", "STATUS", "AGE", "LAST_STEP", "OWNER"), rows, empty="There are no such intents.")


def _progress(progress: Any) -> dict[str, Any]:
    return {"step": progress.finished, "total_steps": progress.total_steps, "last_step": progress.last_step}


def _last_step(progress: Any) -> str | None:
    if progress.last_step is None:
        return None
    of = f"/{progress.total_steps}" if progress.total_steps else ""
    return f"{progress.last_step} ({progress.finished}{of})"


@command(group, "get")
def get(at: Setup, intent_id: Id) -> None:
    """One intent: where it is, its payload and result, what it waits for."""
    from stepfast.cli import out
    from stepfast.cli.reach import open_client

    with open_client(at) as sf:
        found = sf.describe(intent_id)
    if at.as_json:
        out.show_json(found)
        return
    total = found["total_steps"]
    out.block(
        at,
        [
            ("Intent", found["intent_id"]),
            ("Run", found["run_id"]),
            ("Type", found["intent_type"]),
            ("To", found["to_agent"]),
            ("From", found["from_agent"]),
            ("Status", found["status"]),
            ("Waiting", found["waiting_reason"]),
            ("Step", f"{found['step']}{f' of {total}' if total else ''}" if found["step"] or total else None),
            ("Last step", found["last_step"]),
            ("Delivery", f"{found['delivery_attempt']} ({found['lost_deliveries']} lost of at most "
             f"{found['max_delivery_attempts']})" if found["delivery_attempt"] else None),
            ("Created", found["created_at"]),
            ("Updated", found["updated_at"]),
            ("Deadline", found["deadline_at"]),
            ("Finished", found["finished_at"]),
            ("Labels", found["labels"]),
            ("Payload", found["payload"]),
            ("Result", found["result"]),
            ("Error", found["error"]),
            ("Reason", found["reason"]),
            ("Revived from", found["revived_from"]),
            ("Goes on as", found["superseded_by"]),
            ("Open", found["resources"]),
        ],
    )  # fmt: skip
    for each in found["decisions"]:
        out.say(f"Waits for a decision on {each['key']}: {as_text(each['question'])}")
        out.say(f"  stepfast tasks show {found['intent_id']}")


@command(group, "events")
def events(
    at: Setup,
    intent_id: Id,
    since: Annotated[int, typer.Option(min=0, help="Only those after this number.")] = 0,
) -> None:
    """The history of an intent so far."""
    from stepfast.cli import out
    from stepfast.cli.reach import open_client

    with open_client(at) as sf:
        found = sf.events(intent_id, since=since)
    if at.as_json:
        out.show_json({"events": found})
        return
    rows = [(e["seq"], e["at"], e["attempt"], e["status"], e["event_type"], e["actor"], _details(e)) for e in found]
    out.table(at, ("SEQ", "AT", "TRY", "STATUS", "EVENT", "BY", "DETAILS"), rows, empty="There are no later events.")


def _details(event: dict[str, Any]) -> Any:
    details = {name: value for name, value in event["details"].items() if name != "owner"}
    if event.get("data") is not None:
        details["data"] = event["data"]
    return details or None


@command(group, "watch")
def watch(
    at: Setup,
    intent_id: Id,
    since: Annotated[int, typer.Option(min=0, help="Begin after this event.")] = 0,
    timeout: Annotated[float | None, typer.Option(min=0, help="Give up after so many seconds (exit code 1).")] = None,
) -> None:
    """Follow an intent to its ending: exit code 0 if it is COMPLETED, else 1. Comes back after an outage.

    With --json each event is a JSON object on a line of its own.
    """
    from stepfast.cli.watching import follow

    follow(at, intent_id, since=since, timeout=timeout)


@command(group, "send")
def send(
    at: Setup,
    to: Annotated[str, typer.Option("--to", help="The address.")],
    intent_type: Annotated[str, typer.Option("--type", "--intent-type", help="Such as intent.report.v1.")],
    data: Annotated[
        str | None, typer.Option("--data", "--data-json", help="The payload as JSON, @file, or - for stdin.")
    ] = None,
    idempotency_key: Annotated[str | None, typer.Option(help="The same key and content give the same intent.")] = None,
    correlation_id: Annotated[str | None, typer.Option(help="To find it again.")] = None,
    label: Labels = None,
    ttl: Annotated[str | None, typer.Option(help="It must end within this time, such as 2h.")] = None,
    deadline: Annotated[str | None, typer.Option(help="It must end before this time (RFC 3339).")] = None,
    not_before: Annotated[str | None, typer.Option(help="It is delivered at this time (RFC 3339) or later.")] = None,
    max_delivery_attempts: Annotated[
        int | None, typer.Option(min=1, help="How many deliveries may be lost without a newly finished step.")
    ] = None,
    follow: Annotated[bool, typer.Option("--watch", "-w", help="Follow it to its ending.")] = False,
) -> None:
    """Send an intent to an address; prints its id."""
    from stepfast.cli import out
    from stepfast.cli.reach import open_client
    from stepfast.cli.watching import follow as follow_it

    intent: dict[str, Any] = {
        "intent_type": intent_type,
        "to_agent": to,
        "payload": {} if data is None else inputs.read_json("--data", data),
        "correlation_id": correlation_id,
        "labels": inputs.pairs("--label", label or ()),
        "deadline_at": None if deadline is None else inputs.moment("--deadline", deadline),
        "not_before": None if not_before is None else inputs.moment("--not-before", not_before),
        "ttl_seconds": None if ttl is None else inputs.span("--ttl", ttl).total_seconds(),
        "max_delivery_attempts": max_delivery_attempts,
    }
    given = {name: value for name, value in intent.items() if value is not None}
    with open_client(at) as sf:
        intent_id = sf.send_intent(given, idempotency_key=idempotency_key)
    if follow:
        if not at.as_json:
            out.say(intent_id)
        follow_it(at, intent_id)
    elif at.as_json:
        out.show_json({"intent_id": intent_id})
    else:
        out.say(intent_id)


@command(group, "cancel")
def cancel(
    at: Setup,
    intent_id: Id,
    reason: Annotated[str | None, typer.Option(help="Why; it stays in the history.")] = None,
) -> None:
    """End an intent as CANCELED; its worker stops at its next step."""
    from stepfast.cli.reach import open_client

    with open_client(at) as sf:
        ended = sf.cancel(intent_id, reason=reason, actor=me())
    _told(at, ended, f"{ended['intent_id']} is {ended['status']}.")


@command(group, "retry")
def retry(
    at: Setup,
    intent_id: Id,
    any_status: Annotated[bool, typer.Option("--any", help="Also one that has not ended, or is COMPLETED.")] = False,
) -> None:
    """Send the same work again as a new intent, which begins at the first step. Prints the new id.

    To go on where it stopped, `stepfast intents revive` it instead.
    """
    from stepfast.addresses import last_name
    from stepfast.bindings import move_payload
    from stepfast.cli.reach import open_client
    from stepfast.clock import new_id
    from stepfast.errors import KeyUnavailable
    from stepfast.intents import Status
    from stepfast.ops import CreateIntent, GetIntent, NewIntent

    with open_client(at) as sf:
        shown = sf.get_intent(intent_id)
        old = sf.store.one(GetIntent(intent_id=shown["intent_id"]), tenant=sf.store.tenant)
        if old.run_id is not None:
            raise Usage(
                f"{old.run_id} is a run by name, which its program opens. Revive it, or run it by another name."
            )
        if last_name(old.to_agent) == _CORE:
            raise Usage(f"{old.intent_id} belongs to a scenario or waits for a person. Apply its scenario again.")
        if not any_status and (not old.finished or old.status is Status.COMPLETED):
            raise Problem(
                f"{old.intent_id} is {old.status}, so there is nothing to retry. With --any it is sent anyway."
            )
        fresh, payload = new_id(), old.payload
        if payload is not None:  # its class need not be known here, but its key must be
            try:
                payload = move_payload(sf.codec, payload, sf.store.tenant, old.journal_id, fresh)
            except KeyUnavailable as error:
                raise Problem(f"the payload of {old.intent_id} cannot be sent again without its key. {error}") from None
        new = NewIntent(
            intent_id=fresh,
            intent_type=old.intent_type,
            to_agent=old.to_agent,
            from_agent=old.from_agent,
            correlation_id=old.correlation_id,
            payload=payload,
            meta=old.meta,
            labels=old.labels,
            max_delivery_attempts=old.max_delivery_attempts,
            total_steps=old.total_steps,
        )
        made = sf.store.one(CreateIntent(new=new), tenant=sf.store.tenant).intent
        _told(at, {**sf.get_intent(made.intent_id), "retry_of": old.intent_id}, made.intent_id)


@command(group, "revive")
def revive(at: Setup, intent_id: Id) -> None:
    """Let work that failed go on as a new intent that keeps the journal: finished steps are not run again."""
    from stepfast.addresses import last_name
    from stepfast.cli.reach import open_api, open_client

    with open_client(at) as sf:
        old = sf.get_intent(intent_id)
        if last_name(old["to_agent"]) != _CORE:
            made = sf.revive(old["intent_id"], actor=me())
            _told(at, made, made["intent_id"])
            return
    with open_api(at) as api:  # which asks its person again
        made = api.revive_intent(old["intent_id"])["intent"]
    _told(at, made, made["intent_id"])


def _told(at: Setup, intent: dict[str, Any], line: str) -> None:
    from stepfast.cli import out

    if at.as_json:
        out.show_json(intent)
    else:
        out.say(line)


@command(group, "prune")
def prune(
    at: Setup,
    older_than: Annotated[str | None, typer.Option(help="Only what ended longer ago than this: 12h, 30d, 8w.")] = None,
    keep_latest: Annotated[int | None, typer.Option(min=0, help="Keep so many, the last to end.")] = None,
    status: Statuses = None,
    label: Annotated[str | None, typer.Option("--label", help="name=value")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,
    yes: Yes = False,
) -> None:
    """Delete intents that have ended, with their journals. Needs --older-than or --keep-latest."""
    from stepfast.cli import out
    from stepfast.cli.reach import open_client
    from stepfast.core import Retention
    from stepfast.inputs import statuses

    if older_than is None and keep_latest is None:
        raise Usage("say what may go: --older-than 30d, --keep-latest 1000, or both.")
    chosen = [word.strip().upper() for each in status or () for word in each.split(",")]
    policy = Retention(
        older_than=None if older_than is None else inputs.span("--older-than", older_than),
        keep_latest=keep_latest,
        labels=inputs.pairs("--label", [] if label is None else [label]),
        statuses=tuple(statuses(chosen)),
    )
    with open_client(at) as sf:
        if dry_run or not yes:
            count = _prunable(sf, policy)
            if dry_run:
                _told(at, {"dry_run": True, "would_delete": count}, f"{count} would be deleted.")
                return
            if at.as_json:
                raise Usage("deleting with --json needs --yes, since nobody can be asked.")
            if not count:
                out.say("There is nothing to delete.")
                return
            typer.confirm(f"Delete {count} intents and their journals from {sf.url}?", abort=True, err=True)
        gone = sf.prune(policy)
    _told(at, {"dry_run": False, "deleted": gone}, f"{gone} deleted.")


def _prunable(sf: Any, policy: Any) -> int:
    """How many a policy lets go, by the rule of the store."""
    from datetime import datetime

    from stepfast.clock import from_micros
    from stepfast.intents import TERMINAL

    statuses = [each for each in policy.statuses or TERMINAL if each in TERMINAL]
    before: str | None = None
    endings: list[datetime] = []
    while statuses:
        page = sf.list_intents(status=statuses, labels=policy.labels, before=before, limit=_PAGE)
        endings += [datetime.fromisoformat(each["finished_at"]) for each in page if each["finished_at"]]
        if len(page) < _PAGE:
            break
        before = page[-1]["intent_id"]
    endings.sort(reverse=True)
    may_go = endings[policy.keep_latest or 0 :]
    if policy.older_than is None:
        return len(may_go)
    now = from_micros(sf.store.clock.now_us())
    assert now is not None  # noqa: S101
    return sum(1 for each in may_go if each < now - policy.older_than)
