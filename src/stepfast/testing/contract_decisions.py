"""The contract, part four: questions, waiting, and answers."""

from __future__ import annotations

from typing import Any

from stepfast.clock import new_id
from stepfast.errors import AlreadyAnswered, AlreadyFinished, InvalidInput, NotFound
from stepfast.intents import Status
from stepfast.ops import (
    AnswerDecision,
    AskDecision,
    FinishIntent,
    Lease,
    ListDecisions,
    Op,
    SuspendIntent,
    Sweep,
)
from stepfast.testing.contract_kit import (
    Driver,
    cases,
    claim,
    dump,
    events_of,
    expect,
    finish,
    get,
    open_new,
)


def _ask(lease: Lease, key: str = "q", **fields: Any) -> AskDecision:
    values = {"kind": "ask", "question": b"May I?", "outcomes": ["yes", "no"], **fields}
    return AskDecision(lease=lease, journal_id=lease.intent_id, key=key, **values)


def _answer(lease: Lease, key: str = "q", outcome: str = "yes", **fields: Any) -> AnswerDecision:
    return AnswerDecision(journal_id=lease.intent_id, key=key, outcome=outcome, **fields)


def _wait(lease: Lease, *keys: str) -> SuspendIntent:
    return SuspendIntent(lease=lease, waiting_reason="WAITING_FOR_HUMAN", keys=list(keys or ("q",)))


class AskRules:
    async def test_a_question_is_kept_exactly_and_told(self, driver: Driver) -> None:
        lease = await open_new(driver)
        asked = await driver.do(
            _ask(
                lease,
                kind="in_doubt",
                question=b"\x00sent?\xff",
                outcomes=["done", "retry", "fail"],
                comment_required=True,
                expires_in=60.0,
                default_outcome="fail",
            )
        )
        assert (asked.question, asked.outcomes) == (b"\x00sent?\xff", ["done", "retry", "fail"])
        assert (asked.kind, asked.comment_required, asked.default_outcome) == ("in_doubt", True, "fail")
        assert (asked.intent_id, asked.attempt, asked.outcome) == (lease.intent_id, 1, None)
        assert asked.expires_at == asked.asked_at + 60_000_000
        assert await driver.do(ListDecisions()) == [asked]
        assert await driver.do(ListDecisions(journal_id=lease.intent_id)) == [asked]
        last = (await events_of(driver, lease.intent_id))[-1]
        assert last.event_type == "intent.human_task_assigned"
        assert last.details == {"decision": "q", "kind": "in_doubt"}

    async def test_asking_again_gives_the_decision_as_it_stands(self, driver: Driver) -> None:
        lease = await open_new(driver)
        asked = await driver.do(_ask(lease))
        assert await driver.do(_ask(lease)) == asked
        answered = await driver.do(_answer(lease, value=b"v", comment=b"c", actor="anna"))
        assert await driver.do(_ask(lease)) == answered

    @cases(
        no_outcomes={"outcomes": []},
        foreign_default={"default_outcome": "maybe"},
    )
    async def test_a_question_without_a_possible_answer_is_refused(self, driver: Driver, case: dict[str, Any]) -> None:
        lease = await open_new(driver)
        held = await dump(driver)
        await expect(InvalidInput, driver.do(_ask(lease, **case)))
        assert await dump(driver) == held

    async def test_pending_decisions_are_listed_oldest_first(self, driver: Driver) -> None:
        first, second = await open_new(driver), await open_new(driver)
        keys = []
        for n, lease in enumerate([first, second, first]):
            keys.append(f"q{n}")
            await driver.do(_ask(lease, keys[-1]))
            driver.advance(1)
        await driver.do(_answer(second, "q1"))
        assert [d.key for d in await driver.do(ListDecisions())] == ["q0", "q2"]
        assert [d.key for d in await driver.do(ListDecisions(pending=False))] == keys
        assert [d.key for d in await driver.do(ListDecisions(journal_id=second.intent_id, pending=False))] == ["q1"]
        assert [d.key for d in await driver.do(ListDecisions(limit=1))] == ["q0"]
        for limit in (0, -1):
            await expect(InvalidInput, driver.do(ListDecisions(limit=limit)))


