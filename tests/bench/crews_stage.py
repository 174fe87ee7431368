"""Crews of CrewAI with scripted LLMs, in the environment of their adapter: what is timed, and what lives and dies.

``python -c "from tests.bench.crews_stage import main; main()"``: each line of standard input is a list, the name of a
function of ``CALLS`` and its arguments; each line of standard output is what it returned.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

os.environ["CREWAI_DISABLE_TELEMETRY"] = "true"
os.environ["CREWAI_TRACING_ENABLED"] = "false"
os.environ["CREWAI_DISABLE_VERSION_CHECK"] = "true"
os.environ["OTEL_SDK_DISABLED"] = "true"

from crewai import LLM, Agent, Crew, Task
from crewai.events.event_bus import crewai_event_bus
from crewai.llms.base_llm import BaseLLM
from crewai.state.checkpoint_config import CheckpointConfig
from crewai.tools import BaseTool

BARE = "bare"
STEPFAST = "stepfast"
STEPFAST_ONCE = "stepfast-once"
CHECKPOINTS = "checkpoints"
RUN = "killed"

_numbers = count(1)
_tell: list[Callable[[str], None]] = []


def tell(what: str) -> None:
    """Note what happened, in a life that is to be killed."""
    for told in _tell:
        told(what)


class Scripted(BaseLLM):  # type: ignore[misc]
    """Takes no time: so many answers with tool calls, then the end."""

    turns: int = 1
    tools: int = 1

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        done = sum(message.get("role") == "tool" for message in messages) // self.tools
        if done == self.turns:
            return "the end"
        return [_asked(done * self.tools + number + 1) for number in range(self.tools)]

    def supports_function_calling(self) -> bool:
        return True

    def get_context_window_size(self) -> int:
        return 1_000_000


def _asked(number: int) -> dict[str, Any]:
    arguments = json.dumps({"number": number})
    return {"id": f"call_{number}", "type": "function", "function": {"name": "work", "arguments": arguments}}


class Work(BaseTool):  # type: ignore[misc]
    """A tool that does nothing but to say so; a class with a name, so that CrewAI's checkpoints can restore it."""

    name: str = "work"
    description: str = "Do the work of that number."

    def _run(self, number: int) -> str:
        tell(f"t{number} done")
        return f"{number} is done"


def crew_of(llm: Any, *tasks: str, **options: Any) -> Crew:
    agent = Agent(role="worker", goal="work", backstory="works", llm=llm, tools=[Work()], max_iter=100, cache=False)
    made = [Task(description=each, expected_output="a word", agent=agent) for each in tasks]
    return Crew(agents=[agent], tasks=made, cache=False, **options)


def kickoff(contender: str, crew: Crew, client: Any, run_id: str) -> Any:
    if contender in (BARE, CHECKPOINTS):
        return crew.kickoff()
    from stepfast_crewai import durable

    policy = "once" if contender == STEPFAST_ONCE else "retry"
    return durable(crew, run_id, client, policies={"work": policy}).kickoff()


# --- timed -------------------------------------------------------------------------------------------

_clients: dict[str, Any] = {}


def _client(url: str) -> Any:
    if url not in _clients:
        from stepfast import Stepfast

        _clients[url] = Stepfast(url)
    return _clients[url]


def turn(contender: str, url: str, turns: int, tools: int) -> list[float]:
    """Seconds and processor seconds for a turn of a new crew with one task; the end is a turn too."""
    with tempfile.TemporaryDirectory() as folder:
        options = {"checkpoint": CheckpointConfig(location=folder)} if contender == CHECKPOINTS else {}
        crew = crew_of(Scripted(model="scripted", turns=turns, tools=tools), "Go.", **options)
        client = _client(url)
        began, spent = time.perf_counter(), time.process_time()
        kickoff(contender, crew, client, f"run-{next(_numbers)}")
        taken = time.perf_counter() - began
        crewai_event_bus.flush()  # its checkpoints are written in the background
        return [taken / (turns + 1), (time.process_time() - spent) / (turns + 1)]


# --- stored ------------------------------------------------------------------------------------------


