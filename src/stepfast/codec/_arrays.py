"""numpy arrays and scalars as their type, shape and bytes."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ._registry import TypeRegistry


def register(registry: TypeRegistry) -> None:
    """Make arrays and scalars storable; arrays of Python objects are refused."""
    registry.register(np.ndarray, name="numpy:ndarray", to=_of_array, build=_array)
    registry.register(np.dtype, name="numpy:dtype", to=_of_dtype, build=_dtype)
    scalars = {np.dtype(code).type for code in np.typecodes["All"] if code != "O"}
    for scalar in scalars:
        registry.register(scalar, name=f"numpy:{scalar.__name__}", to=_of_scalar, build=_scalar_of(scalar))
    for kind in {type(np.dtype(code)) for code in np.typecodes["All"] if code != "O"} - {np.dtype}:
        registry.register(kind, name=f"numpy.dtypes:{kind.__name__}", to=_of_dtype, build=_dtype)


def _of_dtype(dtype: Any) -> Any:
    """A dtype as text, or as the fields of a structured one."""
    if dtype.hasobject:
        raise TypeError("an array of Python objects has no bytes; use .tolist()")
    found = dtype.str if dtype.names is None and dtype.subdtype is None else dtype.descr
    given = [_field(field) for field in found] if isinstance(found, list) else found
    if dtype.metadata or _dtype(given) != dtype:
        raise TypeError(f"the dtype {dtype} cannot be written down exactly")
    return given


def _field(field: tuple[Any, ...]) -> list[Any]:
    name, kind, *shape = field
    kind = [_field(inner) for inner in kind] if isinstance(kind, list) else kind
    return [list(name) if isinstance(name, tuple) else name, kind, *map(list, shape)]


def _dtype(given: Any) -> Any:
    made = np.dtype(given if isinstance(given, str) else [_tuples(field) for field in given])
    if made.hasobject:
        raise TypeError("an array of Python objects is not read")
    return made


def _tuples(field: list[Any]) -> tuple[Any, ...]:
    name, kind, *shape = field
    kind = [_tuples(inner) for inner in kind] if isinstance(kind, list) else kind
    return (tuple(name) if isinstance(name, list) else name, kind, *map(tuple, shape))


def _of_array(array: Any) -> list[Any]:
    dtype = _of_dtype(array.dtype)
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    return [dtype, list(array.shape), order, array.tobytes(order)]


def _array(given: list[Any]) -> Any:
    dtype, shape, order, data = given
    return _over(tuple(shape), _dtype(dtype), data, "F" if order == "F" else "C")


def _over(shape: tuple[int, ...], dtype: Any, data: bytes, order: Any = "C") -> Any:
    """An array of its own memory, which the bytes must fill exactly."""
    if any(size < 0 for size in shape) or prod(shape) * dtype.itemsize != len(data):
        raise ValueError("its bytes do not fit its shape")
    return np.ndarray(shape, dtype, buffer=bytearray(data), order=order)


def _of_scalar(scalar: Any) -> list[Any]:
    dtype = _of_dtype(scalar.dtype)
    if type(_scalar([dtype, scalar.tobytes()])) is not type(scalar):
        raise TypeError("its dtype has another scalar type on this machine; use .item()")
    return [dtype, scalar.tobytes()]


def _scalar(given: list[Any]) -> Any:
    dtype, data = given
    return _over((), _dtype(dtype), data)[()]


def _scalar_of(cls: Any) -> Any:
    def build(given: list[Any]) -> Any:
        scalar = _scalar(given)
        if type(scalar) is not cls:
            raise TypeError(f"no {cls.__name__}")
        return scalar

    return build
