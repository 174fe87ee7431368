"""Agents by their names: a handoff is recorded as one, since a live agent with its functions cannot be."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from swarm import Agent

_MOST = 20_000  # objects looked at; whoever has more names the agents


class Agents:
    """The agents that a run may hand over to: those named by the caller, and those that functions refer to."""

    def __init__(self, start: Agent, named: Iterable[Agent]) -> None:
        self._start = start
        self._named = {agent.name: agent for agent in named}

    def find(self, name: str, function: Callable[..., Any] | None) -> Agent | None:
        """The agent of that name; what ``function`` itself refers to comes first."""
        if name in self._named:
            return self._named[name]
        roots = [*([] if function is None else [function]), self._start, *self._named.values()]
        return next((agent for agent in reachable(roots) if agent.name == name), None)


def reachable(roots: Iterable[Any]) -> Iterator[Agent]:
    """Agents that code or data refers to, nearest first: by globals, closures, defaults, attributes, containers."""
    waiting: deque[tuple[Any, frozenset[str]]] = deque((root, frozenset[str]()) for root in roots)
    seen: set[tuple[int, frozenset[str]]] = set()
    kept = []  # so that no id is used twice
    while waiting and len(seen) < _MOST:
        thing, names = waiting.popleft()
        if (id(thing), names) in seen:
            continue
        seen.add((id(thing), names))
        kept.append(thing)
        if isinstance(thing, Agent):
            yield thing
            waiting.extend((f, frozenset()) for f in thing.functions)
            if callable(thing.instructions):
                waiting.append((thing.instructions, frozenset()))
        else:
            waiting.extend(_parts(thing, names))


def _parts(thing: Any, names: frozenset[str]) -> Iterator[tuple[Any, frozenset[str]]]:
    if isinstance(thing, partial):
        yield from ((part, names) for part in (thing.func, *thing.args, *thing.keywords.values()))
    elif isinstance(thing, MethodType):
        yield thing.__func__, names
        yield thing.__self__, frozenset(_names(thing.__func__.__code__))
    elif isinstance(thing, FunctionType):
        inside = frozenset(_names(thing.__code__))
        for cell in thing.__closure__ or ():
            try:
                yield cell.cell_contents, inside
            except ValueError:  # not set yet
                continue
        yield from ((thing.__globals__[name], inside) for name in sorted(inside) if name in thing.__globals__)
        yield from ((value, inside) for value in (*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()))
        if (wrapped := getattr(thing, "__wrapped__", None)) is not None:
            yield wrapped, inside
    elif isinstance(thing, dict):
        yield from ((value, names) for value in thing.values())
    elif isinstance(thing, list | tuple | set | frozenset):
        yield from ((value, names) for value in thing)
    elif isinstance(thing, ModuleType) or (hasattr(thing, "__dict__") and not isinstance(thing, type)):
        # Of an object only what the code names, so that no property of it is run.
        yield from ((vars(thing)[name], names) for name in sorted(names) if name in vars(thing))


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