class AnswerRules:
    async def test_an_answer_is_kept_exactly_and_told(self, driver: Driver) -> None:
        lease = await open_new(driver)
        await driver.do(_ask(lease))
        answered = await driver.do(_answer(lease, outcome="no", value=b"\x00v", comment=b"", actor="anna"))
        assert (answered.outcome, answered.value, answered.comment, answered.actor) == (
            "no",
            b"\x00v",
            b"",
            "anna",
        )
        assert answered.answered_at is not None
        assert await driver.do(ListDecisions(pending=False)) == [answered]
        assert await driver.do(ListDecisions()) == []
        last = (await events_of(driver, lease.intent_id))[-1]
        assert (last.event_type, last.actor) == ("intent.answered", "anna")
        assert last.details == {"decision": "q", "outcome": "no"}

    async def test_the_first_answer_stands(self, driver: Driver) -> None:
        lease = await open_new(driver)
        await driver.do(_ask(lease))
        first = await driver.do(_answer(lease, actor="anna"))
        held = await dump(driver)
        assert await driver.do(_answer(lease, actor="anna")) == first
        await expect(AlreadyAnswered, driver.do(_answer(lease, outcome="no", actor="anna")))
        await expect(AlreadyAnswered, driver.do(_answer(lease, outcome="no", actor="bert")))
        assert await dump(driver) == held

    async def test_of_sixteen_answers_at_once_one_counts(self, driver: Driver) -> None:
        lease = await open_new(driver)
        await driver.execute(_ask(lease), _wait(lease))
        answers = await driver.together([_answer(lease, outcome="yes", actor=f"p{n}")] for n in range(16))
        assert len([answer for answer in answers if isinstance(answer, list)]) == 1
        assert {type(a) for a in answers if not isinstance(a, list)} == {AlreadyAnswered}
        told = [e for e in await events_of(driver, lease.intent_id) if e.event_type == "intent.answered"]
        assert len(told) == 1
        assert len(await claim(driver, limit=10)) == 1, "and the intent is resumed once"

    async def test_an_outcome_that_was_not_offered_is_refused(self, driver: Driver) -> None:
        lease = await open_new(driver)
        await driver.do(_ask(lease))
        held = await dump(driver)
        await expect(InvalidInput, driver.do(_answer(lease, outcome="maybe")))
        assert await dump(driver) == held

    async def test_a_required_comment_is_required(self, driver: Driver) -> None:
        lease = await open_new(driver)
        await driver.do(_ask(lease, comment_required=True))
        held = await dump(driver)
        for comment in (None, b""):
            await expect(InvalidInput, driver.do(_answer(lease, comment=comment)))
        assert await dump(driver) == held
        assert (await driver.do(_answer(lease, comment=b"because"))).comment == b"because"

    async def test_an_unknown_decision_is_not_found(self, driver: Driver) -> None:
        lease = await open_new(driver)
        await expect(NotFound, driver.do(_answer(lease, "never")))
        await expect(NotFound, driver.do(AnswerDecision(journal_id=new_id(), key="q", outcome="yes")))

    async def test_the_question_of_a_finished_intent_is_no_longer_answered(self, driver: Driver) -> None:
        lease = await open_new(driver)
        await driver.execute(_ask(lease), finish(lease))
        held = await dump(driver)
        await expect(AlreadyFinished, driver.do(_answer(lease)))
        assert await dump(driver) == held

    async def test_an_answer_while_the_run_is_at_work_does_not_take_it_away(self, driver: Driver) -> None:
        lease = await open_new(driver)
        await driver.do(_ask(lease))
        await driver.do(_answer(lease))
        intent = await get(driver, lease.intent_id)
        assert (intent.status, intent.leased, intent.attempt) == (Status.IN_PROGRESS, True, 1)
        assert await claim(driver) == []


