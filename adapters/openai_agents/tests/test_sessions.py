"""StepfastSession: the SDK's Session in any store, alone and together with a durable run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agents import Agent, Runner, SessionSettings, SQLiteSession, function_tool
from agents.memory import Session

from adapters.openai_agents.tests.kit import Scripted, call, in_turns, outputs, text
from stepfast import AsyncStepfast, InvalidInput, Stepfast
from stepfast.threads import ListRecords
from stepfast_openai_agents import DurableRunner, StepfastSession


class Boom(Exception):
    """What a user's code raises."""


def message(words: str) -> Any:
    return {"role": "user", "content": words}


def said(items: list[Any]) -> list[Any]:
    return [item["content"] for item in items]


# --- alone: as SQLiteSession -------------------------------------------------------------------


@pytest.fixture(params=["stepfast", "sqlite"])
def session(request: Any, url: str) -> Any:
    """Each statement here is true of SQLiteSession too."""
    if request.param == "stepfast":
        yield StepfastSession("s", store=url)
        return
    theirs = SQLiteSession("s")
    yield theirs
    theirs.close()


async def test_items_come_back_in_their_order(session: Any) -> None:
    assert isinstance(session, Session)
    assert await session.get_items() == []
    await session.add_items([message("a"), message("b")])
    await session.add_items([message("c")])
    assert said(await session.get_items()) == ["a", "b", "c"]


async def test_a_limit_gives_the_latest(session: Any) -> None:
    await session.add_items([message(c) for c in "abcdef"])
    assert said(await session.get_items(2)) == ["e", "f"]
    assert said(await session.get_items(limit=99)) == list("abcdef")
    session.session_settings = SessionSettings(limit=3)
    assert said(await session.get_items()) == ["d", "e", "f"]
    assert said(await session.get_items(1)) == ["f"]


async def test_popping_takes_the_latest(session: Any) -> None:
    await session.add_items([message(c) for c in "abc"])
    assert (await session.pop_item())["content"] == "c"
    await session.add_items([message("d")])
    assert said(await session.get_items()) == ["a", "b", "d"]
    assert said(await session.get_items(2)) == ["b", "d"]
    for _ in range(3):
        await session.pop_item()
    assert await session.pop_item() is None
    assert await session.get_items() == []


async def test_clearing_empties_it_for_good(session: Any) -> None:
    await session.add_items([message("a")])
    await session.clear_session()
    assert await session.get_items() == []
    await session.add_items([message("b")])
    assert said(await session.get_items()) == ["b"]


async def test_adding_nothing_does_nothing(session: Any) -> None:
    await session.add_items([])
    assert await session.get_items() == []


async def test_it_works_with_the_bare_runner(session: Any) -> None:
    model = Scripted(in_turns([text("first")], [text("second")]))
    agent = Agent(name="a", model=model)
    await Runner.run(agent, "one", session=session)
    result = await Runner.run(agent, "two", session=session)
    assert result.final_output == "second"
    assert len(await session.get_items()) == 4


# --- what is ours --------------------------------------------------------------------------------


async def test_sessions_in_one_store_do_not_meet(url: str) -> None:
    names = ["a", "a/b", "a%2Fb", "ab", "ä/"]
    for name in names:
        await StepfastSession(name, store=url).add_items([message(name)])
    for name in names:
        assert said(await StepfastSession(name, store=url).get_items()) == [name]


async def test_an_item_costs_one_row_however_long_the_history(url: str) -> None:
    session = StepfastSession("s", store=url)
    await session.add_items([message(str(n)) for n in range(2500)])
    await session.add_items([message("last")])
    assert len(await session.get_items()) == 2501
    assert said(await session.get_items(2)) == ["2499", "last"]


async def test_two_that_write_at_once_lose_nothing(url: str) -> None:
    sessions = [StepfastSession("s", store=url) for _ in range(4)]
    await asyncio.gather(*(s.add_items([message(f"{n}")]) for n, s in enumerate(sessions * 5)))
    assert sorted(said(await sessions[0].get_items())) == sorted(str(n) for n in range(20))


async def test_cleared_items_leave_the_store(url: str) -> None:
    session = StepfastSession("s", store=url)
    await session.add_items([message("secret")])
    await session.clear_session()
    async with AsyncStepfast(url) as sf:
        rows = sf.store.execute([ListRecords(kind="openai_agents.session_item")], tenant=sf.store.tenant)
    assert rows == [[]]


