"""What a scenario really asks of the file system, call by call; and what happens when a call fails.

``trace`` runs a scenario under ptrace (Linux on x86-64 or arm64; no other program is needed, nor root) and
logs every call that changes or syncs a file of its folder, with the data written. The scenario says
``ack("…")`` where a caller would be told that something is kept, so that the log shows what was promised
when. ``explore_faults`` makes the n-th such call fail, for every n.

Not seen: what is written through a shared mapping. SQLite maps its ``-shm`` file, which is volatile by
design; any other shared mapping is listed in ``Log.mapped``.
"""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stepfast.testing.crash import Story, failed, in_server
from stepfast.testing.processes import Body, Child, Note, Unsupported, in_shards, scratch
from stepfast.testing.ptrace import Call, Fault, Inject, Tracer, ack, this_arch

__all__ = ["Call", "FaultsExplored", "Inject", "Log", "ack", "explore_faults", "trace"]


@dataclass(frozen=True)
class Log:
    """What one run did, in order of completion, from the files that it found."""

    calls: tuple[Call, ...]
    #: The files as they were before the run, and their inodes.
    before: dict[str, bytes]
    inodes: dict[str, int]
    #: Files other than ``-shm`` that were mapped shared: what is written through such a mapping is not seen.
    mapped: tuple[str, ...]
    #: The call that the injected fault hit; None if it was never reached.
    hit: Call | None
    #: The scenario's exit code, minus the signal if one killed it, and its traceback.
    code: int
    error: str
    timed_out: bool

    @property
    def acked(self) -> tuple[str, ...]:
        return tuple(call.data.decode() for call in self.calls if call.op == "ack")


def trace(scenario: Body, folder: Path, *, inject: Inject | None = None, timeout: float = 60.0) -> Log:
    """Run the scenario in the folder and log its calls. Its failure is in the log, not raised."""
    arch = this_arch()
    folder = folder.resolve()
    before = {name: path.read_bytes() for name, path in _files(folder)}
    inodes = {name: path.stat().st_ino for name, path in _files(folder)}
    # The tracer is a process of its own: it waits for any child, and must not take another's.
    ended = Child(lambda note: Tracer(arch, folder, inject).run(scenario, note, timeout)).wait(timeout + 30)
    if ended.code:
        raise RuntimeError(f"the tracer itself failed: {ended.why}")
    *calls, last = ended.notes
    if "unsupported" in last:
        raise Unsupported(last["unsupported"])
    done = tuple(Call(**{**call, "data": base64.b64decode(call["data"])}) for call in calls)
    hit = next((call for call in done if call.injected), None)
    mapped = tuple(sorted({call.path for call in done if call.op == "map"}))
    return Log(done, before, inodes, mapped, hit, last["code"], last["error"], last["late"])


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.relative_to(folder).as_posix(), path


# Every call


def _broke(log: Log, fault: Fault) -> list[str] | None:
    """What no fault excuses: hanging, and dying of a signal that was not sent here."""
    if log.timed_out or (log.code < 0 and not fault.startswith("kill")):
        return ["the scenario under the fault", log.error or f"killed by signal {-log.code}"]
    return None


@dataclass(frozen=True)
class FaultsExplored:
    """``calls`` matching calls were made by an undisturbed run; ``hits`` of the trials reached theirs."""

    fault: str
    calls: int
    hits: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.fault}: {self.hits} of {self.calls} calls, {self.seconds:.1f} s"


def explore_faults(
    scenario: Body,
    check: Body,
    *,
    fault: Fault,
    ops: tuple[str, ...] = ("write", "truncate", "sync", "rename", "unlink", "link"),
    path: str = "*",
    sticky: bool = False,
    recover: int = 2,
    recovery: Body | None = None,
    setup: Body | None = None,
    after_fault: Body | None = None,
    stride: int = 1,
    jobs: int = 2,
    timeout: float = 60.0,
    folder: Path | None = None,
) -> FaultsExplored:
    """Let the n-th matching call fail, for every n; then recover without faults and check, as ``explore``.

    Under an errno the scenario may raise or carry on, as it likes: what it acknowledged must be kept.
    """
    this_arch()
    started = time.monotonic()
    base = scratch(folder, "faults")
    trace(lambda _: None, base)  # says at once if this machine does not let us
    plot = Story(scenario, check, recovery or scenario, setup, after_fault, recover, timeout, base)
    plan = Inject(fault, 0, ops, path, sticky)

    def serve(note: Note) -> None:
        failure = plot.rehearse()
        if failure:
            note({"failure": failed("rehearsal", "", *failure)})
            return
        calls = sum(map(plan.matches, trace(scenario, plot.folder("count"), timeout=timeout).calls))

        def work(shard: int, tell: Note) -> None:
            parent = os.getppid()
            for nth in range(1, calls + 1, stride)[shard::jobs]:
                name = f"call-{nth:06d}"
                home = plot.folder(name)
                log = trace(scenario, home, inject=replace(plan, nth=nth), timeout=timeout)
                failure = _broke(log, fault) or plot.judge(home, log.hit is not None)
                where = f"{fault} at call {nth}, {log.hit.syscall} of {log.hit.path}" if log.hit else ""
                answer: dict[str, Any] = {"nth": nth, "hit": log.hit is not None}
                if failure:
                    answer["failure"] = failed(name, where, *failure)
                tell(answer)
                if failure or os.getppid() != parent:
                    return

        answers = sorted(in_shards(jobs, work), key=lambda answer: int(answer["nth"]))
        broken = next((answer["failure"] for answer in answers if "failure" in answer), None)
        note({"failure": broken, "calls": calls, "hits": sum(answer["hit"] for answer in answers)})

    answer = in_server(base, getattr(scenario, "__name__", "the scenario"), serve)
    if not answer["calls"]:
        raise ValueError(f"explore_faults: the scenario makes no call like {', '.join(ops)} on {path}")
    return FaultsExplored(fault, answer["calls"], answer["hits"], time.monotonic() - started)


# The system calls

# The place of each argument: f file, d folder of the next path, p path, b buffer, v vector of buffers,
# n length, o offset, q address of an offset, x flags.
