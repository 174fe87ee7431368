"""What a run can go through, each as a small program that is cut at every boundary and started again.

Every program is its own recovery: started again, it goes on, and once all is done it only reads.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepfast import DID_NOT_HAPPEN, Happened, NotFound, Retention, Stepfast, Suspended, mapping, vault
from stepfast.intents import Status
from tests.crash.stage import Laws, Seen, Stage, at_the_cut, at_the_end
from tests.crash.thread_scenario import thread, whole

ENOUGH = 8


def nothing(_: object) -> None:
    pass


def empty_store(stage: Stage) -> None:
    stage.client().close()


def is_elsewhere(scenario: Scenario) -> bool:
    """On a shared database every life starts from nothing but a name of its own: there is no store to copy."""
    return scenario.before in (nothing, empty_store)


@dataclass(frozen=True)
class Scenario:
    """A program, what must hold after it, and where it starts from."""

    name: str
    body: Callable[[Stage], None]
    laws: Laws
    before: Callable[[Stage], None] = empty_store
    #: Seconds by which the store's clock is ahead in each further life: leases of lost workers have run out.
    hop: float = 0.0
    #: More that must hold at the end.
    also: Callable[[Stage, Seen], None] | None = None
    #: Small enough to be cut at every single line in a quick run.
    small: bool = False

    def __call__(self, folder: Path) -> None:
        self.body(Stage(folder, self.hop))

    @property
    def __name__(self) -> str:
        return self.name

    def again(self, folder: Path) -> None:
        """Another life: look at what the last one left, go on from there, and check that all is well."""
        self.cut(folder)
        self(folder)
        self.check(folder)

    def twice(self, folder: Path) -> None:
        """Another life and one more, in one process: quicker, for the many points of lines."""
        self.again(folder)
        done = Stage(folder).effects.lines()
        self(folder)
        self.check(folder)
        assert Stage(folder).effects.lines() == done, "nothing was left to do"

    def setup(self, folder: Path) -> None:
        self.before(Stage(folder))

    def cut(self, folder: Path) -> None:
        at_the_cut(Stage(folder), self.laws)

    def check(self, folder: Path) -> None:
        stage = Stage(folder)
        seen = at_the_end(stage, self.laws)
        open_ones = [i for i in seen.intents if not i.finished]
        assert not open_ones, f"not finished: {[(i.run_id, str(i.status)) for i in open_ones]}"
        if self.also is not None:
            self.also(stage, seen)


# Plain steps


def plain(stage: Stage) -> None:
    with stage.client() as sf:
        with stage.run(sf, total_steps=3) as run:
            for label in ("a", "b", "c"):
                assert run.step(stage.act, label)["did"] == label
                stage.kept(label)
            run.complete({"did": "end"})
        stage.kept("end")


PLAIN = Scenario("plain steps", plain, Laws(("a", "b", "c", "end")), before=nothing)


def tiny(stage: Stage) -> None:
    with stage.client() as sf:
        with stage.run(sf) as run:
            run.step(stage.act, "a")
            stage.kept("a")
            run.complete({"did": "end"})
        stage.kept("end")


TINY = Scenario("one step", tiny, Laws(("a", "end")), small=True)


# One-shot steps


def person(stage: Stage, sf: Stepfast, word: str) -> None:
    """Answer all that this stage's run waits for."""
    for decision in sf.decisions(stage.tag):
        if decision["kind"] == "in_doubt":
            label = decision["evidence"]["step"].partition("/")[0]
            stage.say(f"{word}:{label}")
            value = {"did": label, "by": "a person"} if word == "done" else None
            sf.answer(stage.tag, word, decision["key"], value=value, actor="ann")
        else:
            sf.answer(stage.tag, decision["outcomes"][0], decision["key"], actor="ann")


def with_a_person(stage: Stage, word: str, work: Callable[[Any], None]) -> None:
    """Do the work; whenever it waits, a person comes by, from the same process for once."""
    with stage.client() as sf:
        for _ in range(ENOUGH):
            try:
                with stage.run(sf, on_wait="suspend") as run:
                    work(run)
                    run.complete({"did": "end"})
                stage.kept("end")
                return
            except Suspended:
                person(stage, sf, word)
        raise AssertionError(f"the run still waits after {ENOUGH} answers")


