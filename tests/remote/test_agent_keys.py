"""What an agent's own key may ask of the store: its own address, and nothing else of its workspace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stepfast.clock import new_id
from stepfast.errors import AccessDenied, NotFound, StepfastError
from stepfast.intents import Status
from stepfast.ops import (
    Claim,
    CreateIntent,
    DeleteRecords,
    FinishIntent,
    GetIntent,
    Lease,
    ListAddresses,
    ListIntents,
    ListRecords,
    NewIntent,
    Op,
    OpenIntent,
    Prune,
    PutPiece,
    PutThread,
    ReadEvents,
    ReadJournal,
    ReadThread,
    RecordStep,
    ReleaseOwner,
    ReviveIntent,
)
from stepfast.server.caller import AGENT_SCOPES, Caller
from stepfast.stores.remote import RemoteStore
from stepfast.stores.sqlite import SqliteStore
from tests.contract.http_places import Served, TenantKeys
from tests.stores.kit import step

MINE, THEIRS = "agent://acme/prod/mine", "agent://acme/prod/theirs"


class AgentKeys(TenantKeys):
    """The key "agent" speaks for one address of a workspace, any other for the whole of it."""

    def check(self, token: bytes) -> Caller:
        common: dict[str, Any] = {"tenant": "acme/prod", "org": "acme", "workspace": "prod", "key_id": token.decode()}
        if token == b"agent":
            return Caller(**common, role="agent", agent=MINE, scopes=AGENT_SCOPES)
        return Caller(**common, role="workspace")


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with SqliteStore(tmp_path / "store.db", durability="process") as bottom:
        served = Served(bottom, keys=AgentKeys())
        yield served.url
        served.stop()


@pytest.fixture
def agent(url: str) -> Iterator[RemoteStore]:
    with RemoteStore(url, api_key="agent") as store:
        yield store


@pytest.fixture
def owner(url: str) -> Iterator[RemoteStore]:
    with RemoteStore(url, api_key="workspace") as store:
        yield store


def create(store: RemoteStore, to_agent: str) -> str:
    new = NewIntent(intent_id=new_id(), intent_type="t.v1", to_agent=to_agent, from_agent="agent://acme/prod/boss")
    return store.one(CreateIntent(new=new)).intent.intent_id


def test_an_agents_key_works_off_its_own_intents(agent: RemoteStore, owner: RemoteStore) -> None:
    sent = create(owner, MINE)
    [intent] = agent.one(Claim(to_agent=MINE, token="t", owner="w", lease_seconds=60))
    lease = Lease(sent, intent.attempt, "t")
    agent.one(RecordStep(lease=lease, journal_id=sent, step=step(1)))
    assert len(agent.one(ReadJournal(journal_id=sent))) == 1
    done = agent.one(FinishIntent(intent_id=sent, status=Status.COMPLETED, lease=lease, result=b"r"))
    assert done.status is Status.COMPLETED
    assert agent.one(ReadEvents(intent_id=sent))[-1].event_type == "intent.completed"


def test_a_bare_name_is_the_same_agent(agent: RemoteStore, owner: RemoteStore) -> None:
    create(owner, "mine")
    assert len(agent.one(Claim(to_agent="mine", token="t", owner="w", lease_seconds=60))) == 1


# What names an intent of another agent: answered as if there were none.
UNSEEN: dict[str, Callable[[str], Op[Any]]] = {
    "get": lambda i: GetIntent(intent_id=i),
    "journal": lambda i: ReadJournal(journal_id=i),
    "events": lambda i: ReadEvents(intent_id=i),
    "open": lambda i: OpenIntent(intent_id=i, token="t", owner="w", lease_seconds=9),
    "finish": lambda i: FinishIntent(intent_id=i, status=Status.CANCELED),
    "piece": lambda i: PutPiece(journal_id=i, blob_id="b", number=0, data=b"x"),
}


@pytest.mark.parametrize("case", UNSEEN)
def test_another_agents_intent_is_as_one_that_does_not_exist(agent: RemoteStore, owner: RemoteStore, case: str) -> None:
    theirs = create(owner, THEIRS)

    def told(intent_id: str) -> tuple[type[StepfastError], str]:
        with pytest.raises(StepfastError) as caught:
            agent.one(UNSEEN[case](intent_id))
        return type(caught.value), caught.value.message.replace(intent_id, "ID")

    assert told(theirs) == told(new_id())
    assert told(theirs)[0] is NotFound
    assert owner.one(GetIntent(intent_id=theirs)).status is Status.DELIVERED


# What concerns the whole workspace: refused.
REFUSED: dict[str, Op[Any]] = {
    "claim for another": Claim(to_agent=THEIRS, token="t", owner="w", lease_seconds=9),
    "prune": Prune(keep_latest=0),
    "revive": ReviveIntent(intent_id="i", new_id="n"),
    "records": ListRecords(kind="key"),
    "release": ReleaseOwner(owner="w", reason="r"),
    "read a thread": ReadThread(thread_id="t"),
    "write a thread": PutThread(thread_id="t", home="h"),
    "delete records": DeleteRecords(kind="key", prefix="k"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_the_workspaces_is_refused(agent: RemoteStore, case: str) -> None:
    with pytest.raises(AccessDenied, match="agent's key"):
        agent.one(REFUSED[case])


def test_one_refused_operation_keeps_its_whole_batch_from_being_done(agent: RemoteStore) -> None:
    new = NewIntent(intent_id=new_id(), intent_type="t.v1", to_agent=MINE)
    with pytest.raises(AccessDenied):
        agent.execute([CreateIntent(new=new), Prune(keep_latest=0)])
    with pytest.raises(NotFound):
        agent.one(GetIntent(intent_id=new.intent_id))


def test_lists_show_an_agent_its_own_only(agent: RemoteStore, owner: RemoteStore) -> None:
    mine = create(owner, MINE)
    create(owner, THEIRS)
    assert [i.intent_id for i in agent.one(ListIntents())] == [mine]
    assert agent.one(ListAddresses()) == [MINE]
    assert len(owner.one(ListIntents())) == 2


def test_an_agent_cannot_speak_for_another(agent: RemoteStore, owner: RemoteStore) -> None:
    sent = create(agent, THEIRS)
    assert owner.one(GetIntent(intent_id=sent)).from_agent == MINE
    assert agent.one(GetIntent(intent_id=sent)).to_agent == THEIRS, "and it sees what it sent"


async def test_an_agent_that_was_switched_off_gets_and_sends_nothing(url: str, owner: RemoteStore) -> None:
    import httpx

    create(owner, THEIRS)
    headers = {"x-api-key": "workspace"}
    async with httpx.AsyncClient(base_url=url, headers=headers) as http:
        assert (await http.post(f"/v1/mesh/agents/{THEIRS.removeprefix('agent://')}/kill")).status_code == 200
        with pytest.raises(AccessDenied):
            create(owner, THEIRS)
        assert owner.one(Claim(to_agent=THEIRS, token="t", owner="w", lease_seconds=60)) == []
        assert (await http.post(f"/v1/mesh/agents/{THEIRS.removeprefix('agent://')}/resume")).status_code == 200
    assert len(owner.one(Claim(to_agent=THEIRS, token="t", owner="w", lease_seconds=60))) == 1
