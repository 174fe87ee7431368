"""The contract, part seven: what is put in comes out, to the last character and byte."""

from __future__ import annotations

import os

from stepfast import ops
from stepfast.clock import new_id
from stepfast.errors import InvalidInput
from stepfast.intents import Status
from stepfast.ops import Lease
from stepfast.testing.contract_kit import (
    Driver,
    cases,
    checkpoint,
    create,
    dump,
    events_of,
    expect,
    finish,
    get,
    make_world,
    new_intent,
    open_new,
    step,
)

ODD_TEXT = {
    "empty": "",
    "emoji": "🦀 naïve Ünïcode 漢字 \u202eright to left\u202c",
    "quotes": "'\"` \\ \\\\ \\' %s %(tenant)s %% {0} {} :tenant $1 ? ; --",
    "sql": "x'); DROP TABLE intents; --",
    "white_space": " \t\r\n leading and trailing \u00a0\u2028\u2029\u0085 ",
    "controls": "".join(chr(n) for n in range(1, 32)) + "\x7f\x80\x9f",
    "noncharacters": "\ufffe\uffff\U0010ffff\ue000",
    "json": '{"a": [1, null], "b": "\\u0000"}',
}


async def _write_everywhere(driver: Driver, text: str) -> None:
    """Put a text into every field that takes one, and read each back."""
    lease = await open_new(
        driver,
        intent_type=text,
        to_agent=text,
        run_id=text,
        from_agent=text,
        correlation_id=text,
        labels={text: text},
        idempotency_key=text,
    )
    name = lease.intent_id
    made = step("k" + text, lease, kind=text, name=text, scope=text, blob_id=text)
    row = checkpoint(lease, 1, pin=text, blob_id=text)
    await driver.execute(
        ops.RecordStep(lease=lease, journal_id=name, step=made),
        ops.PutPiece(journal_id=name, blob_id=text, number=0, data=b"data"),
        ops.PutCheckpoint(lease=lease, checkpoint=row),
        ops.AskDecision(
            lease=lease,
            journal_id=name,
            key=text,
            kind="ask",
            question=b"?",
            outcomes=[text, "x"],
            default_outcome=text,
        ),
        ops.AnswerDecision(journal_id=name, key=text, outcome=text, actor=text),
        ops.AppendEvent(
            intent_id=name,
            lease=lease,
            note_id=text,
            event_type=f"intent.{text}",
            details={text: [text, {"in": text}]},
            actor=text,
        ),
        ops.SetTypePolicy(intent_type=text, max_delivery_attempts=8),
    )
    intent = await driver.do(ops.GetIntent(run_id=text))
    assert (intent.intent_type, intent.to_agent, intent.from_agent, intent.correlation_id) == (text,) * 4
    assert (intent.labels, intent.idempotency_key) == ({text: text}, text)
    assert await driver.do(ops.ListIntents(where=ops.Filter(labels={text: text}, to_agent=text))) == [intent]
    assert await driver.do(ops.ReadJournal(journal_id=name)) == [made]
    assert await driver.do(ops.ReadCheckpoints(journal_id=name, pin=text)) == [row]
    assert await driver.do(ops.ReadPiece(journal_id=name, blob_id=text, number=0)) == b"data"
    [decision] = await driver.do(ops.ListDecisions(journal_id=name, pending=False))
    assert (decision.key, decision.outcome, decision.actor, decision.default_outcome) == (text,) * 4
    assert decision.outcomes == [text, "x"]
    note = (await events_of(driver, name))[-1]
    assert (note.actor, note.event_type) == (text, f"intent.{text}")
    assert note.details == {text: [text, {"in": text}]}
    again = await driver.do(ops.CreateIntent(new=new_intent(idempotency_key=text)))
    assert again.intent == intent
    freed = await driver.do(ops.ReleaseIntent(lease=lease, reason=text))
    assert not freed.leased
    [taken] = await driver.do(ops.Claim(to_agent=text, token="t" + text, owner=text, lease_seconds=60))
    assert (taken.owner, taken.lease_token) == (text, "t" + text)
    second = Lease(name, taken.attempt, "t" + text)
    ended = await driver.do(finish(second, Status.FAILED, reason=text))
    assert (await get(driver, name)) == ended
    assert ended.reason == text
    assert (await create(driver, intent_type=text)).max_delivery_attempts == 8


