"""OpenAI's Swarm with runs that have a name and outlive their process. Needs `openai-swarm`, not the Agents SDK."""

from __future__ import annotations

import copy
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import copy_context
from types import FunctionType, MethodType, TracebackType
from typing import Any, Literal, Self, overload

from swarm import Agent, Response, Swarm

from stepfast import (
    DID_NOT_HAPPEN,
    AsyncStepfast,
    Happened,
    InvalidInput,
    Run,
    RunFinished,
    Scope,
    Stepfast,
    Store,
    Suspended,
    current_run,
    idempotency_key,
)

from ._clients import StoreLike
from ._plain import plain
from ._policies import _MARK, COMPOSITE, RETRY, OnError, OnInDoubt, Policy, policy_from
from ._swarm_agents import Agents
from ._swarm_drive import Drive, Settings, here
from ._swarm_model import client_with

__all__ = [
    "DID_NOT_HAPPEN",
    "DurableSwarm",
    "Happened",
    "Suspended",
    "composite",
    "idempotency_key",
    "idempotent",
    "once",
]

Function = Callable[..., Any]


def _marked(function: Function, policy: Policy) -> Any:
    """A copy that says its policy; Swarm looks at a function's code, so it cannot be a wrapper."""
    if isinstance(function, MethodType):
        return MethodType(_marked(function.__func__, policy), function.__self__)
    if not isinstance(function, FunctionType):
        raise InvalidInput(f"function: takes a function, as Swarm does, not {type(function).__name__}.")
    made = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    made.__dict__.update(function.__dict__)
    for name in ("__module__", "__qualname__", "__doc__", "__annotations__"):
        setattr(made, name, getattr(function, name))
    setattr(made, _MARK, policy)
    return made


@overload
def once(function: Function, /) -> Function: ...
@overload
def once(*, reconcile: Function | None = None, on_error: OnError = "ask") -> Callable[[Function], Function]: ...
@overload
def once(function: Function, /, *, reconcile: Function | None = None, on_error: OnError = "ask") -> Function: ...
def once(function: Any = None, /, *, reconcile: Function | None = None, on_error: OnError = "ask") -> Any:
    """A copy of a function whose effect must not happen twice: started and unconfirmed, it waits for a decision.

    ``reconcile`` is a probe: called with the function's arguments, it gives ``Happened(value)``, ``DID_NOT_HAPPEN``, or
    anything else to ask a person. An exception leaves the call in doubt; with ``on_error="show"`` it ends the run as in
    Swarm, and the call is made again when the run goes on.
    """
    if on_error not in ("ask", "show"):
        raise InvalidInput(f"on_error: must be 'ask' or 'show', not {on_error!r}.")
    policy = Policy("ask" if reconcile is None else "probe", reconcile, on_error)
    return (lambda given: _marked(given, policy)) if function is None else _marked(function, policy)


def idempotent(function: Function, /) -> Function:
    """A copy of a function that is safe to repeat: if it was cut short, it is called again with the same
    ``idempotency_key()``. One commit a call instead of two."""
    return _marked(function, RETRY)  # type: ignore[no-any-return]


def composite(function: Function, /) -> Function:
    """A copy of a function that runs agents inside, by ``DurableSwarm.run`` without a ``run_id``: it is entered again
    on resume, and what they had finished answers from the journal."""
    return _marked(function, COMPOSITE)  # type: ignore[no-any-return]


