"""``stepfast tasks``: what waits for a person, and the answers."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from stepfast.cli import inputs
from stepfast.cli.failures import Problem, Usage
from stepfast.cli.setup import Setup, command

group = typer.Typer(
    help="What waits for a person: approvals, forms, questions of runs, one-shot steps in doubt.", no_args_is_help=True
)

Task = Annotated[str, typer.Argument(metavar="TASK", help="The task's id, or the id of an intent that has one task.")]
Comment = Annotated[str | None, typer.Option("--comment", "-m", help="A word on it.")]
Seen = Annotated[
    str | None, typer.Option("--content-hash", help="Answer only if the task still is what was shown (its hash).")
]
Json = dict[str, Any]

# What a yes and a no are called, the first that a task allows.
_YES = ("approved", "approve", "accepted", "yes", "confirmed", "done", "resume", "continue")
_NO = ("rejected", "reject", "denied", "declined", "no", "fail", "failed")
_KINDS = {"human_task": "task", "ask": "question", "in_doubt": "step in doubt", "resume": "resume check"}


@command(group, "list")
def list_tasks(at: Setup, limit: Annotated[int, typer.Option(min=1, max=500, help="How many.")] = 100) -> None:
    """All that waits for a person now."""
    from stepfast.cli import out
    from stepfast.cli.reach import open_api

    with open_api(at) as api:
        found = api.list_waiting(limit=limit)["tasks"]
    if at.as_json:
        out.show_json({"tasks": found})
        return
    rows = [
        (
            each["task_id"],
            _KINDS.get(each["kind"], each["kind"]),
            out.age(each["asked_at"]),
            each["due_at"],
            "/".join(each["outcomes"]),
            each["title"],
        )
        for each in found
    ]
    out.table(at, ("TASK", "KIND", "AGE", "DUE", "OUTCOMES", "TITLE"), rows, empty="Nothing waits for a person.")


@command(group, "show")
def show(at: Setup, task_id: Task) -> None:
    """One task, with all that its person should see before they answer."""
    from stepfast.cli import out
    from stepfast.cli.reach import open_api

    with open_api(at) as api:
        found = api.get_task(task_id)["task"]
    if at.as_json:
        out.show_json(found)
        return
    out.block(
        at,
        [
            ("Task", found["task_id"]),
            ("Kind", _KINDS.get(found["kind"], found["kind"])),
            ("Title", found["title"]),
            ("Description", found["description"]),
            ("Question", found["question"] if found["question"] != found["title"] else None),
            ("Run", found["run_id"]),
            ("Intent", found["intent_id"]),
            ("Type", found["intent_type"]),
            ("From", found["from_agent"]),
            ("For", found["assignees"]),
            ("Scenario", found["scenario_id"]),
            ("Step", found["step_id"] or found["key"]),
            ("Asked", found["asked_at"]),
            ("Due", found["due_at"]),
            ("Evidence", found["evidence"]),
            ("Form", found["form_schema"]),
            ("Outcomes", ", ".join(found["outcomes"])),
            ("Comment", "needed" if found["comment_required"] else None),
            ("Answered", found["outcome"]),
            ("Content hash", found["content_hash"]),
        ],
    )
    if found["outcome"] is None:
        out.note(f"Answer: stepfast tasks submit {found['task_id']} --outcome {'|'.join(found['outcomes'])}")


@command(group, "approve")
def approve(at: Setup, task_id: Task, comment: Comment = None, content_hash: Seen = None) -> None:
    """Say yes to a task."""
    _answer(at, task_id, _YES, {}, comment, content_hash)


@command(group, "reject")
def reject(at: Setup, task_id: Task, comment: Comment = None, content_hash: Seen = None) -> None:
    """Say no to a task."""
    _answer(at, task_id, _NO, {}, comment, content_hash)


@command(group, "submit")
def submit(
    at: Setup,
    task_id: Task,
    outcome: Annotated[
        str, typer.Option("--outcome", help="One of the task's outcomes. For a step in doubt: done, retry or fail.")
    ],
    data: Annotated[
        list[str] | None, typer.Option("--data", help="A field of the form as name=value; may be given again.")
    ] = None,
    data_json: Annotated[
        str | None, typer.Option("--data-json", help="Fields of the form as a JSON object, @file, or - for stdin.")
    ] = None,
    value: Annotated[
        str | None,
        typer.Option("--value", help="What a run's question or step in doubt gives back, as JSON, @file, or -."),
    ] = None,
    comment: Comment = None,
    content_hash: Seen = None,
) -> None:
    """Answer a task with any of its outcomes, and with the fields of its form.

    A one-shot step in doubt is *done* (--value is then its result), to *retry*, or to *fail*.
    """
    fields: Json = dict(inputs.pairs("--data", data or ()))
    if data_json is not None:
        fields = {**inputs.read_object("--data-json", data_json), **fields}
    if value is not None:
        fields["value"] = inputs.read_json("--value", value)
    _answer(at, task_id, (outcome,), fields, comment, content_hash)


def _answer(
    at: Setup, task_id: str, wanted: tuple[str, ...], fields: Json, comment: str | None, content_hash: str | None
) -> None:
    from stepfast.cli import out
    from stepfast.cli.intents import me
    from stepfast.cli.reach import open_api

    with open_api(at) as api:
        task = api.get_task(task_id)["task"]
        if task["outcome"] is not None:
            raise Problem(f"{task_id} was answered already: {task['outcome']}.")
        # Whether a step in doubt was done is a fact to find out, not a yes or no.
        fits = task["kind"] != "in_doubt" or len(wanted) == 1
        outcome = next((word for word in wanted if word in task["outcomes"]), None) if fits else None
        if outcome is None:
            raise Usage(
                f"{task_id} has the outcomes {', '.join(task['outcomes'])}; name one with `tasks submit --outcome`."
            )
        if task["comment_required"] and not (comment or "").strip():
            raise Usage(f"{task_id} needs a comment: --comment TEXT.")
        if task["encrypted"] and (comment or fields):
            done = _answer_here(at, task, outcome, fields, comment)
        else:
            # What was just read is what is answered, unless the caller has looked before.
            answer = {**fields, "outcome": outcome, "actor": me(), "content_hash": content_hash or task["content_hash"]}
            done = api.answer_task(task_id, answer if comment is None else {**answer, "comment": comment})
    if at.as_json:
        out.show_json(done)
    else:
        out.say(f"{task['task_id']}: {done['outcome']}. {done['intent_id']} is {done['status']}.")


def _answer_here(at: Setup, task: Json, outcome: str, fields: Json, comment: str | None) -> Json:
    """A run that encrypts gets its answer encrypted, with the key of this environment."""
    from stepfast.cli.intents import me
    from stepfast.cli.reach import open_client

    with open_client(at) as sf:
        if not sf.codec.encrypts:
            raise Problem(
                "this run encrypts what it keeps. Set STEPFAST_ENCRYPTION_KEYS, or answer with the outcome alone."
            )
        told = sf.answer(
            task["intent_id"], outcome, task["key"], value=fields.get("value"), comment=comment, actor=me()
        )
        status = sf.get_intent(task["intent_id"])["status"]
    return {"ok": True, "intent_id": task["intent_id"], "status": status, "outcome": told["outcome"], "actor": me()}