class ValueRules:
    @cases(**ODD_TEXT)
    async def test_odd_text_is_kept_exactly(self, driver: Driver, case: str) -> None:
        await _write_everywhere(driver, case)

    async def test_a_tenant_may_have_an_odd_name(self, driver: Driver) -> None:
        for text in ODD_TEXT.values():
            tenant = text + new_id()
            made = await driver.do(ops.CreateIntent(new=new_intent()), tenant=tenant)
            assert await driver.do(ops.ListIntents(), tenant=tenant) == [made.intent]

    async def test_names_that_only_look_alike_are_different(self, driver: Driver) -> None:
        alike = ["Café", "Cafe\u0301", "café", "Café ", " Café", "Cafe", "cafe", "ﬁ", "fi", "1", "01", "1.0"]
        made = {(await create(driver, run_id=name, idempotency_key=name)).intent_id for name in alike}
        assert len(made) == len(alike)
        for name in alike:
            assert (await driver.do(ops.GetIntent(run_id=name))).run_id == name

    async def test_text_that_is_no_unicode_is_refused(self, driver: Driver) -> None:
        world = await make_world(driver)
        held = await dump(driver)
        half = "half a pair \ud83e"
        lease = world.lease
        for op in (
            ops.CreateIntent(new=new_intent(run_id=half)),
            ops.CreateIntent(new=new_intent(labels={"a": half})),
            ops.CreateIntent(new=new_intent(labels={half: "a"})),
            ops.RecordStep(lease=lease, journal_id=lease.intent_id, step=step("x", lease, name=half)),
            ops.AppendEvent(
                intent_id=lease.intent_id, lease=lease, note_id="n", event_type="intent.noted", details={"a": half}
            ),
            ops.GetIntent(run_id=half),
            ops.ListIntents(where=ops.Filter(labels={"a": half})),
        ):
            await expect(InvalidInput, driver.do(op), repr(op))
        assert await dump(driver) == held

    async def test_a_reason_that_is_no_text_does_not_stand_in_the_way_of_an_ending(self, driver: Driver) -> None:
        lease = await open_new(driver)
        ended = await driver.do(finish(lease, Status.FAILED, reason="half a pair \ud83e and a nul \0"))
        assert ended.reason is not None
        assert "half a pair" in ended.reason
        assert await get(driver, lease.intent_id) == ended

    async def test_a_nul_in_a_name_is_refused_and_in_details_kept(self, driver: Driver) -> None:
        world = await make_world(driver)
        held = await dump(driver)
        text, lease = "before\0after", world.lease
        for field in ("run_id", "correlation_id", "intent_type", "to_agent", "idempotency_key"):
            await expect(InvalidInput, driver.do(ops.CreateIntent(new=new_intent(**{field: text}))), field)
        for field in ("name", "kind", "scope", "blob_id"):
            row = step("x", lease, **{field: text})  # type: ignore[arg-type]
            op = ops.RecordStep(lease=lease, journal_id=lease.intent_id, step=row)
            await expect(InvalidInput, driver.do(op), field)
        assert await dump(driver) == held
        noted = ops.AppendEvent(
            intent_id=lease.intent_id, lease=lease, note_id="n", event_type="intent.noted", details={"text": text}
        )
        await driver.do(noted)
        assert (await events_of(driver, lease.intent_id))[-1].details == {"text": text}

    async def test_very_long_text_is_kept_exactly(self, driver: Driver) -> None:
        text = os.urandom(100_000).hex()
        lease = await open_new(driver, from_agent=text, correlation_id=text)
        made = step("a", lease, name=text, scope=text)
        await driver.do(ops.RecordStep(lease=lease, journal_id=lease.intent_id, step=made))
        assert await driver.do(ops.ReadJournal(journal_id=lease.intent_id)) == [made]
        ended = await driver.do(finish(lease, Status.FAILED, reason=text))
        assert await get(driver, lease.intent_id) == ended
        assert (ended.reason, ended.from_agent, ended.correlation_id) == (text, text, text)

    @cases(run="run_id", key="idempotency_key", address="to_agent", type_="intent_type")
    async def test_a_very_long_name_is_kept_exactly_or_refused_and_nothing_written(
        self, driver: Driver, case: str
    ) -> None:
        text = os.urandom(20_000).hex()
        try:
            made = await create(driver, **{case: text})
        except InvalidInput:
            assert await driver.do(ops.ListIntents()) == []
        else:
            assert getattr(await get(driver, made.intent_id), case) == text

    @cases(empty=b"", zero=b"\0", two_megabytes=os.urandom(2_000_000))
    async def test_bytes_are_kept_exactly(self, driver: Driver, case: bytes) -> None:
        lease = await open_new(driver, payload=case, meta=case)
        name = lease.intent_id
        made = step("a", lease, result=case, error=case, preview=case, input_hash=case[:64])
        row = checkpoint(lease, 1, state=case, meta=case)
        await driver.execute(
            ops.RecordStep(lease=lease, journal_id=name, step=made),
            ops.PutPiece(journal_id=name, blob_id="b", number=0, data=case),
            ops.PutCheckpoint(lease=lease, checkpoint=row),
            ops.AskDecision(lease=lease, journal_id=name, key="q", kind="ask", question=case, outcomes=["yes"]),
            ops.AnswerDecision(journal_id=name, key="q", outcome="yes", value=case, comment=case),
            ops.AppendEvent(intent_id=name, lease=lease, note_id="n", event_type="intent.noted", data=case),
            finish(lease, Status.FAILED, result=case, error=case),
        )
        intent = await get(driver, name)
        assert (intent.payload, intent.meta, intent.result, intent.error) == (case,) * 4
        [found] = await driver.do(ops.ReadJournal(journal_id=name))
        assert found == made
        assert await driver.do(ops.ReadPiece(journal_id=name, blob_id="b", number=0)) == case
        assert await driver.do(ops.ReadCheckpoints(journal_id=name)) == [row]
        [decision] = await driver.do(ops.ListDecisions(pending=False))
        assert (decision.question, decision.value, decision.comment) == (case,) * 3
        assert (await events_of(driver, name))[-2].data == case

    async def test_nothing_is_not_the_same_as_empty(self, driver: Driver) -> None:
        lease = await open_new(driver, payload=None, meta=b"", labels={"empty": ""})
        made = step("a", lease, result=None, error=b"", blob_id="")
        await driver.do(ops.RecordStep(lease=lease, journal_id=lease.intent_id, step=made))
        intent = await get(driver, lease.intent_id)
        assert (intent.payload, intent.meta, intent.labels) == (None, b"", {"empty": ""})
        [found] = await driver.do(ops.ReadJournal(journal_id=lease.intent_id))
        assert (found.result, found.error, found.blob_id) == (None, b"", "")

    async def test_numbers_are_kept_to_the_last_bit_of_64(self, driver: Driver) -> None:
        top = 2**63 - 1
        lease = await open_new(driver, deadline_at=top, total_steps=top)
        made = step("a", lease, position=top, started_at=-top, finished_at=top, tally=top)
        await driver.do(ops.RecordStep(lease=lease, journal_id=lease.intent_id, step=made))
        assert await driver.do(ops.ReadJournal(journal_id=lease.intent_id)) == [made]
        intent = await get(driver, lease.intent_id)
        assert (intent.deadline_at, intent.total_steps) == (top, top)
        beyond = step("b", lease, position=top + 1)
        await expect(InvalidInput, driver.do(ops.RecordStep(lease=lease, journal_id=lease.intent_id, step=beyond)))
