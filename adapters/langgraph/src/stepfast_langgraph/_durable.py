"""Graphs as runs: started or resumed by name, seen from outside, answered by people, delivered to workers."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import aclosing
from contextvars import Context, copy_context
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from langchain_core.runnables.config import var_child_runnable_config
from langgraph.checkpoint.base import BaseCheckpointSaver

from stepfast import (
    AsyncRun,
    AsyncStepfast,
    AsyncStore,
    AsyncWorker,
    InvalidInput,
    Run,
    Stepfast,
    Store,
    Worker,
)
from stepfast.adapters import OpenStore, StoreLike, apart, apart_async, choice, open_any
from stepfast.flow import Flow, drive, drive_async, stream, stream_async

from ._carried import CarriedSaver, current_trip
from ._chunks import Chunks
from ._journals import place_of
from ._journey import Journey, OnWait
from ._trip import Trip, is_answer
from ._types import make_codec

T = TypeVar("T")
Config = Mapping[str, Any]
OnDrift = Literal["raise", "warn", "accept"]
OnInDoubt = Literal["ask", "retry", "fail"]
Durability = Literal["sync", "async", "exit"]

_GIVEN_TO_GRAPH = frozenset(
    ("context", "interrupt_before", "interrupt_after", "durability", "debug", "print_mode", "control", "output_keys")
)


def durable(
    graph: Any,
    run_id: str | Callable[[Any], str] | None = None,
    store: StoreLike = None,
    *,
    on_in_doubt: OnInDoubt = "ask",
    on_drift: OnDrift = "raise",
    on_wait: OnWait = "suspend",
    on_error: Literal["hand_back", "fail"] = "hand_back",
    on_failed: Literal["raise", "revive"] = "raise",
    durability: Durability = "sync",
    config: Config | None = None,
    result: Callable[[Any], Any] | None = None,
    labels: Mapping[str, str] | None = None,
    max_delivery_attempts: int | None = None,
    ttl_seconds: float | None = None,
    wait: float | None = None,
    lease_seconds: float = 30.0,
) -> Durable:
    """Make the runs of a compiled graph durable: each has a name, and started again it goes on where it stopped.

    ``store`` is where the runs are: a URL, a path, a store or a client; by default that of the graph's
    ``StepfastSaver``, else the embedded one. The graph keeps its checkpointer; without one it gets a
    ``StepfastSaver`` on the same store. ``run_id`` is the name where ``run`` gets none, or a function of the input.

    ``on_in_doubt`` is what happens to a one-shot call in a node that was started and never confirmed: *ask* a person,
    *retry* or *fail* it. ``on_drift`` is what happens if a run is started again with another input: *raise* a
    ``Conflict``, *warn*, or *accept*; the recorded input counts. ``on_wait`` is what happens at an interrupt: *suspend*
    raises ``stepfast.Suspended``, *block* waits in this process. ``durability`` is LangGraph's; ``config`` is merged
    under that of each call. ``result`` makes of the final state what is kept and given as the run's result. The other
    options are those of ``Stepfast.run``.
    """
    choice("on_wait", on_wait, ("suspend", "block"))
    if on_in_doubt not in ("ask", "retry", "fail"):
        raise InvalidInput(
            f"on_in_doubt: must be 'ask', 'retry' or 'fail', not {on_in_doubt!r}. A probe is given to the call itself."
        )
    choice("on_drift", on_drift, ("raise", "warn", "accept"))
    options = {
        "labels": dict(labels or {}),
        "max_delivery_attempts": max_delivery_attempts,
        "ttl_seconds": ttl_seconds,
        "on_error": on_error,
        "on_failed": on_failed,
        "wait": wait,
    }
    policies = (on_in_doubt, on_drift, on_wait)
    return Durable(graph, run_id, store, policies, durability, dict(config or {}), result, options, lease_seconds)


class Durable:
    """A graph whose runs outlive their process. Made by `durable`; safe to share between threads and event loops."""

    def __init__(
        self,
        graph: Any,
        run_id: str | Callable[[Any], str] | None,
        store: StoreLike,
        policies: tuple[OnInDoubt, OnDrift, OnWait],
        durability: Durability,
        config: dict[str, Any],
        result: Callable[[Any], Any] | None,
        run_options: dict[str, Any],
        lease_seconds: float,
    ) -> None:
        if not (callable(getattr(graph, "stream", None)) and callable(getattr(graph, "copy", None))):
            raise InvalidInput(f"graph: must be a compiled graph, not {type(graph).__name__}. Call .compile() first.")
        saver = graph.checkpointer
        self.graph = graph
        self._saver = saver if isinstance(saver, BaseCheckpointSaver) else None
        self._where = store if store is not None else place_of(self._saver)
        self._run_id = run_id
        self._on_in_doubt, self._on_drift, self._on_wait = policies
        self._durability = durability
        self._config = config
        self._result = result
        self._run_options = run_options
        self._lease_seconds = lease_seconds
        self._lock = threading.Lock()
        self._opened: OpenStore | None = None
        self._graphs: dict[int, tuple[Store | None, Any]] = {}

    def __repr__(self) -> str:
        return f"<Durable {self.graph.get_name()}>"

    # --- starting and resuming -------------------------------------------------------------------------

    def run(
        self,
        input: Any = None,  # noqa: A002 - as LangGraph calls it
        run_id: str | None = None,
        config: Config | None = None,
        *,
        on_wait: OnWait | None = None,
        **options: Any,
    ) -> Any:
        """Start this run, or go on with it; gives the final state. A run that is completed gives what it gave.

        ``input`` counts when the run is begun. ``Command(resume=…)`` answers the interrupt it waits at. ``options``
        are those of the graph's ``invoke``: ``context``, ``interrupt_before``, ``durability`` …
        """
        journey = self._journey(input, run_id, config, on_wait, options, Chunks(()))
        for _ in self._stream(journey):
            pass
        return journey.result

    def stream(
        self,
        input: Any = None,  # noqa: A002
        run_id: str | None = None,
        config: Config | None = None,
        *,
        stream_mode: str | Sequence[str] | None = None,
        subgraphs: bool = False,
        version: str = "v1",
        on_wait: OnWait | None = None,
        **options: Any,
    ) -> Iterator[Any]:
        """The same, as the graph's ``stream`` gives it; a run that is resumed streams what it still has to do."""
        chunks = Chunks(stream_mode or self.graph.stream_mode, subgraphs=subgraphs, version=version)
        return self._stream(self._journey(input, run_id, config, on_wait, options, chunks))

    async def arun(
        self,
        input: Any = None,  # noqa: A002
        run_id: str | None = None,
        config: Config | None = None,
        *,
        on_wait: OnWait | None = None,
        **options: Any,
    ) -> Any:
        """`run` on an event loop."""
        journey = self._journey(input, run_id, config, on_wait, options, Chunks(()))
        async with aclosing(self._astream(journey)) as chunks:
            async for _ in chunks:
                pass
        return journey.result

    def astream(
        self,
        input: Any = None,  # noqa: A002
        run_id: str | None = None,
        config: Config | None = None,
        *,
        stream_mode: str | Sequence[str] | None = None,
        subgraphs: bool = False,
        version: str = "v1",
        on_wait: OnWait | None = None,
        **options: Any,
    ) -> AsyncIterator[Any]:
        """`stream` on an event loop."""
        chunks = Chunks(stream_mode or self.graph.stream_mode, subgraphs=subgraphs, version=version)
        return self._astream(self._journey(input, run_id, config, on_wait, options, chunks))

    # --- deliveries ------------------------------------------------------------------------------------

    def handle(self, run: Run, payload: Any) -> Any:
        """A worker's handler: the payload is the graph's input, and the result is its final state."""
        journey = Journey(payload, run.run_id, self._config, "suspend", self._graph_options({}), Chunks(()))
        travel = self._travel(journey, run, self._carried(run.store))
        for _ in apart(_own_context(), stream(travel, run.store, run.store.tenant)):
            pass
        return journey.result

    async def ahandle(self, run: AsyncRun, payload: Any) -> Any:
        """The same for a worker on an event loop."""
        journey = Journey(payload, run.run_id, self._config, "suspend", self._graph_options({}), Chunks(()))
        travel = self._travel(journey, run, self._carried(run.store))
        chunks = stream_async(travel, AsyncStore(run.store), run.store.tenant)
        async with aclosing(apart_async(_own_context(), chunks)) as all_:
            async for _ in all_:
                pass
        return journey.result

    def __call__(self, run: Run, payload: Any) -> Any:
        """`handle`, so that ``stepfast worker module:this`` works."""
        return self.handle(run, payload)

    def worker(self, client: Stepfast | AsyncStepfast, address: str, **options: Any) -> Worker | AsyncWorker:
        """Serve an address with this graph; ``options`` are those of ``Stepfast.worker``."""
        if isinstance(client, AsyncStepfast):
            return client.worker(address, **options)(self.ahandle)
        return client.worker(address, **options)(self.handle)

    # --- where it all is ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Give back the store if it was opened here. A client or store that was given stays open."""
        with self._lock:
            opened, self._opened = self._opened, None
            self._graphs.clear()
        if opened is not None:
            opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> OpenStore:
        with self._lock:
            if self._opened is None:
                where = self._where
                if isinstance(where, OpenStore):
                    self._opened = OpenStore(where.store, where.codec, owned=False)
                else:
                    self._opened = open_any(where, make_codec=make_codec)
            return self._opened

    def _carried(self, store: Store) -> Any:
        """The graph with its saver watched over; one that has none gets a saver on the store of its runs."""
        key = 0 if self._saver is not None else id(store)
        with self._lock:
            if key not in self._graphs:
                saver = self._saver
                if saver is None:
                    from .saver import StepfastSaver

                    saver = StepfastSaver(store)
                # The store is kept with it: another one must not get its id.
                self._graphs[key] = (store, self.graph.copy({"checkpointer": CarriedSaver(saver)}))
            return self._graphs[key][1]

    # --- one call ----------------------------------------------------------------------------------------

    def _journey(
        self,
        given: Any,
        run_id: str | None,
        config: Config | None,
        on_wait: OnWait | None,
        options: dict[str, Any],
        chunks: Chunks,
    ) -> Journey:
        name = run_id or (self._run_id(given) if callable(self._run_id) else self._run_id)
        if not name:
            raise InvalidInput("run_id: name the run, so that it is found again after a crash.")
        merged = {**self._config, **(config or {})}
        for part in ("configurable", "metadata"):
            both = {**self._config.get(part, {}), **(config or {}).get(part, {})}
            if both:
                merged[part] = both
        return Journey(given, name, merged, on_wait or self._on_wait, self._graph_options(options), chunks)

    def _graph_options(self, options: dict[str, Any]) -> dict[str, Any]:
        unknown = set(options) - _GIVEN_TO_GRAPH
        if unknown:
            raise InvalidInput(
                f"{', '.join(sorted(unknown))}: not known here. Known: {', '.join(sorted(_GIVEN_TO_GRAPH))}."
            )
        return {"durability": self._durability, **{k: v for k, v in options.items() if v is not None}}

    def _options_of(self, journey: Journey) -> dict[str, Any]:
        own = {"graph": self.graph.get_name(), "thread_id": journey.thread_id}
        return {**self._run_options, "labels": {**own, **self._run_options["labels"]}}

    def _came_to(self, trip: Trip) -> Any:
        return trip.result if self._result is None else self._result(trip.result)

    def _trip(self, journey: Journey, run: Run | AsyncRun, graph: Any, client: Any) -> Trip:
        given = journey.given
        resume = given if is_answer(given) else None
        options = dict(journey.options)
        if not journey.chunks.wants_anything:
            options.setdefault("output_keys", graph.output_channels)
        return Trip(client, run, graph, run.codec, journey.config, journey.chunks, options, resume, self._on_in_doubt)

    # --- the same, blocking and on an event loop ---------------------------------------------------------

    def _travel(self, journey: Journey, run: Run | AsyncRun, graph: Any, client: Any = None) -> Flow[None]:
        trip = self._trip(journey, run, graph, client)
        current_trip.set(trip)
        yield from trip.course(journey.input_of(run))
        yield trip.report()
        journey.result = self._came_to(trip)

    def _opening(self, journey: Journey, client: Any, graph: Any) -> Flow[Any]:
        return journey.opening(client, graph, self._on_drift, self._options_of(journey))

    def _stream(self, journey: Journey) -> Iterator[Any]:
        return apart(_own_context(), self._begin(journey))

    def _begin(self, journey: Journey) -> Generator[Any, None, None]:
        client = self._open().client(lease_seconds=self._lease_seconds)
        store, graph = client.store, self._carried(client.store)
        run: Run = drive(self._opening(journey, client, graph), store, store.tenant)
        with run:
            if run.replaying:
                journey.result = run.result
                yield from journey.chunks.last(run.result)
                return
            yield from stream(self._travel(journey, run, graph, client), store, store.tenant)
            run.complete(journey.result)

    def _astream(self, journey: Journey) -> AsyncGenerator[Any, None]:
        return apart_async(_own_context(), self._abegin(journey))

    async def _abegin(self, journey: Journey) -> AsyncGenerator[Any, None]:
        client = self._open().aclient(lease_seconds=self._lease_seconds)
        store, graph = AsyncStore(client.store), self._carried(client.store)
        run: AsyncRun = await drive_async(self._opening(journey, client, graph), store, client.store.tenant)
        async with run:
            if run.replaying:
                journey.result = run.result
                for chunk in journey.chunks.last(run.result):
                    yield chunk
                return
            travel = stream_async(self._travel(journey, run, graph, client), store, client.store.tenant)
            async with aclosing(travel) as chunks:
                async for chunk in chunks:
                    yield chunk
            run.complete(journey.result)


def _own_context() -> Context:
    """A run is a run of its own, also when it is started inside a node of another graph."""
    context = copy_context()
    context.run(var_child_runnable_config.set, None)
    return context
