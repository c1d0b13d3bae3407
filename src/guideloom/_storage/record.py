"""The commit record: the small file whose existence makes a part of a shard exist."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NoReturn, cast

import numpy as np
import xxhash

from guideloom._base.checks import descr_of, describe_dtype, dtype_from_descr
from guideloom._base.errors import ArgumentError, DamagedRecordError, ForeignDataError, NewerVersionError
from guideloom._base.fingerprint import canonical_json
from guideloom._storage.catalog import Kind
from guideloom._storage.names import (
    BLOCK_BYTES,
    FORMAT_VERSION,
    KINDS,
    MAX_NUMBER,
    MAX_SIZE,
    RECORD_LIMIT_BYTES,
    ROLES,
    data_name,
    expected_sizes,
    parse_record_name,
    record_name,
)

_RESTORE = "restore the file from a copy, or have guideloom repair say what can be kept"
_TAIL_HEAD = b',"checksum":"'
_TAIL_END = b'"}\n'
_TAIL_BYTES = len(_TAIL_HEAD) + 16 + len(_TAIL_END)
_KEYS = frozenset(
    (
        *("guideloom", "kind", "shard", "part", "replaces", "dtype", "format"),
        *("count", "spans", "stride", "files", "metadata", "checksum"),
    )
)


@dataclass(frozen=True)
class FileEntry:
    """One data file of a part.

    Parameters
    ----------
    size : int
        Bytes.
    sums : bytes
        XXH3-64 of each block of ``BLOCK_BYTES``, the last of which may be shorter, as little-endian uint64.
    """

    size: int
    sums: bytes = field(repr=False)

    @cached_property
    def digest(self) -> bytes:
        """XXH3-128 of ``sums``: 16 bytes that stand for the file's content."""
        return xxhash.xxh3_128_digest(self.sums)


@dataclass(frozen=True)
class CommitRecord:
    """What one writer committed to one shard in one session; the fields are those of ``docs/format.md``.

    ``dtype`` is packed and little-endian, None for documents. ``checksum`` is filled by :func:`decode_record` and
    :func:`encode_record`.
    """

    kind: Kind
    shard: int
    part: int
    replaces: bool
    dtype: np.dtype[Any] | None
    format_name: str
    count: int
    spans: int
    stride: int
    files: Mapping[str, FileEntry]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    checksum: str = ""

    @property
    def name(self) -> str:
        """Name of the record's file."""
        return record_name(self.shard, self.part)

    @cached_property
    def tag(self) -> str:
        """16 hex digits in the names of the data files: two parts with other content never share a file."""
        return xxhash.xxh3_64_hexdigest(b"".join(self.files[role].digest for role in ROLES[self.kind]))

    def data_name(self, role: str) -> str:
        """Name of the data file of ``role``."""
        return data_name(self.shard, self.part, self.tag, role)


def seal(value: Mapping[str, Any]) -> tuple[bytes, str]:
    """Return the file of a JSON object with its checksum as the last key, and the checksum.

    The checksum covers the bytes before it, so a reader checks it without rebuilding the text.
    """
    body = canonical_json(value)[:-1]
    checksum = xxhash.xxh3_64_hexdigest(body)
    return body + _TAIL_HEAD + checksum.encode("ascii") + _TAIL_END, checksum


