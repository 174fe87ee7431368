"""DurableSwarm: Swarm with runs that have a name and outlive their process."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any, Self

from swarm import Agent, Response, Swarm

from stepfast import InvalidInput, Run, Scope, Stepfast, Suspended, Waiting, Worker, current_run
from stepfast.adapters import (
    LazyStore,
    OnDrift,
    OnInDoubt,
    OnWait,
    PolicyLike,
    Prices,
    RunName,
    Settings,
    StoreLike,
    StoreOwner,
    apart,
    flag,
    input_from,
    naming,
    plain,
    run_name,
    serve,
)

from ._agents import Agents
from ._attempt import Function, SwarmAttempt, place
from ._model import client_with

_FRAMEWORK = "openai-swarm"
_OPTIONS = ("context_variables", "model_override", "debug", "max_turns", "execute_tools")


class DurableSwarm(StoreOwner, Swarm):  # type: ignore[misc]  # it has no types
    """Swarm, with a name for each run. The same name again goes on where the run stopped, or returns its result.

    The options are those of `durable`. ``agents`` names agents that a handoff may lead to and no function refers to by
    a variable. ``replay_events=False`` leaves finished turns out of a resumed stream.
    """

    _attempt: SwarmAttempt | None = None  # these two only of the copy that drives a run
    _ending: Any = None

    def __init__(
        self,
        client: Any = None,
        *,
        store: StoreLike = None,
        agents: Iterable[Agent] = (),
        on_in_doubt: OnInDoubt = "ask",
        policies: Mapping[str, PolicyLike] | None = None,
        on_drift: OnDrift = "raise",
        on_wait: OnWait = "suspend",
        replay_events: bool = True,
        labels: Mapping[str, str] | None = None,
        prices: Prices | None = None,
        max_delivery_attempts: int | None = None,
        wait: float | None = None,
    ) -> None:
        self._settings = Settings(
            on_in_doubt=on_in_doubt,
            policies=policies,
            on_drift=on_drift,
            on_wait=on_wait,
            labels=labels,
            prices=prices,
            max_delivery_attempts=max_delivery_attempts,
            wait=wait,
        )
        self._agents = tuple(agents)
        for each in self._agents:
            if not isinstance(each, Agent):
                raise InvalidInput(f"agents: must hold Agents of Swarm, not {type(each).__name__}.")
        self._replay_events = flag("replay_events", replay_events)
        self._store = LazyStore(store)
        super().__init__(client)

    # --- Swarm's own methods -----------------------------------------------------------------------

    def run(
        self,
        agent: Agent,
        messages: list[Any] | None = None,
        context_variables: dict[str, Any] | None = None,
        model_override: str | None = None,
        stream: bool = False,
        debug: bool = False,
        max_turns: float = float("inf"),
        execute_tools: bool = True,
        *,
        run_id: str | None = None,
        run: Run | None = None,
    ) -> Any:
        """Start a run, go on with it, or return its result: Swarm's Response, or its events with ``stream``.

        ``run_id`` names the run; or ``run`` is one that is open already, such as a worker's. Inside a run neither is
        needed. Without ``messages`` the recorded ones are used.
        """
        if run_id is not None and run is not None:
            raise InvalidInput("run: an open run has its name already; leave run_id out.")
        options = {
            "context_variables": context_variables or {},
            "model_override": model_override,
            "debug": debug,
            "max_turns": max_turns,
            "execute_tools": execute_tools,
        }
        if stream:
            # In a context of its own: between two events the caller does not stand inside the run.
            return apart(copy_context(), self._stream(agent, messages, options, run_id, run))
        try:
            with self._opening(agent, messages, run_id, run) as (driven, found):
                driven._ending = Swarm.run(driven, agent, found, **options)
                return driven._ending
        except Suspended as waits:
            return self._waiting(waits, run_id)

    def run_and_stream(self, agent: Agent, messages: list[Any] | None = None, *args: Any, **options: Any) -> Any:
        """The same as ``run`` with ``stream=True``."""
        if self._attempt is not None:
            return super().run_and_stream(agent, messages, *args, **options)
        return self.run(agent, messages, stream=True, **dict(zip(_OPTIONS, args, strict=False)), **options)

    def get_chat_completion(self, agent: Agent, *args: Any, **options: Any) -> Any:
        """Swarm's; the client it calls is the one that records."""
        if self._attempt is not None:
            self._attempt.begin_turn(agent)
        return super().get_chat_completion(agent, *args, **options)

    def handle_tool_calls(
        self, tool_calls: list[Any], functions: list[Function], context_variables: dict[str, Any], debug: bool
    ) -> Any:
        """Swarm's, one call at a time, each a step of the run."""
        handle = super().handle_tool_calls
        if self._attempt is None:
            return handle(tool_calls, functions, context_variables, debug)
        known = {function.__name__: function for function in functions}
        whole = Response(messages=[], agent=None, context_variables={})
        for call in tool_calls:

            def effect(call: Any = call) -> Any:
                return handle([call], functions, context_variables, debug)

            function = known.get(call.function.name)
            part = effect() if function is None else self._attempt.tool(call, function, context_variables, effect)
            whole.messages.extend(part.messages)
            whole.context_variables.update(part.context_variables)
            whole.agent = part.agent or whole.agent
        return whole

    # --- runs ----------------------------------------------------------------------------------------

    def rewind(self, run_id: str, step: str, *, include_once: bool = False, reason: str = "rewound") -> int:
        """``sf.rewind`` in this swarm's store: set a step and all after it aside, so that they are done again."""
        return self._store.get().client().rewind(run_id, step, include_once=include_once, reason=reason)

    def carry_out(self, run: Run, agent: Agent, messages: list[Any]) -> dict[str, Any]:
        """Run an agent in a run that is open, such as a worker's; returns what is seen of it from outside."""
        with self._opening(agent, messages, None, run) as (driven, found):
            driven._ending = Swarm.run(driven, agent, found)
            return driven._summary()

    def _stream(
        self, agent: Agent, messages: list[Any] | None, options: dict[str, Any], run_id: str | None, run: Run | None
    ) -> Generator[dict[str, Any], None, None]:
        ending: Any
        try:
            with self._opening(agent, messages, run_id, run) as (driven, found):
                attempt = driven._attempt
                assert attempt is not None  # noqa: S101
                for event in Swarm.run(driven, agent, found, stream=True, **options):
                    if "response" in event:
                        driven._ending = event["response"]
                    elif self._replay_events or not attempt.replays:
                        yield event
            ending = driven._ending
        except Suspended as waits:
            ending = self._waiting(waits, run_id)
        yield {"response": ending}  # only now: callers stop listening at it, and the run is to be complete

    def _waiting(self, waits: Suspended, run_id: str | None) -> Waiting:
        """Return what a run waits for where the caller wants it returned; raise it otherwise."""
        if self._settings.returns(waits, run_id):
            return self._store.get().client().waiting(waits)
        raise waits

    @contextmanager
    def _opening(
        self, agent: Agent, messages: list[Any] | None, run_id: str | None, run: Run | None
    ) -> Iterator[tuple[DurableSwarm, list[Any]]]:
        """A copy of this swarm that drives one run, and the messages that the run began with."""
        if run_id is None:
            opened, scope = self._place(run, agent)
            if messages is None:
                raise InvalidInput("messages: a run inside another has none recorded; pass them.")
            with self._driving(opened, scope, agent) as driven:
                yield driven, messages
            return
        payload = None if messages is None else {"agent": agent.name, "messages": plain(messages)}
        options = self._settings.run_options(_FRAMEWORK, agent=agent.name)
        with self._store.get().client().run(run_id, payload=payload, **options) as opened:
            if messages is None:
                recorded = opened.payload
                if not isinstance(recorded, dict) or "messages" not in recorded:
                    raise InvalidInput(f"messages: run {run_id} has none recorded; pass them.")
                messages = recorded["messages"]
            with self._driving(opened, opened, agent) as driven:
                yield driven, messages
            if driven._ending is not None and not opened.replaying:
                opened.complete(driven._summary())

    def _summary(self) -> dict[str, Any]:
        attempt, response = self._attempt, self._ending
        assert attempt is not None  # noqa: S101
        last = response.messages[-1] if response.messages else {}
        return {
            "final_output": last.get("content"),
            "last_agent": None if response.agent is None else response.agent.name,
            "messages": len(response.messages),
            "usage": attempt.run.drive(attempt.meter.complete(attempt.run)).as_dict(),
        }

    def _place(self, run: Run | None, agent: Agent) -> tuple[Run, Scope]:
        at = place.here()
        if run is None and at is not None:
            run, parent = at
        else:
            found = run or current_run()
            if not isinstance(found, Run):
                raise InvalidInput("run_id: a durable run needs a name, by which it is found again; pass run_id=….")
            run = parent = found
        counts: Counter[str] = run.__dict__.setdefault("_swarm_runs", Counter())
        name = f"{parent.path}/{agent.name}"
        counts[name] += 1
        return run, parent.scope(f"{agent.name}.{counts[name]}", shared=True)

    @contextmanager
    def _driving(self, run: Run, scope: Scope, agent: Agent) -> Iterator[DurableSwarm]:
        driven = copy.copy(self)
        complete = self.client.chat.completions.create
        attempt = SwarmAttempt(run, scope, self._settings, complete, Agents(agent, self._agents))
        driven._attempt = attempt
        driven.client = client_with(self.client, attempt.create)
        with attempt.concluding():
            yield driven


