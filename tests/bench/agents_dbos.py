"""DBOS's integration for the OpenAI Agents SDK in a process of its own: ``python -m tests.bench.agents_dbos URL``.

Its tools are steps, as its manual asks for. It speaks as `dbos_peer` does.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

from tests.bench import agents_stage as stage


def main(url: str) -> None:
    # Whatever the libraries print must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    stage.without_tracing()
    from dbos import DBOS
    from dbos_openai_agents import DBOSRunner

    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR", "enable_otlp": False})
    made: dict[tuple[int, int], Any] = {}
    step = DBOS.step()(stage.work)

    @DBOS.workflow()
    async def run_agent(turns: int, tools: int) -> None:
        await DBOSRunner.run(made[turns, tools], "go", max_turns=turns + 2)

    DBOS.launch()

    async def turn(turns: int, tools: int) -> float:
        if (turns, tools) not in made:
            made[turns, tools] = stage.agent_with(stage.scripted(turns, tools), step)
        began = time.perf_counter()
        await run_agent(turns, tools)
        return (time.perf_counter() - began) / (turns + 1)

    print("0", file=answers, flush=True)
    with asyncio.Runner() as runner:
        for line in sys.stdin:
            _what, turns, tools = json.loads(line)
            print(json.dumps(runner.run(turn(turns, tools))), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
