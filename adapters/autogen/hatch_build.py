"""The build backend: hatchling, and what the distributions of Stepfast need of one another.

A wheel that is built in a clone takes the other distributions from that clone, so that ``pip install ".[langgraph]"``
and ``pip install ./adapters/langgraph`` need no registry for them. Everything else names them plainly: source
distributions, what is built from one (a release), and editable installs. These name each distribution themselves
(``pip install -e . -e adapters/langgraph``), because pip takes ``-e .`` and a direct reference to the same folder for
two different sources.

Each distribution has a copy of this file, since its source distribution needs one; a test compares them.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

from hatchling import build as hatchling_build
from hatchling.build import (
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
)
from hatchling.metadata.plugin.interface import MetadataHookInterface

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
]

# Hatchling loads this file a second time for the metadata, and does not say what it builds.
_WHEEL = "STEPFAST_BUILDS_A_WHEEL"


def build_wheel(
    wheel_directory: str, config_settings: dict[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    os.environ[_WHEEL] = "1"
    return hatchling_build.build_wheel(wheel_directory, config_settings, metadata_directory)


if hasattr(hatchling_build, "prepare_metadata_for_build_wheel"):  # under pip there is none, and pip builds the wheel
    prepare_metadata_for_build_editable = hatchling_build.prepare_metadata_for_build_editable

    def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: dict[str, Any] | None = None) -> str:
        os.environ[_WHEEL] = "1"
        return hatchling_build.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


class Requirements(MetadataHookInterface):
    """Sets the requirements that stand in this hook's own table of ``pyproject.toml``."""

    def update(self, metadata: dict[str, Any]) -> None:
        folders = folders_of_clone(Path(self.root)) if _WHEEL in os.environ else {}
        folders.pop(metadata["name"], None)
        if "dependencies" in self.config:
            metadata["dependencies"] = [from_clone(text, folders) for text in self.config["dependencies"]]
        metadata["optional-dependencies"] = {
            extra: [from_clone(text, folders) for text in texts]
            for extra, texts in self.config["optional-dependencies"].items()
        }


def from_clone(requirement: str, folders: dict[str, Path]) -> str:
    """Return a requirement as it is, or as a reference to the folder of the clone that meets it."""
    name, extras = re.match(r"([\w.-]+)\s*(\[[^]]*\])?", requirement).groups()  # type: ignore[union-attr]
    return f"{name}{extras or ''} @ {folders[name].as_uri()}" if name in folders else requirement


def folders_of_clone(root: Path) -> dict[str, Path]:
    """Return the folder of each distribution of the clone around ``root``, by its name; none outside a clone."""
    for clone in (root, root.parent.parent):
        found = {}
        for file in (clone / "pyproject.toml", *sorted(clone.glob("adapters/*/pyproject.toml"))):
            if file.is_file():
                found[tomllib.loads(file.read_text(encoding="utf-8"))["project"]["name"]] = file.parent.resolve()
        if "stepfast" in found and len(found) > 1 and root.resolve() in found.values():
            return found
    return {}
