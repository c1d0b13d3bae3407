"""Documents of named NumPy arrays, read without a copy. The layout is fixed in docs/formats.md."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
import struct
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from guideloom._base.checks import descr_of, dtype_from_descr, packed_little_endian
from guideloom._base.errors import ArgumentError, CorruptDataError, PackError
from guideloom._base.protocols import StorageBufferTypes, UserBufferTypes
from guideloom._format.naming import NamedFormat
from guideloom._format.values import (
    alignment_bytes,
    as_values,
    describe,
    field_dtype,
    fields_of,
    no_mask,
    stored_column,
)

_MAX_NAME = 200
_LENGTH = struct.Struct("<q")
_NAME = re.compile(r"DocumentNumpyFormat(?:\((.+)\))?", re.DOTALL)
_NAMED_FIELD = re.compile(
    r"(?P<name>[^:,]*):(?P<base>[<|][A-Za-z]\d*(?:\[\d*[a-zA-Z]+\])?)(?P<shape>\[[\d, ]+\])?(?:,|$)"
)


class DocumentNumpyFormat(NamedFormat):
    """Documents of named arrays; reading gives views on the read buffer. Safe on data from strangers.

    Parameters
    ----------
    fields : mapping name -> dtype-like, optional
        What every document holds: ``{"tokens": "<u2", "scores": ("<f4", (3,))}`` is a 1-D array of tokens and an array
        of shape (any length, 3) of scores. Fields of one document may differ in length. Nothing but the numbers (and,
        with several fields, one length each) is stored. Without ``fields`` each document says itself what it holds: any
        names, shapes and plain dtypes, at the price of a few dozen bytes a field and some microseconds a document.

    Attributes
    ----------
    fields : dict name -> dtype, or None
        Little-endian and without gaps, whatever was asked for.
    ragged_name : str
    ragged_dtype : dtype
        Name and dtype of the only field: a document's bytes are that array's bytes, so that the loader's
        ``collate_fn=None`` can give a batch as flat values and offsets. With any other number of fields there are no
        such attributes.

    Raises
    ------
    ArgumentError
        ``fields`` is no mapping of names to dtypes, is empty, or names a dtype that holds Python objects.

    Notes
    -----
    Cost: packing is one copy (none for a single field that already has the stored dtype); reading copies nothing: the
    arrays are views on the read buffer, writable if that is, and keep all of it alive. A damaged length cannot lead
    outside the document.
    """

    def __init__(self, fields: Mapping[str, Any] | None = None) -> None:
        self.fields: dict[str, np.dtype[Any]] | None = None
        if fields is None:
            return
        if not isinstance(fields, Mapping) or not fields:
            raise ArgumentError(f"expected a mapping such as {{'tokens': '<u2'}} as fields, got {fields!r:.200}")
        self.fields = {name: _field_dtype(name, dtype) for name, dtype in fields.items()}
        self._header = f"<{len(fields)}q"

    @property
    def format_name(self) -> str:
        """Name for the commit record: the class and the fields, since the bytes alone do not tell them."""
        if self.fields is None:
            return super().format_name
        listed = ",".join(f"{name}:{describe(dtype)}" for name, dtype in self.fields.items())
        if len(listed) > _MAX_NAME:
            listed = f"{len(self.fields)} fields:{hashlib.blake2b(listed.encode(), digest_size=16).hexdigest()}"
        return f"{super().format_name}({listed})"

    @property
    def ragged_name(self) -> str:
        """Name of the only field."""
        return self._only_field("ragged_name")[0]

    @property
    def ragged_dtype(self) -> np.dtype[Any]:
        """Dtype of the only field, with its inner shape."""
        return self._only_field("ragged_dtype")[1]

    def _only_field(self, attribute: str) -> tuple[str, np.dtype[Any]]:
        if self.fields is None or len(self.fields) != 1:
            raise AttributeError(f"{attribute}: only a DocumentNumpyFormat with exactly one field has it")
        return next(iter(self.fields.items()))

    # --- packing ------------------------------------------------------------------------------------

    def pack(self, data: Any) -> UserBufferTypes:
        """Encode one document.

        Parameters
        ----------
        data : mapping name -> array-like
            Exactly the format's fields. Without fields in the format: NumPy arrays (not lists, which have no dtype of
            their own).

        Returns
        -------
        bytes-like
            With a single field it may be a view on the array given: write it, or copy it, before that changes.

        Raises
        ------
        PackError
            Missing or unknown fields, another shape, values that are no numbers, and the first value that its field
            cannot hold, with its position and the field's limits.
        """
        if self.fields is None:
            return _pack_described(data)
        if len(self.fields) == 1:
            stored = stored_column(data, *self._only_field("pack"))
            if stored is not None:
                return stored.view(np.uint8).data
        record = fields_of(data, tuple(self.fields))
        arrays = {name: as_values(record[name], dtype, name) for name, dtype in self.fields.items()}
        if len(arrays) == 1:
            name, dtype = self._only_field("pack")
            return np.ascontiguousarray(arrays[name], dtype.base).reshape(-1).view(np.uint8).data
        header = struct.pack(self._header, *(len(array) for array in arrays.values()))
        return _joined(header, [(arrays[name], dtype.base) for name, dtype in self.fields.items()])

    # --- unpacking ----------------------------------------------------------------------------------

    def unpack(self, encoded: StorageBufferTypes, shard: int) -> dict[str, npt.NDArray[Any]]:
        """Decode one document: views on ``encoded``.

        Parameters
        ----------
        encoded : bytearray or memoryview
        shard : int
            For the error.

        Raises
        ------
        CorruptDataError
            The bytes do not have the length that the document states, or are no document of these fields.
        """
        if self.fields is None:
            return _unpack_described(encoded, shard)
        if len(self.fields) == 1:
            name, dtype = self._only_field("unpack")
            if len(encoded) % dtype.itemsize:
                _refuse(f"a multiple of {dtype.itemsize} bytes ({describe(dtype)})", f"{len(encoded)}", shard)
            return {name: np.frombuffer(encoded, dtype)}
        header_bytes = _LENGTH.size * len(self.fields)
        if len(encoded) < header_bytes:
            _refuse(f"at least the {header_bytes} bytes of {len(self.fields)} lengths", f"{len(encoded)}", shard)
        lengths = struct.unpack_from(self._header, encoded)
        parts = ((name, dtype, length) for (name, dtype), length in zip(self.fields.items(), lengths, strict=True))
        return _views(encoded, header_bytes, parts, shard)

    @classmethod
    def from_format_name(cls, name: str) -> DocumentNumpyFormat | None:
        """Return the format that a commit record gives the ``name``.

        None where the name is another format's or does not tell the fields: too many of them, structured dtypes, or
        names of fields that contain what stands between them.
        """
        whole = _NAME.fullmatch(name)
        if whole is None:
            return None
        try:
            found = cls(
                {
                    field["name"]: (dtype_from_descr(field["base"]), tuple(json.loads(field["shape"] or "[]")))
                    for field in _NAMED_FIELD.finditer(whole[1] or "")
                }
                or None
            )
        except (ArgumentError, ValueError, OverflowError):
            return None
        return found if found.format_name == name else None

    def __repr__(self) -> str:
        if self.fields is None:
            return "DocumentNumpyFormat()"
        listed = ", ".join(f"{name!r}: {_literal(dtype)}" for name, dtype in self.fields.items())
        return f"DocumentNumpyFormat({{{listed}}})"


def _field_dtype(name: object, dtype: Any) -> np.dtype[Any]:
    if not isinstance(name, str):
        raise ArgumentError(f"expected strings as names of fields, got {type(name).__name__} {name!r:.60}")
    if dtype is None:
        raise ArgumentError(f"field {name!r}: expected a dtype, got None")
    try:
        asked = np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"field {name!r}: expected a dtype, got {dtype!r:.60}: {error}") from error
    return field_dtype(name, asked)


def _literal(dtype: np.dtype[Any]) -> str:
    base = repr(dtype.base.descr) if dtype.base.names is not None else repr(dtype.base.str)
    return f"({base}, {dtype.shape})" if dtype.shape else base


def _joined(header: bytes, arrays: Iterable[tuple[npt.NDArray[Any], np.dtype[Any]]]) -> bytearray:
    """Lay out the header and the arrays, each at a multiple of its alignment; the gaps are zeros."""
    placed = []
    end = len(header)
    for array, base in arrays:
        begin = _aligned(end, base)
        end = begin + array.size * base.itemsize
        placed.append((begin, array, base))
    out = bytearray(end)
    out[: len(header)] = header
    for begin, array, base in placed:
        np.copyto(np.frombuffer(out, base, array.size, begin).reshape(array.shape), array, casting="unsafe")
    return out


def _views(
    encoded: StorageBufferTypes, begin: int, parts: Iterable[tuple[str, np.dtype[Any], int]], shard: int
) -> dict[str, npt.NDArray[Any]]:
    """Return a view for each (name, dtype, length), the first at or behind byte ``begin``, none outside ``encoded``."""
    size = len(encoded)
    views = {}
    for name, dtype, length in parts:
        begin = _aligned(begin, dtype.base)
        end = begin + length * dtype.itemsize
        if length < 0 or end > size:
            found = f"length {length} of {describe(dtype)} at byte {begin}"
            _refuse(f"field {name!r} within its {size} bytes", found, shard)
        views[name] = np.frombuffer(encoded, dtype, length, begin)
        begin = end
    if begin != size:
        _refuse(f"{begin} bytes in all", f"{size}", shard)
    return views


def _aligned(position: int, base: np.dtype[Any]) -> int:
    step = alignment_bytes(base)
    return -(-position // step) * step


def _refuse(expected: str, found: str, shard: int) -> NoReturn:
    raise CorruptDataError(
        f"expected a document with {expected}, found {found}: was it written with these fields? "
        "If it was, restore the file or write the shard anew",
        shard=shard,
    )


# --- documents that say what they hold --------------------------------------------------------------


def _pack_described(data: Any) -> bytearray:
    if not isinstance(data, Mapping):
        raise PackError(f"expected a mapping name -> array, got {type(data).__name__}")
    arrays = []
    table = []
    for name, value in data.items():
        if not isinstance(name, str):
            raise PackError(f"expected strings as names of arrays, got {type(name).__name__} {name!r:.60}")
        if not isinstance(value, np.ndarray | np.generic):
            remedy = "make it one with the dtype you mean, or give the format its fields"
            if isinstance(value, str | bytes | bytearray | memoryview):
                encoded = "text.encode()" if isinstance(value, str) else "it"
                remedy = f"store its bytes, np.frombuffer({encoded}, np.uint8)"
            raise PackError(f"field {name!r}: expected a NumPy array, got {type(value).__name__}: {remedy}")
        no_mask(value, f"field {name!r}")
        array = np.asarray(value)
        try:
            base = packed_little_endian(array.dtype)
        except ArgumentError as error:
            raise PackError(f"field {name!r}: {error.message}") from None
        table.append([name, descr_of(base), list(array.shape)])
        arrays.append((array, base))
    try:
        text = json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    except UnicodeEncodeError as error:
        raise PackError(f"expected names of arrays that UTF-8 can encode: {error}") from error
    return _joined(_LENGTH.pack(len(text)) + text, arrays)


def _unpack_described(encoded: StorageBufferTypes, shard: int) -> dict[str, npt.NDArray[Any]]:
    size = len(encoded)
    if size < _LENGTH.size:
        _refuse("at least 8 bytes", f"{size}", shard)
    begin = _LENGTH.size + _LENGTH.unpack_from(encoded)[0]
    if not _LENGTH.size <= begin <= size:
        _refuse(f"a table within {size} bytes", f"one that ends at byte {begin}", shard)
    try:
        table = json.loads(str(memoryview(encoded)[_LENGTH.size : begin], "utf-8"))
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(
            f"expected a table of arrays in JSON, found bytes that are not ({error}): was it written with "
            "DocumentNumpyFormat()? If it was, restore the file or write the shard anew",
            shard=shard,
        ) from error
    if not isinstance(table, list):
        _refuse("a table of arrays", f"JSON of type {type(table).__name__}", shard)
    rows = [_row(row, shard) for row in table]
    views = _views(encoded, begin, ((name, dtype, count) for name, dtype, _, count in rows), shard)
    if len(views) != len(rows):
        _refuse("distinct names", "one name twice", shard)
    try:
        return {name: views[name].reshape(shape) for name, _, shape, _ in rows}
    except ValueError as error:
        _refuse("shapes that NumPy can represent", str(error), shard)


def _row(row: Any, shard: int) -> tuple[str, np.dtype[Any], tuple[int, ...], int]:
    match row:
        case [str(name), descr, list(shape)] if all(type(length) is int and length >= 0 for length in shape):
            try:
                dtype = _named_dtype(descr) if isinstance(descr, str) else dtype_from_descr(descr)
            except ArgumentError as error:
                _refuse("plain dtypes", error.message, shard)
            return name, dtype, tuple(shape), math.prod(shape)
    _refuse("rows of [name, dtype, shape]", f"{row!s:.100}", shard)


# The documents of a data set name the same few dtypes.
_named_dtype = functools.lru_cache(maxsize=64)(dtype_from_descr)
