"""Graphs as runs: started or resumed by name, seen from outside, answered by people, delivered to workers."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import aclosing
from contextvars import Context, copy_context
from types import TracebackType
from typing import Any, Literal, Self

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
    Suspended,
    Worker,
)
from stepfast import inputs as check
from stepfast.adapters import (
    OnDrift,
    OnInDoubt,
    OnWait,
    OpenStore,
    PolicyLike,
    Settings,
    StoreLike,
    apart,
    apart_async,
    check_store,
    naming,
    open_any,
    serve,
)
from stepfast.flow import Flow, drive, drive_async, stream, stream_async

from ._carried import CarriedSaver, current_trip
from ._chunks import INTERRUPT, Chunks
from ._journals import place_of
from ._journey import Journey
from ._tools import tools_of, watch_tools
from ._trip import Trip, is_answer
from ._types import make_codec

Config = Mapping[str, Any]
Durability = Literal["sync", "async", "exit"]
Nodes = Literal["*"] | Sequence[str] | None

_DURABILITIES = ("sync", "async", "exit")


def durable(
    graph: Any,
    run_id: str | Callable[[Any], str] | None = None,
    store: StoreLike = None,
    *,
    on_in_doubt: OnInDoubt = "ask",
    policies: Mapping[str, PolicyLike] | None = None,
    on_drift: OnDrift = "raise",
    on_wait: OnWait = "suspend",
    labels: Mapping[str, str] | None = None,
    on_error: Literal["hand_back", "fail"] = "hand_back",
    on_failed: Literal["raise", "revive"] = "raise",
    durability: Durability = "sync",
    config: Config | None = None,
    result: Callable[[Any], Any] | None = None,
    max_delivery_attempts: int | None = None,
    ttl_seconds: float | None = None,
    wait: float | None = None,
    lease_seconds: float = 30.0,
) -> Durable:
    """Make the runs of a compiled graph durable: each has a name, and started again it goes on where it stopped.

    ``store`` is where the runs are: a URL, a path, a store or a client; by default that of the graph's
    ``StepfastSaver``, else the embedded one. The graph keeps its checkpointer; without one it gets a
    ``StepfastSaver`` on the same store. ``run_id`` is the name where ``run`` gets none, or a function of the input.

    A tool that a model called, and that was cut short, is treated by its policy: ``policies`` maps names or patterns of
    tools to *ask* (or *once*), *retry* (*idempotent*), *fail*, *composite* or a probe; ``on_in_doubt`` is for tools
    that say nothing, and for one-shot calls of nodes that do not say it themselves. ``on_drift`` is what happens if a
    run is started again with another input, or a tool call is made with other arguments than recorded: *raise*,
    *warn*, or *accept* what was recorded. ``on_wait`` is what happens where a person must decide: *suspend* raises
    ``stepfast.Suspended``, *block* waits in this process, *return* returns the state with ``__interrupt__``, which
    lists all that is asked.

    ``durability`` is LangGraph's; ``config`` is merged under that of each call. ``result`` makes of the final state
    what is kept and returned as the run's result. The other options are those of ``Stepfast.run``.
    """
    settings = Settings(
        on_in_doubt=on_in_doubt,
        policies=policies,
        on_drift=on_drift,
        on_wait=on_wait,
        labels=labels,
        max_delivery_attempts=max_delivery_attempts,
        wait=wait,
    )
    options = {
        "max_delivery_attempts": settings.max_delivery_attempts,
        "ttl_seconds": check.seconds("ttl_seconds", ttl_seconds, positive=True),
        "on_error": check.choice("on_error", on_error, ("hand_back", "fail")),
        "on_failed": check.choice("on_failed", on_failed, ("raise", "revive")),
        "wait": settings.wait,
    }
    check.choice("durability", durability, _DURABILITIES)
    check.function("result", result, optional=True)
    check.seconds("lease_seconds", lease_seconds, least=1.0, optional=False)
    naming(run_id)
    check_store(store)
    own = dict(check.mapping("config", config))
    return Durable(graph, run_id, store, settings, on_in_doubt, durability, own, result, options, lease_seconds)


class Durable:
    """A graph whose runs outlive their process. Made by `durable`; safe to share between threads and event loops."""

    def __init__(
        self,
        graph: Any,
        run_id: str | Callable[[Any], str] | None,
        store: StoreLike,
        settings: Settings,
        on_in_doubt: OnInDoubt,
        durability: Durability,
        config: dict[str, Any],
        result: Callable[[Any], Any] | None,
        run_options: dict[str, Any],
        lease_seconds: float,
    ) -> None:
        if not (callable(getattr(graph, "stream", None)) and callable(getattr(graph, "copy", None))):
            raise InvalidInput(f"graph: must be a compiled graph, not {type(graph).__name__}. Call .compile() first.")
        watch_tools()
        saver = graph.checkpointer
        self.graph = graph
        self._saver = saver if isinstance(saver, BaseCheckpointSaver) else None
        self._where = store if store is not None else place_of(self._saver)
        self._run_id = run_id
        self._settings = settings
        self._on_in_doubt = on_in_doubt
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
        context: Any = None,
        interrupt_before: Nodes = None,
        interrupt_after: Nodes = None,
        durability: Durability | None = None,
        output_keys: str | Sequence[str] | None = None,
        print_mode: str | Sequence[str] | None = None,
        debug: bool | None = None,
        control: Any = None,
    ) -> Any:
        """Start this run, or go on with it, and return the final state. A completed run returns what it returned.

        ``input`` counts when the run is begun. ``Command(resume=…)`` answers the interrupt it waits at. ``on_wait``
        counts for this call; the options behind it are those of the graph's ``invoke``.
        """
        options = _graph_options(locals())
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
        context: Any = None,
        interrupt_before: Nodes = None,
        interrupt_after: Nodes = None,
        durability: Durability | None = None,
        output_keys: str | Sequence[str] | None = None,
        print_mode: str | Sequence[str] | None = None,
        debug: bool | None = None,
        control: Any = None,
    ) -> Iterator[Any]:
        """`run` as the graph's ``stream`` yields it; a run that is resumed streams what it still has to do."""
        options = _graph_options(locals())
        chunks = Chunks(stream_mode or self.graph.stream_mode, subgraphs=subgraphs, version=version)
        return self._stream(self._journey(input, run_id, config, on_wait, options, chunks))

    async def arun(
        self,
        input: Any = None,  # noqa: A002
        run_id: str | None = None,
        config: Config | None = None,
        *,
        on_wait: OnWait | None = None,
        context: Any = None,
        interrupt_before: Nodes = None,
        interrupt_after: Nodes = None,
        durability: Durability | None = None,
        output_keys: str | Sequence[str] | None = None,
        print_mode: str | Sequence[str] | None = None,
        debug: bool | None = None,
        control: Any = None,
    ) -> Any:
        """`run` on an event loop."""
        options = _graph_options(locals())
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
        context: Any = None,
        interrupt_before: Nodes = None,
        interrupt_after: Nodes = None,
        durability: Durability | None = None,
        output_keys: str | Sequence[str] | None = None,
        print_mode: str | Sequence[str] | None = None,
        debug: bool | None = None,
        control: Any = None,
    ) -> AsyncIterator[Any]:
        """`stream` on an event loop."""
        options = _graph_options(locals())
        chunks = Chunks(stream_mode or self.graph.stream_mode, subgraphs=subgraphs, version=version)
        return self._astream(self._journey(input, run_id, config, on_wait, options, chunks))

    # --- deliveries ------------------------------------------------------------------------------------

    def handle(self, run: Run, payload: Any) -> Any:
        """A worker's handler: the payload is the graph's input, and the result is its final state."""
        journey = self._delivery(run, payload)
        travel = self._travel(journey, run, self._carried(run.store))
        for _ in apart(_own_context(), stream(travel, run.store, run.store.tenant)):
            pass
        return journey.result

    async def ahandle(self, run: AsyncRun, payload: Any) -> Any:
        """The same for a worker on an event loop."""
        journey = self._delivery(run, payload)
        travel = self._travel(journey, run, self._carried(run.store))
        chunks = stream_async(travel, AsyncStore(run.store), run.store.tenant)
        async with aclosing(apart_async(_own_context(), chunks)) as all_:
            async for _ in all_:
                pass
        return journey.result

    def __call__(self, run: Run, payload: Any) -> Any:
        """`handle`, so that ``stepfast worker module:this`` works."""
        return self.handle(run, payload)

    def worker(
        self,
        client: Stepfast | AsyncStepfast,
        address: str,
        *,
        concurrency: int = 1,
        retry_seconds: float = 1.0,
        retry_max_seconds: float = 300.0,
        drain_seconds: float = 30.0,
    ) -> Worker | AsyncWorker:
        """Serve an address with this graph; the options are those of ``Stepfast.worker``."""
        return serve(
            client,
            address,
            self.ahandle if isinstance(client, AsyncStepfast) else self.handle,
            concurrency=concurrency,
            retry_seconds=retry_seconds,
            retry_max_seconds=retry_max_seconds,
            drain_seconds=drain_seconds,
        )

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
                self._settings.policies.announce(tools_of(self.graph))
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
        name = check.text("run_id", run_id) or (self._run_id(given) if callable(self._run_id) else self._run_id)
        if not name:
            raise InvalidInput("run_id: name the run, so that it is found again after a crash.")
        if on_wait is not None:
            check.choice("on_wait", on_wait, ("suspend", "block", "return"))
        asked = check.mapping("config", config)
        merged = {**self._config, **asked}
        for part in ("configurable", "metadata"):
            both = {**self._config.get(part, {}), **asked.get(part, {})}
            if both:
                merged[part] = both
        chosen = {"durability": self._durability, **options}
        return Journey(given, name, merged, on_wait or self._settings.on_wait, chosen, chunks)

    def _delivery(self, run: Run | AsyncRun, payload: Any) -> Journey:
        return Journey(payload, run.run_id, self._config, "suspend", {"durability": self._durability}, Chunks(()))

    def _trip(self, journey: Journey, run: Run | AsyncRun, graph: Any, client: Any) -> Trip:
        resume = journey.given if is_answer(journey.given) else None
        options = dict(journey.options)
        if not journey.chunks.wants_anything:
            options.setdefault("output_keys", graph.output_channels)
        return Trip(
            client, run, graph, journey.config, journey.chunks, options, resume, self._settings, self._on_in_doubt
        )

    # --- the same, blocking and on an event loop ---------------------------------------------------------

    def _opening(self, journey: Journey, client: Any, graph: Any) -> Flow[Any]:
        shown = {"framework": "langgraph", "graph": self.graph.get_name(), "thread_id": journey.thread_id}
        options = {**self._run_options, "labels": {**shown, **self._settings.labels}}
        return journey.opening(client, graph, self._settings.on_drift, options)

    def _travel(self, journey: Journey, run: Run | AsyncRun, graph: Any, client: Any = None) -> Flow[None]:
        trip = journey.trip = self._trip(journey, run, graph, client)
        current_trip.set(trip)
        yield from trip.course(journey.input_of(run))
        yield trip.report()
        journey.result = trip.result if self._result is None else self._result(trip.result)

    def _stream(self, journey: Journey) -> Iterator[Any]:
        return apart(_own_context(), self._begin(journey))

    def _begin(self, journey: Journey) -> Generator[Any, None, None]:
        client = self._open().client(lease_seconds=self._lease_seconds)
        store, graph = client.store, self._carried(client.store)
        try:
            run: Run = drive(self._opening(journey, client, graph), store, store.tenant)
            with run:
                if run.replaying:
                    journey.result = run.result
                    yield from journey.chunks.last(run.result)
                    return
                yield from stream(self._travel(journey, run, graph, client), store, store.tenant)
                run.complete(journey.result)
        except Suspended as waits:
            if not journey.returns(waits):
                raise
            journey.result = drive(journey.pending(client, graph), store, store.tenant)
            if not journey.stopped:  # it waited already, so nothing of that was streamed
                yield from journey.chunks.last(journey.result, journey.result[INTERRUPT])

    def _astream(self, journey: Journey) -> AsyncGenerator[Any, None]:
        return apart_async(_own_context(), self._abegin(journey))

    async def _abegin(self, journey: Journey) -> AsyncGenerator[Any, None]:
        client = self._open().aclient(lease_seconds=self._lease_seconds)
        store, graph, tenant = AsyncStore(client.store), self._carried(client.store), client.store.tenant
        try:
            run: AsyncRun = await drive_async(self._opening(journey, client, graph), store, tenant)
            async with run:
                if run.replaying:
                    journey.result = run.result
                    for chunk in journey.chunks.last(run.result):
                        yield chunk
                    return
                async with aclosing(stream_async(self._travel(journey, run, graph, client), store, tenant)) as chunks:
                    async for chunk in chunks:
                        yield chunk
                run.complete(journey.result)
        except Suspended as waits:
            if not journey.returns(waits):
                raise
            journey.result = await drive_async(journey.pending(client, graph), store, tenant)
            if not journey.stopped:
                for chunk in journey.chunks.last(journey.result, journey.result[INTERRUPT]):
                    yield chunk


_GRAPH_OPTIONS = (
    *("context", "interrupt_before", "interrupt_after", "durability"),
    *("output_keys", "print_mode", "debug", "control"),
)


def _graph_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a call that are the graph's own; those that were left out keep its defaults."""
    if given["durability"] is not None:
        check.choice("durability", given["durability"], _DURABILITIES)
    return {name: given[name] for name in _GRAPH_OPTIONS if given[name] is not None}


def _own_context() -> Context:
    """A run is a run of its own, also when it is started inside a node of another graph."""
    context = copy_context()
    context.run(var_child_runnable_config.set, None)
    return context
