"""The contract of a store, as tests: one suite for every store, blocking or on an event loop.

For a store of your own, give a fixture ``driver`` and inherit; pytest with pytest-asyncio does the rest:

    class TestMyStore(StoreContract):
        pass

    @pytest.fixture(params=[BlockingDriver, AsyncDriver])
    async def driver(request):
        with MyStore(...) as store:
            driver = request.param(store)
            yield driver
            await driver.check_histories()

The store may be shared between tests, since each driver works for a tenant of its own, but its clock
(``store.clock``) is moved by them. Nothing here imports pytest.
"""

from __future__ import annotations

from typing import Any

from stepfast.testing.contract_decisions import AnswerRules, AskRules, ExpiryRules, WaitingRules
from stepfast.testing.contract_history import EventRules, PruneRules, WatchRules
from stepfast.testing.contract_intents import (
    CreationRules,
    DeadlineRules,
    EndingRules,
    ListingRules,
    RevivalRules,
)
from stepfast.testing.contract_journal import (
    CheckpointRules,
    OneShotRules,
    PieceRules,
    ProgressRules,
    StepRules,
    VoidRules,
)
from stepfast.testing.contract_kit import AsyncDriver, BlockingDriver, Driver, case_ids
from stepfast.testing.contract_laws import BatchRules, FenceRules, RepeatRules, TableRules, TenantRules
from stepfast.testing.contract_leases import ClaimRules, LeaseRules, OpenRules, ReleaseRules
from stepfast.testing.contract_records import MoveRules, OwnerRules, RecordRules, TimerRules
from stepfast.testing.contract_threads import (
    CopyRules,
    ExpiryOfThreadsRules,
    LaneRules,
    ThreadListRules,
    ThreadRules,
    WriteRules,
)
from stepfast.testing.contract_values import ValueRules

__all__ = ["AsyncDriver", "BlockingDriver", "Driver", "StoreContract"]


class StoreContract(
    CreationRules,
    ListingRules,
    EndingRules,
    DeadlineRules,
    RevivalRules,
    ClaimRules,
    LeaseRules,
    ReleaseRules,
    OpenRules,
    StepRules,
    OneShotRules,
    VoidRules,
    ProgressRules,
    PieceRules,
    CheckpointRules,
    AskRules,
    AnswerRules,
    WaitingRules,
    ExpiryRules,
    EventRules,
    PruneRules,
    WatchRules,
    TableRules,
    FenceRules,
    RepeatRules,
    TenantRules,
    BatchRules,
    ValueRules,
    RecordRules,
    TimerRules,
    MoveRules,
    OwnerRules,
    ThreadRules,
    LaneRules,
    WriteRules,
    CopyRules,
    ThreadListRules,
    ExpiryOfThreadsRules,
):
    """Every rule that a store keeps; each test's name is the rule."""

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Run a test once for each of its cases."""
        named = case_ids(metafunc.function)
        if named:
            metafunc.parametrize("case", list(named.values()), ids=list(named))
