"""Named places where a crash would matter, for tests to stop the process at.

A module declares its names once, beside its imports, and calls ``failpoint(name)`` at each boundary:

    declare("store.before_commit", "store.after_commit")
    ...
    failpoint("store.after_commit")

No environment variable and no setting can switch these on: only a test that installs a hook in its own
process. Without a hook a failpoint costs one comparison.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["declare", "declared", "failpoint", "install", "uninstall"]

Hook = Callable[[str], None]

_hook: Hook | None = None
_declared: set[str] = set()


def failpoint(name: str) -> None:
    """Pass here; under a test's hook, tell it so. The hook may kill, raise or stop."""
    hook = _hook
    if hook is not None:
        if name not in _declared:
            raise LookupError(f"failpoint {name!r} was never declared: add it to declare(...) in its module")
        hook(name)


def declare(*names: str) -> None:
    """Register the failpoints of a module, so that a test can compare them with those it met."""
    _declared.update(names)


def declared() -> frozenset[str]:
    """Every name declared by the modules imported so far."""
    return frozenset(_declared)


def install(hook: Hook) -> None:
    """Call ``hook`` with the name at each failpoint of this process, in whatever thread meets it."""
    global _hook
    if _hook is not None:
        raise RuntimeError("a failpoint hook is already installed: uninstall() it first")
    _hook = hook


def uninstall() -> None:
    """Back to no hook; harmless when there is none."""
    global _hook
    _hook = None
