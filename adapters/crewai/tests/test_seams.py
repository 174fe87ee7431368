"""Canaries: every seam that the adapter rests on is in CrewAI, and a missing one is refused with a clear message."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest
from crewai import LLM, Agent, Crew, Task
from crewai.flow.flow import Flow, start
from crewai.tools import tool

from adapters.crewai.tests import kit
from adapters.crewai.tests.kit import ScriptedLLM, call, make_crew, outputs
from adapters.crewai.tests.lives import ROOT
from stepfast import InvalidInput, Stepfast, Suspended, idempotency_key
from stepfast.adapters import Seam, install, uninstall, within
from stepfast_crewai import _seams, durable, idempotent
from stepfast_crewai._place import here
from stepfast_crewai._tools import DEFERS


class Crash(BaseException):
    """Ends a run in the middle as a kill would, as far as one process can."""


def crash(output: Any) -> None:
    raise Crash


def test_every_seam_is_in_crewai_and_inert_outside_of_a_run() -> None:
    _seams.install_seams()
    llm = ScriptedLLM(lambda messages: "done")
    assert make_crew(llm, []).kickoff().raw == "done"
    assert llm.calls == 1


@pytest.mark.parametrize("seam", _seams.seams(), ids=lambda seam: f"{seam.owner.rpartition(':')[2]}.{seam.name}")
def test_a_missing_seam_is_refused(seam: Seam, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = seam._replace(name=f"{seam.name}_gone")
    monkeypatch.setattr(_seams, "seams", lambda: [missing])
    uninstall("crewai")
    try:
        with pytest.raises(InvalidInput, match=rf"crewai .* has no .*{missing.name}, which its adapter rests on"):
            durable(make_crew(ScriptedLLM(lambda messages: "done"), []), "r")
    finally:
        monkeypatch.undo()
        _seams.install_seams()


def test_an_llm_class_that_is_defined_later_is_recorded_too(url: str) -> None:
    _seams.install_seams()

    class Later(ScriptedLLM):
        def call(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
            return super().call(messages, *args, **kwargs)

    llm = Later(lambda messages: "done")
    for _ in range(2):
        with durable(make_crew(llm, []), "r", url) as crew:
            assert crew.kickoff().raw == "done"
    assert llm.calls == 1


def test_an_older_version_is_refused() -> None:
    uninstall("crewai")
    try:
        with pytest.raises(InvalidInput, match="is too old for this adapter"):
            install("crewai", ("99", None), [Seam("crewai.crew:Crew", "kickoff", within(here, print))])
    finally:
        _seams.install_seams()


# --- what passes through a seam ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["blocking", "awaited"])
async def test_a_tool_that_is_awaited_has_its_context(kind: str, url: str) -> None:
    """CrewAI hands blocking functions of awaited tools to an executor that does not copy context variables."""
    keys: list[str] = []

    @idempotent
    @tool
    def blocking(word: str) -> str:
        """Say a word."""
        keys.append(idempotency_key())
        return word

    @idempotent
    @tool
    async def awaited(word: str) -> str:
        """Say a word."""
        keys.append(idempotency_key())
        return word

    chosen = (blocking if kind == "blocking" else awaited).to_structured_tool()

    class Speaking(Flow):  # type: ignore[type-arg]
        _skip_auto_memory: bool = True
        suppress_flow_events: bool = True

        @start()
        async def speak(self) -> str:
            said = await chosen.ainvoke({"word": "lamp"})
            if len(keys) == 1 and not again:
                raise Crash
            return str(said)

    again: list[bool] = []
    with durable(Speaking(), "f", url) as flow, pytest.raises(Crash):
        await flow.kickoff_async()
    again.append(True)
    with durable(Speaking(), "f", url) as flow:
        assert await flow.kickoff_async() == "lamp"
    assert len(keys) == 1


@pytest.mark.parametrize("way", ["kickoff", "kickoff_async", "akickoff"])
@pytest.mark.parametrize("in_thread", [False, True], ids=["task", "asynchronous task"])
def test_what_stops_a_run_passes_through_crewai(way: str, in_thread: bool, url: str) -> None:
    """Caught anywhere, it would be an error that CrewAI shows to the model or tries again; in a thread, a hang."""

    def go() -> Any:
        agents = [
            Agent(role=name, goal="write", backstory="writes", llm=ScriptedLLM(lambda messages: "text"))
            for name in ("writer", "reader")
        ]
        tasks = [
            Task(
                description="Write.",
                expected_output="a text",
                agent=agents[0],
                human_input=True,
                async_execution=in_thread,
            ),
            Task(description="Read.", expected_output="a text", agent=agents[1]),
        ]
        with durable(Crew(agents=agents, tasks=tasks), "r", url) as crew:
            return crew.kickoff() if way == "kickoff" else asyncio.run(getattr(crew, way)())

    with pytest.raises(Suspended):
        go()
    with Stepfast(url) as sf:
        [asked] = sf.decisions("r")
        sf.answer("r", "approved", asked["key"])
    assert go().raw == "text"


if DEFERS:  # the oldest version keeps large results in the conversation

    def test_a_large_result_has_the_same_name_after_a_resume(url: str) -> None:
        """CrewAI keeps a large result in a file with a random name, which the model is told."""
        pages = 0
        seen: list[str] = []

        @idempotent
        @tool
        def report() -> str:
            """Write a report."""
            nonlocal pages
            pages += 1
            return "\n".join(f"line {number} of the report" for number in range(20_000))

        def script(messages: list[dict[str, Any]]) -> Any:
            told = outputs(messages)
            if not told:
                return call(("report", {}))
            if len(told) == 1:
                name = told[0].split("relative file path `")[1].split("`")[0]
                return call(("read_a_deferred_tool_result", {"file_path": name, "start_line": 7, "line_count": 1}))
            seen.append(told[1].strip())
            if len(seen) == 1:
                raise Crash
            return seen[-1]

        with durable(make_crew(ScriptedLLM(script), [report]), "r", url) as crew, pytest.raises(Crash):
            crew.kickoff()
        llm = ScriptedLLM(script)
        with durable(make_crew(llm, [report]), "r", url) as crew:
            assert crew.kickoff().raw == "line 6 of the report"
        assert seen == ["line 6 of the report"] * 2
        assert (pages, llm.calls) == (1, 1)


# --- a provider of CrewAI's own, over loopback -----------------------------------------------------------


class Provider(BaseHTTPRequestHandler):
    """What an OpenAI-compatible server says: a tool call, then an answer with what the tool returned."""

    requests: ClassVar[list[dict[str, Any]]]

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.requests.append(asked)
        told = [message["content"] for message in asked["messages"] if message["role"] == "tool"]
        message: dict[str, Any] = {"role": "assistant", "content": f"paid: {told[-1]}" if told else None}
        if not told:
            message["tool_calls"] = call(("charge", {"amount": 3}), receipt=f"call_{len(self.requests)}")
        answer = {
            "id": f"chatcmpl-{len(self.requests)}",
            "object": "chat.completion",
            "created": 1,
            "model": asked["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": "stop" if told else "tool_calls"}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
        }
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Say nothing on standard error."""


