"""What a graph streams, looked at on its way to whoever asked for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

INTERRUPT = "__interrupt__"
# What a run itself needs to see, whatever its caller wants to: where it is, why it stopped, what came of it.
_NEEDED = ("updates", "values")


class Seen(NamedTuple):
    """A chunk of the outermost graph, or of a graph inside it."""

    inside: bool
    mode: str
    data: Any


class Chunks:
    """Asks the graph for what its caller and the run want, and gives each what is theirs."""

    def __init__(self, stream_mode: str | Sequence[str], *, subgraphs: bool = False, version: str = "v1") -> None:
        self._single = isinstance(stream_mode, str)
        self._wanted = {stream_mode} if isinstance(stream_mode, str) else set(stream_mode)
        self._subgraphs = subgraphs
        self._version = version

    @property
    def wants_anything(self) -> bool:
        return bool(self._wanted)

    @property
    def options(self) -> dict[str, Any]:
        """How the graph is to stream."""
        modes = [*self._wanted, *(mode for mode in _NEEDED if mode not in self._wanted)]
        asked: dict[str, Any] = {"stream_mode": modes}
        if self._subgraphs:
            asked["subgraphs"] = True
        if self._version != "v1":
            asked["version"] = self._version
        return asked

    def see(self, chunk: Any) -> Seen:
        if self._version != "v1":
            return Seen(bool(chunk["ns"]), chunk["type"], chunk["data"])
        if self._subgraphs:
            namespace, mode, data = chunk
            return Seen(bool(namespace), mode, data)
        mode, data = chunk
        return Seen(False, mode, data)

    def show(self, chunk: Any, seen: Seen) -> Iterator[Any]:
        """The chunk as its caller expects it, if it was asked for."""
        if seen.mode not in self._wanted:
            return
        if self._version != "v1" or not self._single:
            yield chunk
        else:
            yield (chunk[0], seen.data) if self._subgraphs else seen.data

    def last(self, result: Any, interrupts: Sequence[Any] = ()) -> Iterator[Any]:
        """The stream of a run that has nothing to do: its final state, or the state and what it waits for."""
        if interrupts:
            yield from self._made("updates", {INTERRUPT: tuple(interrupts)})
        yield from self._made("values", result, interrupts=tuple(interrupts))

    def _made(self, mode: str, data: Any, **more: Any) -> Iterator[Any]:
        if self._version != "v1":
            chunk: Any = {"type": mode, "ns": (), "data": data, **more}
        else:
            chunk = ((), mode, data) if self._subgraphs else (mode, data)
        return self.show(chunk, Seen(False, mode, data))
