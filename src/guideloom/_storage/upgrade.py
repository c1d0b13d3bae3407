"""Turns a data set of the published 1.x layout into the current format: byte for byte, without the user's format."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from guideloom._base.errors import ArgumentError, CorruptDataError, ForeignDataError
from guideloom._storage import disk
from guideloom._storage.agree import check_kind
from guideloom._storage.catalog import Catalog, Kind
from guideloom._storage.commit import Committer, gather_manifest
from guideloom._storage.local import LocalFolder, drive, read_up_to
from guideloom._storage.meter import Meter, Progress
from guideloom._storage.names import MANIFEST, RECORD_LIMIT_BYTES, TEMPORARY_PREFIX, parse_record_name
from guideloom._storage.opening import open_catalog
from guideloom._storage.part import PART_CLASSES, DocumentPart, OpenPart, SpanPart
from guideloom._storage.partfile import Descriptors
from guideloom._storage.published import (
    ELEMENTS,
    OFFSETS,
    PAYLOAD,
    SPAN_NUMBER,
    is_published_name,
    published_kind,
    published_shards,
)
from guideloom._storage.record import CommitRecord, decode_record

CHUNK_BYTES = 4 << 20

Piece: TypeAlias = tuple[str, "bytes | memoryview", int]
"""Role of the new file, bytes that go to its end, and how many bytes of the old files they were made from."""


@dataclass(frozen=True, slots=True)
class Upgraded:
    """What an upgrade did.

    Parameters
    ----------
    kind : Kind
    num_shards : int
    num_resumed : int
        Shards among them that an earlier, killed upgrade had committed.
    count : int
        Elements or documents.
    bytes_read : int
        Bytes of the old data set.
    """

    kind: Kind
    num_shards: int
    num_resumed: int
    count: int
    bytes_read: int


def upgrade(
    old: Path,
    new: Path,
    *,
    kind: Kind | None = None,
    dtype: np.dtype[Any] | None = None,
    format_name: str = "",
    progress: Progress | None = None,
) -> Upgraded:
    """Convert a published-1.x data set, shard by shard; each is read back and compared with its source.

    Parameters
    ----------
    old : pathlib.Path
        Is only read.
    new : pathlib.Path
        Another folder: empty, not there, or left by an upgrade of ``old`` that was killed, which then goes on at the
        first shard that is not committed. Shards that are committed are compared again.
    kind : Kind, optional
        Checked against what is there; told by the files otherwise.
    dtype : dtype
        Element dtype of streams: the published layout does not say it. None for documents.
    format_name : str
        Name of the format that wrote the data set, for the records; unknown by default.
    progress : callable, optional
        Called with the bytes done and all bytes; each byte counts twice, for writing and for comparing.

    Returns
    -------
    Upgraded

    Raises
    ------
    ArgumentError
        ``old`` is no published data set; the dtype is missing, or given for documents; ``old`` is ``new``.
    CorruptDataError, MissingShardError
        ``old`` is damaged: the path says where. Shards before are committed.
    ForeignDataError
        ``new`` holds something else, or a shard in it is not what ``old`` holds.
    OSError

    Notes
    -----
    Memory: some blocks of 4 MiB, and the offsets of the spans of one of them.
    """
    catalog = _open_old(old, kind, dtype)
    if os.path.realpath(old) == os.path.realpath(new):
        raise ArgumentError("OLD and NEW are one folder: give the new data set a folder of its own", path=new)
    disk.make_folder(str(new))
    committed = _committed(new, catalog)
    meter = Meter(2 * int(catalog.sizes.sum()), progress)
    token = secrets.token_hex(8)
    committer = Committer(str(new), token, catalog.kind, catalog.dtype, format_name, {})
    num_resumed = len(committed)
    for shard in range(catalog.num_shards):
        source = _Source(old, catalog, shard)
        record = committed.get(shard)
        if record is None:
            record = _write(source, new, token, committer, meter)
        else:
            meter.add(source.size)
        _compare(source, new, record, meter)
    gather_manifest(str(new), token, None)
    return Upgraded(catalog.kind, catalog.num_shards, num_resumed, catalog.total, int(catalog.sizes.sum()))


def _open_old(old: Path, kind: Kind | None, dtype: np.dtype[Any] | None) -> Catalog:
    listing = LocalFolder(old).listing()
    if MANIFEST in listing or any(parse_record_name(name) is not None for name in listing):
        raise ArgumentError("this data set is in the current format already: nothing to upgrade", path=old)
    shards = published_shards(listing)
    if not shards:
        raise ArgumentError(
            "expected files of the published 1.x layout, found none: give the folder that a 1.x release wrote", path=old
        )
    found = published_kind(shards.values())
    if kind is not None:
        check_kind(found, kind, str(old))
    if found == "document" and dtype is not None:
        raise ArgumentError("documents have no dtype: leave it out", path=old)
    if found != "document" and dtype is None:
        raise ArgumentError(
            "the published 1.x layout does not say the dtype of its elements: give the one it was written with "
            "(--dtype)",
            path=old,
        )
    return drive(open_catalog(found, dtype, "", folder=str(old)), LocalFolder(old).answer)


def _committed(new: Path, catalog: Catalog) -> dict[int, CommitRecord]:
    """Shards that an upgrade committed before; each is compared with its source later."""
    local = LocalFolder(new)
    listing = local.listing()
    records: dict[int, CommitRecord] = {}
    for name in sorted(listing):
        numbers = parse_record_name(name)
        if numbers is None:
            if is_published_name(name):
                raise ForeignDataError(
                    "expected an empty folder, found a published 1.x data set: give another folder", path=new
                )
            continue
        data = local.read_file(name, RECORD_LIMIT_BYTES)
        record = decode_record(b"" if data is None else data, name, str(new))
        is_same_data = (record.kind, record.dtype) == (catalog.kind, catalog.dtype)
        if not is_same_data or numbers[1] != 0 or numbers[0] >= catalog.num_shards:
            raise ForeignDataError(
                f"expected only shards 0 to {catalog.num_shards - 1} of an upgrade of this data set, found {name}: "
                "give another folder",
                path=new,
            )
        records[numbers[0]] = record
    return records


# --- from the old files to the new ones ---


@dataclass
class _Source:
    """One shard of the old data set, as the bytes of the new files."""

    old: Path
    catalog: Catalog
    shard: int
    _open: dict[str, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of the shard's files."""
        return sum(self._sizes().values())

    def pieces(self) -> Iterator[Piece]:
        """The content of the new files in order, some MiB at a time."""
        kind = self.catalog.kind
        try:
            if kind == "stream":
                yield from self._copied("elements", ELEMENTS)
            elif kind == "document":
                yield from self._checked_offsets()
                yield from self._copied("payload", PAYLOAD)
            else:
                yield from self._spans()
        finally:
            while self._open:
                os.close(self._open.popitem()[1])

    def path(self, suffix: str) -> str:
        return os.path.join(self.old, f"{self.shard:07d}.{suffix}")

    def _sizes(self) -> dict[str, int]:
        # The files of a published catalog stand suffix by suffix, in each by shard.
        places = range(self.shard, len(self.catalog.files), self.catalog.num_shards)
        files, sizes = self.catalog.files, self.catalog.sizes
        return {files[place].partition(".")[2]: int(sizes[place]) for place in places}

    def _read(self, suffix: str, offset: int, size: int) -> bytes:
        descriptor = self._open.get(suffix)
        if descriptor is None:
            descriptor = self._open[suffix] = os.open(self.path(suffix), os.O_RDONLY)
        data = read_up_to(descriptor, offset, size)
        if len(data) != size:
            raise self._corrupt(suffix, offset + len(data), f"{size} bytes from byte {offset}", f"{len(data)}")
        return data

    def _corrupt(self, suffix: str, offset: int, expected: str, found: object) -> CorruptDataError:
        return CorruptDataError(
            f"expected {expected}, found {found}; restore the file from a copy",
            path=self.path(suffix),
            shard=self.shard,
            offset=offset,
        )

    def _chunks(self, suffix: str, step: int) -> Iterator[tuple[int, bytes]]:
        size = self._sizes()[suffix]
        for offset in range(0, size, step):
            yield offset, self._read(suffix, offset, min(step, size - offset))

    def _copied(self, role: str, suffix: str) -> Iterator[Piece]:
        for _, data in self._chunks(suffix, CHUNK_BYTES):
            yield role, data, len(data)

    def _checked_offsets(self) -> Iterator[Piece]:
        last = 0
        for begin, data in self._chunks(OFFSETS, CHUNK_BYTES):
            offsets = np.frombuffer(data, "<i8")
            if begin == 0 and offsets[0] != 0:
                raise self._corrupt(OFFSETS, 0, "a first offset of 0", offsets[0])
            falls = np.flatnonzero(np.diff(offsets, prepend=last) < 0)
            if falls.size:
                at = int(falls[0])
                raise self._corrupt(OFFSETS, begin + 8 * at, "an offset that does not fall", offsets[at])
            last = int(offsets[-1])
            yield "offsets", data, len(data)

    def _spans(self) -> Iterator[Piece]:
        """Elements without their span numbers; and where a number is new, a row of the table and its payload."""
        dtype = self.catalog.dtype
        itemsize = SPAN_NUMBER.itemsize + (0 if dtype is None else dtype.itemsize)
        num_entries = self._sizes()[OFFSETS] // 8 - 1
        last, payload_end = -1, 0
        for begin, data in self._chunks(ELEMENTS, max(1, CHUNK_BYTES // itemsize) * itemsize):
            raw = np.frombuffer(data, np.uint8).reshape(-1, itemsize)
            numbers = np.ascontiguousarray(raw[:, : SPAN_NUMBER.itemsize]).view(SPAN_NUMBER).reshape(-1)
            steps = np.diff(numbers.astype(np.int64), prepend=last)
            wrong = np.flatnonzero((steps < 0) | (numbers < 0) | (numbers >= num_entries))
            if wrong.size:
                at = int(wrong[0])
                expected = f"span numbers that do not fall, below {num_entries}"
                raise self._corrupt(ELEMENTS, begin + itemsize * at, expected, numbers[at])
            new = np.flatnonzero(steps)
            used = numbers[new].astype(np.int64)
            # Entries of the index that no element uses are left out: nothing could ever read them.
            for run in np.split(np.arange(new.size), np.flatnonzero(np.diff(used) != 1) + 1) if new.size else ():
                offsets = self._offsets(int(used[run[0]]), int(used[run[-1]]) + 2)
                rows = np.empty((run.size, 2), "<i8")
                rows[:, 0] = begin // itemsize + new[run]
                rows[:, 1] = payload_end + offsets[:-1] - offsets[0]
                yield "spans", rows.tobytes(), 8 * run.size
                for low in range(int(offsets[0]), int(offsets[-1]), CHUNK_BYTES):
                    size = min(CHUNK_BYTES, int(offsets[-1]) - low)
                    yield "payload", self._read(PAYLOAD, low, size), size
                payload_end += int(offsets[-1] - offsets[0])
            last = int(numbers[-1])
            yield "elements", np.ascontiguousarray(raw[:, SPAN_NUMBER.itemsize :]).reshape(-1).data, len(data)

    def _offsets(self, low: int, high: int) -> npt.NDArray[np.int64]:
        """Entries ``low`` to ``high`` of the index, checked."""
        offsets = np.frombuffer(self._read(OFFSETS, 8 * low, 8 * (high - low)), "<i8")
        limit = self._sizes()[PAYLOAD]
        wrong = np.flatnonzero((np.diff(offsets, prepend=0) < 0) | (offsets > limit))
        if low == 0 and offsets[0] != 0:
            wrong = np.zeros(1, np.int64)
        if wrong.size:
            at = int(wrong[0])
            expected = f"offsets from 0 that do not fall, up to {limit}"
            raise self._corrupt(OFFSETS, 8 * (low + at), expected, offsets[at])
        return offsets


def _write(source: _Source, new: Path, token: str, committer: Committer, meter: Meter) -> CommitRecord:
    descriptors = Descriptors()
    catalog = source.catalog
    prefix = os.path.join(new, f"{TEMPORARY_PREFIX}{token}-")
    part: OpenPart = PART_CLASSES[catalog.kind](source.shard, 0, False, prefix, descriptors)
    try:
        done = _fill(part, source, meter)
        part.count = int(catalog.count[source.shard])
        records, failures = committer.commit([part])
    except BaseException:
        # Its files stay if the error struck when its record was there already.
        committer.discard([part])
        raise
    finally:
        descriptors.close()
    if failures:
        raise failures[0][1]
    meter.add(source.size - done)
    return records[0]


def _fill(part: OpenPart, source: _Source, meter: Meter) -> int:
    if isinstance(part, DocumentPart):
        # The copied offsets have their own 0.
        part.has_start = True
    done = 0
    for role, data, size in source.pieces():
        if isinstance(part, SpanPart) and role == "spans":
            part.rows.frombytes(np.frombuffer(data, "<i8").astype(np.int64).tobytes())
            if len(part.rows) * 8 >= CHUNK_BYTES:
                part.flush()
        else:
            part.files[role].write(memoryview(data))
        done += size
        meter.add(size)
    return done


def _compare(source: _Source, new: Path, record: CommitRecord, meter: Meter) -> None:
    """Read a committed shard back and compare it with its source."""
    with _Target(new, record) as target:
        done = 0
        for role, data, size in source.pieces():
            target.compare(role, data)
            done += size
            meter.add(size)
        meter.add(source.size - done)
        target.finish()


class _Target:
    """The files of a committed shard, which must be what the pieces of its source say, to the last byte."""

    def __init__(self, new: Path, record: CommitRecord) -> None:
        self._record = record
        self._paths = {role: os.path.join(new, record.data_name(role)) for role in record.files}
        self._open: dict[str, int] = {}
        self._done = dict.fromkeys(record.files, 0)
        self._sample: list[npt.NDArray[np.int64]] = []

    def __enter__(self) -> _Target:
        for role, path in self._paths.items():
            self._open[role] = os.open(path, os.O_RDONLY)
            if hasattr(os, "posix_fadvise"):
                # What the disk holds is to be compared, not what memory still remembers of writing it.
                os.posix_fadvise(self._open[role], 0, 0, os.POSIX_FADV_DONTNEED)
        return self

    def __exit__(self, *_: object) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def compare(self, role: str, data: bytes | memoryview) -> None:
        expected = np.frombuffer(data, np.uint8)
        begin = self._done[role]
        found = np.frombuffer(self._read(role, begin, expected.size), np.uint8)
        if found.size != expected.size:
            raise self._differs(role, begin + min(found.size, expected.size))
        if not np.array_equal(found, expected):
            raise self._differs(role, begin + int(np.flatnonzero(found != expected)[0]))
        self._done[role] += expected.size
        if role == "spans":
            rows = np.frombuffer(data, "<i8").reshape(-1, 2)
            # Copied: a view would keep all rows.
            self._sample.append(rows[-(begin // 16) % self._record.stride :: self._record.stride, 0].copy())

    def finish(self) -> None:
        record = self._record
        if record.kind == "stream_with_meta":
            sentinel = np.array((record.count, record.files["payload"].size), "<i8")
            self.compare_rest(np.concatenate((sentinel, *self._sample)).astype("<i8").tobytes())
        for role, entry in record.files.items():
            size = os.fstat(self._open[role]).st_size
            if not self._done[role] == entry.size == size:
                raise self._differs(role, min(self._done[role], entry.size, size))

    def compare_rest(self, data: bytes) -> None:
        """Compare what stands behind the rows of the span table."""
        found = self._read("spans", self._done["spans"], len(data))
        if found != data:
            raise self._differs("spans", self._done["spans"])
        self._done["spans"] += len(data)

    def _read(self, role: str, offset: int, size: int) -> bytes:
        return read_up_to(self._open[role], offset, size)

    def _differs(self, role: str, offset: int) -> ForeignDataError:
        return ForeignDataError(
            "this committed shard does not hold what the old data set holds: it is no upgrade of it, the old one "
            "changed, or the disk is failing. Give another folder",
            path=self._paths[role],
            shard=self._record.shard,
            offset=offset,
        )