class DurableSwarm(Swarm):  # type: ignore[misc]  # it has no types
    """Swarm, with a name for each run. The same name again goes on where the run stopped, or gives the finished result.

    ``store`` says where runs are kept (a URL, a client, or nothing for the default). ``on_in_doubt`` (*ask*, *retry*,
    *fail*, a probe) is for functions that say nothing themselves, ``policies`` for functions by name. ``on_drift``
    (*raise*, *warn*, *accept*) is for a request that differs from the recorded one. ``on_wait``: where a person has to
    decide, *suspend* (raise ``Suspended``) or *block*. ``agents`` names agents that a handoff may give and no function
    refers to by a variable. ``replay_events=False`` leaves finished turns out of a resumed stream.
    """

    _drive: Drive | None = None  # these two only of the copy that drives a run
    _ending: Any = None

    def __init__(
        self,
        client: Any = None,
        *,
        store: StoreLike = None,
        agents: Iterable[Agent] = (),
        on_in_doubt: OnInDoubt = "ask",
        policies: Mapping[str, OnInDoubt] | None = None,
        on_drift: Literal["raise", "warn", "accept"] = "raise",
        on_wait: Literal["suspend", "block"] = "suspend",
        replay_events: bool = True,
        labels: Mapping[str, str] | None = None,
        max_delivery_attempts: int | None = None,
        wait: float | None = None,
    ) -> None:
        if on_drift not in ("raise", "warn", "accept"):
            raise InvalidInput(f"on_drift: must be 'raise', 'warn' or 'accept', not {on_drift!r}.")
        if on_wait not in ("suspend", "block"):
            raise InvalidInput(f"on_wait: must be 'suspend' or 'block', not {on_wait!r}.")
        if store is not None and not isinstance(store, str | os.PathLike | Stepfast | AsyncStepfast | Store):
            raise InvalidInput(f"store: takes a URL, a client or a store, not {type(store).__name__}.")
        self._settings = Settings(
            policy_from("on_in_doubt", on_in_doubt),
            {name: policy_from(f"policies[{name!r}]", word) for name, word in (policies or {}).items()},
            on_drift,
            on_wait,
            replay_events,
        )
        self._agents = tuple(agents)
        self._labels = dict(labels or {})
        self._max_delivery_attempts = max_delivery_attempts
        self._wait = wait
        self._store = store
        self._opened: dict[int, Stepfast] = {}  # by process: a child of fork opens its own
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
        """Start a run, go on with it, or give its finished result: Swarm's Response, or its events with ``stream``.

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
            return _apart(self._stream(agent, messages, options, run_id, run))
        with self._opening(agent, messages, run_id, run) as (driven, found):
            driven._ending = Swarm.run(driven, agent, found, **options)
            return driven._ending

    def run_and_stream(self, agent: Agent, messages: list[Any] | None = None, *args: Any, **options: Any) -> Any:
        """The same as ``run`` with ``stream=True``."""
        if self._drive is not None:
            return super().run_and_stream(agent, messages, *args, **options)
        named = dict(
            zip(("context_variables", "model_override", "debug", "max_turns", "execute_tools"), args, strict=False)
        )
        return self.run(agent, messages, stream=True, **named, **options)

    def get_chat_completion(self, agent: Agent, *args: Any, **options: Any) -> Any:
        """Swarm's; the client it calls is the one that records."""
        if self._drive is not None:
            self._drive.agent = agent.name
        return super().get_chat_completion(agent, *args, **options)

    def handle_tool_calls(
        self, tool_calls: list[Any], functions: list[Function], context_variables: dict[str, Any], debug: bool
    ) -> Any:
        """Swarm's, one call at a time, each a step of the run."""
        handle = super().handle_tool_calls
        if self._drive is None:
            return handle(tool_calls, functions, context_variables, debug)
        known = {function.__name__: function for function in functions}
        whole = Response(messages=[], agent=None, context_variables={})
        for call in tool_calls:

            def effect(call: Any = call) -> Any:
                return handle([call], functions, context_variables, debug)

            function = known.get(call.function.name)
            part = effect() if function is None else self._drive.tool(call, function, context_variables, effect)
            whole.messages.extend(part.messages)
            whole.context_variables.update(part.context_variables)
            whole.agent = part.agent or whole.agent
        return whole

    # --- runs ----------------------------------------------------------------------------------------

    def rewind(self, run_id: str, step: str, *, include_once: bool = False, reason: str = "rewound") -> int:
        """Set a recorded step and all after it aside, so that they are done again when the run goes on.

        For an answer that breaks the run each time it is replayed. ``step`` is a key as ``sf.steps(run_id)`` shows it,
        such as ``model:3``. One-shot calls that were confirmed stay, unless ``include_once``. Gives how many went.
        """
        try:
            with self._hold().run(run_id, on_wait="suspend", on_failed="revive") as run:
                keys = run.steps()
                if step not in keys:
                    raise InvalidInput(f"step: run {run_id} has no {step!r}; it has {', '.join(keys) or 'none'}.")
                if run.replaying:
                    raise RunFinished(f"run {run_id} is finished; there is nothing to go on with after a rewind.")
                at = keys.index(step)
                raise _Rewound(run.rewind(reason, after=keys[at - 1] if at else None, include_once=include_once))
        except _Rewound as done:
            return done.count

    def close(self) -> None:
        """Close what was opened by URL."""
        opened = self._opened.pop(os.getpid(), None)
        if opened is not None:
            opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _hold(self) -> Stepfast:
        store = self._store
        if isinstance(store, Stepfast):
            return store
        process = os.getpid()
        if process not in self._opened:
            if isinstance(store, AsyncStepfast):
                made = Stepfast(store=store.store, codec=store.codec)
            else:
                made = Stepfast(store=store) if isinstance(store, Store) else Stepfast(store)
            self._opened[process] = made
        return self._opened[process]

    def _stream(
        self, agent: Agent, messages: list[Any] | None, options: dict[str, Any], run_id: str | None, run: Run | None
    ) -> Iterator[dict[str, Any]]:
        with self._opening(agent, messages, run_id, run) as (driven, found):
            drive = driven._drive
            assert drive is not None  # noqa: S101
            for event in Swarm.run(driven, agent, found, stream=True, **options):
                if "response" in event:
                    driven._ending = event["response"]
                elif self._settings.replay_events or not drive.replayed:
                    yield event
        yield {"response": driven._ending}  # only now: callers stop listening at it, and the run is to be complete

    @contextmanager
    def _opening(
        self, agent: Agent, messages: list[Any] | None, run_id: str | None, run: Run | None
    ) -> Iterator[tuple[DurableSwarm, list[Any]]]:
        """A copy of this swarm that drives one run, and the messages that the run began with."""
        if run_id is None:
            place = self._place(run, agent)
            if messages is None:
                raise InvalidInput("messages: a run inside another has none recorded; pass them.")
            yield self._driving(*place, agent), messages
            return
        with self._hold().run(
            run_id,
            payload=None if messages is None else {"agent": agent.name, "messages": plain(messages)},
            labels={"framework": "openai-swarm", "agent": agent.name[:100], **self._labels},
            max_delivery_attempts=self._max_delivery_attempts,
            on_wait=self._settings.on_wait,
            wait=self._wait,
        ) as opened:
            if messages is None:
                recorded = opened.payload
                if not isinstance(recorded, dict) or "messages" not in recorded:
                    raise InvalidInput(f"messages: run {run_id} has none recorded; pass them.")
                messages = recorded["messages"]
            driven = self._driving(opened, opened, agent)
            yield driven, messages
            if driven._ending is not None and not opened.replaying:
                opened.complete(_summary(driven._ending))

    def _place(self, run: Run | None, agent: Agent) -> tuple[Run, Scope]:
        at = here.get()
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

    def _driving(self, run: Run, scope: Scope, agent: Agent) -> DurableSwarm:
        driven = copy.copy(self)
        complete = self.client.chat.completions.create
        driven._drive = Drive(run, scope, self._settings, complete, Agents(agent, self._agents))
        driven.client = client_with(self.client, driven._drive.create)
        return driven


def _summary(response: Any) -> dict[str, Any]:
    """What is seen of a finished run from outside."""
    last = response.messages[-1] if response.messages else {}
    return {
        "final_output": last.get("content"),
        "last_agent": None if response.agent is None else response.agent.name,
        "messages": len(response.messages),
    }


def _apart(events: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A stream in a context of its own: between two events the caller does not stand inside the run."""
    context = copy_context()
    try:
        while True:
            try:
                event = context.run(next, events)
            except StopIteration:
                return
            yield event
    finally:
        close = getattr(events, "close", None)
        if close is not None:
            context.run(close)


class _Rewound(Exception):
    """Leaves a run that was rewound, without completing it."""

    def __init__(self, count: int) -> None:
        super().__init__(f"{count} steps were set aside")
        self.count = count
