"""Numbers for Prometheus. Everything that goes through the platform's store is counted at that one place."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from stepfast.ops import Claim, CreateIntent, Measures, Op, OpenIntent, RecordStep, ReleaseIntent, ReleaseOwner
from stepfast.stores.base import LOCAL_TENANT, AsyncStore, Store
from stepfast.stores.steady import SteadyFuture

_COMMITS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_COUNTED = frozenset({Claim, CreateIntent, OpenIntent, RecordStep, ReleaseIntent, ReleaseOwner})
STATUSES = ("CREATED", "SUBMITTED", "DELIVERED", "IN_PROGRESS", "WAITING")


class Metrics:
    """One registry per app, so that two servers in one process do not share their figures."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.intents = Gauge("stepfast_intents", "Open intents by status.", ["status"], registry=registry)
        self.claimable = Gauge("stepfast_intents_claimable", "Intents a worker could take now.", registry=registry)
        self.store_bytes = Gauge("stepfast_store_bytes", "Size of the store.", registry=registry)
        self.streams = Gauge("stepfast_open_streams", "Open streams.", registry=registry)
        self.created = Counter("stepfast_intents_created", "Intents created here.", registry=registry)
        self.deliveries = Counter("stepfast_deliveries", "Intents handed to a worker here.", registry=registry)
        self.redeliveries = Counter(
            "stepfast_redeliveries", "Deliveries after an earlier attempt was lost.", registry=registry
        )
        self.lease_losses = Counter(
            "stepfast_lease_losses", "Deliveries that ended without an answer.", registry=registry
        )
        self.steps = Counter("stepfast_steps_recorded", "Steps recorded here.", registry=registry)
        self.commits = Histogram(
            "stepfast_commit_seconds", "Time until a write was durable.", buckets=_COMMITS, registry=registry
        )
        self.requests = Counter(
            "stepfast_requests", "Requests by route and status.", ["route", "status"], registry=registry
        )
        self.refused = Counter(
            "stepfast_refused", "Requests refused before a route saw them.", ["why"], registry=registry
        )

    def measured(self, found: Sequence[Measures]) -> None:
        """Take over what the store says of itself; the size is the whole store's in each."""
        for status in STATUSES:
            self.intents.labels(status).set(sum(each.open_by_status.get(status, 0) for each in found))
        self.claimable.set(sum(each.claimable for each in found))
        self.store_bytes.set(max((each.size_bytes for each in found), default=0))

    def count(self, ops: Sequence[Op[Any]], results: Sequence[Any]) -> None:
        """Count what a durable batch did."""
        for op, result in zip(ops, results, strict=True):
            kind = type(op)
            if kind not in _COUNTED:
                continue
            if kind is RecordStep:
                self.steps.inc()
            elif isinstance(op, Claim):
                for intent in result:
                    self._delivered(intent.attempt)
            elif isinstance(op, OpenIntent):
                if result.lease is not None:
                    self._delivered(result.lease.attempt)
            elif isinstance(op, CreateIntent):
                if not result.existed:
                    self.created.inc()
            elif isinstance(op, ReleaseOwner):
                self.lease_losses.inc(result)
            elif isinstance(op, ReleaseIntent) and op.lost:
                self.lease_losses.inc()

    def _delivered(self, attempt: int) -> None:
        self.deliveries.inc()
        if attempt > 1:
            self.redeliveries.inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)


class CountedStore(AsyncStore):
    """The store of a platform: what it writes is timed and counted."""

    def __init__(self, store: Store, metrics: Metrics) -> None:
        super().__init__(store)
        self._metrics = metrics

    def start(self, ops: Sequence[Op[Any]], *, tenant: str = LOCAL_TENANT) -> SteadyFuture:
        future = super().start(ops, tenant=tenant)
        if all(op.reads for op in ops):
            return future
        began = perf_counter()
        metrics = self._metrics

        def done(settled: Any) -> None:
            if settled.exception() is None:
                metrics.commits.observe(perf_counter() - began)
                metrics.count(ops, settled.result())

        future.add_done_callback(done)
        return future
