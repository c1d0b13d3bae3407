"""Checks of arguments, arrays and dtypes that several layers share."""

from __future__ import annotations

import operator
import re
from typing import Any

import numpy as np

from guideloom._base.errors import ArgumentError

MAX_ITEMSIZE_BYTES = 2**31 - 1
_MAX_FIELDS = 4096
_MAX_DEPTH = 16
_SCALAR_DESCR = re.compile(
    r"\|b1|[|<][iu][1248]|<f[248]|<c(?:8|16)|[|<][SUV][1-9][0-9]{0,9}|<[mM]8(?:\[[0-9]{0,9}[A-Za-z]{1,7}\])?"
)

# C's long double: the bytes of a number differ among processors, and x86 leaves some of them as they were in memory.
_LONG_DOUBLES = ("<f12", "<f16", "<c24", "<c32")


def as_int(value: object, what: str) -> int:
    """Return ``value`` as an ``int``; anything that is not an integer (booleans included) is an ``ArgumentError``."""
    if type(value) is int:
        return value
    if not isinstance(value, (bool, np.bool_)):
        try:
            return operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            pass
    raise ArgumentError(f"{what} must be an integer, got {value!r} of type {type(value).__name__}")


def octets(data: bytes | bytearray | memoryview) -> bytes | bytearray | memoryview:
    """Return a buffer with the same bytes, of the one format that can be assigned to a view of bytes.

    Those of ctypes, of characters or of signed bytes cannot.
    """
    if not isinstance(data, memoryview) or data.format == "B":
        return data
    return np.frombuffer(data, np.uint8).data


def packed_little_endian(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype that stores the same values little-endian and without padding.

    Raises
    ------
    ArgumentError
        The values cannot be stored as plain bytes: objects, variable-size strings, extension types, or a size of 0.
    """
    return _checked_size(_packed(np.dtype(dtype)))


def _no_long_double(dtype: object) -> str:
    return f"elements of dtype {dtype} cannot be stored: other processors read other numbers out of them: use float64"


def _checked_size(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.subdtype is not None:
        raise ArgumentError(f"an element dtype must not itself be a sub-array, got {dtype}: put it into a field")
    if not 0 < dtype.itemsize <= MAX_ITEMSIZE_BYTES:
        raise ArgumentError(f"an element must have 1 to {MAX_ITEMSIZE_BYTES} bytes, got {dtype.itemsize} ({dtype})")
    return dtype


def _packed(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return np.dtype((_packed(base), shape))
    if dtype.fields is not None:
        return np.dtype([(name, _packed(dtype.fields[name][0])) for name in dtype.names or ()])
    if dtype.hasobject:
        raise ArgumentError(f"elements of dtype {dtype} cannot be stored: they hold references, not values")
    little = dtype.newbyteorder("<")
    if little.str in _LONG_DOUBLES:
        raise ArgumentError(_no_long_double(dtype))
    if _SCALAR_DESCR.fullmatch(little.str) is None or np.dtype(little.str) != little:
        raise ArgumentError(f"elements of dtype {dtype} cannot be stored: store a view as a NumPy number or bytes type")
    return np.dtype(little.str)


def descr_of(dtype: np.dtype[Any]) -> Any:
    """Return a packed little-endian dtype as JSON: a string, or a list of ``[name, descr(, shape)]``."""
    if dtype.fields is None:
        return dtype.str
    descr: list[Any] = []
    for name in dtype.names or ():
        field = dtype.fields[name][0]
        if field.subdtype is None:
            descr.append([name, descr_of(field)])
        else:
            base, shape = field.subdtype
            descr.append([name, descr_of(base), list(shape)])
    return descr


def dtype_from_descr(descr: Any) -> np.dtype[Any]:
    """Parse what :func:`descr_of` gives, from a source that is not trusted.

    Only fixed-size plain types pass, and sizes are checked before NumPy sees them.

    Raises
    ------
    ArgumentError
        Anything else.
    """
    dtype, _ = _parse(descr, 0)
    return _checked_size(dtype)


def _parse(descr: Any, depth: int) -> tuple[np.dtype[Any], int]:
    if depth > _MAX_DEPTH:
        raise ArgumentError(f"a dtype nested deeper than {_MAX_DEPTH}")
    if isinstance(descr, str):
        if descr in _LONG_DOUBLES:
            raise ArgumentError(_no_long_double(descr))
        if _SCALAR_DESCR.fullmatch(descr) is None:
            raise ArgumentError(f"not a plain little-endian dtype: {descr[:80]!r}")
        digits = re.search(r"[SUV]([0-9]+)", descr)
        if digits is not None and int(digits[1]) * 4 > MAX_ITEMSIZE_BYTES:
            raise ArgumentError(f"a dtype that is too large: {descr!r}")
        try:
            dtype = np.dtype(descr)
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"not a dtype on this machine: {descr!r} ({error})") from None
        return dtype, dtype.itemsize
    if not isinstance(descr, list) or not 0 < len(descr) <= _MAX_FIELDS:
        raise ArgumentError(f"a dtype is a string or a list of 1 to {_MAX_FIELDS} fields, got {type(descr).__name__}")
    fields: list[Any] = []
    names: set[str] = set()
    total = 0
    for field in descr:
        if not isinstance(field, list) or len(field) not in (2, 3) or not isinstance(field[0], str) or not field[0]:
            raise ArgumentError("a field of a dtype is [name, dtype] or [name, dtype, shape]")
        name = field[0]
        if name in names:
            raise ArgumentError(f"field {name[:80]!r} occurs twice in a dtype")
        names.add(name)
        dtype, size = _parse(field[1], depth + 1)
        if len(field) == 3:
            shape = field[2]
            if not isinstance(shape, list) or not 0 < len(shape) <= 32:
                raise ArgumentError(f"the shape of field {name[:80]!r} is not a list of 1 to 32 integers")
            for extent in shape:
                if type(extent) is not int or not 0 < extent <= MAX_ITEMSIZE_BYTES:
                    raise ArgumentError(f"the shape of field {name[:80]!r} has an extent that is no positive integer")
                size *= extent
                if size > MAX_ITEMSIZE_BYTES:
                    break
            fields.append((name, dtype, tuple(shape)))
        else:
            fields.append((name, dtype))
        total += size
        if total > MAX_ITEMSIZE_BYTES:
            raise ArgumentError(f"a dtype of more than {MAX_ITEMSIZE_BYTES} bytes")
    try:
        return np.dtype(fields), total
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"not a dtype: {error}") from None


def describe_dtype(dtype: np.dtype[Any] | None) -> str:
    """Return a short text for messages."""
    if dtype is None:
        return "no dtype"
    text = str(np.dtype(dtype)) if dtype.names else repr(dtype.str)
    return text if len(text) <= 300 else text[:297] + "..."
