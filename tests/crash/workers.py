"""A crew of worker processes that compete for intents while they are killed, or stopped and let go on."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepfast import AlreadyFinished, Fenced, RunFailed, Stepfast, StoreError, Suspended
from stepfast.clock import Clock
from stepfast.intents import TERMINAL, Status
from stepfast.stores.base import LOCAL_TENANT
from stepfast.testing import Effects
from stepfast.testing.processes import Child
from tests.crash.stage import Stage, check_rows, look

OPEN = [status for status in Status if status not in TERMINAL]
LEASE = 1.0


@dataclass(frozen=True)
class Counted:
    """What a crew went through."""

    kills: int
    stops: int
    deliveries: int
    lost: int
    seconds: float


@dataclass(frozen=True)
class Crew:
    """``intents`` pieces of work on the store of a folder, for ``size`` workers.

    ``skews`` are offsets in seconds of the workers' clocks, which they take in turn.
    """

    folder: Path
    intents: int
    size: int = 3
    skews: tuple[float, ...] = (0.0,)

    @property
    def stage(self) -> Stage:
        return Stage(self.folder)

    @property
    def address(self) -> str:
        return f"agent://crew/{self.stage.tag}"

    def client(self, skew: float = 0.0) -> Stepfast:
        clock = Clock()
        clock.advance(skew)
        return Stepfast(self.stage.url, lease_seconds=LEASE, clock=clock)

    def send(self) -> None:
        with self.client() as sf:
            for number in range(self.intents):
                sf.send_intent(
                    {
                        "intent_type": "order.v1",
                        "to_agent": self.address,
                        "payload": {"order": number},
                        "labels": self.stage.mine,
                        "max_delivery_attempts": 1000,
                    }
                )

    def work(self, skew: float) -> None:
        """Take what there is until all is done; a store that is away is asked again."""
        while True:
            try:
                with self.client(skew) as sf:
                    self._take_all(sf)
                return
            except StoreError:
                time.sleep(0.05)

    def _take_all(self, sf: Stepfast) -> None:
        stage = self.stage
        while True:
            try:
                run = sf.claim(self.address)
                if run is not None:
                    with run:
                        self.do(stage, run)
                    continue
            except Suspended:
                continue
            except (Fenced, AlreadyFinished, RunFailed, StoreError) as error:
                # Another has it now, or will have it once the lease has run out.
                Effects(self.folder, "overtaken").record(type(error).__name__)
                continue
            if not sf.list_intents(status=OPEN, to_agent=self.address, limit=1):
                return
            time.sleep(0.02)

    def do(self, stage: Stage, run: Any) -> None:
        def act(label: str) -> Any:
            time.sleep(0.01)
            done = stage.act(label)
            time.sleep(0.01)
            return done

        name = f"{run.payload['order']}"
        run.step(act, f"{name}.load")
        stage.kept(f"{name}.load")
        run.options(key=f"{name}.charge").once(act, f"{name}.charge")
        stage.kept(f"{name}.charge")
        for _ in run.map(act, [f"{name}.item{n}" for n in range(3)], name="items"):
            pass
        run.complete({"did": f"{name}.end"})

    def answer(self) -> None:
        """A person says of every one-shot left in doubt that it is done."""
        try:
            self._answer_all()
        except StoreError:
            pass  # the server is away: the person comes again

    def _answer_all(self) -> None:
        stage = self.stage
        with self.client() as sf:
            for decision in sf.decisions():
                label = decision["evidence"]["step"]
                if sf.get_intent(decision["intent_id"])["labels"] != stage.mine:
                    continue
                stage.say(f"done:{label}")
                try:
                    sf.answer(
                        decision["intent_id"], "done", decision["key"], value={"did": label, "by": "ann"}, actor="ann"
                    )
                except AlreadyFinished:
                    pass

    def labels_of(self, number: int) -> list[str]:
        return [f"{number}.{part}" for part in ("load", "charge", "item0", "item1", "item2", "end")]

    def toil(
        self,
        *,
        kills: int,
        stops: int = 0,
        seed: int,
        timeout: float,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> Counted:
        """Let the crew work, killing and stopping as often as asked, until all is done."""
        started = time.monotonic()
        dice = random.Random(seed)
        _in_child(self.send)
        crew: dict[int, Child] = {}
        killed = stopped = 0
        look_again = started
        try:
            while True:
                for place in range(self.size):
                    if place not in crew:
                        crew[place] = self.hire(self.skews[place % len(self.skews)])
                time.sleep(dice.uniform(0.01, 0.12))
                meanwhile()
                if stopped < stops and (killed >= kills or dice.random() < 0.1):
                    _stop_for(crew[dice.randrange(self.size)], LEASE * 1.5)
                    stopped += 1
                elif killed < kills:
                    victim = crew.pop(dice.randrange(self.size))
                    victim.kill()
                    ended = victim.wait(30)
                    assert ended.code in (0, -signal.SIGKILL), ended.why
                    killed += ended.code != 0
                if time.monotonic() >= look_again:
                    look_again = time.monotonic() + 0.2
                    _in_child(self.answer)
                    if self.done():
                        break
                assert time.monotonic() - started < timeout, "the crew does not come to an end"
            for worker in crew.values():
                ended = worker.wait(timeout)
                assert ended.code == 0, ended.why
        finally:
            for worker in crew.values():
                worker.kill()
        lost, deliveries = self.check(killed + stopped)
        return Counted(killed, stopped, deliveries, lost, time.monotonic() - started)

    def hire(self, skew: float) -> Child:
        return Child(lambda _: self.work(skew))

    def done(self) -> bool:
        def ask(note: Any) -> None:
            try:
                with self.client() as sf:
                    note({"open": len(sf.list_intents(status=OPEN, to_agent=self.address, limit=1))})
            except StoreError:
                note({"open": "unknown"})

        ended = Child(ask).wait(60)
        assert ended.code == 0, ended.why
        return ended.notes[-1] == {"open": 0}

    def check(self, struck: int) -> tuple[int, int]:
        """Each intent completed once; no step lost, none recorded twice, none done again once recorded."""
        stage = self.stage
        seen = look(stage)
        check_rows(seen)
        assert len(seen.intents) == self.intents
        assert {intent.status for intent in seen.intents} == {Status.COMPLETED}
        wanted = {label for number in range(self.intents) for label in self.labels_of(number)}
        assert set(seen.labels) == wanted, f"missing {wanted - set(seen.labels)}, too many {set(seen.labels) - wanted}"
        acked = set(stage.acks.lines())
        assert acked <= set(seen.labels)
        counts = stage.effects.counts()
        lost = {}
        for intent in seen.intents:
            (load,) = (label for label in _labels(seen, intent) if label.endswith(".load"))
            losses = lost[load.partition(".")[0]] = seen.losses(intent)
            # Each delivery is the first one, one after a loss, or one after a person's answer.
            assert intent.attempt <= 1 + losses + len(seen.decisions[intent.journal_id])
        for label, count in counts.items():
            number, _, part = label.partition(".")
            most = 1 if part == "charge" else 1 + lost[number]
            assert count <= most, f"{label} was done {count} times, with {lost[number]} deliveries lost"
        # A machine that starves a living worker of a whole second lets its lease run out: it finds that out.
        overtaken = len(Effects(self.folder, "overtaken").lines())
        assert sum(lost.values()) <= struck + overtaken
        return sum(lost.values()), sum(intent.attempt for intent in seen.intents)


def _labels(seen: Any, intent: Any) -> Counter[str]:
    from stepfast.bindings import open_payload
    from stepfast.codec import Codec

    payload = open_payload(Codec(), intent.payload, LOCAL_TENANT, intent.journal_id)
    return Counter(label for label in seen.labels if label.partition(".")[0] == str(payload["order"]))


def _in_child(body: Any) -> None:
    """In a process of its own, so that this one holds no connection when it forks."""
    ended = Child(lambda _: body()).wait(60)
    assert ended.code == 0, ended.why


def _stop_for(worker: Child, seconds: float) -> None:
    try:
        os.kill(worker.pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(worker.pid, signal.SIGCONT)
    except ProcessLookupError:
        pass
