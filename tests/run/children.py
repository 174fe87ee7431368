"""What other processes do in the tests of runs; `nursery` starts them.

A child says what it has come to in lines of JSON, and waits for a line where the test has to act first.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, NoReturn

from stepfast import Stepfast, StepfastError, Suspended

URL = FOLDER = ""


def say(word: str, what: Any = None) -> None:
    print(json.dumps([word, what]), flush=True)


def hear() -> None:
    if not sys.stdin.readline():
        os._exit(0)  # the test is gone


def hang() -> NoReturn:
    while True:
        hear()


def effect(name: str) -> str:
    """A durable line in the file that `stepfast.testing.Effects` reads (whose import would take longer)."""
    fd = os.open(f"{FOLDER}/effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, f"{name}\n".encode())
    os.fsync(fd)
    os.close(fd)
    return f"{name} done"


def effect_then_hang(name: str, *_more: Any) -> NoReturn:
    """The effect has taken place, and nobody has been told: the worst moment to die."""
    effect(name)
    say("happened", name)
    hang()


# What children do


def leave_in_doubt(run_id: str, policy: Any, *args: Any) -> None:
    """Do a one-shot, and be killed before it is confirmed."""
    with Stepfast(URL) as sf, sf.run(run_id) as run:
        run.step(effect, "before")
        run.options(on_in_doubt=policy).once(effect_then_hang, "pay", *args)


def go_on_after_doubt(run_id: str, policy: Any, *args: Any) -> None:
    """The same run again, in a process that gives itself up while a person thinks."""
    with Stepfast(URL) as sf:
        try:
            with sf.run(run_id, on_wait="suspend") as run:
                run.step(effect, "before")
                said = run.options(on_in_doubt=policy, name="effect_then_hang").once(effect, "pay", *args)
                run.step(effect, "after")
                run.complete(said)
        except Suspended as suspended:
            say("suspended", suspended.decisions)
        except StepfastError as error:
            say("failed", [type(error).__name__, str(error)])
        else:
            say("completed", said)


def answer(run_id: str, outcome: str, more: dict[str, Any]) -> None:
    with Stepfast(URL) as sf:
        sf.answer(run_id, outcome, **more)
    say("answered")


def ask(run_id: str) -> None:
    with Stepfast(URL) as sf, sf.run(run_id) as run:
        say("asking")
        said = run.ask("Deploy?")
        run.complete([said.outcome, said.actor])


def hold(run_id: str, options: dict[str, Any]) -> None:
    """Hold a run open; go on with it when told, and say how that went."""
    lease_seconds = options.pop("lease_seconds", 30.0)
    with Stepfast(URL, lease_seconds=lease_seconds) as sf:
        try:
            with sf.run(run_id, **options) as run:
                run.step(effect, "first")
                say("holding", run.attempt)
                hear()
                run.step(effect, "second")
                hear()
        except StepfastError as error:
            say("stopped", [type(error).__name__, str(error)])
        else:
            say("done")


def hold_once(run_id: str) -> None:
    """Hold a run open; then try a one-shot, which a fenced worker must not even begin."""
    with Stepfast(URL) as sf:
        try:
            with sf.run(run_id) as run:
                say("holding", run.attempt)
                hear()
                run.once(effect, "pay")
        except StepfastError as error:
            say("stopped", [type(error).__name__, str(error)])
        else:
            say("done")


def crash_at(run_id: str, dies: bool) -> None:
    """Two steps, and the second one is where every delivery dies while ``dies``."""
    with Stepfast(URL) as sf:
        try:
            with sf.run(run_id) as run:
                run.step(effect, "first")
                run.options(name="second").step(effect_then_hang if dies else effect, "second")
        except StepfastError as error:
            say("stopped", [type(error).__name__, str(error)])
        else:
            say("done")


def crash_after(run_id: str, dies_at: int | None) -> None:
    """A hundred and twenty steps, and one of them at most is where this life ends."""
    with Stepfast(URL) as sf, sf.run(run_id) as run:
        for number in range(1, 121):
            run.options(name="work").step(effect_then_hang if number == dies_at else effect, str(number))
    say("done")


# For tests/test_properties.py


def acknowledge(run_id: str) -> None:
    """Work as fast as possible, and say each thing as soon as the call that made it has returned."""
    with Stepfast(URL) as sf, sf.run(run_id, max_delivery_attempts=100) as run:
        say("begun", run.attempt)
        for number in range(10_000):
            say("acked", ["step", run.options(key=f"step-{number}").step(str, number)])
            say("acked", ["once", run.options(key=f"once-{number}", on_in_doubt="retry").once(str, number)])
            say("acked", ["checkpoint", run.checkpoint({"n": number}, key=f"checkpoint-{number}", keep=10_000)])
            sent = {"intent_type": "t", "to_agent": "nobody", "payload": number}
            say("acked", ["intent", sf.send_intent(sent, idempotency_key=f"{run_id}-{number}")])
            say("acked", ["items", list(run.map(str, [number], key=f"map-{number}"))])


def five_steps(run_id: str, dies_at: int) -> None:
    with Stepfast(URL) as sf, sf.run(run_id) as run:
        told = []
        for number in range(1, 6):
            function = effect_then_hang if number == dies_at else effect
            told.append(run.options(name="work").step(function, f"step {number}"))
        run.complete(told)
    say("completed", told)


def once_stopped_at(run_id: str, failpoint: str) -> None:
    """Come to stand at a failpoint, or at none."""
    from stepfast import _failpoints

    def stand_still(name: str) -> None:
        if name == failpoint:
            say("at", name)
            hang()

    _failpoints.install(stand_still)
    with Stepfast(URL) as sf:
        try:
            with sf.run(run_id, on_wait="suspend") as run:
                run.complete(run.once(effect, "pay"))
        except Suspended:
            say("suspended")
        else:
            say("completed", run.result)


def compete(run_id: str) -> None:
    with Stepfast(URL) as sf:
        say("ready")
        hear()
        try:
            run = sf.run(run_id)
        except StepfastError as error:
            say("lost", type(error).__name__)
            return
        say("won", run.attempt)
        hear()
        run.step(effect, "work")
        run.__exit__(None, None, None)


def end_it(run_id: str, status: str) -> None:
    """End an intent as one of many who want to, and tell the ending that came of it."""
    with Stepfast(URL) as sf:
        say("ready")
        hear()
        try:
            sf.resolve_intent(run_id, status, result=status, reason=f"said {status}")
            say("won", sf.wait_for(run_id, timeout=60))
        except StepfastError as error:
            say("lost", [type(error).__name__, sf.wait_for(run_id, timeout=60)])


def make_history(run_id: str) -> None:
    """Events of all kinds, until killed."""
    with Stepfast(URL) as sf, sf.run(run_id, max_delivery_attempts=100) as run:
        say("begun")
        while True:
            run.step(str, 1)
            run.rewind()
            run.ask("Go on?", key=str(sf.get_intent(run_id)["seq"]), expires_in=0.0001, default="approved")


def send(body: dict[str, Any], key: str) -> None:
    with Stepfast(URL) as sf:
        say("ready")
        hear()
        try:
            sent = sf.send_intent(body, idempotency_key=key)
        except StepfastError as error:
            say("refused", type(error).__name__)
        else:
            say("sent", sent)
        hang()


def checkpoint_and_hang(run_id: str, watched: str) -> None:
    with Stepfast(URL) as sf, sf.run(run_id) as run:
        run.step(effect, "first")
        run.checkpoint({"cursor": 1}, resources=[watched] if watched else [])
        run.step(effect, "second")
        run.checkpoint({"cursor": 2}, resources=[watched] if watched else [])
        say("ready")
        hang()


def fork(work: Any) -> None:
    """Do this in a forked child, and wait for its good end."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            sys.stdout.flush()
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def fork_sync() -> None:
    with Stepfast(URL) as sf:
        with sf.run("before") as run:
            run.step(effect, "before")

        def in_child() -> None:
            with sf.run("child") as run:
                done = run.step(str, "done in the child")
            say("child", [done, sf.wait_for("child", timeout=0)["status"]])

        fork(in_child)
        with sf.run("parent") as run:
            done = run.step(str, "done in the parent")
        say("parent", [done, *(sf.wait_for(name, timeout=0)["status"] for name in ("parent", "child"))])


