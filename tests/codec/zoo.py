"""Classes of every kind that the codec stores, and a comparison that tells 1 from True."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections import defaultdict, deque, namedtuple
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import msgspec
import pydantic.dataclasses
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, RootModel, computed_field

T = TypeVar("T")


@dataclass
class Point:
    x: Any
    y: Any


@dataclass(frozen=True)
class FrozenPoint:
    x: Any
    y: Any = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlottedPoint:
    x: Any
    y: Any = None


@dataclass
class Base:
    name: str


@dataclass
class Derived(Base):
    tags: list[str] = field(default_factory=list)
    total: int = field(init=False)
    secret: str = field(default="", repr=False)
    seen: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        self.total = len(self.tags)


class Undecorated(Base):
    """Derives from a dataclass and is none itself."""


@dataclass
class Box(Generic[T]):
    content: T


@dataclass
class Extended:
    price: float

    def __post_init__(self) -> None:
        self.note = "set on the object, and not a field"

    @cached_property
    def doubled(self) -> float:
        return self.price * 2


@dataclass
class Nested:
    @dataclass
    class Inner:
        value: Any

    inner: Inner


@dataclass
class WithOptions:
    shared: ClassVar[int] = 5
    option: InitVar[int]
    value: int = 0

    def __post_init__(self, option: int) -> None:
        self.value = option * 2


@dataclass(slots=True)
class SlottedBase:
    a: int


@dataclass(slots=True)
class SlottedDerived(SlottedBase):
    b: Any = None


@pydantic.dataclasses.dataclass
class Checked:
    count: int


class Planet(enum.Enum):
    EARTH = ("earth", 5.97e24)
    MARS = ("mars", 6.42e23)

    def __new__(cls, label: str, mass: float) -> Planet:
        member = object.__new__(cls)
        member._value_ = label
        member.mass = mass  # type: ignore[attr-defined]
        return member


class Colour(enum.Enum):
    RED = 1
    GREEN = "green"
    BLUE = (0, 0, 255)
    ALIAS = 1  # noqa: PIE796


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Mood(enum.StrEnum):
    GOOD = "good"
    BAD = "bad"


class Rights(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()
    RUN = enum.auto()
    ALL = READ | WRITE | RUN


class Bits(enum.IntFlag):
    A = 1
    B = 2


class Place(NamedTuple):
    city: str
    zip_code: int = 0


OldPlace = namedtuple("OldPlace", ["city", "street"])


class PlaceWithMethods(OldPlace):
    """Has a ``__dict__``, as its base has not."""


class User(BaseModel):
    id: int
    name: str = "nobody"
    tags: list[str] = []


class Profile(BaseModel):
    model_config = ConfigDict(extra="allow")

    user: User
    when: Any = None
    token: str = Field(default="", repr=False)
    _cache: dict[str, Any] = PrivateAttr(default_factory=dict)
    _unset: int = PrivateAttr()

    @computed_field  # type: ignore[prop-decorator]
    @cached_property
    def label(self) -> str:
        return self.user.name.upper()


class Numbers(RootModel[list[int]]):
    pass


class PrivateNumbers(RootModel[list[int]]):
    _note: str = "n"


class Page(BaseModel, Generic[T]):
    items: list[T]


UserPage = Page[User]


class Item(msgspec.Struct):
    name: str
    price: float = 0.0
    tags: list[str] = []


class FrozenItem(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    a: Any
    b: Any = None


class Opaque:
    """A class that does not say what it is made of: a client, a session."""

    def __init__(self, value: Any = None) -> None:
        self.value = value


def difference(a: Any, b: Any) -> str | None:
    """Where two values differ in value or type at any depth; None if nowhere."""
    if type(a) is not type(b):
        return f"{type(a).__name__} is not {type(b).__name__}"
    if isinstance(a, float):
        same = math.copysign(1, a) == math.copysign(1, b) and (a == b or (math.isnan(a) and math.isnan(b)))
        return None if same else f"{a!r} is not {b!r}"
    if isinstance(a, complex):
        return difference(a.real, b.real) or difference(a.imag, b.imag)
    if isinstance(a, dict):
        extra = None
        if isinstance(a, defaultdict):
            extra = None if a.default_factory is b.default_factory else "default_factory"
        return extra or difference(list(a.items()), list(b.items()))
    if isinstance(a, deque) and a.maxlen != b.maxlen:
        return "maxlen"
    if isinstance(a, list | tuple | deque):
        if len(a) != len(b):
            return f"{len(a)} items, not {len(b)}"
        for index, (left, right) in enumerate(zip(a, b, strict=True)):
            found = difference(left, right)
            if found:
                return f"[{index}] {found}"
        return None if vars_of(a) == vars_of(b) else "attributes"
    if isinstance(a, set | frozenset):
        return difference(sorted(map(typed_repr, a)), sorted(map(typed_repr, b)))
    if isinstance(a, BaseModel):
        return (
            difference(without_cached(a), without_cached(b))
            or difference(a.__pydantic_extra__, b.__pydantic_extra__)
            or difference(a.__pydantic_private__, b.__pydantic_private__)
            or difference(a.__pydantic_fields_set__, b.__pydantic_fields_set__)
        )
    if dataclasses.is_dataclass(a) and not isinstance(a, type):
        names = [f.name for f in dataclasses.fields(a)]
        return difference(
            {name: getattr(a, name, "unset") for name in names},
            {name: getattr(b, name, "unset") for name in names},
        )
    if isinstance(a, msgspec.Struct):
        return difference(msgspec.structs.asdict(a), msgspec.structs.asdict(b))
    if type(a).__name__ == "Decimal":
        return difference(a.as_tuple(), b.as_tuple()) or difference(str(a), str(b))
    if type(a).__name__ in ("datetime", "time"):
        return (
            difference(a.replace(tzinfo=None).isoformat(), b.replace(tzinfo=None).isoformat())
            or difference(a.fold, b.fold)
            or (None if repr(a.tzinfo) == repr(b.tzinfo) else f"{a.tzinfo!r} is not {b.tzinfo!r}")
        )
    return None if a == b else f"{a!r} is not {b!r}"


def vars_of(value: Any) -> dict[str, Any]:
    return dict(getattr(value, "__dict__", {}))


def without_cached(value: BaseModel) -> dict[str, Any]:
    return {k: v for k, v in value.__dict__.items() if not isinstance(vars(type(value)).get(k), cached_property)}


def typed_repr(value: Any) -> str:
    return f"{type(value).__name__}:{value!r}"
