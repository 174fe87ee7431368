"""The same by decorators."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepfast import (
    AsyncStepfast,
    InvalidInput,
    Retry,
    RunFailed,
    Stepfast,
    Suspended,
    current_run,
    decorators,
    durable,
    idempotency_key,
    once,
    step,
)
from tests.run.kit import Boom, Crash


@pytest.fixture
def sf(tmp_path: Path) -> Iterator[Stepfast]:
    with Stepfast(tmp_path / "stepfast.db") as client:
        yield client


@pytest.fixture
def asf(tmp_path: Path) -> Iterator[AsyncStepfast]:
    client = AsyncStepfast(tmp_path / "stepfast.db")
    yield client
    client._core.close()


def test_a_durable_function_goes_on_after_a_crash_and_runs_once(sf: Stepfast) -> None:
    done: list[Any] = []
    dies = True

    @step
    def fetch(source: str) -> str:
        done.append(("fetch", source))
        return source.upper()

    @once
    def send(text: str) -> int:
        done.append(("send", text))
        return len(text)

    @durable(client=sf, run_id="etl-{source}")
    def etl(source: str, limit: int = 3) -> list[Any]:
        text = fetch(source)
        if dies:
            raise Crash
        return [text, send(text), limit]

    with pytest.raises(Crash):
        etl("abc")
    dies = False
    assert etl("abc") == ["ABC", 3, 3]
    assert etl("abc") == ["ABC", 3, 3]
    assert done == [("fetch", "abc"), ("send", "ABC")]
    intent = sf.get_intent("etl-abc")
    assert (intent["status"], intent["result"]) == ("COMPLETED", ["ABC", 3, 3])
    assert [s["key"] for s in sf.steps("etl-abc")] == ["fetch#1", "once:send#1"]


async def test_the_same_on_an_event_loop(asf: AsyncStepfast) -> None:
    done: list[Any] = []
    dies = True

    @step
    async def fetch(source: str) -> str:
        done.append(("fetch", source))
        return source.upper()

    @once
    async def send(text: str) -> int:
        done.append(("send", text))
        return len(text)

    @durable(client=asf, run_id="etl-{source}")
    async def etl(source: str) -> list[Any]:
        text = await fetch(source)
        if dies:
            raise Crash
        return [text, await send(text)]

    with pytest.raises(Crash):
        await etl("abc")
    dies = False
    assert await etl("abc") == ["ABC", 3]
    assert await etl("abc") == ["ABC", 3]
    assert done == [("fetch", "abc"), ("send", "ABC")]


def test_a_run_is_named_by_a_template_a_function_or_by_its_arguments(sf: Stepfast) -> None:
    @durable(client=sf, run_id="t-{a}-{b}")
    def by_template(a: int, b: str = "x") -> None: ...

    @durable(client=sf, run_id=lambda a, **more: f"f-{a}-{sorted(more)}")
    def by_function(a: int, **more: Any) -> None: ...

    @durable(client=sf)
    def by_arguments(a: int, b: int = 2) -> int:
        calls.append(a)
        return len(calls)

    calls: list[int] = []
    by_template(1)
    by_template(1, b="y")
    by_function(2, c=3)
    assert by_arguments(1) == by_arguments(1, 2) == by_arguments(b=2, a=1) == 1
    assert by_arguments(5) == 2
    names = sorted(str(intent["run_id"]) for intent in sf.list_intents())
    assert names[2:] == ["f-2-['c']", "t-1-x", "t-1-y"]
    assert all(name.startswith("by_arguments-") for name in names[:2])


def test_options_go_to_the_run_and_to_the_step(sf: Stepfast) -> None:
    tries: list[int] = []

    @step(name="flaky", kind="tool", record_errors=True, retry=Retry(attempts=2, delay=0.001))
    def attempt() -> None:
        tries.append(1)
        raise ValueError("no")

    @durable(client=sf, run_id="r", labels={"team": "etl"}, on_error="fail", total_steps=3)
    def job() -> None:
        with pytest.raises(ValueError, match="no"):
            attempt()
        raise Boom

    with pytest.raises(Boom):
        job()
    assert len(tries) == 2
    assert [(s["key"], s["status"]) for s in sf.steps("r")] == [("tool:flaky#1", "FAILED")]
    assert sf.describe("r")["labels"] == {"team": "etl"}
    assert sf.describe("r")["total_steps"] == 3
    with pytest.raises(RunFailed):
        job()


def test_keyword_arguments_count_as_input(sf: Stepfast) -> None:
    @step
    def fetch(source: str, *, limit: int, key: str = "", name: str = "") -> list[Any]:
        return [source, limit, key, name]

    @durable(client=sf, run_id="r")
    def job() -> Any:
        # Names that run.step itself uses are the function's own here.
        return fetch("a", limit=3, key="k", name="n")

    assert job() == ["a", 3, "k", "n"]
    assert [s["key"] for s in sf.steps("r")] == ["fetch#1"]


def test_outside_of_a_run_a_step_is_a_plain_function_and_a_one_shot_refuses() -> None:
    @step
    def fetch(n: int) -> int:
        return n + 1

    @once
    def send() -> None:
        raise AssertionError("it must not run unguarded")

    assert current_run() is None
    assert fetch(1) == 2
    with pytest.raises(InvalidInput, match="send is a one-shot step; call it inside a run"):
        send()


async def test_outside_of_a_run_the_same_holds_for_coroutine_functions() -> None:
    @step
    async def fetch(n: int) -> int:
        return n + 1

    @once
    async def send() -> None:
        raise AssertionError("it must not run unguarded")

    assert await fetch(1) == 2
    with pytest.raises(InvalidInput, match="one-shot"):
        await send()


def test_a_step_inside_a_step_is_a_step_of_it(sf: Stepfast) -> None:
    @step
    def inner(n: int) -> int:
        return n

    @step
    def outer() -> int:
        return inner(1) + inner(2)

    @durable(client=sf, run_id="r")
    def job() -> int:
        return outer()

    assert job() == 3
    assert {s["key"] for s in sf.steps("r")} == {"outer#1", "outer#1/inner#1", "outer#1/inner#2"}


def test_decorated_functions_keep_their_name_text_and_signature(sf: Stepfast) -> None:
    for decorate in (step, once, step(kind="tool"), durable, durable(client=sf)):

        @decorate
        def original(a: int, *, b: str = "x") -> bool:
            """What it does."""
            return True

        assert original.__name__ == "original"
        assert original.__doc__ == "What it does."
        assert list(inspect.signature(original).parameters) == ["a", "b"]


async def test_the_client_must_fit_the_function(sf: Stepfast, asf: AsyncStepfast) -> None:
    @durable(client=asf)
    def plain() -> None: ...

    @durable(client=sf)
    async def coroutine() -> None: ...

    with pytest.raises(InvalidInput, match="needs a Stepfast"):
        plain()
    with pytest.raises(InvalidInput, match="needs an AsyncStepfast"):
        await coroutine()


def test_a_coroutine_step_in_a_blocking_run_is_refused(sf: Stepfast) -> None:
    import asyncio

    @step
    async def fetch() -> None: ...

    with sf.run("r"), pytest.raises(InvalidInput, match="use it in a run of AsyncStepfast"):
        asyncio.run(fetch())


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(InvalidInput, match="takes a function"):
        step(42)  # type: ignore[call-overload]


def test_without_a_client_the_store_of_the_environment_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPFAST_URL", f"sqlite:///{tmp_path}/own.db")
    monkeypatch.setattr(decorators, "_defaults", {})

    @durable
    def job(n: int) -> int:
        return n + 1

    assert job(1) == 2
    decorators._defaults[Stepfast].close()
    assert (tmp_path / "own.db").exists()


def test_a_durable_function_waits_for_a_person_too(sf: Stepfast) -> None:
    @durable(client=sf, run_id="r", on_wait="suspend")
    def job() -> str:
        run: Any = current_run()
        return str(run.ask("Deploy?").outcome)

    with pytest.raises(Suspended):
        job()
    sf.answer("r", "approved")
    assert job() == "approved"


def test_the_idempotency_key_is_at_hand_in_a_decorated_step(sf: Stepfast) -> None:
    @once
    def pay() -> str:
        return idempotency_key()

    @durable(client=sf, run_id="r")
    def job() -> str:
        return pay()

    assert job() == f"{sf.get_intent('r')['intent_id']}/once:pay#1"
