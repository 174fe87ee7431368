"""Which classes may come out of stored bytes, under which names, and how a changed class reads old rows.

A name in the bytes is looked up in the registry. Only then, and never in strict mode, among the modules that
this process has already loaded: nothing is ever imported because bytes say so, and what is found must be a
class that says what it is made of, from outside the standard library.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar, overload

from stepfast.errors import CodecError, InvalidInput, UnknownType
from stepfast.stored_names import loaded_module

from . import _leaves, _shapes
from ._marks import SCALARS, Refusal, type_name
from ._shapes import Fields, Shape

T = TypeVar("T", bound=type)
To = Callable[[Any], Any]
Build = Callable[[Any], Any]
Upcast = Callable[[Any, int], Any]

_BUILT_IN = frozenset({*SCALARS, *_leaves.PACK, list, dict, tuple, set, frozenset, object, type})


class Entry(NamedTuple):
    """How the objects of one class are stored and read."""

    cls: type
    name: str
    version: int = 1
    shape: Shape | None = None  # none for an enum, and for a class with its own to and build
    to: To | None = None
    build: Build | None = None
    renames: Mapping[str, str] = {}
    upcast: Upcast | None = None
    ignore_extra: bool = False

    def current(self, stored: Any, version: int) -> Any:
        """What was stored, as the class's present version would have stored it."""
        if version > self.version:
            raise UnknownType(
                f"A stored {self.name} has version {version}, and this process knows version {self.version}. "
                "Run the newer code, or raise the registered version.",
                type=self.name,
            )
        if version < self.version and self.upcast is not None:
            try:
                return self.upcast(stored, version)
            except RecursionError:
                raise
            except Exception as error:
                raise self.broken("upcast", error) from error
        return stored

    def assemble(self, stored: Any, state: Fields, version: int) -> Any:
        """The object whose fields were stored."""
        shape = self.shape
        if shape is None:
            if self.build is not None and self.upcast is not None and version < self.version:
                return self.custom(stored, version)
            raise self.misfit("fields, and the class is not stored by fields now")
        fields = self.current(stored, version)
        if self.renames:
            fields = {self.renames.get(name, name): value for name, value in fields.items()}
            if "set" in state:
                state["set"] = [self.renames.get(name, name) for name in state["set"]]
        names = shape.names()
        added: set[str] = set()
        if fields.keys() != names:
            fields = self._fit(shape, fields, state.get("attrs") or {}, added)
        try:
            return shape.together(fields, state, added, self.ignore_extra)
        except _shapes.Mismatch as mismatch:
            raise self.misfit(str(mismatch)) from None

    def _fit(self, shape: Shape, fields: Fields, attrs: Fields, added: set[str]) -> Fields:
        names = shape.names()
        gone = [name for name in fields if name not in names]
        if gone and not self.ignore_extra:
            raise self.misfit(f"a field {gone[0]!r}, which the class no longer has", field=gone[0])
        fitted = {name: value for name, value in fields.items() if name in names}
        for name in names:
            if name in fitted:
                continue
            if name in attrs:  # set on the object before the class declared it
                fitted[name] = attrs.pop(name)
                continue
            try:
                fitted[name] = shape.default(name, fitted)
            except _shapes.NoDefault:
                raise self.misfit(f"no field {name!r}, which the class has now without a default", field=name) from None
            except RecursionError:
                raise
            except Exception as error:
                raise self.broken(f"default of {name!r}", error) from error
            added.add(name)
        return fitted

    def custom(self, stored: Any, version: int) -> Any:
        """The object whose registered ``to`` gave what was stored."""
        stored = self.current(stored, version)
        if self.build is None:
            if version < self.version and self.upcast is not None:
                return self.assemble(stored, {}, self.version)
            raise self.misfit("what a to function made of it, and none is registered now")
        try:
            return self.build(stored)
        except (CodecError, RecursionError):
            raise
        except Exception as error:
            raise self.broken("build", error) from error

    def member(self, name: str) -> Any:
        """The enum member with this name, looked up in the class's own table."""
        name = self.renames.get(name, name)
        if not _shapes.is_enum(self.cls):
            raise self.misfit(f"an enum member {name!r}, and the class is no enum now")
        found = self.cls._member_map_.get(name)  # type: ignore[attr-defined]
        if found is None:
            raise UnknownType(
                f"{self.name} has no member {name!r}, which a stored value names. Add it, or register the "
                f'enum with renames={{"{name}": "NEW_NAME"}}.',
                type=self.name,
                field=name,
            )
        return found

    def misfit(self, what: str, **details: Any) -> UnknownType:
        return UnknownType(
            f"A stored {self.name} holds {what}. Give new fields a default, or register the class with "
            "renames={old: new}, with version and upcast, or with ignore_extra=True to drop what is gone.",
            type=self.name,
            **details,
        )

    def broken(self, function: str, error: Exception) -> CodecError:
        return CodecError(
            f"A stored {self.name} is whole, but the {function} that its class declares failed: "
            f"{type(error).__name__}: {error}",
            type=self.name,
        )


