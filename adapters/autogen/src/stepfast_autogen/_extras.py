"""The error for a member of the AutoGen family that is not installed."""

from __future__ import annotations

from stepfast import StepfastError

_PACKAGES = {"agentchat": "autogen_agentchat", "classic": "autogen", "ag2": "ag2"}


class NotInstalled(StepfastError, ImportError):
    """The framework of the module that was imported is not installed."""


def missing(extra: str, error: ImportError) -> NotInstalled:
    """Return the error that names the extra whose package is missing."""
    return NotInstalled(
        f"{_PACKAGES[extra]} is not installed, and stepfast_autogen.{extra} needs it ({error}). "
        f'Install it: pip install "stepfast-autogen[{extra}]".'
    )
