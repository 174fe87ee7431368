"""Classic's tests with pyautogen 0.2, in an environment of its own."""

from __future__ import annotations

import pytest

from adapters.autogen.tests.classic.test_kill import (
    test_a_run_killed_at_a_boundary_goes_on_and_repeats_nothing,
    test_a_run_killed_at_any_boundary_goes_on_and_repeats_nothing,
)

__all__ = [
    "test_a_run_killed_at_a_boundary_goes_on_and_repeats_nothing",
    "test_a_run_killed_at_any_boundary_goes_on_and_repeats_nothing",
]

pytestmark = [pytest.mark.xdist_group("kill"), pytest.mark.timeout(600)]