class TypeRegistry:
    """The classes that a codec knows by name.

    A class that says what it is made of (dataclass, pydantic model, NamedTuple, Enum, msgspec.Struct) needs
    no registration unless the codec is strict; registering gives it a name that survives moves and renames.
    With ``shared`` what register() made known to every codec is known here too.
    """

    def __init__(self, *, shared: bool = False) -> None:
        self._shared = shared
        self._names: dict[str, Entry] = {}
        self._classes: dict[type, Entry] = {}
        self._structural: dict[type, Entry] = {}
        # Structural classes that were found once, by name and by themselves; see _recall.
        self._found: dict[str | type, tuple[str, str, Entry]] = {}
        self._found_at = self._version = 0

    def __repr__(self) -> str:
        return f"TypeRegistry({sorted(entry.name for entry in self._classes.values())})"

    def register(
        self,
        cls: type,
        *,
        name: str | None = None,
        to: To | None = None,
        build: Build | None = None,
        renames: Mapping[str, str] | None = None,
        upcast: Upcast | None = None,
        version: int = 1,
        aliases: Iterable[str] = (),
        ignore_extra: bool = False,
    ) -> None:
        """Make a class known.

        ``name`` is what the bytes will say; by default ``module:qualname``, which is understood in any case.
        ``to`` makes storable data of an object and ``build`` the object of that data: both run your code, and
        ``build`` is the one thing of yours that runs on read. Without them the class is stored by its fields.
        ``renames`` maps old field (or enum member) names to new ones; ``upcast(stored, version)`` turns what
        an older ``version`` stored into what this one would; ``aliases`` are other names that old bytes use,
        such as ``"__main__:Customer"``; ``ignore_extra`` drops stored fields that the class no longer has.
        """
        if not isinstance(cls, type):
            raise InvalidInput(f"register() takes a class, not {cls!r}.")
        own = type_name(cls)
        if cls in _BUILT_IN:
            raise InvalidInput(f"{own} is built in and stored as it is; it cannot be registered.")
        if (to is None) != (build is None):
            raise InvalidInput(f"Register {own} with both to and build, or with neither.")
        if type(version) is not int or version < 1:
            raise InvalidInput(f"The version of {own} must be a whole number from 1 on, not {version!r}.")
        if isinstance(aliases, str):
            raise InvalidInput(f"The aliases of {own} must be a collection of names, not one string.")
        shape = None
        if to is None and not _shapes.is_enum(cls):
            try:
                shape = _shapes.shape_of(cls)
            except _shapes.NotStructural as why:
                raise InvalidInput(f"{own} cannot be stored by its fields: {why}. Give to= and build=.") from None
        entry = Entry(cls, name or own, version, shape, to, build, dict(renames or {}), upcast, ignore_extra)
        names = {entry.name, own, *aliases}
        for taken in names:
            other = self._names.get(taken)
            # The same class made again (a reloaded module, a notebook cell) takes its own place.
            if other is not None and other.cls is not cls and type_name(other.cls) != own:
                raise InvalidInput(f"The name {taken!r} is registered for {type_name(other.cls)} already.")
        for stale in [known for known in self._names if self._names[known].cls is cls]:
            del self._names[stale]
        self._names.update(dict.fromkeys(names, entry))
        self._classes[cls] = entry
        self._version += 1

    def registered(self, cls: type) -> Entry | None:
        entry = self._classes.get(cls)
        return DEFAULT._classes.get(cls) if entry is None and self._shared else entry

    def named(self, name: str) -> Entry | None:
        entry = self._names.get(name)
        return DEFAULT._names.get(name) if entry is None and self._shared else entry

    def missing_name(self, name: str) -> None:
        """Bytes have a name that is not registered: a subclass may register it now."""

    def missing_class(self, cls: type) -> None:
        """An object's class is not registered: a subclass may register it now."""

    def for_name(self, name: str, strict: bool) -> Entry:
        """What the bytes mean by a name, or UnknownType."""
        if not strict:
            recalled = self._recall(name)
            if recalled is not None:
                return recalled
        at = self._registrations()
        entry = self.named(name)
        if entry is not None:
            return entry
        if not isinstance(name, str):
            raise TypeError("a type's name must be text")
        self.missing_name(name)
        entry = self.named(name)
        if entry is None and not strict:
            entry = _library().of_name(name)
        if entry is not None:
            return entry
        problem = "the codec is strict, and the class is not registered"
        if not strict:
            try:
                entry = self._for_class(_loaded(name))
            except Refusal as refusal:
                problem = refusal.why
            else:
                self._remember(name, name, entry, at)
                return entry
        raise UnknownType(
            f"A stored value is of type {name!r}: {problem}. Import its module before reading, or, where the "
            f'class moved or was renamed, register it with aliases=["{name}"].',
            type=name,
        )

    def for_class(self, cls: type, strict: bool) -> Entry:
        """How objects of a class are stored, or a Refusal if they could not be read again."""
        if not strict:
            recalled = self._recall(cls)
            if recalled is not None:
                return recalled
        at = self._registrations()
        entry = self.registered(cls)
        if entry is None:
            self.missing_class(cls)
            entry = self.registered(cls)
        if entry is None and not strict:
            entry = _library().of_class(cls)
        if entry is not None:
            return entry
        if strict:
            raise Refusal("the codec is strict, and this class is not registered", cls)
        entry = self._for_class(cls)
        try:
            found = _loaded(entry.name)
        except Refusal as refusal:
            refusal.kind = cls
            raise
        if found is not cls:
            raise Refusal(f"{entry.name} is another class now (was the module reloaded?), so it could not be read", cls)
        self._remember(cls, entry.name, entry, at)
        return entry

    def _recall(self, key: str | type) -> Entry | None:
        """What was found before, if nothing was registered since and the module still has the class there."""
        found = self._found.get(key)
        if found is None or self._found_at != self._registrations():
            return None
        module = sys.modules.get(found[0])
        if module is None or vars(module).get(found[1]) is not found[2].cls:
            return None
        return found[2]

    def _remember(self, key: str | type, name: str, entry: Entry, at: int) -> None:
        if self._found_at != at:
            self._found = {}
            self._found_at = at
        module, _, qualname = name.partition(":")
        module = loaded_module(module)
        if vars(sys.modules[module]).get(qualname) is entry.cls:
            self._found[key] = (module, qualname, entry)

    def _registrations(self) -> int:
        return self._version + DEFAULT._version if self._shared else self._version

    def _for_class(self, cls: type) -> Entry:
        entry = self.registered(cls) or self._structural.get(cls)
        if entry is None:
            if cls.__module__.partition(".")[0] in sys.stdlib_module_names:
                raise Refusal("classes of the standard library are stored only when registered", cls)
            shape = None
            if not _shapes.is_enum(cls):
                try:
                    shape = _shapes.shape_of(cls)
                except _shapes.NotStructural as why:
                    raise Refusal(str(why), cls) from None
            entry = self._structural[cls] = Entry(cls, type_name(cls), shape=shape)
        return entry


