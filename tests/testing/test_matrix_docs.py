"""The test module that docs/testing.md shows passes, as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs" / "testing.md"


def test_the_module_in_the_documentation_passes(tmp_path: Path) -> None:
    shown = re.search(r"^```python\n(import pytest\n.*?)^```$", DOCS.read_text(), re.DOTALL | re.MULTILINE)
    assert shown
    (tmp_path / "test_order.py").write_text(shown.group(1))
    program = "import test_order as it; [it.test_an_order_survives_a_kill_anywhere(s) for s in ('sqlite', 'http')]"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ran = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "order on sqlite: 15 trials" in ran.stdout, ran.stdout
    assert "order on http: 15 trials" in ran.stdout, ran.stdout
