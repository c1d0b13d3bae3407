"""The committed parts of a data set as columns: what the manifest holds, and what a catalog is built from.

P is the number of parts; rows are in order of (shard, part).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from guideloom._base.checks import describe_dtype
from guideloom._base.errors import CorruptDataError, DamagedRecordError, MissingShardError
from guideloom._storage.catalog import Catalog, Kind
from guideloom._storage.identity import identity_of_parts
from guideloom._storage.names import MAX_SIZE, RECORD_SUFFIX, ROLES, expected_sizes, record_name
from guideloom._storage.record import CommitRecord, join_path

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Parts:
    """Committed parts, one row each.

    Parameters
    ----------
    kind, dtype
        Of all parts.
    shard, part, count, spans, stride : int64[P]
        As in the commit records.
    payload : int64[P]
        Size of the payload file in bytes, 0 for streams.
    replaces : bool[P]
        Whether earlier parts of the shard no longer count.
    tags, checksums : sequence of P str
        Tag of the data files' names, and checksum of the commit record.
    digests : mapping role -> uint8[P, 16]
        Digest of each file.
    formats : sequence of P str
    metadata : sequence of P mappings
    """

    kind: Kind
    dtype: np.dtype[Any] | None
    shard: Int64s
    part: Int64s
    replaces: npt.NDArray[np.bool_]
    count: Int64s
    spans: Int64s
    stride: Int64s
    payload: Int64s
    tags: Sequence[str]
    checksums: Sequence[str]
    digests: Mapping[str, npt.NDArray[np.uint8]]
    formats: Sequence[str]
    metadata: Sequence[Mapping[str, Any]]

    @cached_property
    def record_names(self) -> list[str]:
        """Name of each row's commit record; not to be changed by the caller."""
        return [stem + RECORD_SUFFIX for stem in self._stems]

    def data_names(self, role: str) -> list[str]:
        """Name of each row's file of ``role``."""
        end = f".{role}.bin"
        return [stem + "." + tag + end for stem, tag in zip(self._stems, self.tags, strict=True)]

    @cached_property
    def _stems(self) -> list[str]:
        """What the names of each row's files begin with."""
        numbers = zip(self.shard.tolist(), self.part.tolist(), strict=True)
        return [f"{shard:07d}-{part:04d}" for shard, part in numbers]

    def sizes(self) -> dict[str, Int64s]:
        """Size in bytes of each row's file of each role."""
        itemsize = 0 if self.dtype is None else self.dtype.itemsize
        sizes: dict[str, Int64s] = expected_sizes(
            self.kind, itemsize, self.count, self.spans, self.stride, self.payload
        )
        return sizes

    def take(self, rows: Int64s) -> Parts:
        """Return the rows given, in that order."""
        chosen = rows.tolist()

        def some(column: Any) -> Any:
            return column[rows] if isinstance(column, np.ndarray) else [column[row] for row in chosen]

        columns = {name: some(getattr(self, name)) for name in _COLUMNS}
        return replace(self, **columns, digests={role: some(column) for role, column in self.digests.items()})

    def current_rows(self, folder: str = "") -> Int64s:
        """Rows of the parts that make up the data set, after every ``replaces``.

        Raises
        ------
        MissingShardError
            A shard number, or a part of a shard, is missing.
        """
        rows = np.arange(self.shard.size, dtype=np.int64)
        starts = np.flatnonzero(np.diff(self.shard, prepend=-1))
        present = self.shard[starts]
        check_no_holes(present, folder)
        first = np.maximum.reduceat(
            np.where(self.replaces, rows, starts.repeat(np.diff(starts, append=rows.size))), starts
        )
        kept = rows[rows >= first.repeat(np.diff(starts, append=rows.size))]
        # What came before a part that replaces is gone for good; from there on, or from part 0, nothing may be missing.
        is_first = np.zeros(rows.size, bool)
        is_first[first] = True
        expected = np.where(is_first, np.where(self.replaces, self.part, 0), np.concatenate(([0], self.part[:-1] + 1)))
        wrong = kept[self.part[kept] != expected[kept]]
        if wrong.size:
            shard, part = int(self.shard[wrong[0]]), int(expected[wrong[0]])
            name = record_name(shard, part)
            raise MissingShardError(
                f"part {part} of shard {shard} is missing, but a later part is there: restore {name} and its data "
                'files from a copy, or write the shard again with mode="overwrite"',
                path=join_path(folder, name),
                shard=shard,
            )
        return kept


_COLUMNS = [field.name for field in fields(Parts) if field.name not in ("kind", "dtype", "digests")]


def check_no_holes(present: Int64s, folder: str = "") -> None:
    """Check that the sorted, distinct shard numbers are 0 .. K-1.

    Raises
    ------
    MissingShardError
        It names the first missing shards.
    """
    last = int(present[-1])
    if last == present.size - 1:
        return
    missing = gaps(present.tolist())
    listed = ", ".join(str(low) if high - low == 1 else f"{low} to {high - 1}" for low, high in missing[:5])
    num_missing = last + 1 - present.size
    how_many = "1 is missing" if num_missing == 1 else f"{num_missing} are missing"
    raise MissingShardError(
        f"shards must be numbered 0 to {last} without holes, but {how_many}: {listed}"
        f"{' ...' if len(missing) > 5 else ''}. Is a writer still at work, or files not copied? "
        "Shards that are meant to be empty are committed with writer.create(shard)",
        path=folder or None,
        shard=missing[0][0],
    )