def fork_async() -> None:
    import asyncio

    from stepfast import AsyncStepfast

    sf = AsyncStepfast(URL)

    async def work(name: str) -> Any:
        async with sf.run(name) as run:
            return await run.step(str, f"done in the {name}")

    async def status(name: str) -> Any:
        return (await sf.wait_for(name, timeout=0))["status"]

    asyncio.run(work("before"))
    fork(lambda: say("child", [asyncio.run(work("child")), asyncio.run(status("child"))]))
    say("parent", [asyncio.run(work("parent")), asyncio.run(status("parent")), asyncio.run(status("child"))])
    asyncio.run(sf.close())


def fork_and_outlive() -> None:
    """A child with a run of its own, forked while its parent holds one: whose lease does it renew?"""
    import threading

    sf = Stepfast(URL, lease_seconds=1)
    held = sf.run("of the parent")

    def in_child() -> None:
        renewed: set[str] = set()
        beaten = threading.Semaphore(0)
        one = sf.store.one
        names = {held.intent_id: "of the parent"}

        def watched(op: Any, **options: Any) -> Any:
            renewed.add(names[op.lease.intent_id])
            beaten.release()
            return one(op, **options)

        with sf.run("of the child") as run:
            names[run.intent_id] = "of the child"
            sf.store.one = watched  # type: ignore[method-assign]
            for _ in range(3):
                assert beaten.acquire(timeout=30)
        say("renewed", sorted(renewed))

    fork(in_child)
    held.__exit__(None, None, None)
    sf.close()


def start(function: str, url: str, folder: str, arguments: list[Any]) -> None:
    global URL, FOLDER
    URL, FOLDER = url, folder
    globals()[function](*arguments)
