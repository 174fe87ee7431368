"""Tools to break a program on purpose and see what it kept: for us, and for authors of adapters and stores.

``explore`` kills at every line or failpoint, ``random_kills`` at random moments; ``explore_faults`` lets each
system call fail, ``explore_power_loss`` tries every state a power cut could leave, ``explore_bit_flips``
damages files. ``crash_matrix`` kills a scene of an adapter and resumes it until it is done. All fork: they
need Linux or macOS, and the two that watch system calls need Linux; elsewhere they raise ``Unsupported``.
"""

from __future__ import annotations

from stepfast.testing.bitflip import BitFlipsExplored, Flip, explore_bit_flips, flips
from stepfast.testing.crash import Explored, Killed, RandomKills, explore, random_kills, run_until_killed
from stepfast.testing.lines import Boundaries, Injected, Point, every_failpoint, every_line, on_failpoint
from stepfast.testing.matrix import crash_matrix
from stepfast.testing.powerloss import (
    CrashState,
    PowerLossExplored,
    Violation,
    check_states,
    crash_states,
    explore_power_loss,
)
from stepfast.testing.processes import CrashTestFailed, Effects, Unsupported
from stepfast.testing.scenes import Scene, Stage, scene
from stepfast.testing.syscalls import Call, FaultsExplored, Inject, Log, ack, explore_faults, trace
from stepfast.testing.verdicts import Finding, Report

__all__ = [
    "BitFlipsExplored",
    "Boundaries",
    "Call",
    "CrashState",
    "CrashTestFailed",
    "Effects",
    "Explored",
    "FaultsExplored",
    "Finding",
    "Flip",
    "Inject",
    "Injected",
    "Killed",
    "Log",
    "Point",
    "PowerLossExplored",
    "RandomKills",
    "Report",
    "Scene",
    "Stage",
    "Unsupported",
    "Violation",
    "ack",
    "check_states",
    "crash_matrix",
    "crash_states",
    "every_failpoint",
    "every_line",
    "explore",
    "explore_bit_flips",
    "explore_faults",
    "explore_power_loss",
    "flips",
    "on_failpoint",
    "random_kills",
    "run_until_killed",
    "scene",
    "trace",
]
