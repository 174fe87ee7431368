"""Leaves: single values that MessagePack has no exact form for, each as the data of one Ext.

Only exact types are here. A subclass would come back as its base, so it is refused further up.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from re import compile as regex
from struct import Struct
from typing import Any, Final
from uuid import UUID

from msgspec.msgpack import Ext

from stepfast.errors import UnknownType

from . import _marks as m
from ._marks import Refusal

_COMPLEX = Struct(">dd")
_DATE = Struct(">HBB")
_TIME = Struct(">BBBIB")
_DATETIME = Struct(">HBBBBBIB")
_SPAN = Struct(">iii")
_OFFSET = Struct(">q")
_MICROSECOND = timedelta(microseconds=1)
# What IANA uses. No dot, so that a stored key cannot climb out of the time zone folder.
_ZONE_KEY = regex(r"[A-Za-z0-9_+\-]+(/[A-Za-z0-9_+\-]+)*")


def pack_int(value: int) -> Ext:
    return Ext(m.BIG_INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


def pack_str(value: str) -> Ext:
    return Ext(m.ODD_STR, value.encode("utf-8", "surrogatepass"))


def _pack_complex(value: complex) -> Ext:
    return Ext(m.COMPLEX, _COMPLEX.pack(value.real, value.imag))


def _pack_bytearray(value: bytearray) -> Ext:
    return Ext(m.BYTEARRAY, bytes(value))


def _pack_decimal(value: Decimal) -> Ext:
    return Ext(m.DECIMAL, str(value).encode())


def _pack_uuid(value: UUID) -> Ext:
    return Ext(m.UUID, value.bytes)


def _pack_date(value: date) -> Ext:
    return Ext(m.DATE, _DATE.pack(value.year, value.month, value.day))


def _pack_time(value: time) -> Ext:
    clock = _TIME.pack(value.hour, value.minute, value.second, value.microsecond, value.fold)
    return Ext(m.TIME, clock + _zone_bytes(value.tzinfo))


def _pack_datetime(v: datetime) -> Ext:
    clock = _DATETIME.pack(v.year, v.month, v.day, v.hour, v.minute, v.second, v.microsecond, v.fold)
    return Ext(m.DATETIME, clock + _zone_bytes(v.tzinfo))


def _pack_timedelta(value: timedelta) -> Ext:
    return Ext(m.TIMEDELTA, _SPAN.pack(value.days, value.seconds, value.microseconds))


def _pack_zone(value: tzinfo) -> Ext:
    return Ext(m.ZONE, _zone_bytes(value))


def _pack_path(value: Any) -> Ext:
    return Ext(m.PATH, _PATH_LETTERS[type(value).__name__] + str(value).encode("utf-8", "surrogatepass"))


def _pack_unset(value: m.Unset) -> Ext:
    return Ext(m.UNSET, b"")


def _zone_bytes(zone: Any) -> bytes:
    if zone is None:
        return b""
    kind = type(zone)
    if kind is timezone:
        offset, *name = zone.__getinitargs__()  # a name only if the zone was given one of its own
        label = b":" + name[0].encode("utf-8", "surrogatepass") if name else b""
        return b"o" + _OFFSET.pack(offset // _MICROSECOND) + label
    zoneinfo = sys.modules.get("zoneinfo")
    if zoneinfo is not None and kind is zoneinfo.ZoneInfo:
        key = zone.key
        if key is None or not _ZONE_KEY.fullmatch(key):
            raise Refusal("its time zone has no IANA key; make it with zoneinfo.ZoneInfo(key)", kind)
        return b"z" + str(key).encode()
    raise Refusal("only datetime.timezone and zoneinfo.ZoneInfo time zones are stored; convert to one", kind)


_PATH_LETTERS: Final = {
    "PurePosixPath": b"p",
    "PosixPath": b"P",
    "PureWindowsPath": b"w",
    "WindowsPath": b"W",
}

PACK: Final[dict[type, Callable[[Any], Ext]]] = {
    complex: _pack_complex,
    bytearray: _pack_bytearray,
    Decimal: _pack_decimal,
    UUID: _pack_uuid,
    date: _pack_date,
    time: _pack_time,
    datetime: _pack_datetime,
    timedelta: _pack_timedelta,
    timezone: _pack_zone,
    m.Unset: _pack_unset,
}


def late_packer(kind: type) -> Callable[[Any], Ext] | None:
    """The packer of a type whose module is too slow to import before it is needed."""
    found = _LATE.get((kind.__module__.partition(".")[0], kind.__name__))
    if found is None or getattr(sys.modules[kind.__module__], kind.__name__, None) is not kind:
        return None
    PACK[kind] = found
    return found


_LATE: Final[dict[tuple[str, str], Callable[[Any], Ext]]] = {
    ("zoneinfo", "ZoneInfo"): _pack_zone,
    **{("pathlib", name): _pack_path for name in _PATH_LETTERS},
}


def _read_complex(data: bytes) -> complex:
    return complex(*_COMPLEX.unpack(data))


def _read_date(data: bytes) -> date:
    return date(*_DATE.unpack(data))


def _read_time(data: bytes) -> time:
    hour, minute, second, micro, fold = _TIME.unpack_from(data)
    return time(hour, minute, second, micro, _read_zone(data[_TIME.size :]), fold=fold)


def _read_datetime(data: bytes) -> datetime:
    year, month, day, hour, minute, second, micro, fold = _DATETIME.unpack_from(data)
    zone = _read_zone(data[_DATETIME.size :])
    return datetime(year, month, day, hour, minute, second, micro, zone, fold=fold)


def _read_timedelta(data: bytes) -> timedelta:
    days, seconds, micro = _SPAN.unpack(data)
    return timedelta(days, seconds, micro)


def _read_zone(data: bytes) -> tzinfo | None:
    if not data:
        return None
    if data[:1] == b"o":
        offset = timedelta(microseconds=_OFFSET.unpack_from(data, 1)[0])
        label = data[1 + _OFFSET.size :]
        if label:
            return timezone(offset, label[1:].decode("utf-8", "surrogatepass"))
        return timezone(offset)
    key = data[1:].decode()
    if data[:1] != b"z" or not _ZONE_KEY.fullmatch(key):
        raise ValueError("no such kind of time zone")
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(key)
    except (ZoneInfoNotFoundError, OSError) as error:
        raise UnknownType(
            f"This machine has no time zone {key!r}, which a stored value names. "
            "Install the tzdata package (or the system's time zone files) and read again.",
            type=f"zoneinfo:{key}",
        ) from error


def _read_path(data: bytes) -> Any:
    import pathlib

    text = data[1:].decode("utf-8", "surrogatepass")
    for name, letter in _PATH_LETTERS.items():
        if letter == data[:1]:
            try:
                return getattr(pathlib, name)(text)
            except NotImplementedError as error:  # a PosixPath on Windows, or the other way round
                raise UnknownType(
                    f"A stored value is a pathlib.{name}, which this operating system does not have. "
                    "Read it where it was written, or store a PurePath there.",
                    type=f"pathlib:{name}",
                ) from error
    raise ValueError("no such kind of path")


READ: Final[dict[int, Callable[[bytes], Any]]] = {
    m.BIG_INT: lambda data: int.from_bytes(data, "big", signed=True),
    m.ODD_STR: lambda data: data.decode("utf-8", "surrogatepass"),
    m.COMPLEX: _read_complex,
    m.BYTEARRAY: bytearray,
    m.DECIMAL: lambda data: Decimal(data.decode("ascii")),
    m.UUID: lambda data: UUID(bytes=data),
    m.DATE: _read_date,
    m.TIME: _read_time,
    m.DATETIME: _read_datetime,
    m.TIMEDELTA: _read_timedelta,
    m.PATH: _read_path,
    m.ZONE: _read_zone,
    m.UNSET: lambda data: m.UNSET_FIELD,
}