async def test_a_name_must_be_a_text(url: str) -> None:
    with pytest.raises(InvalidInput, match="session_id"):
        StepfastSession("", store=url)


# --- with a durable run --------------------------------------------------------------------------


class Chat:
    def __init__(self) -> None:
        self.broken = False

        @function_tool(failure_error_function=None)
        def pay() -> str:
            if self.broken:
                raise Boom
            return "paid"

        def script(items: list[Any], _: str | None) -> list[Any]:
            users = sum(1 for i in items if isinstance(i, dict) and i.get("role") == "user")
            if len(outputs(items)) < users:
                return [call("pay")]
            return [text(f"answer {users}")]

        self.model = Scripted(script)
        self.agent = Agent(name="a", model=self.model, tools=[pay])


@pytest.mark.parametrize("kind", ["stepfast", "elsewhere", "sqlite"])
async def test_a_chat_of_durable_runs_has_its_history_once(url: str, tmp_path: Any, kind: str) -> None:
    chat = Chat()
    kinds_of: dict[str, Any] = {
        "stepfast": lambda: StepfastSession("s", store=url),
        "elsewhere": lambda: StepfastSession("s", store=f"sqlite:///{tmp_path}/other.db"),
        "sqlite": lambda: SQLiteSession("s"),
    }
    session = kinds_of[kind]()
    await DurableRunner.run(chat.agent, "one", run_id="r1", store=url, session=session)
    chat.broken = True
    with pytest.raises(Exception, match=r"Boom|running tool"):
        await DurableRunner.run(chat.agent, "two", run_id="r2", store=url, session=session)
    chat.broken = False
    for _ in range(2):
        result = await DurableRunner.run(chat.agent, "two", run_id="r2", store=url, session=session)
        assert result.final_output == "answer 2"
    items = await session.get_items()
    kinds = [item.get("type") or item.get("role") for item in items]
    one = ["user", "function_call", "function_call_output", "message"]
    assert kinds == [*one, *one]
    assert chat.model.calls == 4
    if kind == "sqlite":
        session.close()


async def test_a_replayed_run_sees_the_history_it_saw_first(url: str) -> None:
    chat = Chat()
    session = StepfastSession("s", store=url)
    await DurableRunner.run(chat.agent, "one", run_id="r1", store=url, session=session)
    await DurableRunner.run(chat.agent, "two", run_id="r2", store=url, session=session)
    again = await DurableRunner.run(chat.agent, "one", run_id="r1", store=url, session=session)
    assert again.final_output == "answer 1"
    assert len(await session.get_items()) == 8


async def test_the_journal_holds_numbers_of_items_and_not_the_history(url: str) -> None:
    session = StepfastSession("s", store=url)
    await session.add_items([message("x" * 100_000)])
    agent = Agent(name="a", model=Scripted(lambda items, _: [text("ok")]))
    await DurableRunner.run(agent, "one", run_id="r1", store=url, session=session)
    with Stepfast(url) as sf:
        (get,) = [s for s in sf.steps("r1") if s["name"] == "get_items"]
    assert len(str(get)) < 5000


class Compacting:
    """A session around another that shortens the history now and then, as the SDK's does by an API call."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.session_id = inner.session_id
        self.session_settings = None
        self.compactions = 0

    async def get_items(self, limit: int | None = None) -> list[Any]:
        return list(await self.inner.get_items(limit))

    async def add_items(self, items: list[Any]) -> None:
        await self.inner.add_items(items)

    async def pop_item(self) -> Any:
        return await self.inner.pop_item()

    async def clear_session(self) -> None:
        await self.inner.clear_session()

    async def run_compaction(self, args: Any = None) -> None:
        self.compactions += 1
        await self.inner.clear_session()
        await self.inner.add_items([message(f"summary {self.compactions}")])


async def test_compaction_happens_once_and_does_not_disturb_a_replay(url: str) -> None:
    chat = Chat()
    session = Compacting(StepfastSession("s", store=url))
    for _ in range(2):
        result = await DurableRunner.run(chat.agent, "one", run_id="r1", store=url, session=session)
        assert result.final_output == "answer 1"
    seen = session.compactions
    assert seen >= 1
    assert said(await session.get_items()) == [f"summary {seen}"]
    await DurableRunner.run(chat.agent, "one", run_id="r1", store=url, session=session)
    assert session.compactions == seen
