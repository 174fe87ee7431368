"""A crash matrix for adapters: a scene killed with SIGKILL at every boundary, and resumed until it is done.

    report = crash_matrix(order, store="sqlite")
    report.assert_clean()

The scene is played once undisturbed; each boundary that it passes is a point: the failpoints of the core, and before
and after each model call and effect. For each point it is played anew in a process that kills itself there, and then
in fresh processes, in which decisions are answered by the scene's rule, until the run is done. The calls and effects
are counted outside the store, and a pure function judges them: see ``verdicts``.

The processes are forked from one that has imported the scene's module and the framework once (``python -m
stepfast.testing.matrix``); it is kept for further matrices of the same module.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from stepfast.testing.processes import require_fork, scratch
from stepfast.testing.scenes import Scene
from stepfast.testing.verdicts import Finding, Report

__all__ = ["crash_matrix"]


def crash_matrix(
    scene: Scene,
    *,
    store: str = "sqlite",
    options: Mapping[str, Any] | None = None,
    points: int | None = None,
    moments: int = 0,
    lines: int = 0,
    packages: Sequence[str] = (),
    kills: int = 1,
    seed: int = 0,
    jobs: int = 2,
    lives: int = 12,
    timeout: float = 120.0,
    folder: Path | None = None,
) -> Report:
    """Kill a scene at its boundaries, resume it until it is done, and report what was repeated, lost or wrong.

    ``store`` is ``"sqlite"`` (a file of its own for each trial), ``"http"`` (a server process over SQLite, started
    here), or the URL of a store that all trials share, each with a run of its own. ``options`` are JSON and become
    ``stage.options``.

    ``points`` limits the boundaries to a sample drawn from the seed, in which each label comes once before any comes
    twice. To these come kills at ``moments`` random times and before ``lines`` random lines of the ``packages``.
    ``kills=2`` kills the process that resumes as well. A life that takes more than ``timeout`` seconds, or a run that
    takes more than ``lives`` processes, is a hang.
    """
    require_fork()
    if lines and not packages:
        raise ValueError("packages: lines= needs the names of the packages whose lines are meant")
    if not isinstance(scene, Scene):
        raise TypeError(f"scene: must be a function decorated with @scene(), not {scene!r}")
    began = time.monotonic()
    base = scratch(folder, "matrix")
    request = {
        "scene": scene.name,
        "store": _served() if store == "http" else store,
        "options": dict(options or {}),
        "base": str(base),
        "seed": seed,
        "jobs": jobs,
        "lives": lives,
        "timeout": timeout,
        "packages": list(packages),
        "run": {"points": points, "moments": moments, "lines": lines, "kills": kills},
    }
    answer = _zygote_of(scene).ask(request)
    findings = tuple(Finding(**found) for found in answer.pop("findings"))
    if not findings:
        shutil.rmtree(base, ignore_errors=True)
    shown = "".join(f" {name}={value}" for name, value in (options or {}).items())
    where = store if "://" not in store else store.partition(":")[0]
    tuples = {name: tuple(value) for name, value in answer.items() if isinstance(value, list)}
    return Report(
        **{**answer, **tuples},
        scene=scene.name + shown,
        store=where,
        findings=findings,
        seconds=time.monotonic() - began,
    )


class Zygote:
    """The other side of a process that has imported a scene's module."""

    def __init__(self, module: str, path: str | None) -> None:
        self.module = module
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from stepfast.testing.matrix import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self._write({"module": module, "path": path})

    def _write(self, request: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._write(request)
        line = self._process.stdout.readline()
        if not line:
            _zygotes.pop(self.module, None)
            self.close()
            raise RuntimeError(f"the process for {self.module} ended: its standard error says why")
        answer: dict[str, Any] = json.loads(line)
        if "broken" in answer:
            raise RuntimeError(f"the matrix itself failed for {self.module}:\n{answer['broken']}")
        return answer

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._process.wait()


_zygotes: dict[str, Zygote] = {}
_servers: list[tuple[str, subprocess.Popen[str], Path]] = []


def _zygote_of(scene: Scene) -> Zygote:
    module = scene.play.__module__
    if module not in _zygotes:
        source = getattr(sys.modules.get(module), "__file__", None)
        if source is None or scene.play.__qualname__ != scene.name:
            raise ValueError(f"scene: {scene.play.__qualname__} must be a function of a module that has a file")
        _zygotes[module] = Zygote(module, str(Path(source).resolve()))
    return _zygotes[module]


def _served() -> str:
    """The address of a server process over SQLite, started at first use."""
    if not _servers:
        home = scratch(None, "served")
        command = ["serve", "--port", "0", "--store", f"sqlite:///{home}/served.db?durability=process"]
        process = subprocess.Popen(
            [sys.executable, "-m", "stepfast", *command, "--no-access-log", "--log-level", "error"],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert process.stdout is not None
        said = ""
        while not (address := re.search(r"http://\S+", said)):
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"the server did not start; it said: {said or 'nothing'}")
            said += line
        _servers.append((address.group(), process, home))
    return _servers[0][0]


@atexit.register
def _close() -> None:
    for zygote in list(_zygotes.values()):
        zygote.close()
    for _, process, home in _servers:
        process.terminate()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        shutil.rmtree(home, ignore_errors=True)
    _zygotes.clear()
    _servers.clear()


# In the other process


def main() -> None:
    """Answer one request for each line of standard input; whatever a scene prints goes to standard error."""
    answers: IO[str] = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    lines = iter(sys.stdin.readline, "")
    home = json.loads(next(lines))
    module = _load(home["module"], home["path"])
    warmed: dict[str, bool] = {}
    for line in lines:
        try:
            answer = _answer(module, json.loads(line), warmed)
        except Exception:
            answer = {"broken": traceback.format_exc()}
        try:
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
        except BrokenPipeError:
            os._exit(1)  # the process that asked is gone


def _load(module: str, path: str) -> Any:
    """The module by its name, if that leads to the same file, as it does in packages; else by its file."""
    with contextlib.suppress(ImportError, ValueError):
        found = importlib.util.find_spec(module)
        if found is not None and found.origin is not None and Path(found.origin).resolve() == Path(path):
            return importlib.import_module(module)
    spec = importlib.util.spec_from_file_location("stepfast_scenes" if module == "__main__" else module, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


def _answer(module: Any, request: dict[str, Any], warmed: dict[str, bool]) -> dict[str, Any]:
    from stepfast.testing.trials import Broken, Trials, warm_up

    name, run, base = request.pop("scene"), request.pop("run"), Path(request.pop("base"))
    packages = tuple(request.pop("packages"))
    scene: Scene = getattr(module, name)
    trials = Trials(scene, base=base, packages=packages, **request)
    kind = json.dumps([name, request["options"], request["store"]], sort_keys=True)
    nothing: dict[str, Any] = {key: [] for key in ("points", "tried", "missed", "unjudged")}
    nothing |= {"kills": 0, "lives": 0, "calls": {}, "warm": False}
    try:
        if kind not in warmed:
            warmed[kind] = warm_up(trials, scene.play)
        return {**trials.run(**run), "warm": warmed[kind]}
    except Broken as broken:
        found = {"kind": broken.kind, "at": "no point", "text": str(broken), "folder": str(base)}
        return {**nothing, "findings": [found]}