class WaitingRules:
    async def test_a_waiting_intent_holds_no_lease_and_is_not_delivered(self, driver: Driver) -> None:
        lease = await open_new(driver)
        await driver.do(_ask(lease))
        waiting = await driver.do(_wait(lease))
        assert (waiting.status, waiting.waiting_reason) == (Status.WAITING, "WAITING_FOR_HUMAN")
        assert (waiting.leased, waiting.claimable_at, waiting.lost) == (False, None, 0)
        assert await get(driver, lease.intent_id) == waiting
        last = (await events_of(driver, lease.intent_id))[-1]
        assert last.event_type == "intent.waiting"
        assert last.details == {"waiting_reason": "WAITING_FOR_HUMAN", "decisions": ["q"]}
        driver.advance(10**7)
        assert await claim(driver) == []

    async def test_the_answer_makes_it_claimable_and_the_wait_was_free(self, driver: Driver) -> None:
        lease = await open_new(driver, max_delivery_attempts=1)
        for n in range(4):
            await driver.execute(_ask(lease, f"q{n}"), _wait(lease, f"q{n}"))
            assert await claim(driver) == []
            await driver.do(_answer(lease, f"q{n}"))
            [lease] = await claim(driver)
            assert lease.attempt == n + 2
        intent = await get(driver, lease.intent_id)
        assert (intent.status, intent.lost, intent.waiting_reason) == (Status.IN_PROGRESS, 0, None)

    async def test_an_answer_that_came_first_makes_it_claimable_at_once(self, driver: Driver) -> None:
        lease = await open_new(driver)
        await driver.execute(_ask(lease, "q"), _ask(lease, "p"))
        await driver.do(_answer(lease, "q"))
        waiting = await driver.do(_wait(lease, "p", "q"))
        assert (waiting.status, waiting.leased) == (Status.WAITING, False)
        assert len(await claim(driver)) == 1

    async def test_an_answer_to_another_question_does_not_count_as_the_one_waited_for(self, driver: Driver) -> None:
        lease = await open_new(driver)
        await driver.execute(_ask(lease, "q"), _ask(lease, "p"))
        await driver.do(_answer(lease, "q"))
        await driver.do(_wait(lease, "p"))
        assert await claim(driver) == []

    @cases(answer_first=True, suspend_first=False)
    async def test_an_answer_and_a_suspension_in_any_order_leave_the_intent_claimable(
        self, driver: Driver, case: bool
    ) -> None:
        lease = await open_new(driver)
        await driver.do(_ask(lease))
        both: list[list[Op[Any]]] = [[_answer(lease)], [_wait(lease)]]
        await driver.together(both if case else both[::-1])
        assert len(await claim(driver)) == 1


class ExpiryRules:
    @cases(with_default="no", without_default=None)
    async def test_an_expired_decision_gets_its_default_or_expired(self, driver: Driver, case: str | None) -> None:
        lease = await open_new(driver)
        await driver.execute(_ask(lease, expires_in=60.0, default_outcome=case), _wait(lease))
        assert await driver.do(Sweep()) == 0
        driver.advance(61)
        assert await claim(driver) == []
        assert await driver.do(Sweep()) == 1
        [decision] = await driver.do(ListDecisions(pending=False))
        assert (decision.outcome, decision.actor) == (case or "expired", "expiry")
        assert len(await claim(driver)) == 1
        assert await driver.do(Sweep()) == 0
        await expect(AlreadyAnswered, driver.do(_answer(lease)))

    async def test_an_answered_decision_does_not_expire(self, driver: Driver) -> None:
        lease = await open_new(driver, lease_seconds=600)
        await driver.do(_ask(lease, expires_in=60.0))
        answered = await driver.do(_answer(lease))
        driver.advance(61)
        assert await driver.do(Sweep()) == 0
        assert await driver.do(ListDecisions(pending=False)) == [answered]

    async def test_the_expiry_of_a_finished_intents_question_leaves_its_history_alone(self, driver: Driver) -> None:
        lease = await open_new(driver)
        await driver.do(_ask(lease, expires_in=60.0))
        ended = await driver.do(FinishIntent(intent_id=lease.intent_id, status=Status.CANCELED))
        driver.advance(61)
        await driver.do(Sweep())
        assert await driver.do(ListDecisions()) == []
        assert await get(driver, lease.intent_id) == ended
