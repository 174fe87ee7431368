"""Spans of runs and steps, as a collector of OpenTelemetry sees them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from stepfast import AsyncStepfast, Stepfast, telemetry
from tests import hygiene


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter
    provider.shutdown()


def by_name(exporter: InMemorySpanExporter) -> dict[str, Any]:
    return {span.name: span for span in exporter.get_finished_spans()}


def nothing(value: int) -> int:
    return value


def boom() -> None:
    raise ValueError("a secret in an error")


def test_a_run_and_its_steps_are_spans(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    with Stepfast(tmp_path / "a.db") as sf, sf.run("traced") as run:
        run.options(name="first").step(nothing, 1)
        with trace.get_tracer("mine").start_as_current_span("my own"):
            run.options(name="second").step(nothing, 2)
    found = by_name(spans)
    root = found["run traced"]
    assert found["step first"].parent.span_id == root.context.span_id
    assert found["step second"].parent.span_id == found["my own"].context.span_id
    assert found["my own"].parent.span_id == root.context.span_id
    assert root.attributes["stepfast.status"] == "COMPLETED"
    assert root.attributes["stepfast.attempt"] == 1
    assert not root.links


def test_a_resumed_run_links_to_the_attempt_before(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    with Stepfast(tmp_path / "a.db") as sf:
        with suppress(ValueError), sf.run("resumed") as run:
            run.options(name="first").step(nothing, 1)
            run.step(boom)
        before = by_name(spans)["run resumed"]
        spans.clear()
        with sf.run("resumed") as run:
            run.options(name="first").step(nothing, 1)
            run.options(name="second").step(nothing, 2)
    found = by_name(spans)
    assert [link.context.span_id for link in found["run resumed"].links] == [before.context.span_id]
    assert found["run resumed"].links[0].context.trace_id == before.context.trace_id
    assert "step first" not in found, "what the journal answers is not done"
    assert "step second" in found


def test_an_errors_text_stays_out_of_the_spans(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    with Stepfast(tmp_path / "a.db") as sf, suppress(ValueError), sf.run("failing") as run:
        run.step(boom)
    step = by_name(spans)["step boom"]
    assert step.status.status_code is trace.StatusCode.ERROR
    assert step.status.description == "ValueError"
    assert not any("secret" in span.to_json() for span in spans.get_finished_spans())


async def test_tasks_side_by_side_keep_their_own_spans(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    import asyncio

    async def work(number: int) -> int:
        with trace.get_tracer("mine").start_as_current_span(f"inside {number}"):
            await asyncio.sleep(0)
        return number

    async with AsyncStepfast(tmp_path / "a.db") as sf, sf.run("tasks") as run:
        await asyncio.gather(*(run.options(name=f"w{n}").step(work, n) for n in range(5)))
    found = by_name(spans)
    for number in range(5):
        assert found[f"inside {number}"].parent.span_id == found[f"step w{number}"].context.span_id


def test_without_a_collector_nothing_is_written_and_nothing_imported(tmp_path: Path) -> None:
    assert not telemetry.active()
    with Stepfast(tmp_path / "a.db") as sf:
        with sf.run("plain") as run:
            run.step(nothing, 1)
        assert telemetry.EVENT not in [event["event_type"] for event in sf.events("plain")]
    program = "import sys; from stepfast import Stepfast; print('opentelemetry' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", program], cwd=hygiene.ROOT, capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"


@pytest.mark.parametrize("text", [None, "", "00-xyz-1-01", "00-1-2", 7, "00-" + "0" * 32 + "-" + "0" * 16 + "-00"])
def test_a_damaged_link_is_left_out(tmp_path: Path, spans: InMemorySpanExporter, text: Any) -> None:
    assert telemetry._parse(text) is None