def gaps(numbers: list[int]) -> list[tuple[int, int]]:
    """Return half-open ranges of what is missing from 0 to the last of the numbers, which rise."""
    found, expected = [], 0
    for number in numbers:
        if number != expected:
            found.append((expected, number))
        expected = number + 1
    return found


def parts_from_records(records: Sequence[CommitRecord], folder: str = "") -> Parts:
    """Gather at least one record into columns.

    Raises
    ------
    CorruptDataError
        The records do not agree in kind or dtype.
    """
    head = records[0]
    for record in records:
        if record.kind != head.kind or record.dtype != head.dtype:
            raise_disagree(head.name, head.kind, head.dtype, record.name, record.kind, record.dtype, folder)
    ordered = sorted(records, key=lambda record: (record.shard, record.part))

    def column(values: list[int]) -> Int64s:
        return np.array(values, np.int64)

    return Parts(
        kind=head.kind,
        dtype=head.dtype,
        shard=column([record.shard for record in ordered]),
        part=column([record.part for record in ordered]),
        replaces=np.array([record.replaces for record in ordered], bool),
        count=column([record.count for record in ordered]),
        spans=column([record.spans for record in ordered]),
        stride=column([record.stride for record in ordered]),
        payload=column([record.files["payload"].size if "payload" in record.files else 0 for record in ordered]),
        tags=[record.tag for record in ordered],
        checksums=[record.checksum for record in ordered],
        digests={
            role: np.frombuffer(b"".join(record.files[role].digest for record in ordered), np.uint8).reshape(-1, 16)
            for role in ROLES[head.kind]
        },
        formats=[record.format_name for record in ordered],
        metadata=[record.metadata for record in ordered],
    )


def raise_disagree(
    name: str,
    kind: Kind,
    dtype: np.dtype[Any] | None,
    other_name: str,
    other_kind: Kind,
    other_dtype: np.dtype[Any] | None,
    folder: str,
) -> NoReturn:
    """Raise that two records of one folder belong to different data sets."""
    raise CorruptDataError(
        f"the parts of a data set must agree in kind and dtype, but {name} is a {kind} of {describe_dtype(dtype)}, and "
        f"this one a {other_kind} of {describe_dtype(other_dtype)}: two data sets were written into one folder; move "
        "one of them",
        path=join_path(folder, other_name),
    )


def join_parts(one: Parts | None, other: Parts | None, folder: str = "") -> Parts | None:
    """Return the rows of both; a (shard, part) that both have is taken from ``other``."""
    if one is None or other is None:
        return other if one is None else one
    if one.kind != other.kind or one.dtype != other.dtype:
        raise_disagree(one.record_names[0], one.kind, one.dtype, other.record_names[0], other.kind, other.dtype, folder)

    def both(left: Any, right: Any) -> Any:
        return np.concatenate((left, right)) if isinstance(left, np.ndarray) else [*left, *right]

    columns = {name: both(getattr(one, name), getattr(other, name)) for name in _COLUMNS}
    digests = {role: both(column, other.digests[role]) for role, column in one.digests.items()}
    joined = replace(one, **columns, digests=digests)
    order = np.lexsort((joined.part, joined.shard))
    last = np.ones(order.size, bool)
    shard, part = joined.shard[order], joined.part[order]
    last[:-1] = (shard[1:] != shard[:-1]) | (part[1:] != part[:-1])
    return joined.take(order[last])


def catalog_of_parts(parts: Parts) -> Catalog:
    """Build the catalog of current parts (see :meth:`Parts.current_rows`); nothing on disk is checked."""
    num_parts = parts.shard.size
    # As floats, which do not wrap around: global indexes are sums of these.
    if parts.count.sum(dtype=np.float64) > MAX_SIZE:
        raise DamagedRecordError(
            f"expected at most {MAX_SIZE} elements or documents in all shards, found {sum(parts.count.tolist())}: no "
            "such data set can have been written; get it anew from a source that you trust"
        )
    files: list[str] = []
    sizes: list[Int64s] = []
    index: dict[str, Int64s] = {}
    for role, role_sizes in parts.sizes().items():
        index[role] = np.where(role_sizes > 0, np.arange(len(files), len(files) + num_parts), -1).astype(np.int64)
        files += parts.data_names(role)
        sizes.append(role_sizes)
    absent = np.full(num_parts, -1, np.int64)
    metadata: dict[str, Any] = {}
    merged: Mapping[str, Any] | None = None
    for notes in parts.metadata:
        if notes is not merged:
            metadata.update(notes)
            merged = notes
    return Catalog(
        kind=parts.kind,
        layout="current",
        dtype=parts.dtype,
        format_name=parts.formats[-1],
        files=tuple(files),
        sizes=np.concatenate(sizes),
        shard=parts.shard,
        count=parts.count,
        spans=parts.spans,
        elements_file=index.get("elements", absent),
        offsets_file=index.get("offsets", absent),
        payload_file=index.get("payload", absent),
        table_file=index.get("spans", absent),
        table_stride=parts.stride,
        identity=identity_of_parts(parts.kind, parts.dtype, parts.shard, parts.count, parts.spans, parts.digests),
        metadata=metadata,
    )
