"""A run whose code was changed since its journal was written: nothing recorded is done again under another name."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stepfast import AsyncStepfast, Clock, Diverged, InvalidInput, Stepfast
from tests.run.kit import Boom, Calls, Way, both

# Renamed


@both
async def test_a_renamed_one_shot_is_not_done_again(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        await run.step(calls.fetch, 1)
        await run.once(calls.charge, 42)
    async with way.crashing(sf, "r") as run:
        await run.step(calls.fetch, 1)
        with pytest.raises(Diverged) as caught:
            await run.once(calls.charge_card, 42)
    said = str(caught.value)
    assert "recorded, not called: once:charge#1" in said
    assert "called, not recorded: once:charge_card#1" in said
    for remedy in ("renamed_from='charge'", "run.patched(", "key=", "sf.rewind('r', 'once:charge#1'"):
        assert remedy in said
    assert caught.value.details["missing"] == ["once:charge#1"]
    assert calls.names == ["fetch", "charge"]


@pytest.mark.parametrize("policy", ["warn", "accept", "rerun"])
@both
async def test_no_policy_lets_a_renamed_one_shot_be_done_again(way: Way, calls: Calls, policy: str) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        await run.once(calls.charge)
    async with way.crashing(sf, "r", on_drift=policy) as run:
        with pytest.raises(Diverged):
            await run.options(on_drift=policy).once(calls.charge_card)
        with pytest.raises(Diverged):
            await run.options(on_drift=policy).step(calls.something_else)
    assert calls.names == ["charge"]


@both
async def test_a_renamed_step_is_judged_by_on_drift(way: Way, calls: Calls, caplog: pytest.LogCaptureFixture) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        await run.step(calls.a)
    async with way.crashing(sf, "r") as run:
        with pytest.raises(Diverged, match="recorded, not called: a#1"):
            await run.step(calls.b)
    with caplog.at_level(logging.WARNING, "stepfast"):
        async with way.crashing(sf, "r", on_drift="warn") as run:
            await run.step(calls.c)
    assert "recorded, not called: a#1" in caplog.text
    async with way.crashing(sf, "s") as run:
        await run.step(calls.a)
    async with way.crashing(sf, "s", on_drift="accept") as run:
        await run.step(calls.d)
    assert calls.names == ["a", "c", "a", "d"]


@both
async def test_renamed_from_finds_the_record_of_the_old_name(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        for number in (1, 2):
            await run.once(calls.charge, number)
    for _ in range(2):
        async with way.crashing(sf, "r") as run:
            for number in (1, 2, 3):
                card = run.options(renamed_from="charge")
                assert await card.once(calls.charge_card, number) == [
                    "charge" if number < 3 else "charge_card",
                    number,
                ]
    assert calls.made == [("charge", 1), ("charge", 2), ("charge_card", 3)]


@both
async def test_a_renamed_step_that_held_one_shots_does_not_repeat_them(way: Way, calls: Calls) -> None:
    sf = way.open()

    def checkout(run: Any, charge: Any, *, fails: bool = False) -> Any:
        async def body() -> None:
            await run.once(charge, 1)
            if fails:
                raise Boom

        if not way.blocks:
            return body
        return lambda: (run.inner.once(charge, 1), (_ for _ in ()).throw(Boom) if fails else None)

    async with way.crashing(sf, "r") as run:
        with pytest.raises(Boom):
            await run.options(name="checkout").step(checkout(run, calls.charge, fails=True))
    async with way.crashing(sf, "r") as run:
        with pytest.raises(Diverged, match="checkout#1 that they were made in has not been made again"):
            await run.options(name="pay").step(checkout(run, calls.charge))
    assert calls.names == ["charge"]


@both
async def test_a_renamed_scope_that_held_one_shots_does_not_repeat_them(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        await run.scope("billing").once(calls.charge)
    async with way.crashing(sf, "r") as run:
        with pytest.raises(Diverged, match="scope:billing#1/once:charge#1"):
            await run.scope("payment").once(calls.charge)
    assert calls.names == ["charge"]


# Moved, removed, added


@both
async def test_steps_in_another_order_are_diverged(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        await run.step(calls.a)
        await run.step(calls.b)
    async with way.crashing(sf, "r") as run:
        with pytest.raises(Diverged, match="called now, recorded later: b#1"):
            await run.step(calls.b)


@both
async def test_the_order_is_known_over_several_attempts(way: Way, calls: Calls) -> None:
    sf = way.open()
    for names in (["a"], ["a", "b"], ["a", "b", "c"]):
        async with way.crashing(sf, "r") as run:
            for name in names:
                await run.step(getattr(calls, name))
    async with way.crashing(sf, "r") as run:
        await run.step(calls.a)
        with pytest.raises(Diverged, match="recorded, not called: b#1"):
            await run.step(calls.c)
    assert calls.names == ["a", "b", "c"]


@both
async def test_a_step_put_in_front_of_recorded_ones_is_diverged(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        await run.step(calls.a)
        await run.once(calls.charge)
    async with way.crashing(sf, "r") as run:
        await run.step(calls.a)
        with pytest.raises(Diverged, match="recorded, not called: once:charge#1"):
            await run.step(calls.new)
    assert calls.names == ["a", "charge"]


@both
async def test_a_step_that_failed_and_now_succeeds_may_change_the_course(way: Way, calls: Calls) -> None:
    """No record is left by a step that fails, so the same code may go another way after a crash."""
    sf = way.open()

    async def body(run: Any, first: Any) -> None:
        try:
            await run.step(first)
        except Boom:
            await run.step(calls.fallback)
        await run.step(calls.after)

    async with way.crashing(sf, "r") as run:
        await body(run, calls.raising("primary", Boom("down")))
    async with sf.run("r") as run:
        await body(run, calls.primary)
    assert calls.names == ["primary", "fallback", "after", "primary"]


@both
async def test_a_one_shot_fallback_is_guarded_even_then(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        with pytest.raises(Boom):
            await run.step(calls.raising("mail", Boom("down")))
        await run.once(calls.backup_mail)
    async with way.crashing(sf, "r") as run:
        await run.step(calls.mail)
        with pytest.raises(Diverged, match="once:backup_mail#1"):
            await run.once(calls.archive)


async def test_calls_made_side_by_side_may_finish_in_any_order(tmp_path: Path) -> None:
    """The second of two overlapping calls is recorded and the first is not: the code has not changed."""
    done: list[str] = []
    hold = asyncio.Event()

    async def slow() -> str:
        if not done.count("slow"):
            done.append("slow")
            await hold.wait()
        return "slow"

    async def quick() -> str:
        done.append("quick")
        return "quick"

    async with AsyncStepfast(tmp_path / "s.db") as sf:
        run = await sf.run("r").__aenter__()
        first = asyncio.ensure_future(run.step(slow))
        assert await run.once(quick) == "quick"
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await run.__aexit__(Boom, Boom(), None)
        async with sf.run("r") as run:
            again = asyncio.ensure_future(run.step(slow))
            await asyncio.sleep(0)
            assert await run.once(quick) == "quick"
            assert await again == "slow"
    assert done == ["slow", "quick"]


@both
async def test_keys_of_one_s_own_may_come_in_any_order(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        await run.options(key="one").step(calls.a)
        await run.options(key="two").once(calls.b)
    async with sf.run("r") as run:
        await run.options(key="two").once(calls.b)
        await run.options(key="three").step(calls.c)
        await run.options(key="one").step(calls.a)
    assert calls.names == ["a", "b", "c"]


@both
async def test_a_rewound_run_makes_its_calls_again_in_order(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        for name in ("a", "b", "c"):
            await run.step(getattr(calls, name))
    async with sf.run("r") as run:
        await run.step(calls.a)
        await run.rewind(after="a#1")
        await run.step(calls.b)
        await run.step(calls.d)
    assert calls.names == ["a", "b", "c", "b", "d"]


# Patches


@both
async def test_a_run_that_is_new_takes_the_patched_way_and_stays_on_it(way: Way, calls: Calls) -> None:
    sf = way.open()
    for _ in range(3):
        async with way.crashing(sf, "r") as run:
            await run.step(calls.a)
            if await run.patched("mail-by-api"):
                await run.once(calls.api)
            else:
                await run.once(calls.smtp)
    assert calls.names == ["a", "api"]


@both
async def test_a_run_that_had_passed_the_point_keeps_to_the_old_way(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        await run.step(calls.a)
        await run.once(calls.smtp)
    for _ in range(2):
        async with way.crashing(sf, "r") as run:
            await run.step(calls.a)
            if await run.patched("mail-by-api"):
                await run.once(calls.api)
            else:
                await run.once(calls.smtp)
            await run.step(calls.b)
            assert await run.patched("later")
    assert calls.names == ["a", "smtp", "b"]


@both
async def test_a_marker_may_be_taken_out_when_no_old_run_is_left(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        assert await run.patched("x")
        await run.once(calls.api)
    async with sf.run("r") as run:
        await run.once(calls.api)
    assert calls.names == ["api"]


@both
async def test_a_marker_is_no_step_of_the_run_s_progress(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r", total_steps=2) as run:
        await run.step(calls.a)
        assert await run.patched("x")
    shown = await sf.describe("r")
    assert (shown["step"], shown["last_step"]) == (1, "a")


@both
async def test_a_finished_run_answers_as_it_did(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with sf.run("r") as run:
        await run.step(calls.a)
        assert await run.patched("x")
    async with sf.run("r") as run:
        await run.step(calls.a)
        assert await run.patched("x")
        assert not await run.patched("y")


# The version of the code


@both
async def test_the_version_of_the_code_is_kept_and_found(way: Way, calls: Calls) -> None:
    clock = Clock()
    first, second = (way.open(code_version=version, clock=clock) for version in ("1.4", "1.5"))
    async with way.crashing(first, "r") as run:
        await run.once(calls.charge)
    async with way.crashing(second, "r") as run:
        with pytest.raises(Diverged, match=r"code version 1\.4; this is 1\.5"):
            await run.once(calls.charge_card)
    assert [i["run_id"] for i in await second.list_intents(labels={"code_version": "1.4"})] == ["r"]
    assert await second.list_intents(labels={"code_version": "1.5"}) == []
    checked = [e for e in await second.events("r") if e["event_type"] == "intent.resume_checked"]
    assert checked[-1]["details"]["code_version"] == "1.5"


# Keywords


@both
async def test_all_keywords_belong_to_the_function(way: Way) -> None:
    sf = way.open()
    taken: list[dict[str, Any]] = []

    def create_user(mail: str, **fields: Any) -> str:
        taken.append(fields)
        return mail

    given = {"name": "x", "key": "k1", "retry": 2, "inputs": 3, "kind": "admin", "by": "me", "on_drift": "x"}
    async with sf.run("r") as run:
        await run.step(way.function(create_user), "a@b.c", **given)
        await run.once(way.function(create_user), "a@b.c", **given)
        await run.options(key="k2").step(way.function(create_user), "a@b.c", **given)
        assert run.steps() == ["create_user#1", "once:create_user#1", "k2"]
    assert taken == [given] * 3


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"key": 5}, "key"),
        ({"name": ""}, "name"),
        ({"by": "chance"}, "by"),
        ({"retry": "often"}, "retry"),
        ({"retry": 0}, "retry"),
        ({"record_errors": "yes"}, "record_errors"),
        ({"on_drift": "acept"}, "on_drift"),
        ({"on_in_doubt": "maybe"}, "on_in_doubt"),
        ({"retry_on": ["Boom"]}, "retry_on"),
        ({"kind": "once-more"}, "kind"),
        ({"renamed_from": "a", "key": "k"}, "renamed_from"),
    ],
)
@both
async def test_a_wrong_option_is_refused_before_anything_happens(
    way: Way, calls: Calls, options: dict[str, Any], field: str
) -> None:
    sf = way.open()
    async with sf.run("r") as run:
        with pytest.raises(InvalidInput, match=f"^{field}: "):
            run.options(**options)
        assert run.steps() == []


@both
async def test_an_option_of_the_other_kind_of_step_is_refused(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with sf.run("r") as run:
        with pytest.raises(InvalidInput, match=r"^retry: is an option of run\.step"):
            await run.options(retry=3).once(calls.a)
        with pytest.raises(InvalidInput, match=r"^on_in_doubt: is an option of run\.once"):
            await run.options(on_in_doubt="retry").step(calls.a)
    assert calls.names == []


# A real process, a real kill

_PROGRAM = """
import os, signal, sys
from stepfast import Stepfast

def {name}(order):
    with open({effects!r}, "a") as file:
        file.write("charged\\n")

with Stepfast({store!r}).run("order") as run:
    run.step(str.upper, "a")
    run.once({name}, 42)
    if run.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_run_with_a_renamed_one_shot_charges_once(tmp_path: Path) -> None:
    effects, store = tmp_path / "effects", f"sqlite:///{tmp_path / 's.db'}"

    def start(name: str) -> subprocess.CompletedProcess[str]:
        program = tmp_path / f"{name}.py"
        program.write_text(_PROGRAM.format(name=name, effects=str(effects), store=store))
        return subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)

    assert start("charge").returncode == -9
    after = start("charge_card")
    assert after.returncode == 1
    assert "Diverged" in after.stderr
    assert effects.read_text() == "charged\n"
    assert start("charge").returncode == 0
    assert effects.read_text() == "charged\n"
    with Stepfast(store) as sf:
        assert sf.get_intent("order")["status"] == "COMPLETED"
