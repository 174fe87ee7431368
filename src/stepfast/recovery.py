"""Before a run goes on: is its checkpoint whole, and is the world still as it was?

Three looks, in this order: the structure (checksums, a fall-back to the version before), the
resources a checkpoint names, and the one-shot actions left in doubt. Together they give a
verdict: *resume*, *wait* for a person, or *fail*.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from stepfast.errors import InvalidInput, StepfastError

Outcome = Literal["resume", "wait", "fail"]
_RANK: dict[Outcome, int] = {"resume": 0, "wait": 1, "fail": 2}


class Finding(msgspec.Struct, frozen=True):
    """One thing a look found, and what it asks for."""

    look: Literal["structure", "resource", "one_shot"]
    subject: str
    detail: str
    outcome: Outcome


class Verdict(msgspec.Struct, frozen=True):
    """What the three looks together say, and the checkpoint that the run goes on from."""

    outcome: Outcome
    findings: list[Finding]
    checkpoint: int | None

    def as_dict(self) -> dict[str, Any]:
        return {
            "verdict": self.outcome,
            "checkpoint": self.checkpoint,
            "findings": [msgspec.structs.asdict(f) for f in self.findings],
        }


def judge(findings: Iterable[Finding], checkpoint: int | None) -> Verdict:
    found = list(findings)
    worst: Outcome = max((f.outcome for f in found), key=_RANK.__getitem__, default="resume")
    return Verdict(worst, found, checkpoint)


class File(msgspec.Struct, frozen=True):
    """A file a run depends on. Its size and SHA-256 are taken at the checkpoint and compared on resume."""

    path: str | os.PathLike[str]
    on_missing: Outcome = "wait"
    on_change: Outcome = "wait"


class Check(msgspec.Struct, frozen=True):
    """A check of the user's own, by the name it was registered under (``checks={"name": function}``).

    The function gets ``params`` and returns True, or what is wrong as text (or False).
    """

    name: str
    params: dict[str, Any] = {}
    on_failure: Outcome = "wait"


Resource = File | Check | str
Checks = Mapping[str, Callable[..., Any]]


def take_stock(resources: Iterable[Resource], checks: Checks) -> list[dict[str, Any]]:
    """What a checkpoint remembers of its resources; a plain string is a path."""
    return [_remember(resource, checks) for resource in resources]


def _remember(resource: Resource, checks: Checks) -> dict[str, Any]:
    if isinstance(resource, str | os.PathLike):
        resource = File(resource)
    if isinstance(resource, Check):
        if resource.name not in checks:
            raise InvalidInput(
                f"resources: no check {resource.name!r} is registered; pass checks={{{resource.name!r}: function}}."
            )
        return {
            "kind": "check",
            "name": resource.name,
            "params": resource.params,
            "on_failure": resource.on_failure,
        }
    if not isinstance(resource, File):
        raise InvalidInput(f"resources: takes File, Check or a path, not {type(resource).__name__}.")
    path = str(Path(resource.path).absolute())
    try:
        size, digest = _fingerprint(path)
    except OSError as error:
        raise InvalidInput(f"resources: {path} cannot be read: {error.strerror}.") from None
    return {
        "kind": "file",
        "path": path,
        "size": size,
        "sha256": digest,
        "on_missing": resource.on_missing,
        "on_change": resource.on_change,
    }


def inspect_resources(remembered: Iterable[dict[str, Any]], checks: Checks) -> list[Finding]:
    findings = (_inspect(resource, checks) for resource in remembered)
    return [finding for finding in findings if finding is not None]


def _inspect(resource: dict[str, Any], checks: Checks) -> Finding | None:
    if resource["kind"] == "check":
        return _run_check(resource, checks)
    path = resource["path"]
    try:
        size, digest = _fingerprint(path)
    except OSError as error:
        return Finding("resource", path, f"cannot be read: {error.strerror}", resource["on_missing"])
    if (size, digest) == (resource["size"], resource["sha256"]):
        return None
    if resource["on_change"] == "resume":
        return None
    detail = f"changed since the checkpoint ({resource['size']} → {size} bytes)"
    return Finding("resource", path, detail, resource["on_change"])


def _run_check(resource: dict[str, Any], checks: Checks) -> Finding | None:
    name = resource["name"]
    if name not in checks:
        return Finding("resource", name, "its check is not registered in this process", "wait")
    try:
        answer = checks[name](**resource["params"])
    except StepfastError:
        raise
    except Exception as error:  # the user's check is free to fail in any way
        answer = f"{type(error).__name__}: {error}"
    if answer is True or answer is None:
        return None
    return Finding("resource", name, answer if isinstance(answer, str) else "does not hold", resource["on_failure"])


def _fingerprint(path: str) -> tuple[int, str]:
    with Path(path).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return file.tell(), digest
