"""Checks of what a format's ``pack`` gave, and its spans as rows of the span table.

Letters: L elements and S spans of one append. ``rows`` is int64[S, 2]: first element and payload offset of each span,
both from 0.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from guideloom._base.checks import describe_dtype, packed_little_endian
from guideloom._base.errors import ArgumentError, PackError
from guideloom._base.protocols import UserBufferTypes

Rows: TypeAlias = npt.NDArray[np.int64]


def checked_elements(packed: Any, dtype: np.dtype[Any], format_name: str, method: str = "pack") -> npt.NDArray[Any]:
    """Check an array of elements, and return it C-contiguous in the dtype on disk.

    Raises
    ------
    PackError
        No array, not 1-D, or of another dtype (another byte order, or gaps between fields, are converted).
    """
    if type(packed) is not np.ndarray:
        if not isinstance(packed, np.ndarray) or isinstance(packed, np.ma.MaskedArray):
            raise PackError(
                f"{format_name}.{method} must give a 1-D NumPy array of {describe_dtype(dtype)}, got "
                f"{type(packed).__name__}"
            )
        packed = np.asarray(packed)
    if packed.ndim != 1:
        raise PackError(f"{format_name}.{method} must give a 1-D array, got shape {packed.shape}")
    given = packed.dtype
    if given is not dtype and given != dtype:
        try:
            same_values = packed_little_endian(given) == dtype
        except ArgumentError:
            same_values = False
        if not same_values:
            raise PackError(
                f"{format_name}.{method} must give elements of dtype {describe_dtype(dtype)}, got {given}: "
                "convert them there; NumPy's casts wrap values that do not fit, StreamNumpyFormat.pack refuses them"
            )
        packed = packed.astype(dtype)
    return packed if packed.flags.c_contiguous else np.ascontiguousarray(packed)


def plain_bytes(encoded: Any, format_name: str, method: str = "pack") -> UserBufferTypes:
    """Check an encoded document or payload, and return it as bytes-like with ``len`` in bytes."""
    if isinstance(encoded, (bytes, bytearray)):
        return encoded
    if isinstance(encoded, memoryview):
        if encoded.ndim == 1 and encoded.itemsize == 1 and encoded.c_contiguous:
            return encoded
        if encoded.c_contiguous and encoded.nbytes:
            return encoded.cast("B")
        return encoded.tobytes()
    raise PackError(
        f"{format_name}.{method} must give bytes, a bytearray or a memoryview, got {type(encoded).__name__}"
    )


# --- spans that come whole ---------------------------------------------------------------------


def whole_spans(packed: Any, dtype: np.dtype[Any], format_name: str) -> tuple[npt.NDArray[Any], Rows, bytes]:
    """Check what ``pack_spans`` gave.

    Parameters
    ----------
    packed : (elements, lengths, payloads)
    dtype : dtype
        Of the elements on disk.
    format_name : str

    Returns
    -------
    elements : ndarray of ``dtype``, shape (L,)
    rows : int64[S, 2]
    blob : bytes
        The payloads end to end.
    """
    name = f"{format_name}.pack_spans"
    if not isinstance(packed, tuple) or len(packed) != 3:
        found = f"a tuple of {len(packed)}" if isinstance(packed, tuple) else type(packed).__name__
        raise PackError(f"{name} must give a tuple (elements, lengths, payloads), got {found}")
    elements = checked_elements(packed[0], dtype, format_name, "pack_spans")
    try:
        lengths = np.asarray(packed[1])
    except ValueError as error:  # sequences of unequal length
        raise PackError(
            f"{name} must give the spans' lengths as a 1-D array or sequence of integers: {error}"
        ) from error
    payloads = packed[2] if isinstance(packed[2], (list, tuple)) else _listed(packed[2], name)
    if lengths.ndim != 1 or (lengths.size and lengths.dtype.kind not in "iu"):
        raise PackError(
            f"{name} must give the spans' lengths as a 1-D array or sequence of integers, got "
            f"{lengths.dtype} of shape {lengths.shape}"
        )
    num_spans = lengths.size
    if num_spans != len(payloads):
        raise PackError(f"{name} must give one payload a span, got {num_spans} lengths and {len(payloads)} payloads")
    if num_spans:
        shortest = int(lengths.min())
        if shortest < 1:
            at = int(lengths.argmin())
            raise PackError(
                f"{name} gives span {at} a length of {shortest}: a span has at least one element, so leave out those "
                "that have none, with their payloads (a record may be without any)"
            )
        # A single length beyond all elements could wrap the sum around.
        longest = int(lengths.max())
        total = longest if longest > elements.size else int(lengths.sum(dtype=np.int64))
    else:
        total = 0
    if total != elements.size:
        raise PackError(f"{name} must give lengths that sum to the {elements.size} elements, got at least {total}")
    if not _PLAIN.issuperset(map(type, payloads)):
        payloads = [plain_bytes(payload, format_name, "pack_spans") for payload in payloads]
    rows = np.zeros((num_spans, 2), np.int64)
    np.cumsum(lengths[:-1], out=rows[1:, 0])
    np.cumsum(np.fromiter(map(len, payloads), np.int64, num_spans)[:-1], out=rows[1:, 1])
    return elements, rows, b"".join(payloads)


_PLAIN = frozenset((bytes, bytearray))


def _listed(payloads: Any, name: str) -> list[Any]:
    if isinstance(payloads, (str, bytes, bytearray, memoryview)):
        raise PackError(f"{name} must give a sequence of payloads, one a span, got one {type(payloads).__name__}")
    try:
        return list(payloads)
    except TypeError:
        raise PackError(f"{name} must give a sequence of payloads, got {type(payloads).__name__}") from None


# --- spans that come element by element ----------------------------------------------------------


def paired_spans(pairs: Generator[Any, None, Any], size: int, format_name: str) -> tuple[Any, Rows, bytearray]:
    """Find the spans in the pairs that ``pack`` yields.

    Parameters
    ----------
    pairs : generator of (key, payload or None)
        Closed in any case.
    size : int
        What ``size(data)`` said.
    format_name : str

    Returns
    -------
    packed
        What ``pack`` returned.
    rows : int64[S, 2]
    blob : bytearray
        The payloads end to end.
    """
    if not hasattr(pairs, "__next__"):
        raise PackError(f"{format_name}.pack must be a generator of (key, payload), got {type(pairs).__name__}")
    rows: list[int] = []
    blob = bytearray()
    known = _Keys()
    previous: Any = known
    index = -1
    try:
        # The body runs for each element: what it does not need is not in it, and the comparison is no call.
        for index, pair in enumerate(islice(pairs, min(size, sys.maxsize))):
            try:
                key, payload = pair
            except (TypeError, ValueError):
                raise PackError(
                    f"{format_name}.pack must yield pairs (key, payload or None), got {pair!r:.80}"
                ) from None
            if key is previous:
                continue
            try:
                if key == previous:
                    continue
            except ValueError as error:
                before = "" if previous is known else f" with the one before it, {previous!r:.80}"
                raise PackError(
                    f"{format_name}.pack yields key {key!r:.80} at element {index}, which cannot be compared{before}: "
                    "use keys of one type, such as int or str"
                ) from error
            if not known.add(key):
                raise PackError(
                    f"{format_name}.pack yields key {key!r:.80} again at element {index}, after another key: "
                    "a span is one run of elements"
                )
            if payload is None:
                raise PackError(
                    f"{format_name}.pack yields no payload with the first element of the span of key {key!r:.80} "
                    f"(element {index})"
                )
            rows.append(index)
            rows.append(len(blob))
            blob += payload if type(payload) is bytes else plain_bytes(payload, format_name)
            previous = key
        found = f"only {index + 1}"
        if index + 1 == size:
            try:
                next(pairs)
                found = "more"
            except StopIteration as end:
                return end.value, np.array(rows, np.int64).reshape(-1, 2), blob
    finally:
        if hasattr(pairs, "close"):
            pairs.close()
    raise PackError(f"{format_name}.pack must yield exactly size(data) = {size} pairs, got {found}")


class _Keys:
    """The keys that one append has used; those that cannot be hashed are compared one by one."""

    def __init__(self) -> None:
        self._hashed: set[Any] = set()
        self._others: list[Any] = []

    def add(self, key: Any) -> bool:
        """Add a key; False when it was there."""
        try:
            if key in self._hashed:
                return False
            self._hashed.add(key)
        except TypeError:
            if key in self._others:
                return False
            self._others.append(key)
        return True
