"""The order in which earlier attempts made their calls, and what a resumed run leaves out of it.

A resumed run repeats its calls from the start. In a scope where calls come in order, each call has a *turn*: its place
among the calls of that scope. A recorded step that has no call by the time a later turn comes was renamed, moved or
removed. That matters most for one-shot steps: their effect would be repeated under the new name.

Turns are kept in the low bits of a step's position, so that sorting by position is sorting by when a call was made.
Steps with a key of their own and calls made side by side have no turn (0): their order says nothing.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from stepfast.journal import Step

_TURN_BITS = 24
_TURN = (1 << _TURN_BITS) - 1

PATCH = "patch"
"""The kind of the step that records a patch marker."""


def position_of(made: int, turn: int) -> int:
    """Return the position of the ``made``-th call of a run, which has this turn in its scope."""
    return made << _TURN_BITS | (turn if turn < _TURN else _TURN)


def made_of(position: int) -> int:
    return position >> _TURN_BITS


def turn_of(position: int) -> int:
    """Return the turn of a call in its scope; 0 if it has none, or was recorded before turns were."""
    return position & _TURN if position > _TURN else 0


class RecordedOrder:
    """The calls of earlier attempts by scope, for comparison with those of this attempt."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self._turns: dict[str, list[tuple[int, Step]]] = {}
        self._keys: dict[str, list[str]] = {}
        self._compared: dict[str, int] = {}
        # Calls that were under way: the journal has steps inside them, and no record of themselves.
        self._unfinished: dict[str, list[Step]] = {}
        live = list(steps)
        recorded = {step.key for step in live}
        for step in live:
            if step.kind == "items" or step.kind == PATCH:
                continue
            self._keys.setdefault(step.scope, []).append(step.key)
            if turn := turn_of(step.position):
                self._turns.setdefault(step.scope, []).append((turn, step))
            for path in _ancestors(step.scope):
                if path not in recorded:
                    self._unfinished.setdefault(path, []).append(step)
        for turns in self._turns.values():
            turns.sort(key=lambda pair: pair[0])

    def start_over(self) -> None:
        """Compare from the first turn again, after a rewind."""
        self._compared.clear()

    def left_out(
        self, scope: str, before: int, taken: Container[str], journal: Mapping[str, Step]
    ) -> tuple[list[Step], bool]:
        """Return the recorded steps of a scope with a turn below ``before`` that this attempt has not called.

        The second value says whether recorded steps with later turns are still to come.
        """
        turns = self._turns.get(scope)
        if turns is None:
            return [], False
        first = self._compared.get(scope, 0)
        while first < len(turns) and (turns[first][1].key in taken or turns[first][1].key not in journal):
            first += 1
        self._compared[scope] = first
        found = []
        later = False
        for turn, step in turns[first:]:
            if step.key in taken or step.key not in journal:
                continue
            if turn >= before:
                later = True
                break
            found.append(journal[step.key])
        return found, later

    def has_more(self, scope: str, taken: Container[str], journal: Mapping[str, Step]) -> bool:
        """Whether earlier attempts made a call in this scope that this attempt has not made yet."""
        if any(key not in taken and key in journal for key in self._keys.get(scope, ())):
            return True
        return any(path.rpartition("/")[0] == scope and path not in taken for path in self._unfinished)

    def abandoned(self, key: str, taken: Container[str], journal: Mapping[str, Step]) -> tuple[str, list[Step]] | None:
        """Return an unfinished call beside this one (or beside a call around it) that has one-shot steps inside.

        New work while such a call has not been made again would repeat those steps in another place.
        """
        for path in [path for path in self._unfinished if path in taken]:
            del self._unfinished[path]
        for path, steps in self._unfinished.items():
            parent = path.rpartition("/")[0]
            if parent and not key.startswith(f"{parent}/"):
                continue
            beside = key[len(parent) + 1 if parent else 0 :].partition("/")[0]
            if "#" not in beside or "@" in beside:  # not made in order with it
                continue
            inside = [step for step in steps if step.kind.startswith("once") and step.key in journal]
            if inside:
                return path, inside
        return None


def recorded_order(steps: Iterable[Step]) -> RecordedOrder | None:
    """Return the order of recorded steps; None if there are none, so that a first attempt compares nothing."""
    live = [step for step in steps if not step.voided]
    return RecordedOrder(live) if live else None


def _ancestors(scope: str) -> Iterable[str]:
    """The calls and scopes around a step that were made in order."""
    while scope:
        scope, _, label = scope.rpartition("/")
        path = f"{scope}/{label}" if scope else label
        if "#" in label and "@" not in label:
            yield path
