"""Literals of the stored format that keep the product's first name.

Stepfast was called Holdfast until its first stores had been written. Seals, fingerprints, derived keys and type
names are computed from these bytes, so changing one of them makes every older store `Damaged` or `Diverged`. This
module and the CHANGELOG are the only places where the old name remains; the fixtures in ``tests/fixtures`` prove that
older stores are still read and resumed.
"""

from __future__ import annotations

import sys
from typing import Final

SEAL_PERSON: Final = b"holdfast seal"
ARGUMENTS_PERSON: Final = b"holdfast args 1"
VALUE_KEY_PERSON: Final = b"holdfast-values"
SEAL_KEY_PERSON: Final = b"holdfast-seals"
PEPPER_ID_PREFIX: Final = b"holdfast pepper id\0"

MAGIC: Final = b"\xc1H"
"""How a stored value begins: 0xC1, which MessagePack never uses, and the initial of the first name."""

RUN_TYPE: Final = "holdfast.run.v1"
"""The intent type of a run that was opened by its name."""

NOTE_PREFIX: Final = "holdfast:"
"""Begins the mark of an event by which an attempt released or suspended its intent."""

UNKNOWN_OUTCOME_TYPE: Final = "holdfast.errors:StepFailed"
"""The recorded error type of a one-shot step that was started and never confirmed."""

SCHEMA_LOCK_PREFIX: Final = "holdfast "
"""Begins the name of the advisory lock under which a PostgreSQL schema is migrated, by old and new versions alike."""

GRAPH_RUN_MARK: Final = "holdfast_run"
"""The key in a LangGraph checkpoint's metadata that names the run which wrote it."""

GRAPH_DELTA_KEY: Final = "holdfast_delta"
"""The key of a LangGraph checkpoint under which it keeps what its deleted ancestors held."""

TOOL_RESULT_MARK: Final = "holdfast_tool"
"""The key that marks a recorded tool result of the OpenAI Agents adapter."""

SWARM_RESULT_MARK: Final = "holdfast_swarm"
"""The key that marks a recorded tool result of the Swarm adapter."""

_PACKAGES: Final = {
    "stepfast": "holdfast",
    "stepfast_langgraph": "holdfast_langgraph",
    "stepfast_openai_agents": "holdfast_openai_agents",
}
_RENAMED: Final = {old: new for new, old in _PACKAGES.items()}


def stored_module(module: str) -> str:
    """Return the name under which stored values refer to a module."""
    package, dot, rest = module.partition(".")
    return f"{_PACKAGES.get(package, package)}{dot}{rest}"


def loaded_module(stored: str) -> str:
    """Return the present name of a module that stored values refer to."""
    package, dot, rest = stored.partition(".")
    if package not in _RENAMED or stored in sys.modules:  # another project's package has the old name
        return stored
    return f"{_RENAMED[package]}{dot}{rest}"
