"""The checkpointer for ``langgraph.json``, as LangGraph's server wants it: an async context manager that yields one.

    "checkpointer": {"path": "stepfast_langgraph.factory:create_checkpointer"}

The store is what ``STEPFAST_URL`` names, with ``STEPFAST_API_KEY`` and ``STEPFAST_ENCRYPTION_KEYS``. For other settings
write such a function yourself, in a file that ``path`` names.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from .saver import StepfastSaver


@asynccontextmanager
async def create_checkpointer() -> AsyncIterator[StepfastSaver]:
    """A saver on the store that the environment names, open for as long as the server runs."""
    import asyncio

    # Opening connects and may migrate: not on the server's event loop.
    saver = await asyncio.to_thread(StepfastSaver)
    try:
        yield saver
    finally:
        await saver.aclose()