def unseal(data: bytes, path: str, remedy: str = _RESTORE) -> dict[str, Any]:
    """Parse what :func:`seal` gives, from a source that is not trusted; errors end in ``remedy``.

    Raises
    ------
    NewerVersionError
        Of a later version of the format: then nothing else about it is judged.
    DamagedRecordError
        Anything else that :func:`seal` does not give.
    """
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise DamagedRecordError(
            f"expected a JSON object, found {len(data)} bytes that are none ({error})",
            remedy=remedy,
            path=path,
        ) from None
    if not isinstance(value, dict):
        raise DamagedRecordError(f"expected a JSON object, found {type(value).__name__}", remedy=remedy, path=path)
    version = value.get("guideloom")
    if type(version) is not int or version < FORMAT_VERSION:
        raise DamagedRecordError(
            f"expected format version {FORMAT_VERSION} (key 'guideloom'), found {version!r:.80}",
            remedy=remedy,
            path=path,
        )
    if version > FORMAT_VERSION:
        raise NewerVersionError(
            f"written in version {version} of the format, this GuideLoom reads up to {FORMAT_VERSION}: upgrade "
            "guideloom",
            path=path,
        )
    body, tail = data[:-_TAIL_BYTES], data[-_TAIL_BYTES:]
    expected = _TAIL_HEAD + xxhash.xxh3_64_hexdigest(body).encode("ascii") + _TAIL_END
    if tail != expected:
        raise DamagedRecordError(
            f"the checksum does not hold: expected the file to end in {expected!r}, found {tail!r}",
            remedy=remedy,
            path=path,
        )
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def encode_record(record: CommitRecord) -> tuple[bytes, str]:
    """Return the record's file, and its checksum.

    Raises
    ------
    ArgumentError
        The metadata are no JSON, or the record is larger than a reader accepts.
    """
    try:
        data, checksum = seal(
            {
                "guideloom": FORMAT_VERSION,
                "kind": record.kind,
                "shard": record.shard,
                "part": record.part,
                "replaces": record.replaces,
                "dtype": None if record.dtype is None else descr_of(record.dtype),
                "format": record.format_name,
                "count": record.count,
                "spans": record.spans,
                "stride": record.stride,
                "files": {
                    role: {
                        "name": record.data_name(role),
                        "size": entry.size,
                        "block": BLOCK_BYTES,
                        "sums": base64.b64encode(entry.sums).decode("ascii"),
                    }
                    for role, entry in record.files.items()
                },
                "metadata": record.metadata,
            }
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(f"metadata must be a JSON object: {error}", shard=record.shard) from error
    if len(data) > RECORD_LIMIT_BYTES:
        raise ArgumentError(
            f"a commit record of {len(data)} bytes: at most {RECORD_LIMIT_BYTES} are allowed; use more shards",
            shard=record.shard,
        )
    return data, checksum


def decode_record(data: bytes, name: str, folder: str = "") -> CommitRecord:
    """Parse and check a commit record from a source that is not trusted.

    Parameters
    ----------
    data : bytes
        The whole file.
    name : str
        The file's name in the folder, which must say the same shard and part.
    folder : str
        For messages only.

    Raises
    ------
    NewerVersionError, DamagedRecordError, ForeignDataError
        With the path.
    """
    path = join_path(folder, name)
    numbers = parse_record_name(name)
    if numbers is None:
        raise ForeignDataError(f"expected the name of a commit record, such as {record_name(0, 0)}", path=path)
    if len(data) > RECORD_LIMIT_BYTES:
        raise DamagedRecordError(
            f"expected at most {RECORD_LIMIT_BYTES} bytes, found {len(data)}", remedy=_RESTORE, path=path
        )
    return _Fields(unseal(data, path), path).record(*numbers)


def join_path(folder: str, name: str) -> str:
    """Return the path of a file of the data set, for messages."""
    return f"{folder}/{name}" if folder else name


class _Fields:
    """Takes fields out of an untrusted object, each checked for type and range."""

    def __init__(self, value: dict[str, Any], path: str) -> None:
        self._value = value
        self._path = path

    def damaged(self, key: str, expected: str) -> DamagedRecordError:
        found = repr(self._value.get(key))
        return DamagedRecordError(
            f"{key!r}: expected {expected}, found {found[:120]}", remedy=_RESTORE, path=self._path
        )

    def integer(self, key: str, low: int, high: int) -> int:
        value = self._value[key]
        if type(value) is not int or not low <= value <= high:
            raise self.damaged(key, f"an integer from {low} to {high}")
        return value

    def exact_keys(self, keys: frozenset[str], what: str) -> None:
        found = set(self._value)
        if found != keys:
            missing, unknown = sorted(keys - found), sorted(found - keys)
            raise DamagedRecordError(
                f"{what}: keys missing {missing}, unknown {unknown!r:.200}", remedy=_RESTORE, path=self._path
            )

    def record(self, shard: int, part: int) -> CommitRecord:
        value = self._value
        self.exact_keys(_KEYS, "a commit record")
        if value["kind"] not in KINDS:
            raise self.damaged("kind", f"one of {', '.join(KINDS)}")
        kind = cast(Kind, value["kind"])
        for key, number in (("shard", shard), ("part", part)):
            if self.integer(key, 0, MAX_NUMBER) != number:
                raise self.damaged(key, f"{number}, as in the file's name")
        if type(value["replaces"]) is not bool or (value["replaces"] and part == 0):
            raise self.damaged("replaces", "true or false, and false for part 0, which has nothing to replace")
        if not isinstance(value["format"], str) or len(value["format"]) > 1000:
            raise self.damaged("format", "a name")
        if not isinstance(value["metadata"], dict):
            raise self.damaged("metadata", "an object")
        dtype = parse_dtype(kind, value["dtype"], self._path)
        itemsize = 1 if dtype is None else dtype.itemsize
        count = self.integer("count", 0, MAX_SIZE // max(itemsize, 8))
        has_spans = kind == "stream_with_meta"
        spans = self.integer("spans", min(count, 1) if has_spans else 0, min(count, MAX_SIZE // 32) if has_spans else 0)
        stride = self.integer("stride", 1 if has_spans else 0, MAX_NUMBER if has_spans else 0)
        record = CommitRecord(
            kind=kind,
            shard=shard,
            part=part,
            replaces=value["replaces"],
            dtype=dtype,
            format_name=value["format"],
            count=count,
            spans=spans,
            stride=stride,
            files=self.files(kind),
            metadata=value["metadata"],
            checksum=value["checksum"],
        )
        self.check_files(record, itemsize)
        return record

    def files(self, kind: Kind) -> dict[str, FileEntry]:
        files = self._value["files"]
        if not isinstance(files, dict) or set(files) != set(ROLES[kind]):
            raise self.damaged("files", f"an object with {', '.join(ROLES[kind])}")
        entries = {}
        for role in ROLES[kind]:
            if not isinstance(files[role], dict):
                raise self.damaged("files", f"an object for {role}")
            entries[role] = _Fields(files[role], self._path).file(role)
        return entries

    def file(self, role: str) -> FileEntry:
        self.exact_keys(frozenset(("name", "size", "block", "sums")), f"file {role!r}")
        size = self.integer("size", 0, MAX_SIZE)
        self.integer("block", BLOCK_BYTES, BLOCK_BYTES)
        text = self._value["sums"]
        num_sums = -(-size // BLOCK_BYTES)
        if not isinstance(text, str) or len(text) != -(-num_sums * 8 // 3) * 4:
            raise self.damaged("sums", f"base64 of {num_sums} checksums")
        try:
            sums = base64.b64decode(text, validate=True)
        except ValueError:
            sums = b""
        if len(sums) != num_sums * 8:
            raise self.damaged("sums", f"base64 of {num_sums} checksums")
        return FileEntry(size, sums)

    def check_files(self, record: CommitRecord, itemsize: int) -> None:
        payload = record.files["payload"].size if "payload" in record.files else 0
        sizes = expected_sizes(record.kind, itemsize, record.count, record.spans, record.stride, payload)
        for role, size in sizes.items():
            found = self._value["files"][role]
            if found["size"] != size:
                raise DamagedRecordError(
                    f"the size of the {role} file: expected {size} by the counts, found {found['size']} "
                    f"(count {record.count}, spans {record.spans}, dtype {describe_dtype(record.dtype)})",
                    remedy=_RESTORE,
                    path=self._path,
                    shard=record.shard,
                )
            if found["name"] != record.data_name(role):
                raise DamagedRecordError(
                    f"the name of the {role} file: expected {record.data_name(role)!r}, found {found['name']!r:.120}",
                    remedy=_RESTORE,
                    path=self._path,
                    shard=record.shard,
                )


def parse_dtype(kind: Kind, descr: Any, path: str, remedy: str = _RESTORE) -> np.dtype[Any] | None:
    """Parse the ``dtype`` of a record or manifest; None exactly for documents. Errors end in ``remedy``."""
    if kind == "document":
        if descr is not None:
            raise DamagedRecordError(
                f"'dtype': expected null for documents, found {descr!r:.120}", remedy=remedy, path=path
            )
        return None
    try:
        return dtype_from_descr(descr)
    except ArgumentError as error:
        raise DamagedRecordError(f"'dtype': {error.message}", remedy=remedy, path=path) from None
