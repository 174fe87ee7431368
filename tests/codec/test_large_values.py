"""A value of 100 MB is stored and read with few copies of it in memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import resource, sys
from stepfast.codec import Codec

kind, size = sys.argv[1], int(sys.argv[2])
codec = Codec()
value = {"bytes": lambda: bytes(size), "noise": lambda: open("/dev/urandom", "rb").read(size),
         "str": lambda: "x" * size, "list": lambda: [bytes(size // 10)] * 10,
         "tuple": lambda: (bytes(size),)}[kind]()
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = peak()
data = codec.encode(value)
written = peak()
same = codec.decode(data) == value
print(same, (written - before) / size, (peak() - before) / size)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads peak memory as Linux tells it")
@pytest.mark.parametrize("kind", ["bytes", "noise", "str", "list", "tuple"])
def test_a_hundred_megabytes_take_at_most_three_copies(kind: str) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(["src", "."])}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, kind, str(100_000_000)],
        capture_output=True, text=True, env=env, cwd=Path(__file__).parents[2], check=True,
    )  # fmt: skip
    same, writing, both = done.stdout.split()
    assert same == "True"
    assert float(writing) < 3.2
    assert float(both) < 4.2