@pytest.fixture
def provider() -> Iterator[ThreadingHTTPServer]:
    class Fresh(Provider):
        requests: ClassVar[list[dict[str, Any]]] = []

    server = ThreadingHTTPServer(("127.0.0.1", 0), Fresh)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    yield server
    server.shutdown()
    serving.join()
    server.server_close()


def test_a_provider_of_crewai_is_not_asked_again(provider: ThreadingHTTPServer, url: str) -> None:
    charged: list[int] = []

    @tool
    def charge(amount: int) -> str:
        """Charge a card."""
        charged.append(amount)
        return f"charged {amount}"

    def kickoff(dies: bool) -> Any:
        address = f"http://127.0.0.1:{provider.server_address[1]}/v1"
        llm = LLM(model="openai/gpt-4o-mini", base_url=address, api_key="sk-loopback")
        with durable(make_crew(llm, [charge], task_callback=crash if dies else None), "r", url) as crew:
            return crew.kickoff()

    with pytest.raises(Crash):
        kickoff(dies=True)
    result = kickoff(dies=False)
    assert result.raw == "paid: charged 3"
    assert charged == [3]
    assert len(provider.RequestHandlerClass.requests) == 2  # type: ignore[attr-defined]
    assert (result.token_usage.total_tokens, result.token_usage.successful_requests) == (30, 2)


# --- what importing and running costs others -------------------------------------------------------------


def test_nothing_beyond_this_machine_is_reached() -> None:
    for host in ("192.0.2.1", "telemetry.example"):
        with pytest.raises(ConnectionRefusedError, match="tests reach this machine only"):
            socket.create_connection((host, 9), timeout=1)
    assert kit.refused == ["192.0.2.1", "telemetry.example"]
    kit.refused.clear()


@pytest.mark.parametrize("module", ["stepfast", "stepfast.adapters", "stepfast.cli.app", "stepfast.testing"])
def test_the_library_does_not_import_crewai(module: str) -> None:
    program = f"import sys, {module}; sys.exit(any(name.split('.')[0] == 'crewai' for name in sys.modules))"
    path = os.pathsep.join(filter(None, sys.path))
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env={**os.environ, "PYTHONPATH": path})
    assert ended.returncode == 0
