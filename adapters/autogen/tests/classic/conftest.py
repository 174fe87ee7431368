"""AutoGen is imported first by the kit, which leaves out the warnings of its own imports."""

from __future__ import annotations

import adapters.autogen.tests.classic.kit  # noqa: F401
