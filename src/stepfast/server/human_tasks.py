"""What a person may be asked and may answer: the rules of human tasks, and the times of their reminders. Pure."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from jsonschema.exceptions import SchemaError  # type: ignore[import-untyped]

from stepfast.errors import InvalidInput

DEFAULT_OUTCOMES = ("approved", "rejected")
_NEGATIVE = frozenset({"rejected", "reject", "denied", "deny", "declined", "decline", "failed", "fail", "no"})
# Values, not schemas, stand under these.
_DATA = frozenset({"const", "default", "enum", "examples"})
# The one can take exponential time and the other reach outside: neither belongs in a form.
_REFUSED = frozenset({"$ref", "$dynamicRef", "$recursiveRef", "pattern", "patternProperties"})


def check_task(where: str, task: Any) -> list[str]:
    """What is wrong with a human task; unknown keys are fine."""
    if not isinstance(task, dict):
        return [f"{where}: must be an object"]
    errors = []
    for name, most in (("title", 255), ("description", 2000), ("task_type", 64)):
        value = task.get(name)
        if value is not None and (not isinstance(value, str) or len(value) > most):
            errors.append(f"{where}.{name}: must be a text of at most {most} characters")
    for name in ("allowed_outcomes", "assignees"):
        value = task.get(name)
        if value is not None and not (
            isinstance(value, list) and 1 <= len(value) <= 20 and all(isinstance(v, str) and v for v in value)
        ):
            errors.append(f"{where}.{name}: must be a list of 1 to 20 texts")
    errors += [
        f"{where}.{name}: must be true or false"
        for name in ("required_comment", "evidence_required")
        if not isinstance(task.get(name), bool | None)
    ]
    schema = task.get("form_schema")
    if schema is not None:
        errors += _check_schema(f"{where}.form_schema", schema)
    return errors


def _check_schema(where: str, schema: Any) -> list[str]:
    if not isinstance(schema, dict):
        return [f"{where}: must be an object"]
    refused = _refused_words(schema)
    if refused:
        return [
            f"{where}: {', '.join(sorted(refused))} may not be used in a form; list enum, format or lengths instead"
        ]
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        return [f"{where}: is no JSON Schema: {error.message[:300]}"]
    return []


def _refused_words(value: Any) -> set[str]:
    """Texts under these names are keywords; an object there is a field of the form that has the name."""
    if isinstance(value, list):
        return set().union(*map(_refused_words, value))
    if not isinstance(value, dict):
        return set()
    found = {name for name, inner in value.items() if name in _REFUSED and isinstance(inner, str)}
    if isinstance(value.get("patternProperties"), dict) and "type" not in value["patternProperties"]:
        found.add("patternProperties")
    return found.union(*(_refused_words(inner) for name, inner in value.items() if name not in _DATA))


def outcomes_of(task: dict[str, Any]) -> list[str]:
    return list(task.get("allowed_outcomes") or DEFAULT_OUTCOMES)


def is_positive(outcome: str) -> bool:
    return outcome.lower() not in _NEGATIVE


def check_answer(task: dict[str, Any], answer: Any) -> dict[str, Any]:
    """The answer as it counts; InvalidInput says what it lacks. The fields of a form stand beside ``outcome``."""
    if not isinstance(answer, dict):
        raise InvalidInput("task_result: must be an object with an outcome.")
    outcomes = outcomes_of(task)
    outcome = answer.get("outcome")
    if not isinstance(outcome, str) or outcome not in outcomes:
        raise InvalidInput(f"task_result.outcome: must be one of {', '.join(outcomes)}.", allowed_outcomes=outcomes)
    comment = answer.get("comment")
    if comment is not None and not isinstance(comment, str):
        raise InvalidInput("task_result.comment: must be a text.")
    if task.get("required_comment") and not (comment or "").strip():
        raise InvalidInput("task_result.comment: this task needs one.")
    data = answer.get("data")
    if task.get("evidence_required"):
        evidence = answer.get("evidence") or (data.get("evidence") if isinstance(data, dict) else None)
        if not evidence:
            raise InvalidInput("task_result.data.evidence: this task needs evidence.")
    schema = task.get("form_schema")
    if schema is not None and is_positive(outcome):
        _check_form(schema, answer)
    return answer


def _check_form(schema: dict[str, Any], answer: dict[str, Any]) -> None:
    """Clients put the fields beside ``outcome`` or under ``data``; texts may stand for numbers and truths there."""
    data = answer.get("data")
    fields = {k: v for k, v in answer.items() if k not in ("outcome", "comment", "data", "evidence")}
    if isinstance(data, dict):
        fields = {**data, **fields}
    known = schema.get("properties")
    for name in ("outcome", "comment", "evidence"):  # a form may ask for these by name
        if isinstance(known, dict) and name in known and name in answer:
            fields[name] = answer[name]
    if isinstance(known, dict):
        fields = {name: _typed(value, known.get(name)) for name, value in fields.items()}
    problems = sorted(Draft202012Validator(schema).iter_errors(fields), key=lambda e: [str(p) for p in e.absolute_path])
    if problems:
        told = [f"{'.'.join(['task_result', *map(str, e.absolute_path)])}: {e.message[:200]}" for e in problems[:10]]
        raise InvalidInput("; ".join(told), problems=told)


def _typed(value: Any, schema: Any) -> Any:
    """A command line sends every field as text."""
    wanted = schema.get("type") if isinstance(schema, dict) else None
    if not isinstance(value, str) or not isinstance(wanted, str):
        return value
    if wanted == "boolean":
        return {"true": True, "false": False}.get(value.lower(), value)
    if wanted in ("integer", "number") and len(value) <= 40:
        try:
            return int(value) if wanted == "integer" else float(value)
        except ValueError:
            return value
    return value


def content_hash(*parts: Any) -> str:
    """SHA-256 of what a person is shown, with its types: an answer that names it counts for nothing else."""
    return sha256(msgspec.json.encode(parts, order="deterministic", enc_hook=repr)).hexdigest()


# --- reminders of intents that wait for a person, outside of scenarios --------------------------------


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """When a person is reminded, in seconds, and how often that has been done."""

    after: float | None
    interval: float | None
    limit: int
    escalate_to: str | None
    count: int
    escalated: bool


class Reminder(msgspec.Struct, frozen=True):
    """What falls due now, and when something does next."""

    event_type: str
    details: dict[str, Any]
    count: int
    due_at: int | None
    escalated: bool = False


def reminder_rule(extra: dict[str, Any]) -> Rule:
    """From an intent's extras as they are shown."""
    limit = extra.get("max_reminders")
    return Rule(
        after=extra.get("remind_after_seconds"),
        interval=extra.get("remind_interval_seconds"),
        limit=1 if limit is None else limit,
        escalate_to=extra.get("escalate_to"),
        count=extra.get("remind_count") or 0,
        escalated=bool(extra.get("escalated_to")),
    )


def first_due(extra: dict[str, Any], since: int) -> int | None:
    """When an intent that waits for a person since then is due for its first reminder."""
    rule = reminder_rule(extra)
    if rule.after is None or (rule.limit == 0 and rule.escalate_to is None):
        return None
    return since + int(rule.after * 1_000_000)


def next_reminder(rule: Rule, due_at: int, now: int) -> Reminder | None:
    """The reminder (or the escalation after the last) that was due; what fell due with no server up counts once."""
    pause = max(int((rule.interval or rule.after or 0.0) * 1_000_000), 1)
    if rule.count < rule.limit:
        more = rule.count + 1 < rule.limit or rule.escalate_to is not None
        following = due_at + pause if due_at + pause > now else now + pause
        details: dict[str, Any] = {"remind_count": rule.count + 1, "max_reminders": rule.limit}
        return Reminder("intent.reminder", details, rule.count + 1, following if more else None)
    if rule.escalate_to is not None and not rule.escalated:
        details = {"escalated_to": rule.escalate_to}
        return Reminder("intent.escalated", details, rule.count, None, escalated=True)
    return None
