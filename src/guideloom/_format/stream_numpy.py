"""Records of named columns, stored as the rows of a structured NumPy dtype."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from guideloom._base.errors import ArgumentError
from guideloom._format.naming import NamedFormat
from guideloom._format.values import as_values, check_equal_lengths, field_dtype, fields_of, stored_column


class StreamNumpyFormat(NamedFormat):
    """Elements with named fields: packs a mapping of columns, unpacks to a mapping of columns.

    Parameters
    ----------
    stream_dtype : dtype-like
        Structured, e.g. ``np.dtype([("tokens", "<u2"), ("mask", "?")])``. A field may have an inner shape
        (``("scores", "<f4", (3,))``) or be structured itself.
    data_type : callable, optional
        Makes a sample of its columns: called as ``data_type(**columns)``. A ``TypedDict``, ``dict`` or a dataclass will
        do. By default a sample is a plain dict; the loader then needs no call per sample.

    Attributes
    ----------
    stream_dtype : dtype
        What is stored and what ``unpack`` gives: the dtype asked for, little-endian and without gaps between fields.
    requested_dtype : dtype
        The dtype as it was given.

    Raises
    ------
    ArgumentError
        ``stream_dtype`` is not structured, or holds Python objects; ``data_type`` does not take the fields.

    Notes
    -----
    Cost: packing a single field that already has the stored dtype is free, otherwise it is one copy, with a check of
    the range only where the given dtype is the wider one; unpacking gives views. Safe on data from strangers: the bytes
    are numbers, and any bytes are some numbers.

    Examples
    --------
    >>> import numpy as np
    >>> fmt = StreamNumpyFormat(np.dtype([("tokens", "<u2")]))
    >>> fmt.pack({"tokens": [1, 2, 65535]})["tokens"].tolist()
    [1, 2, 65535]
    >>> fmt.pack({"tokens": [1, 2, 65536]})
    Traceback (most recent call last):
        ...
    guideloom.errors.PackError: field 'tokens': value 65536 at position 2 does not fit <u2, which holds whole \
numbers from 0 to 65535: give the field a dtype that holds it, or correct the value
    """

    def __init__(self, stream_dtype: npt.DTypeLike, data_type: Callable[..., Any] | None = None) -> None:
        try:
            requested = np.dtype(stream_dtype)
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"expected a structured dtype, got {stream_dtype!r}: {error}") from error
        if not requested.names:
            raise ArgumentError(
                f"expected a structured dtype as stream_dtype, got {requested}: name its fields, e.g. "
                'np.dtype([("tokens", "<u2")])'
            )
        fields = [(name, field_dtype(name, requested[name])) for name in requested.names]
        self.requested_dtype = requested
        self.stream_dtype: np.dtype[Any] = np.dtype(fields)
        self.data_type = data_type
        if data_type is not None:
            _check_data_type(data_type, requested.names)

    def pack(self, data: Any) -> npt.NDArray[Any]:
        """Encode a record.

        Parameters
        ----------
        data : mapping field -> array-like of shape (L, ...)
            Exactly the fields of the dtype, all of length L: arrays of any stride and byte order, or sequences of
            numbers. A structured array, or an instance of ``data_type``, is taken as well.

        Returns
        -------
        ndarray of ``stream_dtype``, shape (L,)
            With a single field it may be a view on the array given: write it, or copy it, before that changes.

        Raises
        ------
        PackError
            Missing or unknown fields, unequal lengths, another shape, values that are no numbers, and the first value
            that its field cannot hold, with its position and the field's limits.
        """
        dtype = self.stream_dtype
        names: Sequence[str] = dtype.names or ()
        if len(names) == 1:
            stored = stored_column(data, names[0], dtype[0])
            if stored is not None:
                return stored.view(dtype)
        record = fields_of(data, names, self.data_type)
        columns = {name: as_values(record[name], dtype[name], name) for name in names}
        if len(names) == 1:
            return np.ascontiguousarray(columns[names[0]], dtype[0].base).reshape(-1).view(dtype)
        stream = np.empty(check_equal_lengths(columns), dtype)
        for name, column in columns.items():
            np.copyto(stream[name], column, casting="unsafe")
        return stream

    def unpack(
        self, stream: npt.NDArray[Any], shard_lengths: npt.NDArray[np.int64], shards: npt.NDArray[np.int64]
    ) -> Any:
        """Decode a window: its columns, as views on ``stream``.

        Parameters
        ----------
        stream : structured ndarray, shape (L,)
        shard_lengths, shards : ndarray of int64
            Not used.

        Returns
        -------
        dict or ``data_type``
            Field -> ndarray of shape (L, ...); with several fields the arrays have gaps between their values.
        """
        columns = {name: stream[name] for name in self.stream_dtype.names or ()}
        return columns if self.data_type is None else self.data_type(**columns)

    def __repr__(self) -> str:
        more = "" if self.data_type is None else f", {getattr(self.data_type, '__name__', repr(self.data_type))}"
        return f"StreamNumpyFormat({self.stream_dtype.descr}{more})"


def _check_data_type(data_type: Callable[..., Any], names: Sequence[str]) -> None:
    if not callable(data_type):
        raise ArgumentError(f"expected a callable such as dict as data_type, got {type(data_type).__name__}")
    try:
        signature = inspect.signature(data_type)
    except (TypeError, ValueError):
        return  # Built-in types have none; they show at the first unpack.
    try:
        signature.bind(**dict.fromkeys(names))
    except TypeError as error:
        called = getattr(data_type, "__name__", repr(data_type))
        raise ArgumentError(f"data_type {called} does not take the fields {', '.join(names)}: {error}") from error
