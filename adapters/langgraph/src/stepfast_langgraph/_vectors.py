"""Embeddings as bytes, and how near they are to a query: with numpy where it is installed, else in plain Python."""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Sequence
from typing import Any

from stepfast import InvalidInput

_SWAP = sys.byteorder == "big"


def check_vector(vector: Any, dims: int | None) -> list[float]:
    """An embedding as a list of finite numbers; `InvalidInput` if it has another length than the index."""
    numbers = [float(number) for number in vector]
    if dims is not None and len(numbers) != dims:
        raise InvalidInput(
            f"index: the embedding has {len(numbers)} numbers and the index has dims={dims}. Set dims to the model's."
        )
    if not all(map(math.isfinite, numbers)):
        raise InvalidInput("index: the embedding holds a number that is not finite. Look at what `embed` gives.")
    return numbers


def pack(vector: Sequence[float]) -> bytes:
    """Four bytes a number where that is exact (most models give no more), else eight; the first byte says which."""
    try:
        packed = array("f", vector)
    except OverflowError:
        packed = array("d", vector)
    if packed.typecode == "f" and list(packed) != list(vector):
        packed = array("d", vector)
    code = packed.typecode.encode()
    if _SWAP:
        packed.byteswap()
    return code + packed.tobytes()


def unpack(data: bytes) -> array[float]:
    found = array("f" if data[:1] == b"f" else "d")
    found.frombytes(data[1:])
    if _SWAP:
        found.byteswap()
    return found


def similarities(query: Sequence[float], vectors: Sequence[array[float]]) -> list[float]:
    """The cosine of the angle between the query and each vector; 0 where one of them has no length."""
    try:
        import numpy
    except ImportError:
        return [_cosine(query, vector) for vector in vectors]
    if not vectors:
        return []
    if len({len(vector) for vector in vectors} | {len(query)}) > 1:  # of an index that had other dims once
        return [_cosine(query, vector) for vector in vectors]
    table = numpy.array(vectors, dtype=numpy.float64)
    asked = numpy.array(query, dtype=numpy.float64)
    lengths = numpy.linalg.norm(table, axis=1) * numpy.linalg.norm(asked)
    products = table @ asked
    found: list[float] = numpy.divide(products, lengths, out=numpy.zeros_like(products), where=lengths > 0).tolist()
    return found


def _cosine(one: Sequence[float], other: Sequence[float]) -> float:
    if len(one) != len(other):
        return 0.0
    lengths = math.sqrt(math.fsum(a * a for a in one)) * math.sqrt(math.fsum(b * b for b in other))
    return math.fsum(map(float.__mul__, map(float, one), map(float, other))) / lengths if lengths > 0 else 0.0