def once(stage: Stage) -> None:
    def happened(label: str) -> Any:
        """A probe that looks at the world."""
        return Happened({"did": label}) if stage.effects.counts()[label] else DID_NOT_HAPPEN

    def work(run: Any) -> None:
        run.step(stage.act, "a")
        stage.kept("a")
        run.options(key="charge").once(stage.act, "charge")
        stage.kept("charge")
        run.options(key="ping", on_in_doubt="retry").once(stage.act, "ping")
        stage.kept("ping")
        run.options(key="mail", on_in_doubt=happened).once(stage.act, "mail")
        stage.kept("mail")

    with_a_person(stage, "done", work)


ONCE = Scenario(
    "one-shot steps",
    once,
    Laws(("a", "charge", "ping", "mail", "end"), once=("charge",), exactly=("mail",)),
)


def tiny_once(stage: Stage) -> None:
    def work(run: Any) -> None:
        run.options(key="charge").once(stage.act, "charge")
        stage.kept("charge")

    with_a_person(stage, "done", work)


TINY_ONCE = Scenario("one one-shot step", tiny_once, Laws(("charge", "end"), once=("charge",)), small=True)


# Left in doubt, and answered


def left_in_doubt(stage: Stage) -> None:
    """A worker dies between the effect and its record."""

    def charge(label: str) -> Any:
        stage.act(label)
        os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        try:
            with stage.client() as sf, stage.run(sf, on_wait="suspend") as run:
                run.step(stage.act, "a")
                stage.kept("a")
                run.options(key="charge", name="act").once(charge, "charge")
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def doubted(word: str) -> Callable[[Stage], None]:
    def body(stage: Stage) -> None:
        def work(run: Any) -> None:
            run.step(stage.act, "a")
            stage.kept("a")
            run.options(key="charge").once(stage.act, "charge")
            stage.kept("charge")
            run.step(stage.act, "b")
            stage.kept("b")

        with_a_person(stage, word, work)

    return body


def answered_once(stage: Stage, seen: Seen) -> None:
    assert all(decision.outcome is not None for decisions in seen.decisions.values() for decision in decisions)


DOUBT_DONE = Scenario(
    "in doubt, answered done",
    doubted("done"),
    Laws(("a", "charge", "b", "end"), once=("charge",), exactly=("a",)),
    before=left_in_doubt,
    also=answered_once,
)
DOUBT_RETRY = Scenario(
    "in doubt, answered retry",
    doubted("retry"),
    # The crash before the scenario left one effect without a record, and it is the person who has it repeated.
    Laws(("a", "charge", "b", "end"), in_flight=2, once=("charge",), exactly=("a",)),
    before=left_in_doubt,
    also=answered_once,
)


# A durable map

ITEMS = 20


def durable_map(stage: Stage) -> None:
    mapping.CHUNK_ITEMS = 4
    with stage.client() as sf:
        with stage.run(sf) as run:
            for number, value in enumerate(
                run.map(lambda n: stage.act(f"item {n}"), range(ITEMS), concurrency=4, name="item")
            ):
                assert value["did"] == f"item {number}"
                stage.kept(f"item {number}")
            run.complete({"did": "end"})
        stage.kept("end")


MAP = Scenario("a map", durable_map, Laws((*(f"item {n}" for n in range(ITEMS)), "end"), in_flight=ITEMS))


# Checkpoints

KEEP = 3
VERSIONS = 7
PINNED = 2
TAKEN = tuple(f"version {version}" for version in range(1, VERSIONS + 1))


def big(version: int) -> bytes:
    """More than a row holds, and no compressor makes it less; in several pieces, ahead of the row."""
    import random

    return random.Random(version).randbytes(90_000)


def state_of(version: int) -> dict[str, Any]:
    return {"cursor": version, "data": big(version) if version in (PINNED, VERSIONS) else b"small"}