def _library() -> Any:
    """Loaded at the first class that is not registered: most processes store none of these."""
    from ._library import LIBRARY

    return LIBRARY


def _loaded(name: str) -> type:
    """The class that a loaded module holds under ``module:qualname``, found without running any code."""
    module_name, _, qualname = name.partition(":")
    module_name = loaded_module(module_name)
    module = sys.modules.get(module_name)
    if module is None:
        raise Refusal(f"no module {module_name!r} is loaded")
    if "<locals>" in qualname:
        raise Refusal("it was defined inside a function, where nothing can find it again; register it")
    # vars(), because getattr() would run a module's __getattr__ and a class's descriptors.
    space: Mapping[str, Any] = vars(module)
    found: Any = space.get(qualname)
    if found is None:
        plain, bracket, _ = qualname.partition("[")
        for part in plain.split("."):
            found = space.get(part)
            if found is None or not issubclass(type(found), type):
                raise Refusal(f"{module_name!r} has no class {qualname!r}")
            space = vars(found)
        if bracket:  # a pydantic generic: Box[int] is a class of its own, known to Box alone
            found = next((sub for sub in type.__subclasses__(found) if sub.__qualname__ == qualname), None)
    if found is None or not issubclass(type(found), type):
        raise Refusal(f"{module_name!r} has no class {qualname!r}")
    cls: type = found
    return cls


DEFAULT = TypeRegistry()


@overload
def register(cls: T, **options: Any) -> T: ...
@overload
def register(cls: None = None, **options: Any) -> Callable[[T], T]: ...
def register(cls: Any = None, **options: Any) -> Any:
    """Make a class known to every codec that has no registry of its own; see TypeRegistry.register.

    ``@register``, ``@register(name="invoice", version=2)`` and ``register(Money, to=..., build=...)`` work.
    """
    if cls is None:
        return lambda decorated: register(decorated, **options)
    DEFAULT.register(cls, **options)
    return cls
