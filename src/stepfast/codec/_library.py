"""Classes of the standard library and of other libraries that are stored by functions of ours.

What is read from a store can choose among these functions, and nothing else. A library's classes become known when the
first of them is met and the library is loaded: none is ever imported here. They do not count in fingerprints of
arguments, which are as old as the stored format.
"""

from __future__ import annotations

import ipaddress
import re
import sys
import threading
from collections.abc import Callable
from fractions import Fraction
from types import SimpleNamespace
from typing import Final

from . import _exceptions
from ._registry import Build, Entry, To, TypeRegistry

STANDARD: Final[dict[type, tuple[To, Build]]] = {
    re.Pattern: (lambda pattern: [pattern.pattern, pattern.flags], lambda given: re.compile(*given)),
    Fraction: (lambda value: [value.numerator, value.denominator], lambda given: Fraction(*given)),
    SimpleNamespace: (lambda value: dict(vars(value)), lambda given: SimpleNamespace(**given)),
    **{
        cls: (str, cls)
        for cls in (
            ipaddress.IPv4Address,
            ipaddress.IPv6Address,
            ipaddress.IPv4Network,
            ipaddress.IPv6Network,
            ipaddress.IPv4Interface,
            ipaddress.IPv6Interface,
        )
    },
}


def _numpy(registry: TypeRegistry) -> None:
    from . import _arrays

    _arrays.register(registry)


def _pandas(registry: TypeRegistry) -> None:
    from . import _frames

    _frames.register(registry)


class _Library(TypeRegistry):
    """What every codec that is not strict knows beside its own registry."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._late: dict[str, Callable[[TypeRegistry], None]] = {"numpy": _numpy, "pandas": _pandas}
        for cls, (to, build) in STANDARD.items():
            self.register(cls, to=to, build=build)

    def of_class(self, cls: type) -> Entry | None:
        """How objects of a class are stored, if it is one of these or an exception."""
        self._meet(cls.__module__)
        if BaseException in cls.__mro__:
            _exceptions.meet_class(self, cls)
        return self.registered(cls)

    def of_name(self, name: str) -> Entry | None:
        """The same for the class that bytes name."""
        self._meet(name.partition(":")[0])
        if self.named(name) is None:
            _exceptions.meet_name(self, name)
        return self.named(name)

    def _meet(self, module: str) -> None:
        root = module.partition(".")[0]
        if root in self._late and root in sys.modules:
            with self._lock:  # another thread that meets it at the same time waits until all is registered
                if root in self._late:
                    self._late[root](self)
                    del self._late[root]


LIBRARY: Final = _Library()
