"""Stores that an older version wrote are read and resumed: nothing that had finished is done again."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from stepfast import (
    Answer,
    AsyncStepfast,
    Check,
    File,
    Happened,
    RunFailed,
    StepFailed,
    Stepfast,
    Suspended,
    durable,
    once,
    step,
)
from stepfast.server.settings import Settings
from tests.old_stores import KINDS, SECRETS, OldStore, copy_of, missing, shop
from tests.server.live import Live

Order, Colour = shop.Order, shop.Colour

VALUES = {
    "text": "Grüße",
    "number": 2**70,
    "pi": 3.5,
    "none": None,
    "bytes": b"\x00\xff",
    "tuple": (1, "two"),
    "set": {1, 2},
    "when": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    "day": date(2026, 1, 2),
    "money": Decimal("12.50"),
    "order": Order("4711", 1250, ["new"], Colour.BLUE),
    "mixed": {1: "one", (2, 3): "pair"},
}


@pytest.fixture(params=KINDS)
def old(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OldStore:
    return copy_of("library", request.param, tmp_path, monkeypatch, request)


class Work:
    """The functions of the runs in the store. ``done`` has what was called now, not by the old version."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def _did(self, name: str) -> str:
        self.done.append(name)
        return name

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Any other step: finished in every store, so that a call of it is a failure."""

        def finished(*args: Any, **kwargs: Any) -> Any:
            self._did(f"{name} again")
            raise AssertionError(f"{name} had finished, and was called again with {args} {kwargs}")

        finished.__name__ = name
        return finished

    def publish(self, text: str) -> str:
        return self._did(f"published {text}")

    async def apublish(self, text: str) -> str:
        return self._did(f"published {text}")

    def charge(self, order: Any, currency: str = "EUR") -> str:
        return self._did(f"charged {order.number} {currency}")


@pytest.fixture
def work() -> Work:
    return Work()


def test_everything_reads_as_the_old_version_read_it(old: OldStore) -> None:
    with Stepfast(old.url) as sf:
        found = {
            intent["intent_id"]: {
                "intent": sf.describe(intent["intent_id"]),
                "steps": sf.steps(intent["intent_id"]),
                "events": sf.events(intent["intent_id"]),
                "checkpoints": sf.checkpoints(intent["intent_id"]),
                "decisions": sf.decisions(intent["intent_id"], pending=False),
            }
            for intent in sf.list_intents(limit=1000)
        }

    assert found.keys() == old.expected.keys()
    assert missing(old.expected, json.loads(json.dumps(found, default=repr))) == []


def test_a_run_half_way_goes_on_at_its_unfinished_step(old: OldStore, work: Work) -> None:
    def outer(number: int) -> int:
        raise AssertionError("outer had finished")

    with Stepfast(old.url) as sf, sf.run("plain-sync", payload={"source": "sales", "order": Order("1", 2)}) as run:
        assert (run.attempt, run.payload) == (2, {"source": "sales", "order": Order("1", 2)})
        rows = run.step(work.load, "sales", limit=3)
        assert rows == [3, 1, 2]
        assert run.options(key="sum").step(work.total, rows) == 6
        assert run.step(work.values) == VALUES
        assert run.step(work.long_text) == "a line of a long text\n" * 1000
        answer = run.step(work.answer_of, "approved")
        assert answer == Answer("approved", value={"cents": 5}, actor="maria", positive=True)
        order = Order("4711", 1250, ["new"], Colour.BLUE)
        assert run.step(work.judge, answer, File("notes.txt"), order=order) == "approved notes.txt 4711"
        with run.scope("report") as report:
            assert report.step(work.render, "head") == "HEAD"
            with report.scope("deep") as deep:
                assert [deep.step(work.render, "foot"), deep.step(work.render, "foot")] == ["FOOT", "FOOT"]
            assert report.scope("pages", shared=True).options(key="page-1").step(work.render, "page") == "PAGE"
        assert run.step(outer, 1) == 14
        assert [run.options(by="input").step(work.parse, "12") for _ in range(2)] == [12, 12]
        cities = ["Oslo", "Bern", "Rome"]
        with ThreadPoolExecutor(3) as pool:
            found = list(pool.map(lambda city: run.step(work.fetch, city), cities))
        assert found == [{"city": city} for city in cities]
        assert run.options(inputs="hello").step(work.ask_model, "hello", request_id=time.time_ns()) == "HELLO"
        again = run.options(name="renamed", kind="tool", retry=2).step(work.load, "by another name")
        assert again == [3, 1, 2]
        with pytest.raises(ValueError, match="cannot go on"):
            run.options(record_errors=True).step(work.refuse, "go on")
        assert run.record({"noted": False}, key="note") == {"noted": True}
        paid = run.options(key="charge-77").once(work.charge, Order("77", 100), currency="NOK")
        assert paid == "receipt 77 NOK"
        with run.scope("turn") as turn:
            # The old version set the first record of this key aside; the second one counts.
            assert turn.step(work.draw, 2) == 20
        assert work.done == []
        assert run.step(work.publish, "all of it") == "published all of it"

    assert work.done == ["published all of it"]
    with Stepfast(old.url) as sf:
        assert sf.get_intent("plain-sync")["status"] == "COMPLETED"


async def test_an_async_run_half_way_goes_on_at_its_unfinished_step(old: OldStore, work: Work) -> None:
    async with AsyncStepfast(old.url) as sf, sf.run("plain-async") as run:
        cities = ("Oslo", "Bern", "Rome")
        parts = await asyncio.gather(*(run.step(work.afetch, city) for city in cities))
        assert parts == [{"city": city, "order": Order("9", 9)} for city in cities]
        assert await run.options(key="count").step(work.asum, *parts) == 3
        async with run.scope("part") as part:
            assert await part.step(work.aouter, "x") == "x1x2"
            assert (await part.options(by="input").step(work.afetch, "Oslo"))["city"] == "Oslo"
        assert (await run.options(key="once").once(work.afetch, "paid"))["city"] == "paid"
        answer = await run.step(work.answer_of, "approved")
        assert await run.step(work.asum, answer, File("notes.txt")) == 2
        mapped = [each["city"] async for each in run.map(work.afetch, ["m1", "m2"], concurrency=2, progress=False)]
        assert mapped == ["m1", "m2"]
        assert work.done == []
        await run.step(work.apublish, "all of it")

    assert work.done == ["published all of it"]


def test_decorated_functions_find_their_records(old: OldStore) -> None:
    done = []

    @step
    def report_line(city: str, *, unit: str) -> str:
        raise AssertionError("it had finished")

    @once
    def send(text: str) -> str:
        raise AssertionError("it was sent")

    @step(retry=2, name="last")
    def finish(text: str, style: str = "plain") -> str:
        done.append(text)
        return f"{text}, {style}"

    @step
    def run_total(source: str, days: int) -> list[Any]:
        raise AssertionError("it had finished")

    with Stepfast(old.url) as sf:

        @durable(run_id="weather-{city}", client=sf)
        def weather(city: str, days: int = 1) -> str:
            line = report_line(city, unit="degrees")
            assert send(line) == "sent"
            return finish(line, style="short")

        @durable(client=sf)
        def nightly(source: str, days: int = 1) -> list[Any]:
            return run_total(source, days=days)

        assert weather("Oslo", days=3) == "Oslo: 21 degrees, short"
        assert nightly("sales", days=2) == ["sales", 2]

    assert done == ["Oslo: 21 degrees"]


def test_a_map_half_way_calls_only_the_items_left(old: OldStore) -> None:
    done = []

    def enrich(record: dict[str, int]) -> dict[str, int]:
        done.append(record["id"])
        return {**record, "score": record["id"] % 7}

    with Stepfast(old.url) as sf, sf.run("map-half") as run:
        found = list(run.map(enrich, [{"id": number} for number in range(40)], progress=False))

    assert found == [{"id": number, "score": number % 7} for number in range(40)]
    assert done == list(range(25, 40))


def test_a_checkpoint_is_restored(old: OldStore, work: Work) -> None:
    with Stepfast(old.url, checks={"database": lambda name: name == "orders"}) as sf, sf.run("checkpoint") as run:
        assert run.restored == {"cursor": "by input"}
        assert run.restore("previous") == {"cursor": 300, "order": Order("5", 300)}
        assert run.restore("recovery") == {"cursor": 100, "order": Order("5", 100)}
        for number, cursor in enumerate((100, 200, 300), 1):
            resources: list[File | Check] = [
                File("settings.toml", on_missing="resume"),
                Check("database", {"name": "orders"}),
            ]
            state = {"cursor": cursor, "order": Order("5", cursor)}
            assert run.checkpoint(state, key=f"cursor-{cursor}", resources=resources) == number
        assert run.checkpoint({"cursor": "by input"}) == 4
        run.step(work.publish, "all of it")

    assert work.done == ["published all of it"]


def test_a_checkpoint_whose_file_is_gone_waits_for_a_person(old: OldStore, work: Work) -> None:
    with Stepfast(old.url) as sf:
        with pytest.raises(Suspended):
            sf.run("checkpoint-missing", on_wait="suspend")
        sf.answer("checkpoint-missing", "continue", actor="maria")
        with sf.run("checkpoint-missing", on_wait="suspend") as run:
            assert run.restored == {"cursor": 1}
            run.step(work.publish, "all of it")

    assert work.done == ["published all of it"]


def _charge(sf: Stepfast, name: str, work: Work, **options: Any) -> Any:
    with sf.run(name, on_wait="suspend") as run:
        assert run.step(work.load, "orders") == [3, 1, 2]
        return run.options(**options).once(work.charge, Order("42", 4200), currency="SEK")


def test_a_one_shot_in_doubt_is_asked_for_and_not_done_again(old: OldStore, work: Work) -> None:
    with Stepfast(old.url) as sf:
        for name in ("in-doubt-done", "in-doubt-retry", "in-doubt-fail", "in-doubt-asked"):
            with pytest.raises(Suspended):
                _charge(sf, name, work)
        [decision] = sf.decisions("in-doubt-done")
        assert "42" in str(decision["evidence"])
        assert work.done == []

        sf.answer("in-doubt-done", "done", value="receipt 42", actor="maria")
        assert _charge(sf, "in-doubt-done", work) == "receipt 42"
        assert work.done == []
        for name in ("in-doubt-retry", "in-doubt-asked"):
            sf.answer(name, "retry")
            assert _charge(sf, name, work) == "charged 42 SEK"
        sf.answer("in-doubt-fail", "fail")
        with pytest.raises((RunFailed, StepFailed)):
            _charge(sf, "in-doubt-fail", work)

    assert work.done == ["charged 42 SEK"] * 2


def test_a_one_shot_in_doubt_that_was_answered_to_the_old_version_has_its_answer(old: OldStore, work: Work) -> None:
    with Stepfast(old.url) as sf:
        assert _charge(sf, "in-doubt-answered", work) == Order("42", 4200)

    assert work.done == []


def test_a_one_shot_in_doubt_is_probed_or_repeated_as_its_policy_says(old: OldStore, work: Work) -> None:
    asked = []

    def probe(order: Any, currency: str) -> Happened:
        asked.append((order, currency))
        return Happened(f"found {order.number}")

    with Stepfast(old.url) as sf:
        assert _charge(sf, "in-doubt-probe", work, on_in_doubt=probe) == "found 42"
        assert work.done == []
        assert _charge(sf, "in-doubt-key", work, key="the-charge", on_in_doubt="retry") == "charged 42 SEK"

    assert asked == [(Order("42", 4200), "SEK")]


async def test_an_async_one_shot_in_doubt_is_asked_for(old: OldStore, work: Work) -> None:
    async with AsyncStepfast(old.url) as sf:
        with pytest.raises(Suspended):
            async with sf.run("in-doubt-async", on_wait="suspend") as run:
                await run.options(key="publish").once(work.apublish, "all of it")
        await sf.answer("in-doubt-async", "done", value="it is out")
        async with sf.run("in-doubt-async", on_wait="suspend") as run:
            assert await run.options(key="publish").once(work.apublish, "all of it") == "it is out"

    assert work.done == []


def _deploy(sf: Stepfast, name: str, work: Work) -> Answer:
    with sf.run(name, on_wait="suspend") as run:
        run.step(work.load, "draft")
        return run.ask(
            "Deploy to production?",
            outcomes=["approved", "rejected", "later"],
            evidence={"tests": "passed", "order": Order("8", 8)},
            comment_required=True,
        )


def test_a_decision_that_was_answered_is_found(old: OldStore, work: Work) -> None:
    with Stepfast(old.url) as sf:
        approved = _deploy(sf, "decision-answered", work)
        rejected = _deploy(sf, "decision-rejected", work)

    assert approved == Answer("approved", {"window": (14, 16)}, "after lunch", "maria", positive=True)
    assert (rejected.outcome, rejected.comment, bool(rejected)) == ("rejected", "not today", False)


def test_a_decision_that_is_open_is_answered_now(old: OldStore, work: Work) -> None:
    with Stepfast(old.url) as sf:
        [decision] = sf.decisions("decision-open")
        assert decision["question"] == "Deploy to production?"
        assert decision["evidence"] == {"tests": "passed", "order": Order("8", 8)}
        with pytest.raises(Suspended):
            _deploy(sf, "decision-open", work)
        sf.answer("decision-open", "later", comment="after lunch", actor="joe")
        assert _deploy(sf, "decision-open", work) == Answer("later", None, "after lunch", "joe")


def test_one_of_two_decisions_is_answered_and_one_lapses(old: OldStore) -> None:
    with Stepfast(old.url) as sf:
        [second] = sf.decisions("decision-two")
        sf.answer("decision-two", "no", second["key"])
        with sf.run("decision-two", on_wait="suspend") as run:
            assert run.pose("First?", key="first", evidence=[1])
            answer = run.pose("Second?", key="second", outcomes=("yes", "no"))
            assert answer is not None
            assert (answer.outcome, bool(answer)) == ("no", False)
        with sf.run("decision-lapsed") as run:
            lapsed = run.ask("Now?", expires_in=0.2, default="rejected")
        assert (lapsed.outcome, lapsed.actor) == ("rejected", "expiry")


def test_intents_that_wait_are_claimed_with_their_payload(old: OldStore, work: Work) -> None:
    may = {"month": "May", "rows": [1, 2], "order": Order("3", 30)}
    report = {"intent_type": "report.v1", "to_agent": "agent://acme/prod/reports"}
    with Stepfast(old.url) as sf:
        sent = sf.send_intent({**report, "payload": may}, idempotency_key="report-may")
        assert sf.get_intent(sent)["payload"] == may
        payloads = []
        while (claimed := sf.claim("agent://acme/prod/reports")) is not None:
            with claimed as run:
                payloads.append(run.payload)
                assert run.intent.max_delivery_attempts == 5
                run.complete(run.payload)
        assert payloads == [may, "June"]  # the same key and body: it was not sent a second time
        assert sf.wait_for(sent)["result"] == may
        nothing = sf.claim("agent://acme/prod/nothing")
        assert nothing is not None
        with nothing as run:
            assert run.payload is None

        lost = sf.claim("agent://acme/prod/jobs")
        assert lost is not None
        with lost as run:
            assert (run.attempt, run.payload) == (2, {"job": 1})
            assert run.step(work.load, 1) == [3, 1, 2]
            run.step(work.publish, "all of it")
        job = {"intent_type": "job.v1", "to_agent": "agent://acme/prod/done", "payload": 7}
        finished = sf.get_intent(sf.send_intent(job, idempotency_key="done-1"))
        assert (finished["status"], finished["result"]) == ("COMPLETED", Order("7", 7))

    assert work.done == ["published all of it"]


def test_runs_that_ended_stay_as_they_ended(old: OldStore, work: Work) -> None:
    with Stepfast(old.url) as sf:
        with sf.run("finished") as run:
            assert run.replaying
            assert run.step(work.values) == VALUES
            assert run.once(work.charge, Order("6", 600)) == "receipt 6 EUR"
            assert run.result == {"ok": True, "order": Order("6", 600)}
        with pytest.raises(RunFailed, match="out of paper" if old.kind != "sealed" else "RuntimeError"):
            sf.run("failed")
        assert sf.get_intent("failed")["error"]["message"] == "out of paper"
        with pytest.raises(RunFailed, match="not tonight"):
            sf.run("canceled")
        sf.revive("canceled")
        for name, payload in (("canceled", None), ("revived", {"n": 1}), ("handed-back", None)):
            with sf.run(name, payload=payload) as run:
                assert run.step(work.load, "x") == [3, 1, 2]
        with sf.run("once-failed") as run, pytest.raises(ValueError, match="cannot pay"):
            run.once(work.refuse, "pay")

    assert work.done == []


def test_a_server_knows_the_old_key_and_goes_on_with_the_work_of_its_workspace(old: OldStore, work: Work) -> None:
    live = Live(Settings(store=old.url, port=0, pepper=SECRETS["pepper"])).start()
    try:
        with Stepfast(live.url, old.token) as sf:
            with pytest.raises(Suspended):
                sf.run("served-run", payload={"n": 1}, on_wait="suspend")
            sf.answer("served-run", "done", value="receipt 42")
            with sf.run("served-run", payload={"n": 1}, on_wait="suspend") as run:
                assert run.step(work.load, "x") == [3, 1, 2]
                assert run.once(work.charge, Order("42", 4200), currency="SEK") == "receipt 42"
            claimed = sf.claim("agent://acme/prod/served")
            assert claimed is not None
            with claimed as run:
                assert run.payload == {"month": "July"}
    finally:
        live.stop()

    assert work.done == []
