"""Seams: methods of a framework that an adapter replaces, once in a process, and inert outside of a durable run."""

from __future__ import annotations

import functools
import inspect
import logging
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextvars import ContextVar
from importlib import import_module, metadata
from typing import Any, NamedTuple

from stepfast.errors import InvalidInput

__all__ = ["Seam", "install", "uninstall", "within"]

log = logging.getLogger("stepfast")

Wrap = Callable[[Any], Any]


class Seam(NamedTuple):
    """A function of a framework: ``owner`` is a class or module, or its name as ``"package.module:Class"``.

    ``wrap`` gets the original and returns what takes its place; `within` makes one that is inert outside of a run.
    ``subclasses``: also where a subclass overrides the method, present and future ones.
    """

    owner: Any
    name: str
    wrap: Wrap
    subclasses: bool = False


class _Patch(NamedTuple):
    owner: Any
    name: str
    original: Any  # None: it was inherited

    def undo(self) -> None:
        if self.original is None:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.original)


_lock = threading.Lock()
_installed: dict[str, list[_Patch]] = {}


def install(package: str, versions: tuple[str, str | None], seams: Iterable[Seam]) -> None:
    """Put seams into a framework, all of them or none; a second call for the same package does nothing.

    ``package`` is the distribution's name and ``versions`` the range it was tested with: at least the first, below
    the second. An older version or a missing seam raises `InvalidInput`; a newer version is used with a warning.
    """
    with _lock:
        if package in _installed:
            return
        version = _check_version(package, versions)
        chosen = list(seams)
        owners = [_owner_of(seam, package, version) for seam in chosen]
        patches: list[_Patch] = []
        for seam, owner in zip(chosen, owners, strict=True):
            patches += _patch(seam, owner)
        _installed[package] = patches


def uninstall(package: str) -> None:
    """Put the framework's own functions back; for tests."""
    with _lock:
        for patch in reversed(_installed.pop(package, [])):
            patch.undo()


def _check_version(package: str, versions: tuple[str, str | None]) -> str:
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        raise InvalidInput(f"{package}: is not installed, and its adapter needs it.") from None
    lowest, above = versions
    if _numbers(version) < _numbers(lowest):
        raise InvalidInput(f"{package} {version} is too old for this adapter; install {package}>={lowest}.")
    if above is not None and _numbers(version) >= _numbers(above):
        log.warning("%s %s is newer than what this adapter was tested with (below %s)", package, version, above)
    return version


def _numbers(version: str) -> tuple[int, ...]:
    leading = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(part) for part in leading[0].split(".")] if leading else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _owner_of(seam: Seam, package: str, version: str) -> Any:
    owner, where = seam.owner, seam.owner
    try:
        if isinstance(owner, str):
            module, _, names = owner.partition(":")
            owner = import_module(module)
            for name in filter(None, names.split(".")):
                owner = getattr(owner, name)
        else:
            where = getattr(owner, "__qualname__", None) or getattr(owner, "__name__", repr(owner))
        getattr(owner, seam.name)
    except (ImportError, AttributeError):
        raise InvalidInput(
            f"{package} {version} has no {where}.{seam.name}, which its adapter rests on. "
            f"Install a version of {package} that the adapter's README names, or a newer adapter."
        ) from None
    return owner


def _patch(seam: Seam, owner: Any) -> list[_Patch]:
    patches = [_replace(owner, seam.name, seam.wrap)]
    if seam.subclasses:
        patches += [_replace(each, seam.name, seam.wrap) for each in _overriding(owner, seam.name)]
        patches.append(_watch(owner, seam.name, seam.wrap))
    return patches


def _replace(owner: Any, name: str, wrap: Wrap) -> _Patch:
    own = vars(owner).get(name)
    found = inspect.getattr_static(owner, name)
    if isinstance(found, staticmethod | classmethod):
        replacement: Any = type(found)(wrap(found.__func__))
    else:
        replacement = wrap(found)
    setattr(owner, name, replacement)
    return _Patch(owner, name, own)


def _overriding(owner: type, name: str) -> list[type]:
    found: dict[type, None] = {}
    waiting: list[type] = list(owner.__subclasses__())
    while waiting:
        each = waiting.pop()
        waiting += each.__subclasses__()
        if name in vars(each):
            found[each] = None
    return list(found)


def _watch(owner: type, name: str, wrap: Wrap) -> _Patch:
    """Patch subclasses that are defined later, too."""
    theirs = vars(owner).get("__init_subclass__")
    before = getattr(owner, "__init_subclass__")  # noqa: B009 - of whichever base has one

    def __init_subclass__(cls: Any, /, **kwargs: Any) -> None:  # noqa: N807
        if hasattr(before, "__func__"):
            before.__func__(cls, **kwargs)
        else:
            before(**kwargs)
        if name in vars(cls):
            _replace(cls, name, wrap)

    setattr(owner, "__init_subclass__", classmethod(__init_subclass__))  # noqa: B010 - as for the others
    return _Patch(owner, "__init_subclass__", theirs)


_inside: ContextVar[frozenset[tuple[int, str]]] = ContextVar("stepfast_seams", default=frozenset())


def within(here: Callable[[], Any], around: Callable[..., Any], *, nested: bool = False) -> Wrap:
    """Return a ``wrap`` for a seam that calls ``around(place, original, *args, **kwargs)`` inside of a durable run.

    ``here`` returns the place that the caller stands in (`Standing.here`); where it is None the original is called as
    if there were no seam. So it is for a call that the wrapped one makes of the same method of the same object, as by
    ``super()``. ``around`` is awaited where the original is a coroutine function, iterated where it is an async
    generator function, and called where it is neither. ``nested``: such inner calls are the adapter's, too, where
    agents call each other in circles; ``around`` then stands elsewhere, or nowhere, while it calls the original.
    """

    def wrap(original: Any) -> Any:
        name = getattr(original, "__name__", "")

        def enter(args: tuple[Any, ...]) -> tuple[Any, Any]:
            call = (id(args[0]) if args else 0, name)
            inside = _inside.get()
            place = here() if nested or call not in inside else None
            return place, None if place is None else _inside.set(inside | {call})

        if inspect.isasyncgenfunction(original):

            @functools.wraps(original)
            async def generate(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
                place = here()
                values = original(*args, **kwargs) if place is None else around(place, original, *args, **kwargs)
                async for value in values:
                    yield value

            return generate

        if inspect.iscoroutinefunction(original):

            @functools.wraps(original)
            async def call_async(*args: Any, **kwargs: Any) -> Any:
                place, token = enter(args)
                if token is None:
                    return await original(*args, **kwargs)
                try:
                    return await around(place, original, *args, **kwargs)
                finally:
                    _inside.reset(token)

            return call_async

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            place, token = enter(args)
            if token is None:
                return original(*args, **kwargs)
            try:
                return around(place, original, *args, **kwargs)
            finally:
                _inside.reset(token)

        return call

    return wrap