class DurableAgent:
    """An agent whose runs outlive their process. Made by `durable`; the options of its methods are Swarm's."""

    def __init__(self, swarm: DurableSwarm, agent: Agent, run_id: RunName) -> None:
        self.swarm = swarm
        self.agent = agent
        self._run_id = run_id

    def run(
        self,
        messages: list[Any] | None = None,
        run_id: str | None = None,
        *,
        context_variables: dict[str, Any] | None = None,
        model_override: str | None = None,
        stream: bool = False,
        debug: bool = False,
        max_turns: float = float("inf"),
        execute_tools: bool = True,
    ) -> Any:
        """Start a run, go on with it, or return its result: Swarm's Response, or its events with ``stream``."""
        return self.swarm.run(
            self.agent,
            messages,
            context_variables,
            model_override,
            stream,
            debug,
            max_turns,
            execute_tools,
            run_id=run_name(run_id, self._run_id, messages),
        )

    def resume(self, run_id: str | None = None, *, context_variables: dict[str, Any] | None = None) -> Any:
        """Go on with a run, from the messages that it began with."""
        return self.run(None, run_id, context_variables=context_variables)

    def rewind(self, step: str, run_id: str | None = None, *, include_once: bool = False) -> int:
        """Set a step of a run and all after it aside, so that they are done again: see ``sf.rewind``."""
        return self.swarm.rewind(run_name(run_id, self._run_id), step, include_once=include_once)

    def worker(self, client: Stepfast, address: str, **options: Any) -> Worker:
        """Serve an address with this agent; the payload is the messages, or has them. Options of ``sf.worker``."""

        def handle(run: Run, messages: list[Any]) -> Any:
            return self.swarm.carry_out(run, self.agent, messages)

        def unpack(payload: Any) -> Any:
            return input_from(payload, (list,), "a list of messages", "messages")

        return serve(client, address, handle, unpack=unpack, **options)

    def close(self) -> None:
        """Close the store if it was opened here, from a URL."""
        self.swarm.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def durable(
    agent: Agent,
    run_id: RunName = None,
    store: StoreLike = None,
    *,
    on_in_doubt: OnInDoubt = "ask",
    policies: Mapping[str, PolicyLike] | None = None,
    on_drift: OnDrift = "raise",
    on_wait: OnWait = "suspend",
    labels: Mapping[str, str] | None = None,
    prices: Prices | None = None,
    client: Any = None,
    agents: Iterable[Agent] = (),
    replay_events: bool = True,
    max_delivery_attempts: int | None = None,
    wait: float | None = None,
) -> DurableAgent:
    """Make the runs of an agent durable: each has a name, and started again it goes on where it stopped.

    ``run_id`` is the name where ``run`` gets none, or a function of the messages. The shared options are described in
    ``docs/adapters.md``; ``client`` is Swarm's (by default the openai package's own), and `DurableSwarm` has the
    meaning of the others.
    """
    if not isinstance(agent, Agent):
        raise InvalidInput(f"agent: must be an Agent of Swarm, not {type(agent).__name__}.")
    swarm = DurableSwarm(
        client,
        store=store,
        agents=agents,
        on_in_doubt=on_in_doubt,
        policies=policies,
        on_drift=on_drift,
        on_wait=on_wait,
        replay_events=replay_events,
        labels=labels,
        prices=prices,
        max_delivery_attempts=max_delivery_attempts,
        wait=wait,
    )
    return DurableAgent(swarm, agent, naming(run_id))