def stored(contender: str, path: str) -> list[int]:
    """Bytes that a run of two small tasks leaves behind, and in how many snapshots; for us the mean of 20 runs."""
    tasks = ("Do the first.", "Do the second.")
    if contender == CHECKPOINTS:
        config = CheckpointConfig(location=path)
        crew_of(Scripted(model="scripted"), *tasks, checkpoint=config).kickoff()
        crewai_event_bus.flush()
        files = [file for file in Path(path).rglob("*") if file.is_file()]
        return [sum(file.stat().st_size for file in files), len(files)]
    client = _client(f"sqlite:///{path}")
    sizes = []
    for runs in (1, 20):  # the first pays for the tables
        for _ in range(runs):
            kickoff(contender, crew_of(Scripted(model="scripted"), *tasks), client, f"run-{next(_numbers)}")
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        sizes.append(Path(path).stat().st_size)
    return [(sizes[1] - sizes[0]) // 20, 0]


# --- killed ------------------------------------------------------------------------------------------


class Provider(BaseHTTPRequestHandler):
    """An OpenAI-compatible server: CrewAI's checkpoints replace an LLM class of the user's own by this one's client."""

    def do_POST(self) -> None:
        messages = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"]
        task = 2 if any("Do the second" in str(message["content"]) for message in messages) else 1
        done = any(message["role"] == "tool" for message in messages)
        number = 2 * (task - 1) + done + 1
        tell(f"m{number} asked")
        message: dict[str, Any] = {"role": "assistant", "content": f"task {task} is done" if done else None}
        if not done:
            message["tool_calls"] = [_asked(task)]
        choice = {"index": 0, "message": message, "finish_reason": "stop" if done else "tool_calls"}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        answer = {"id": f"chatcmpl-{number}", "object": "chat.completion", "created": 1, "model": "scripted"}
        body = json.dumps({**answer, "choices": [choice], "usage": usage}).encode()
        tell(f"m{number} returned")
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Say nothing on standard error."""


@contextlib.contextmanager
def serving(port: int) -> Iterator[None]:
    server = ThreadingHTTPServer(("127.0.0.1", port), Provider)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield
    server.shutdown()
    server.server_close()


def live(contender: str, url: str, folder: str, port: int, kill: str | None) -> int:
    """One life in a process of its own: carries the run on to its end, or dies at the boundary; its exit code."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with serving(port):
                _live(contender, url, Path(folder), port, kill)
            code = 0
        except BaseException as error:
            print(f"{contender}, killed at {kill}: {error!r}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _live(contender: str, url: str, folder: Path, port: int, kill: str | None) -> None:
    def note(what: str) -> None:
        with (folder / "world.txt").open("a") as file:
            file.write(what + "\n")
        if what == kill:
            os.kill(os.getpid(), signal.SIGKILL)

    _tell.append(note)
    os.environ["CREWAI_STORAGE_DIR"] = str(folder / "crewai")
    llm = LLM(model="openai/scripted", base_url=f"http://127.0.0.1:{port}/v1", api_key="sk-none")
    crew = crew_of(llm, "Do the first.", "Do the second.")
    if contender == CHECKPOINTS:
        # Its own way: from the newest snapshot that was written, or else from the beginning.
        snapshots = sorted((folder / "snapshots").rglob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        restore = snapshots[-1] if snapshots else None
        crew.kickoff(from_checkpoint=CheckpointConfig(location=str(folder / "snapshots"), restore_from=restore))
        return
    from stepfast import Stepfast, Suspended

    with Stepfast(url) as sf:
        while True:
            try:
                kickoff(STEPFAST_ONCE, crew, sf, RUN)
                return
            except Suspended:
                # What a person does: look whether it happened, and say so.
                for asked in sf.decisions(RUN):
                    number = asked["evidence"]["arguments"].split("number")[1].strip("\"': }])")
                    happened = f"t{number} done" in (folder / "world.txt").read_text().splitlines()
                    value = f"{number} is done" if happened else None
                    sf.answer(RUN, "done" if happened else "retry", asked["key"], value=value)


CALLS: dict[str, Callable[..., Any]] = {"turn": turn, "stored": stored, "live": live}


def main() -> None:
    with tempfile.TemporaryDirectory() as storage:
        os.environ["CREWAI_STORAGE_DIR"] = storage
        answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        for line in sys.stdin:
            name, *arguments = json.loads(line)
            print(json.dumps(CALLS[name](*arguments)), file=answers, flush=True)
        for client in _clients.values():
            client.close()
