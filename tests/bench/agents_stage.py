"""An agent of the OpenAI Agents SDK with a scripted model, and processes that live and die with it.

``python -m tests.bench.agents_stage``: each line of standard input is ``[contender, url, folder, kill]``; a child is
forked that carries the same run on to its end, or dies at the boundary ``kill``; its exit code is the answer.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

BOUNDARIES = ("m1 returned", "t1 done", "m2 asked", "m2 returned", "t2 done", "m3 asked", "m3 returned")
RUN = "killed"
STEPFAST = "stepfast"
DBOS_PLAIN = "dbos"
DBOS_STEPS = "dbos-steps"
Tell = Callable[[str], None]


class Broken(Exception):
    """Raised by a scripted model at the end of its script."""


def nothing(_what: str) -> None:
    pass


def scripted(turns: int, tools: int, tell: Tell = nothing, *, ends: bool = True) -> Any:
    """A model that takes no time: ``turns`` answers of so many tool calls each, then the end (or an error)."""
    from agents import Model, ModelResponse, Usage
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

    class Scripted(Model):  # type: ignore[misc]
        async def get_response(self, *args: Any, **kwargs: Any) -> Any:
            given = kwargs.get("input", args[1] if len(args) > 1 else None)
            items = given if isinstance(given, list) else []
            done = sum(item.get("type") == "function_call_output" for item in items) // tools
            tell(f"m{done + 1} asked")
            if done < turns:
                output: list[Any] = [
                    ResponseFunctionToolCall(
                        id=f"fc_{uuid.uuid4().hex}",
                        call_id=f"call_{uuid.uuid4().hex}",
                        type="function_call",
                        name="work",
                        arguments=json.dumps({"number": done * tools + n + 1}),
                    )
                    for n in range(tools)
                ]
            elif ends:
                part = ResponseOutputText(type="output_text", text="the end", annotations=[])
                output = [
                    ResponseOutputMessage(
                        id=f"msg_{uuid.uuid4().hex}",
                        type="message",
                        role="assistant",
                        status="completed",
                        content=[part],
                    )
                ]
            else:
                raise Broken
            tell(f"m{done + 1} returned")
            usage = Usage(requests=1, input_tokens=10, output_tokens=5, total_tokens=15)
            return ModelResponse(output=output, usage=usage, response_id=f"resp_{uuid.uuid4().hex}")

        def stream_response(self, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError

    return Scripted()


def agent_with(model: Any, work: Any) -> Any:
    """An agent with one tool."""
    from agents import Agent, function_tool

    return Agent(name="worker", instructions="Work.", model=model, tools=[function_tool(work)])


async def work(number: int) -> str:
    """Do the work of that number."""
    return f"{number} is done"


def without_tracing() -> None:
    os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
    from agents import set_tracing_disabled

    set_tracing_disabled(True)


# --- one life of a run that is killed --------------------------------------------------------------


def live(contender: str, url: str, folder: Path, kill: str | None) -> None:
    world = folder / "world.txt"

    def tell(what: str) -> None:
        with world.open("a") as file:
            file.write(what + "\n")
        if what == kill:
            os.kill(os.getpid(), signal.SIGKILL)

    async def work(number: int) -> str:
        """Do the work of that number."""
        tell(f"t{number} done")
        return f"{number} is done"

    model = scripted(2, 1, tell)
    if contender == STEPFAST:
        live_on_stepfast(agent_with(model, work), url, world)
    else:
        live_on_dbos(model, work, url, steps=contender == DBOS_STEPS)


def live_on_stepfast(agent: Any, url: str, world: Path) -> None:
    from stepfast import Stepfast, Suspended
    from stepfast_openai_agents import DurableRunner

    while True:
        try:
            asyncio.run(DurableRunner.run(agent, "go", run_id=RUN, store=url))
            return
        except Suspended:
            # What a person does: look whether it happened, and say so.
            with Stepfast(url) as sf:
                for asked in sf.decisions(RUN):
                    number = asked["evidence"]["arguments"].split("number")[1].strip("\"': }])")
                    happened = f"t{number} done" in world.read_text().splitlines()
                    value = f"{number} is done" if happened else None
                    sf.answer(RUN, "done" if happened else "retry", asked["key"], value=value)


def live_on_dbos(model: Any, work: Any, url: str, *, steps: bool) -> None:
    from dbos import DBOS, SetWorkflowID
    from dbos_openai_agents import DBOSRunner

    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR", "enable_otlp": False})
    agent = agent_with(model, DBOS.step()(work) if steps else work)

    @DBOS.workflow()
    async def run_agent() -> str:
        return str((await DBOSRunner.run(agent, "go")).final_output)

    DBOS.launch()  # takes up what a dead process of the same name left
    with SetWorkflowID(RUN):
        DBOS.start_workflow(run_agent).get_result()


def main() -> None:
    without_tracing()
    import openai.types.responses  # noqa: F401 - loaded once, for all children

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        contender, url, folder, kill = json.loads(line)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                live(contender, url, Path(folder), kill)
                code = 0
            except BaseException as error:
                print(f"{contender}, killed at {kill}: {error!r}", file=sys.stderr, flush=True)
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)


def repeated(lines: Sequence[str], kill: str, boundaries: Sequence[str] = BOUNDARIES) -> tuple[int, int]:
    """Of a run that was killed: calls that had come back before and were made again, and tools that ran twice."""
    finished = [b for b in boundaries[: boundaries.index(kill)] if b.endswith(("returned", "done"))]
    again = sum(lines.count(boundary.replace("returned", "asked")) - 1 for boundary in finished)
    return again, sum(lines.count(b) - 1 for b in boundaries if b.endswith("done"))


if __name__ == "__main__":
    main()
