"""pandas objects as columns, each an array or plain values with the name of its type.

What was written down is read again at once and compared: a frame that would come back different in any way is
refused instead.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from pandas.testing import assert_frame_equal, assert_index_equal, assert_series_equal

from ._registry import TypeRegistry

_INDEXES = ("Index", "RangeIndex", "DatetimeIndex", "TimedeltaIndex", "CategoricalIndex", "MultiIndex")


def register(registry: TypeRegistry) -> None:
    """Make data frames, series, indexes and pandas scalars storable."""
    registry.register(pd.DataFrame, name="pandas:DataFrame", to=_of_frame, build=_frame)
    registry.register(pd.Series, name="pandas:Series", to=_of_series, build=_series)
    for name in _INDEXES:
        registry.register(getattr(pd, name), name=f"pandas:{name}", to=_of_whole_index, build=_index)
    registry.register(pd.Timestamp, name="pandas:Timestamp", to=_of_timestamp, build=_timestamp)
    registry.register(pd.Timedelta, name="pandas:Timedelta", to=_of_timedelta, build=_timedelta)
    registry.register(type(pd.NaT), name="pandas:NaT", to=lambda _: None, build=lambda _: pd.NaT)
    registry.register(type(pd.NA), name="pandas:NA", to=lambda _: None, build=lambda _: pd.NA)


def _of_frame(frame: Any) -> dict[str, Any]:
    given = {
        "index": _of_index(frame.index),
        "columns": _of_index(frame.columns),
        "data": [_of_column(frame.iloc[:, place].array) for place in range(frame.shape[1])],
        "attrs": dict(frame.attrs),
    }
    assert_frame_equal(_frame(given), frame, **_exactly, check_column_type="equiv")
    _same_freq(_frame(given).index, frame.index)
    return given


def _frame(given: dict[str, Any]) -> Any:
    index, columns = _index(given["index"]), _index(given["columns"])
    series = {place: pd.Series(_column(data), index=index) for place, data in enumerate(given["data"])}
    frame = pd.DataFrame(series, index=index, columns=range(len(series)))
    frame.columns = columns
    frame.attrs = dict(given["attrs"])
    return frame


def _of_series(series: Any) -> dict[str, Any]:
    given = {
        "index": _of_index(series.index),
        "name": series.name,
        "data": _of_column(series.array),
        "attrs": dict(series.attrs),
    }
    assert_series_equal(_series(given), series, **_exactly)
    return given


def _series(given: dict[str, Any]) -> Any:
    series = pd.Series(_column(given["data"]), index=_index(given["index"]), name=given["name"])
    series.attrs = dict(given["attrs"])
    return series


_exactly: dict[str, Any] = {"check_exact": True, "check_freq": True, "check_flags": True, "check_index_type": "equiv"}


def _of_whole_index(index: Any) -> list[Any]:
    given = _of_index(index)
    found = _index(given)
    assert_index_equal(found, index, exact=True)
    _same_freq(found, index)
    return given


def _same_freq(found: Any, given: Any) -> None:
    if getattr(found, "freq", None) != getattr(given, "freq", None):
        raise TypeError("its index has a frequency that cannot be written down")


def _of_index(index: Any) -> list[Any]:
    kind = type(index).__name__
    if kind not in _INDEXES:
        raise TypeError(f"an index of type {kind} cannot be written down; use .reset_index()")
    if kind == "RangeIndex":
        return [kind, [index.start, index.stop, index.step], index.name, None]
    if kind == "MultiIndex":
        levels = [_of_index(level) for level in index.levels]
        return [kind, [levels, [np.asarray(codes) for codes in index.codes]], list(index.names), None]
    freq = getattr(index, "freqstr", None)
    return [kind, _of_column(index.array), index.name, freq]


def _index(given: list[Any]) -> Any:
    kind, data, name, freq = given
    if kind == "RangeIndex":
        start, stop, step = data
        return pd.RangeIndex(start, stop, step, name=name)
    if kind == "MultiIndex":
        levels, codes = data
        return pd.MultiIndex(levels=[_index(level) for level in levels], codes=codes, names=name)
    if kind not in _INDEXES:
        raise TypeError("no such index")
    made = pd.Index(_column(data), name=name)
    if freq is not None:
        made = type(made)(made, freq=freq, name=name)
    return made


def _of_column(array: Any) -> list[Any]:
    """An array of pandas as [kind, type, data]."""
    dtype = array.dtype
    if isinstance(dtype, np.dtype):
        if dtype.hasobject:
            return ["values", "object", list(array)]
        return ["numpy", dtype.str, np.asarray(array)]
    if isinstance(dtype, pd.CategoricalDtype):
        return ["category", bool(dtype.ordered), [np.asarray(array.codes), _of_index(dtype.categories)]]
    if isinstance(dtype, pd.DatetimeTZDtype):
        return ["zoned", [dtype.unit, str(dtype.tz)], np.asarray(array.asi8)]
    if isinstance(dtype, pd.StringDtype):
        missing = "NA" if dtype.na_value is pd.NA else "nan"
        return ["text", [dtype.storage, missing], [None if pd.isna(one) else str(one) for one in array]]
    return ["values", str(dtype), [None if one is pd.NA else one for one in array]]


def _column(given: list[Any]) -> Any:
    kind, form, data = given
    if kind == "numpy":
        return data
    if kind == "category":
        codes, categories = data
        return pd.Categorical.from_codes(codes, categories=_index(categories), ordered=form)
    if kind == "zoned":
        unit, zone = form
        return pd.array(data.view(f"M8[{unit}]"), dtype=f"datetime64[{unit}]").tz_localize("UTC").tz_convert(zone)
    if kind == "text":
        storage, missing = form
        return pd.array(data, dtype=pd.StringDtype(storage, na_value=pd.NA if missing == "NA" else np.nan))
    if kind == "values" and form == "object":
        made = np.empty(len(data), dtype=object)
        made[:] = data
        return made
    if kind == "values":
        return pd.array(data, dtype=form)
    raise TypeError("no such column")


def _of_timestamp(stamp: Any) -> list[Any]:
    given = [stamp.asm8.view("i8").item(), stamp.unit, None if stamp.tz is None else str(stamp.tz), stamp.fold]
    found = _timestamp(given)
    if found != stamp or found.tz != stamp.tz or found.unit != stamp.unit or found.fold != stamp.fold:
        raise TypeError("its time zone cannot be written down; use a zone with a name")
    return given


def _timestamp(given: list[Any]) -> Any:
    value, unit, zone, _fold = given
    stamp = pd.Timestamp(np.datetime64(value, unit))
    return stamp if zone is None else stamp.tz_localize("UTC").tz_convert(zone)


def _of_timedelta(delta: Any) -> list[Any]:
    return [delta.asm8.view("i8").item(), delta.unit]


def _timedelta(given: list[Any]) -> Any:
    value, unit = given
    return pd.Timedelta(np.timedelta64(value, unit))