def checkpoints(stage: Stage) -> None:
    vault.PIECE_SIZE = 16 * 1024
    with stage.client() as sf:
        with stage.run(sf) as run:
            if run.restored is not None:
                assert run.restored == state_of(run.restored["cursor"])
            for version in range(1, VERSIONS + 1):
                pin = "recovery" if version == PINNED else None
                assert run.checkpoint(state_of(version), pin=pin, keep=KEEP) == version
                stage.kept(f"version {version}")
            large = run.step(stage_large, stage)
            assert large["data"] == big(0)
            stage.kept("large")
            assert run.restore("recovery") == state_of(PINNED)
            assert run.restore("current") == state_of(VERSIONS)
            run.complete({"did": "end"})
        stage.kept("end")


def stage_large(stage: Stage) -> dict[str, Any]:
    return {**stage.act("large"), "data": big(0)}


def checkpoints_kept(stage: Stage, seen: Seen) -> None:
    (versions,) = seen.checkpoints.values()
    assert [c.version for c in versions] == [VERSIONS, VERSIONS - 1, VERSIONS - 2, PINNED]
    assert [c.pin for c in versions] == [None, None, None, "recovery"]
    assert seen.states == {c.version: state_of(c.version) for c in versions}


CHECKPOINTS = Scenario(
    "checkpoints and pieces",
    checkpoints,
    Laws(("large", *TAKEN, "end"), silent=("end", *TAKEN)),
    also=checkpoints_kept,
)


# A person asked


def ask(stage: Stage) -> None:
    def work(run: Any) -> None:
        run.step(stage.act, "a")
        stage.kept("a")
        assert run.ask("Deploy to production?", evidence={"build": 7})
        run.step(stage.act, "b")
        stage.kept("b")

    with_a_person(stage, "done", work)


ASK = Scenario("a question", ask, Laws(("a", "b", "end")), also=answered_once)


def ask_blocking(stage: Stage) -> None:
    """The run waits in its process, and somebody answers from a thread beside it."""
    over = threading.Event()
    with stage.client() as sf:

        def answerer() -> None:
            while not over.wait(0.005):
                try:
                    person(stage, sf, "done")
                except NotFound:
                    pass

        beside = threading.Thread(target=answerer)
        beside.start()
        try:
            with stage.run(sf) as run:
                run.step(stage.act, "a")
                stage.kept("a")
                assert run.ask("Go on?")
                run.step(stage.act, "b")
                stage.kept("b")
                run.complete({"did": "end"})
            stage.kept("end")
        finally:
            over.set()
            beside.join()


ASK_BLOCKING = Scenario("a question, waited for", ask_blocking, Laws(("a", "b", "end")), also=answered_once)


# Side by side


def threads(stage: Stage) -> None:
    with stage.client() as sf:
        with stage.run(sf) as run:
            failures: list[BaseException] = []

            def branch(scope: Any, name: str) -> None:
                try:
                    for part in ("1", "2"):
                        scope.step(stage.act, name + part)
                        stage.kept(name + part)
                except BaseException as error:
                    failures.append(error)

            started = []
            for name in ("x", "y", "z"):
                scope = run.scope(f"branch-{name}")
                started.append(threading.Thread(target=branch, args=(scope, name)))
            for thread in started:
                thread.start()
            for thread in started:
                thread.join()
            if failures:
                raise failures[0]
            run.complete({"did": "end"})
        stage.kept("end")


THREADS = Scenario(
    "threads in scopes",
    threads,
    Laws((*(name + part for name in "xyz" for part in "12"), "end"), in_flight=3),
)


def gather(stage: Stage) -> None:
    async def main() -> None:
        async with stage.async_client() as sf:
            async with sf.run(stage.tag, labels=stage.mine, max_delivery_attempts=10) as run:

                async def act(label: str) -> Any:
                    await asyncio.sleep(0)
                    return stage.act(label)

                async def one(label: str) -> None:
                    await run.step(act, label)
                    stage.kept(label)

                await one("a")
                await asyncio.gather(*(one(f"g{n}") for n in range(4)))
                await run.options(key="charge", on_in_doubt="retry").once(act, "charge")
                stage.kept("charge")
                async for _ in run.map(act, [f"m{n}" for n in range(3)], concurrency=2, name="each"):
                    pass
                run.complete({"did": "end"})
            stage.kept("end")

    asyncio.run(main())


