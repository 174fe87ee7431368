"""Outputs of tasks and crews as plain data. Pydantic classes come from the user's tasks, never from the store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from crewai import CrewOutput, TaskOutput
from pydantic import BaseModel

from stepfast import Unencodable
from stepfast.adapters import plain
from stepfast.codec import Codec

_TASK, _CREW = "task", "crew"


def models_of(tasks: Iterable[Any]) -> dict[str, type[BaseModel]]:
    """Return the classes that the tasks' outputs may have, by name."""
    found = {}
    for task in tasks:
        for option in ("output_pydantic", "response_model"):
            model = getattr(task, option, None)
            if isinstance(model, type):
                found[model.__qualname__] = model
    return found


def pack_output(output: Any) -> dict[str, Any]:
    """Return a TaskOutput or a CrewOutput as plain data."""
    packed: dict[str, Any] = output.model_dump(
        mode="json", exclude={"pydantic", "tasks_output", "messages"}, warnings=False
    )
    packed["kind"] = _TASK if isinstance(output, TaskOutput) else _CREW
    if isinstance(output, TaskOutput):
        packed["messages"] = [plain(message) for message in output.messages]
    else:
        packed["tasks_output"] = [pack_output(each) for each in output.tasks_output]
    if output.pydantic is not None:
        packed["pydantic"] = {
            "class": type(output.pydantic).__qualname__,
            "data": output.pydantic.model_dump(mode="json"),
        }
    return packed


def unpack_output(packed: dict[str, Any], models: dict[str, type[BaseModel]]) -> Any:
    """Return a recorded output as the object it was."""
    given = dict(packed)
    is_task = given.pop("kind") == _TASK
    found = given.pop("pydantic", None)
    model = None if found is None else models.get(found["class"])
    if not is_task:
        given["tasks_output"] = [unpack_output(each, models) for each in given["tasks_output"]]
    made: Any = (TaskOutput if is_task else CrewOutput).model_validate(given)
    if model is not None and found is not None:
        made.pydantic = model.model_validate(found["data"])
    return made


def pack_value(codec: Codec, value: Any) -> dict[str, Any]:
    """Return what a callback, a guardrail or a flow's method returned; raises where it cannot be stored."""
    if isinstance(value, TaskOutput | CrewOutput):
        return {"output": pack_output(value)}
    if isinstance(value, tuple):
        return {"several": [pack_value(codec, each) for each in value]}
    if isinstance(value, BaseModel):
        return {"model": {"class": type(value).__qualname__, "data": value.model_dump(mode="json")}}
    codec.encode(value)
    return {"value": value}


def unpack_value(packed: dict[str, Any], models: dict[str, type[BaseModel]]) -> Any:
    if "output" in packed:
        return unpack_output(packed["output"], models)
    if "several" in packed:
        return tuple(unpack_value(each, models) for each in packed["several"])
    if "model" in packed:
        model = models.get(packed["model"]["class"])
        if model is None:
            raise Unencodable(
                f"{packed['model']['class']}: a value of this class was recorded, and the class is not known here. "
                "Name it with models=[…]."
            )
        return model.model_validate(packed["model"]["data"])
    return packed["value"]
