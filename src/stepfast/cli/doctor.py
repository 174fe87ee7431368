"""``stepfast doctor``: what could be wrong here, looked at, with a remedy for each problem."""

from __future__ import annotations

import os
import platform
import shutil
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import typer

from stepfast.cli.failures import FAILED, describe
from stepfast.cli.setup import Setup, command
from stepfast.cli.text import without_secrets
from stepfast.errors import SchemaTooNew, StepfastError, StoreFull

_LITTLE_SPACE, _NO_SPACE = 1 << 30, 100 << 20
_OFF_SECONDS, _FAR_OFF_SECONDS = 1.0, 30.0
# Where SQLite's WAL-reset bug is mended; docs/stores.md has the story.
_SAFE_SQLITE = ((3, 51, 3), (3, 50, 7), (3, 44, 6))

State = Literal["ok", "warning", "problem"]
_MARKS: dict[State, str] = {"ok": "+", "warning": "!", "problem": "x"}


class Check(NamedTuple):
    """One thing that was looked at."""

    name: str
    state: State
    found: str
    remedy: str = ""


def add(app: typer.Typer) -> None:
    command(app, "doctor")(doctor)


def doctor(at: Setup) -> None:
    """Look for problems: store, schema, server, key, clock, disk. Exit code 1 if there is one, with a remedy each."""
    from stepfast.cli import out

    checks = [*_here(), *(_server(at) if at.remote else _store(at))]
    ok = all(check.state != "problem" for check in checks)
    if at.as_json:
        out.show_json({"ok": ok, "checks": [check._asdict() for check in checks]})
    else:
        for check in checks:
            out.say(f"{_MARKS[check.state]} {check.name:<16}  {check.found}")
            if check.remedy:
                out.say(f"  {check.state}: {check.remedy}")
        out.say("All is well." if ok else "There are problems.")
    if not ok:
        raise typer.Exit(FAILED)


def _tried(name: str, remedy: str, look: Callable[[], Check]) -> Check:
    try:
        return look()
    except (StepfastError, OSError) as error:
        return Check(name, "problem", describe(error), remedy)


# --- this machine --------------------------------------------------------------------------------


def _here() -> list[Check]:
    from stepfast import __version__

    versions = f"stepfast {__version__}, Python {platform.python_version()}"
    checks = [Check("versions", "ok", versions)]
    if "STEPFAST_ENCRYPTION_KEYS" in os.environ:
        checks.append(_tried("encryption keys", "Set STEPFAST_ENCRYPTION_KEYS as docs/values.md says.", _encryption))
    return checks


def _encryption() -> Check:
    from stepfast.codec import KeyRing

    return Check("encryption keys", "ok", repr(KeyRing.from_env()))


# --- a store ---------------------------------------------------------------------------------------


def _store(at: Setup) -> list[Check]:
    from stepfast.cli.reach import open_client

    started = time.perf_counter()
    try:
        sf = open_client(at)
    except SchemaTooNew as error:
        return [Check("schema", "problem", describe(error), "Upgrade: pip install -U stepfast.")]
    except (StepfastError, OSError) as error:
        return [Check("store", "problem", describe(error), _unreachable(at))]
    with sf:
        opened = (time.perf_counter() - started) * 1000
        checks = [Check("store", "ok", f"{sf.url} opened in {opened:.0f} ms")]
        checks.append(Check("schema", "ok", "as this version needs it"))
        if sf.url.startswith("sqlite:"):
            checks += _sqlite(getattr(sf.store, "path", None))
        checks += _writing(sf)
    return checks


def _unreachable(at: Setup) -> str:
    if (at.place or "").startswith("postgres"):
        return "Check that PostgreSQL runs, and host, port, user, password and database in the URL."
    return "Check --url (STEPFAST_URL), the folder's rights and the disk."


def _writing(sf: Any) -> list[Check]:
    """A durable write, its time, and the store's clock against ours."""
    before, started = time.time(), time.perf_counter()
    try:
        theirs = sf.check().timestamp()
    except StoreFull as error:
        return [Check("writing", "problem", describe(error), "Free some space, or move the store.")]
    except StepfastError as error:
        return [Check("writing", "problem", describe(error), "Check the rights on the store, and its disk.")]
    took = time.perf_counter() - started
    off = theirs - (before + took / 2)
    return [Check("writing", "ok", f"a durable write took {took * 1000:.1f} ms"), _clock(off, took)]