GATHER = Scenario(
    "an async run",
    gather,
    Laws(
        ("a", *(f"g{n}" for n in range(4)), "charge", *(f"m{n}" for n in range(3)), "end"),
        in_flight=4,
    ),
)


# Rewound, nested, handed back


def rewind(stage: Stage) -> None:
    """An answer that broke the attempt is set aside and asked for again; each answer has its own label."""

    def number(kind: str) -> str:
        return f"{kind} {1 + sum(line.startswith(kind) for line in stage.effects.lines())}"

    def draft() -> dict[str, Any]:
        return stage.act(number("draft"))

    def judge(_: str) -> dict[str, Any]:
        label = number("judge")
        return {**stage.act(label), "good": label != "judge 1"}

    with stage.client() as sf:
        with stage.run(sf) as run:
            run.step(stage.act, "a")
            stage.kept("a")
            scope = run.scope("review")
            for _ in range(ENOUGH):
                text = scope.step(draft)["did"]
                stage.kept(text)
                verdict = scope.step(judge, text)
                stage.kept(verdict["did"])
                if verdict["good"]:
                    break
                scope.rewind("the answer could not be read")
            run.step(stage.act, "b")
            stage.kept("b")
            run.complete({"did": "end"})
        stage.kept("end")


def rewound(stage: Stage, seen: Seen) -> None:
    counts = stage.effects.counts()
    drafts = [label for label in counts if label.startswith("draft")]
    judges = [label for label in counts if label.startswith("judge")]
    assert set(counts.values()) <= {1, 2}
    assert len(drafts) <= 2 + seen.lost
    assert len(judges) <= 2 + seen.lost
    live = [label for label in seen.labels if label.startswith(("draft", "judge"))]
    assert len(live) == 2, f"one draft and one judgement count: {live}"


REWIND = Scenario("a rewound scope", rewind, Laws(("a", "b", "end"), forgets=True), also=rewound)


def nested(stage: Stage) -> None:
    with stage.client() as sf:
        with stage.run(sf) as run:

            def outer(label: str) -> dict[str, Any]:
                found = stage.act(label)
                for part in (f"{label}.1", f"{label}.2"):
                    run.step(stage.act, part)
                    stage.kept(part)
                run.options(key="mail", on_in_doubt="retry").once(stage.act, f"{label}.mail")
                stage.kept(f"{label}.mail")
                return found

            for label in ("o", "p"):
                run.step(outer, label)
                stage.kept(label)
            run.complete({"did": "end"})
        stage.kept("end")


NESTED_LABELS = tuple(label + part for label in "op" for part in ("", ".1", ".2", ".mail"))
NESTED = Scenario(
    "nested steps",
    nested,
    # An outer step and one inside it.
    Laws((*NESTED_LABELS, "end"), in_flight=2),
)


def handed_back(stage: Stage) -> None:
    """The code fails, the run is handed back, and the next start goes on; no delivery is lost by that."""

    def fragile() -> dict[str, Any]:
        if not stage.effects.counts()["boom"]:
            stage.effects.record("boom")
            raise ValueError("not yet")
        return stage.act("b")

    with stage.client() as sf:
        for _ in range(ENOUGH):
            try:
                with stage.run(sf) as run:
                    run.step(stage.act, "a")
                    stage.kept("a")
                    run.step(fragile)
                    stage.kept("b")
                    run.complete({"did": "end"})
                stage.kept("end")
                return
            except ValueError:
                continue


HANDED_BACK = Scenario("an exception handed back", handed_back, Laws(("a", "b", "end")))


# Intents


