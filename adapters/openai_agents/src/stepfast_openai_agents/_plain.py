"""Values as JSON data, for requests to be compared and for what people see."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pydantic


def plain(value: Any) -> Any:
    """A value as JSON data, as far as it goes; what has no such form becomes its text."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, pydantic.BaseModel):
        return value.model_dump(mode="json", exclude_unset=True, warnings=False)
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return str(value)
