"""The fixtures of the tests of runs."""

from __future__ import annotations

from tests.run.kit import make_calls, make_nursery, make_spawn, make_way

__all__ = ["make_calls", "make_nursery", "make_spawn", "make_way"]