def _clock(off: float, took: float) -> Check:
    found = f"{off:+.3f} s from the store's (± {took / 2:.3f} s)"
    if abs(off) - took / 2 < _OFF_SECONDS:
        return Check("clock", "ok", found)
    state: State = "problem" if abs(off) >= _FAR_OFF_SECONDS else "warning"
    return Check("clock", state, found, "Let both machines take their time from NTP.")


def _sqlite(path: Path | None) -> list[Check]:
    version = _sqlite_version()
    text = ".".join(map(str, version))
    if not any(version >= safe and (safe is _SAFE_SQLITE[0] or version[:2] == safe[:2]) for safe in _SAFE_SQLITE):
        note = (
            f"{text} has the WAL-reset bug (fixed in 3.51.3). Stepfast writes around it; open the file with no other "
            "program while Stepfast uses it."
        )
        checks = [Check("SQLite", "warning", text, note)]
    else:
        checks = [Check("SQLite", "ok", text)]
    if path is not None:
        checks += [_tried("disk", "", lambda: _disk(path)), _tried("file", "", lambda: _rights(path))]
    return checks


def _sqlite_version() -> tuple[int, ...]:
    """As the store's driver has it."""
    driver = sys.modules.get("sqlite3")
    return tuple(driver.sqlite_version_info) if driver is not None else (0, 0, 0)


def _disk(path: Path) -> Check:
    free = shutil.disk_usage(path.parent).free
    found = f"{free / (1 << 30):.1f} GiB free for {path.parent}"
    if free < _NO_SPACE:
        return Check(
            "disk", "problem", found, "Free some space: a full disk stops every run. `stepfast intents prune`."
        )
    if free < _LITTLE_SPACE:
        return Check("disk", "warning", found, "Make room soon: a full disk stops every run.")
    return Check("disk", "ok", found)


def _rights(path: Path) -> Check:
    mode = stat.S_IMODE(path.stat().st_mode)
    found = f"{path} ({path.stat().st_size / (1 << 20):.1f} MiB, mode {mode:o})"
    if sys.platform != "win32" and mode & 0o077:
        return Check("file", "warning", found, f"Others may read it: chmod 600 {path}")
    return Check("file", "ok", found)


# --- a server --------------------------------------------------------------------------------------


def _server(at: Setup) -> list[Check]:
    import httpx

    base = (at.place or "").rstrip("/")
    shown = without_secrets(base)
    try:
        httpx.get(f"{base}/health", timeout=10).raise_for_status()
        ready = httpx.get(f"{base}/ready", timeout=15)
    except httpx.HTTPError as error:
        why = str(error) or type(error).__name__
        return [Check("server", "problem", f"{shown}: {why}", "Check --url, and that `stepfast serve` runs there.")]
    checks = [Check("server", "ok", f"{shown} answers")]
    if ready.status_code != 200:
        why = ready.json().get("detail", f"HTTP {ready.status_code}")
        checks.append(Check("ready", "problem", str(why), "Look at the server's log, and at its store."))
        return checks
    checks.append(Check("ready", "ok", "its store takes writes, and has the right schema"))
    return checks + _as_caller(at)


def _as_caller(at: Setup) -> list[Check]:
    from stepfast import __version__
    from stepfast.cli.reach import open_api, open_client

    try:
        with open_api(at) as api:
            who = api.whoami()
    except StepfastError as error:
        return [Check("key", "problem", describe(error), "Make one where the store is: stepfast keys create.")]
    name = who["agent"] or f"{who['org']}/{who['workspace']}"
    checks = [Check("key", "ok", f"{who['key_id'] or 'none is needed'}, {who['role']}, for {name}")]
    theirs = str(who["version"])
    if theirs != __version__:
        checks.append(Check("server's version", "warning", theirs, f"This is {__version__}; keep both the same."))
    else:
        checks.append(Check("server's version", "ok", theirs))
    try:
        with open_client(at) as sf:
            checks += _writing(sf)
    except StepfastError as error:
        checks.append(Check("writing", "problem", describe(error), "Use a key of the workspace that has all rights."))
    return checks
