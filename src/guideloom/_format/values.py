"""Values into fields of fixed width without loss: what is stored equals what was given, or an error names the place.

Letters: L records of a batch or document.

``dtype`` below is that of a field: ``dtype.base`` for one value, ``dtype.shape`` for the fixed inner shape of a record.
"""

from __future__ import annotations

import functools
import math
import typing
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from guideloom._base.checks import descr_of, packed_little_endian
from guideloom._base.errors import ArgumentError, PackError

_NUMBERS = "biufc"


# --- dtypes ------------------------------------------------------------------------------------


def field_dtype(name: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a field's dtype as it is stored: little-endian, packed, with its inner shape.

    Raises
    ------
    ArgumentError
        Names the field: its values are objects, strings of any length, of another package's dtype, or have no bytes.
    """
    try:
        base = packed_little_endian(dtype.base)
    except ArgumentError as error:
        raise ArgumentError(f"field {name!r}: {error.message}") from None
    if 0 in dtype.shape:
        raise ArgumentError(f"field {name!r}: an inner shape of {dtype.shape} holds no values: leave the field out")
    return np.dtype((base, dtype.shape)) if dtype.shape else base


def alignment_bytes(dtype: np.dtype[Any]) -> int:
    """Return the alignment of a field in a document: docs/formats.md fixes it, whatever this machine's ABI says."""
    base = dtype.base
    if base.kind in "biufMm":
        return base.itemsize
    return {"c": base.itemsize // 2, "U": 4}.get(base.kind, 1)


def describe(dtype: np.dtype[Any]) -> str:
    """Return a field's dtype in one word: ``<u2``, ``<f4[3]``."""
    return str(descr_of(dtype.base)) + (str(list(dtype.shape)) if dtype.shape else "")


# --- records -----------------------------------------------------------------------------------


def fields_of(data: Any, names: Sequence[str], data_type: Any = None) -> Mapping[str, Any]:
    """Return a record as a mapping that has exactly the fields ``names``.

    Parameters
    ----------
    data : mapping, structured ndarray, or instance of ``data_type``
    names : sequence of str
    data_type : callable, optional
        When it is a class (a dataclass, say), its instances are read by attribute.

    Raises
    ------
    PackError
        Names what is missing and what is too much.
    """
    if isinstance(data, Mapping):
        record = data
    elif isinstance(data, np.ndarray) and data.dtype.names is not None:
        record = {name: data[name] for name in data.dtype.names}
    elif isinstance(data_type, type) and not typing.is_typeddict(data_type) and isinstance(data, data_type):
        record = {name: getattr(data, name) for name in names if hasattr(data, name)}
    else:
        raise PackError(f"expected a mapping with the fields {_listed(names)}, got {type(data).__name__}")
    missing = [name for name in names if name not in record]
    if missing or len(record) != len(names):
        extra = [name for name in record if name not in names]
        found = [f"without {_listed(missing)}"] * bool(missing) + [f"with {_listed(extra)} besides"] * bool(extra)
        raise PackError(
            f"expected a record with the fields {_listed(names)}, got one {' and '.join(found)}: give it exactly these"
        )
    return record


def check_equal_lengths(columns: Mapping[str, npt.NDArray[Any]]) -> int:
    """Return the one length of all columns.

    Raises
    ------
    PackError
        Lists each field with its length.
    """
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
        raise PackError(f"expected fields of equal length, a value of each for every element, got: {listed}")
    return next(iter(lengths.values()))


def _listed(names: Sequence[Any]) -> str:
    return ", ".join(repr(name) for name in names)


# --- values ------------------------------------------------------------------------------------


def as_values(value: Any, dtype: np.dtype[Any], name: str) -> npt.NDArray[Any]:
    """Return a field's values as an array that can be cast to ``dtype.base`` without loss.

    Parameters
    ----------
    value : array-like of shape (L, *dtype.shape)
        An array of any byte order and stride, or a sequence of numbers; ``bytes`` are for fields of one byte.
    dtype : dtype
        The field's.
    name : str
        The field's, for messages.

    Returns
    -------
    ndarray, shape (L, *dtype.shape)
        ``value`` itself when it is an array. Its dtype need not be ``dtype.base``: cast it with ``casting="unsafe"``.

    Raises
    ------
    PackError
        Another shape; values that are no numbers (strings, objects, None; ``bytes`` for wider fields); a value that
        ``dtype`` cannot hold. Rounding to the precision of a float is no loss in this sense, overflow to infinity is.

    Notes
    -----
    Nothing is looked at when NumPy calls the cast safe. Otherwise it costs one pass or two over the values.
    """
    what = f"field {name!r}"
    base = dtype.base
    array = value if type(value) is np.ndarray else _as_array(value, base, what)
    if array.ndim == 0 or array.shape[1:] != dtype.shape:
        if array.shape != (0,):
            wanted = "(L,)" if not dtype.shape else f"(L, {', '.join(map(str, dtype.shape))})"
            remedy = "append row by row, or reshape" if array.ndim else "give an array, or a sequence of numbers"
            if isinstance(value, str):
                remedy = "store a text as its bytes, text.encode(), in a field of dtype u1"
            found = f"got shape {array.shape} from {type(value).__name__}"
            raise PackError(f"{what}: expected shape {wanted}, {found}: {remedy}")
        array = array.reshape(0, *dtype.shape)
    if array.dtype == base:
        return array
    if array.dtype.kind == "O" and base.kind in _NUMBERS:
        return _from_objects(array, base, what)
    _check(array, base, what)
    return array


def stored_column(data: Any, name: str, dtype: np.dtype[Any]) -> npt.NDArray[Any] | None:
    """Return a record's only column when it already is what is stored: C-contiguous, of shape (L,), of ``dtype``.

    None says nothing about the record: :func:`fields_of` and :func:`as_values` look at it then.
    """
    if type(data) is not dict or len(data) != 1:
        return None
    column = data.get(name)
    if type(column) is np.ndarray and column.dtype == dtype and column.ndim == 1 and column.flags.c_contiguous:
        return column
    return None


def no_mask(value: Any, what: str) -> None:
    """Raise for a masked array: its mask would be lost."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise PackError(f"{what}: a masked array's mask cannot be stored: fill it first, e.g. with .filled(0)")


def _as_array(value: Any, base: np.dtype[Any], what: str) -> npt.NDArray[Any]:
    no_mask(value, what)
    if isinstance(value, bytes | bytearray) and base.kind in _NUMBERS:
        if base.itemsize > 1:
            # Numbers as an array's tobytes() gives them, or a number a byte? Either is wrong where it is not meant.
            raise PackError(
                f"{what}: expected an array, or a sequence of numbers, got {len(value)} {type(value).__name__}: give "
                f'np.frombuffer(value, "{base.str}") where they are numbers of {base.itemsize} bytes each, and '
                'np.frombuffer(value, "u1") where each byte is one'
            )
        return np.frombuffer(value, np.uint8)
    try:
        array = np.asarray(value)
        if array.dtype.kind == "f" and base.kind in "iu" and isinstance(value, Sequence):
            # NumPy turns [2**63 + 1, 0] into rounded floats: look at the Python numbers themselves.
            array = np.array(value, dtype=object)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        ragged = isinstance(value, list | tuple) and any(isinstance(row, list | tuple | np.ndarray) for row in value)
        remedy = "append row by row, or join the rows with np.concatenate" if ragged else str(error)
        found = f"{type(value).__name__}{' of rows' if ragged else ''}"
        raise PackError(f"{what}: expected an array or a sequence, got {found}: {remedy}") from error
    return array


def _from_objects(array: npt.NDArray[Any], base: np.dtype[Any], what: str) -> npt.NDArray[Any]:
    """Convert Python numbers one by one, at their full precision."""
    convert: Any = {"f": float, "c": complex}.get(base.kind, _whole)
    kinds = (int, float, np.number, np.bool_) if base.kind != "c" else (int, float, complex, np.number, np.bool_)
    lowest, highest = _integer_limits(base) if base.kind in "iub" else (-math.inf, math.inf)
    numbers = []
    for position, value in enumerate(array.reshape(-1).tolist()):
        if not isinstance(value, kinds) or (base.kind != "c" and isinstance(value, np.complexfloating)):
            where = _place(np.unravel_index(position, array.shape))
            raise PackError(f"{what}: expected a number at position {where}, got {type(value).__name__} {value!r:.60}")
        try:
            number = convert(value)
        except (OverflowError, ValueError):
            _refuse(what, value, np.unravel_index(position, array.shape), base)
        if base.kind in "iub" and not lowest <= number <= highest:
            _refuse(what, value, np.unravel_index(position, array.shape), base)
        numbers.append(number)
    if base.kind in "iub":
        return np.array(numbers, base).reshape(array.shape)
    wide = np.array(numbers, np.complex128 if base.kind == "c" else np.float64).reshape(array.shape)
    _check(wide, base, what)
    return wide


def _whole(value: Any) -> int:
    number = int(value)
    if number != value:
        raise ValueError
    return number


def _check(array: npt.NDArray[Any], base: np.dtype[Any], what: str) -> None:
    """Raise unless every value of ``array`` has its equal in ``base``, or, for floats, its nearest."""
    have = array.dtype
    if not array.size:
        return
    if base.names is not None:
        if have.names != base.names or any(have[name].shape != base[name].shape for name in base.names):
            raise PackError(f"{what}: expected a structured array with dtype {base}, got {have}")
        for name in base.names:
            _check(array[name], base[name].base, f"{what[:-1]}.{name}'")
    elif base.kind in _NUMBERS:
        if have.kind not in _NUMBERS or (have.kind == "c" and base.kind != "c"):
            _refuse_kind(what, have, base)
        if not _is_safe(have, base):
            _CHECKS[base.kind](array, base, what)
    elif have.kind != base.kind or (base.kind == "V" and have != base):
        _refuse_kind(what, have, base)
    elif base.kind in "SU" and have.itemsize > base.itemsize:
        _refuse_any(np.strings.str_len(array) > _characters(base), array, base, what)
    elif base.kind in "Mm":
        _check_time(array, base, what)


def _check_bool(array: npt.NDArray[Any], base: np.dtype[Any], what: str) -> None:
    _refuse_any((array != 0) & (array != 1), array, base, what)


def _check_integer(array: npt.NDArray[Any], base: np.dtype[Any], what: str) -> None:
    lowest, highest = _integer_limits(base)
    have = array.dtype
    if have.kind == "f":
        # Both bounds are powers of two (or 0), so exact as floats; NaN fails every comparison.
        values = array if have.itemsize >= 8 else array.astype(np.float64)
        whole = (values >= float(lowest)) & (values < float(highest + 1)) & (values == np.floor(values))
        _refuse_any(~whole, array, base, what)
        return
    if base.kind == "u" and have.kind == "i" and have.isnative and have.itemsize >= base.itemsize:
        # Seen as unsigned, a negative value is larger than any that fits: one pass instead of two.
        fits = int(array.view(f"u{have.itemsize}").max()) <= min(highest, _integer_limits(have)[1])
    else:
        fits = int(array.max()) <= highest and (have.kind == "u" or int(array.min()) >= lowest)
    if not fits:
        _refuse_any((array < lowest) | (array > highest), array, base, what)


def _check_float(array: npt.NDArray[Any], base: np.dtype[Any], what: str) -> None:
    if array.dtype.kind in "iu" and base.itemsize > 2:
        return  # 2**64 is far below the largest float32.
    limit = float(np.finfo(base).max)
    if not (array.max() <= limit and array.min() >= -limit):
        _refuse_any(np.isfinite(array) & ((array > limit) | (array < -limit)), array, base, what)


def _check_complex(array: npt.NDArray[Any], base: np.dtype[Any], what: str) -> None:
    part = np.dtype(f"f{base.itemsize // 2}")
    _check_float(array.real, part, what)
    _check_float(array.imag, part, what)


def _check_time(array: npt.NDArray[Any], base: np.dtype[Any], what: str) -> None:
    try:
        back = array.astype(base).astype(array.dtype)
    except OverflowError as error:
        raise PackError(f"{what}: expected times within the range of {base}: {error}") from error
    _refuse_any((back != array) & ~(np.isnat(back) & np.isnat(array)), array, base, what)


_CHECKS = {"b": _check_bool, "i": _check_integer, "u": _check_integer, "f": _check_float, "c": _check_complex}


# --- messages ----------------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def _is_safe(have: np.dtype[Any], base: np.dtype[Any]) -> bool:
    return np.can_cast(have, base, "safe")


@functools.lru_cache(maxsize=256)
def _integer_limits(base: np.dtype[Any]) -> tuple[int, int]:
    if base.kind == "b":
        return 0, 1
    info = np.iinfo(base)
    return int(info.min), int(info.max)


def _characters(base: np.dtype[Any]) -> int:
    return base.itemsize // (4 if base.kind == "U" else 1)


def _holds(base: np.dtype[Any]) -> str:
    if base.kind in "iu":
        return "whole numbers from {} to {}".format(*_integer_limits(base))
    if base.kind == "b":
        return "0 and 1"
    if base.kind in "fc":
        limit = np.finfo(base).max
        return f"numbers from {-limit} to {limit}"
    if base.kind in "SU":
        return f"at most {_characters(base)} {'characters' if base.kind == 'U' else 'bytes'}"
    return f"whole steps of {np.datetime_data(base)} in 64 bits"


def _refuse_any(bad: npt.NDArray[np.bool_], array: npt.NDArray[Any], base: np.dtype[Any], what: str) -> None:
    if bad.any():
        where = np.unravel_index(int(np.argmax(bad)), bad.shape)
        _refuse(what, array[where], where, base)


def _refuse(what: str, value: Any, where: tuple[Any, ...], base: np.dtype[Any]) -> NoReturn:
    shown = str(value) if not isinstance(value, int) or abs(value) < 10**60 else f"of {value.bit_length()} bits"
    raise PackError(
        f"{what}: value {shown:.80} at position {_place(where)} does not fit {base.str}, which holds {_holds(base)}: "
        "give the field a dtype that holds it, or correct the value"
    )


def _refuse_kind(what: str, have: np.dtype[Any], base: np.dtype[Any]) -> NoReturn:
    kinds = {
        "S": "byte strings",
        "U": "strings",
        "M": "datetime64 values",
        "m": "timedelta64 values",
        "V": f"{base} values",
    }
    wanted = kinds.get(base.kind, f"numbers that fit {base.str}")
    raise PackError(f"{what}: expected {wanted}, got values of dtype {have}: convert them first")


def _place(where: tuple[Any, ...]) -> str:
    return str(int(where[0])) if len(where) == 1 else str(tuple(int(index) for index in where))
