"""The guide to values is true: its blocks run, in order, in one namespace."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "values.md"


def test_every_block_of_the_guide_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 9
    module = types.ModuleType("values_guide")
    monkeypatch.setitem(sys.modules, "values_guide", module)  # classes are found through their module
    for block in blocks:
        exec(compile(block, str(GUIDE), "exec", dont_inherit=True), vars(module))
