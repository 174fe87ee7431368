"""Classic's tests with pyautogen 0.2, in an environment of its own."""

from __future__ import annotations

import pytest

from adapters.autogen.tests.classic.test_chats import *  # noqa: F403
from adapters.autogen.tests.classic.test_kill import (  # noqa: F401
    test_a_run_killed_at_a_boundary_goes_on_and_repeats_nothing,
    test_a_run_killed_at_any_boundary_goes_on_and_repeats_nothing,
)
from adapters.autogen.tests.classic.test_seams import *  # noqa: F403

pytestmark = [pytest.mark.xdist_group("kill"), pytest.mark.timeout(600)]
