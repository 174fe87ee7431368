"""The seams around code that a model wrote: its execution is a step of the run, by the policy of its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autogen.coding.base import CodeResult, CommandLineCodeResult, IPythonCodeResult

from stepfast import StepFailed
from stepfast.adapters import COMPOSITE, digest, plain, tool_call

from ._place import Place, here, standing

NAME = "execute_code_blocks"
"""The name under which code execution stands in ``policies``."""


def execute_blocks(place: Place, original: Callable[..., Any], agent: Any, code_blocks: Any) -> Any:
    """Take the place of ``ConversableAgent.execute_code_blocks``, for agents without an executor object."""
    blocks = [[str(language), str(code)] for language, code in code_blocks]
    found = _execute(place, agent, blocks, lambda: list(original(agent, code_blocks)))
    if isinstance(found, dict):
        return found["exit_code"], found["output"]
    return tuple(found) if isinstance(found, list) else (0, str(found))


class Executor:
    """A code executor as an agent has it while it replies in a durable run; outside of that it is never seen."""

    def __init__(self, executor: Any, agent: Any) -> None:
        self.own = executor
        self._agent = agent

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)

    def execute_code_blocks(self, code_blocks: Any) -> Any:
        place = here()
        if place is None:
            return self.own.execute_code_blocks(code_blocks)
        blocks = [[block.language, block.code] for block in code_blocks]
        made: list[Any] = []

        def effect() -> dict[str, Any]:
            made.append(self.own.execute_code_blocks(code_blocks))
            return dict(plain(made[-1])) | {"exit_code": made[-1].exit_code, "output": made[-1].output}

        found = _execute(place, self._agent, blocks, effect)
        return made[-1] if made else _result(found)


def _execute(place: Place, agent: Any, blocks: list[list[str]], make: Callable[[], Any]) -> Any:
    policy = place.attempt.settings.policies.of(NAME)

    def effect() -> Any:
        with standing.standing(None):
            return make()

    if policy == COMPOSITE:
        return make()
    call = tool_call(
        place.attempt,
        place.scope,
        key=place.occurrences.key("code", agent.name, digest(blocks)),
        name=NAME,
        policy=policy,
        inputs=[NAME, blocks],
        arguments={"code_blocks": blocks},
        effect=effect,
        agent=agent.name,
    )
    try:
        return place.drive(call)[0]
    except StepFailed as error:  # the policy is "fail": the model is told that the outcome is unknown
        return {"exit_code": 1, "output": str(error)}


def _result(found: Any) -> Any:
    """Return a recorded result, or what a person or a probe said that the code has printed."""
    if not isinstance(found, dict) or "exit_code" not in found:
        return CodeResult(exit_code=0, output=str(found))
    kind = IPythonCodeResult if "output_files" in found else CommandLineCodeResult
    return kind(**found)