def intents(stage: Stage) -> None:
    """A sender that sends twice, and a worker that takes what there is."""
    address = f"agent://{stage.tag}"
    with stage.client() as sf:
        for number in range(2):
            order = {
                "intent_type": "order.v1",
                "to_agent": address,
                "payload": {"order": number},
                "labels": stage.mine,
                "max_delivery_attempts": 10,
            }
            sent = {sf.send_intent(order, idempotency_key=f"{stage.tag}-{number}") for _ in range(2)}
            assert len(sent) == 1
        while (run := sf.claim(address)) is not None:
            with run:
                label = f"order {run.payload['order']}"
                run.step(stage.act, label)
                stage.kept(label)
                done = f"done {run.payload['order']}"
                run.complete({"did": done})
            stage.kept(done)
        for intent in sf.list_intents(labels=stage.mine):
            assert sf.wait_for(intent["intent_id"], timeout=0)["status"] == "COMPLETED"


def two_intents(stage: Stage, seen: Seen) -> None:
    assert len(seen.intents) == 2, "the same key and body give the same intent"
    assert {i.status for i in seen.intents} == {Status.COMPLETED}


INTENTS = Scenario(
    "intents sent, claimed and completed",
    intents,
    Laws(("order 0", "order 1", "done 0", "done 1"), silent=("done 0", "done 1")),
    hop=60.0,
    also=two_intents,
)


# Revived, and pruned


def failed_run(stage: Stage) -> None:
    with stage.client() as sf:
        try:
            with stage.run(sf, on_error="fail") as run:
                run.step(stage.act, "a")
                stage.kept("a")
                run.options(key="charge").once(stage.act, "charge")
                stage.kept("charge")
                raise ValueError("broken")
        except ValueError:
            pass


def revive(stage: Stage) -> None:
    with stage.client() as sf:
        with stage.run(sf, on_failed="revive") as run:
            run.step(stage.act, "a")
            stage.kept("a")
            run.options(key="charge").once(stage.act, "charge")
            stage.kept("charge")
            run.step(stage.act, "b")
            stage.kept("b")
            run.complete({"did": "end"})
        stage.kept("end")


def revived_once(stage: Stage, seen: Seen) -> None:
    endings = sorted(str(intent.status) for intent in seen.intents)
    assert endings == ["COMPLETED", "FAILED"], endings
    first = next(intent for intent in seen.intents if intent.status is Status.FAILED)
    last = next(intent for intent in seen.intents if intent.status is Status.COMPLETED)
    assert (first.superseded_by, last.revived_from) == (last.intent_id, first.intent_id)


REVIVE = Scenario(
    "a failed run revived",
    revive,
    Laws(("a", "charge", "b", "end"), exactly=("a", "charge")),
    before=failed_run,
    also=revived_once,
)

OLD = 4


def old_runs(stage: Stage) -> None:
    with stage.client() as sf:
        for number in range(OLD):
            with sf.run(f"old-{number}", labels={"age": "old"}) as run:
                run.options(name="work").step(lambda: "done")
                run.checkpoint({"data": big(number)})


def prune(stage: Stage) -> None:
    with stage.client() as sf:
        with stage.run(sf) as run:
            run.step(stage.act, "a")
            stage.kept("a")
            sf.prune(Retention(keep_latest=1, labels={"age": "old"}))
            run.step(stage.act, "b")
            stage.kept("b")
            run.complete({"did": "end"})
        stage.kept("end")
        sf.prune(Retention(keep_latest=1))


def pruned(stage: Stage, seen: Seen) -> None:
    with stage.client() as sf:
        assert [intent["run_id"] for intent in sf.list_intents()] == [stage.tag]
        assert sf.prune(Retention(keep_latest=1)) == 0


PRUNE = Scenario("old runs pruned", prune, Laws(("a", "b", "end")), before=old_runs, also=pruned)


HISTORY = Scenario("a thread written, copied and cut back", thread, Laws(()), also=whole)


EVERY: tuple[Scenario, ...] = (
    PLAIN,
    ONCE,
    MAP,
    CHECKPOINTS,
    ASK,
    ASK_BLOCKING,
    DOUBT_DONE,
    DOUBT_RETRY,
    THREADS,
    GATHER,
    REWIND,
    NESTED,
    INTENTS,
    REVIVE,
    HANDED_BACK,
    PRUNE,
    HISTORY,
)
SMALL = (TINY, TINY_ONCE)
ANYWHERE = tuple(scenario for scenario in EVERY if is_elsewhere(scenario))
