from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import stepfast.testing

# What Windows lacks is taken away before the import.
WITHOUT_FORK = """
import os, select, signal, sys
import ctypes, hashlib, platform, selectors, shutil, statistics, subprocess, tempfile
import stepfast
for module, names in {
    os: "fork memfd_create pidfd_open waitpid WNOHANG WUNTRACED waitid getppid O_DSYNC",
    signal: "SIGKILL SIGSTOP SIGCONT SIGALRM setitimer",
    select: "poll epoll",
}.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
sys.platform = "win32"

from pathlib import Path
from stepfast.testing import *

@scene()
def play(stage):
    pass

def nothing(*_):
    pass

for attempt in (
    lambda: explore(nothing, nothing, at=every_failpoint()),
    lambda: random_kills(nothing, nothing, 1, 1),
    lambda: run_until_killed([sys.executable], "ready"),
    lambda: trace(nothing, Path(".")),
    lambda: explore_faults(nothing, nothing, fault="EIO"),
    lambda: explore_power_loss(nothing, nothing),
    lambda: explore_bit_flips(Path(__file__), nothing, 1, 1),
    lambda: crash_matrix(play),
):
    try:
        attempt()
    except Unsupported as error:
        assert "Linux" in str(error)
    else:
        raise SystemExit("did not refuse")
print("ok")
"""


def test_every_exported_name_exists_and_is_listed_in_order() -> None:
    names = stepfast.testing.__all__
    assert names == sorted(names)
    assert all(hasattr(stepfast.testing, name) for name in names)


def test_where_processes_cannot_be_forked_the_import_works_and_the_tools_say_so(tmp_path: Path) -> None:
    script = tmp_path / "windows.py"
    script.write_text(WITHOUT_FORK)
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert ran.stdout == "ok\n", ran.stderr


def test_the_import_brings_no_test_framework() -> None:
    program = "import sys, stepfast.testing; print([name for name in sys.modules if name in ('pytest', 'hypothesis')])"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
