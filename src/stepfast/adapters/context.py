"""The caller's context object: changes that tools make to it are kept with their records, and applied on replay.

A tool that is answered from the journal does not run, so the changes it made to the context would be lost.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Mapping, MutableMapping
from typing import Any

from stepfast.codec import Codec
from stepfast.errors import StepfastError

__all__ = ["ContextKeeper"]

_GONE = b""


class ContextKeeper:
    """Compares a context object before and after a call. Fields that cannot be stored (connections) are left alone.

    Made anew for each pass over a run; one keeper serves all threads of that pass.
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._lock = threading.Lock()
        self._applied: dict[str, int] = {}  # of calls that ran side by side, the last change to a field counts

    def take(self, context: Any) -> dict[str, bytes] | None:
        """Return the fields as bytes; None where the object has no fields that can be set."""
        fields = _fields(context)
        if fields is None:
            return None
        taken = {}
        for name, value in fields.items():
            try:
                taken[name] = self._codec.encode(value)
            except StepfastError:
                continue
        return taken

    def changes(self, before: dict[str, bytes] | None, context: Any) -> dict[str, Any] | None:
        """Return the changed fields and the time of the change, to be kept with a record; None if nothing changed."""
        after = None if before is None else self.take(context)
        if before is None or after is None:
            return None
        fields = _fields(context) or {}
        changed = {name: fields[name] for name, data in after.items() if before.get(name, _GONE) != data}
        gone = [name for name in before if name not in fields]
        if not changed and not gone:
            return None
        return {"set": changed, "gone": gone, "at": time.time_ns()}

    def apply(self, kept: dict[str, Any] | None, context: Any) -> None:
        """Make the changes of a record again, except to fields that a later record has set."""
        if not kept or context is None:
            return
        at = kept["at"]
        with self._lock:
            for name, value in kept["set"].items():
                if self._applied.get(name, 0) < at:
                    self._applied[name] = at
                    _set(context, name, value)
            for name in kept["gone"]:
                if self._applied.get(name, 0) < at and isinstance(context, MutableMapping):
                    self._applied[name] = at
                    context.pop(name, None)


def _fields(context: Any) -> Mapping[str, Any] | None:
    if isinstance(context, MutableMapping):
        return {name: value for name, value in context.items() if isinstance(name, str)}
    if dataclasses.is_dataclass(context) and not isinstance(context, type):
        return {field.name: getattr(context, field.name) for field in dataclasses.fields(context)}
    fields = getattr(type(context), "model_fields", None)
    if isinstance(fields, Mapping):
        return {name: getattr(context, name) for name in fields}
    own = getattr(context, "__dict__", None)
    return None if own is None else dict(own)


def _set(context: Any, name: str, value: Any) -> None:
    if isinstance(context, MutableMapping):
        context[name] = value
    else:
        object.__setattr__(context, name, value)
