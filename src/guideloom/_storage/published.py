"""The published 1.x layout, read-only: no records, so everything is learned from names, sizes and last offsets."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from guideloom._base.checks import describe_dtype
from guideloom._base.errors import CorruptDataError, MissingShardError
from guideloom._storage.agree import check_kind
from guideloom._storage.catalog import Catalog, Kind
from guideloom._storage.parts import check_no_holes
from guideloom._storage.record import join_path
from guideloom._storage.requests import FileSize, ReadRange, Request

SPAN_NUMBER = np.dtype("<i4")
"""What precedes each element of a published stream with metadata."""

ELEMENTS, OFFSETS, PAYLOAD = "in_band.bin", "out_of_band.index", "out_of_band.bin"
"""What a file's name ends in, behind the shard's number and a dot."""

NEEDS: dict[Kind, tuple[str, ...]] = {
    "stream": (ELEMENTS,),
    "document": (OFFSETS, PAYLOAD),
    "stream_with_meta": (ELEMENTS, OFFSETS, PAYLOAD),
}
"""The files that each shard of a kind must have."""

_NAME = re.compile(r"([0-9]{7,10})\.(in_band\.bin|out_of_band\.index|out_of_band\.bin)")


def is_published_name(name: str) -> bool:
    """Whether a file's name is one of the published 1.x layout."""
    # Most names of a large folder are ours, and this is quicker to find out.
    match = _NAME.fullmatch(name) if "_band." in name else None
    return match is not None and f"{int(match[1]):07d}" == match[1]


def published_shards(listing: Mapping[str, int]) -> dict[int, dict[str, int]]:
    """Return the published files of a listing, by shard and ending, with their sizes; other files are passed over."""
    shards: dict[int, dict[str, int]] = {}
    for name, size in listing.items():
        if is_published_name(name):
            number, _, suffix = name.partition(".")
            shards.setdefault(int(number), {})[suffix] = size
    return shards


def published_kind(shards: Iterable[Mapping[str, int]]) -> Kind:
    """Return the kind of a data set by the endings of its files; no files at all would be a stream."""
    suffixes = set().union(*shards)
    if suffixes.isdisjoint((OFFSETS, PAYLOAD)):
        return "stream"
    return "stream_with_meta" if ELEMENTS in suffixes else "document"


def published_by_listing(
    listing: Mapping[str, int], kind: Kind, dtype: np.dtype[Any] | None, folder: str
) -> Generator[Request, Any, Catalog]:
    """Open a published data set from a listing in which it has at least one file."""
    shards = published_shards(listing)
    check_no_holes(np.array(sorted(shards), np.int64), folder)
    return (yield from _build([shards[shard] for shard in range(len(shards))], kind, dtype, folder))


def published_by_probing(
    kind: Kind, dtype: np.dtype[Any] | None, folder: str
) -> Generator[Request, Any, Catalog | None]:
    """Open a published data set by asking for one shard after another; None when there is no shard 0."""
    shards: list[dict[str, int]] = []
    while True:
        sizes = {}
        for suffix in (ELEMENTS, OFFSETS, PAYLOAD):
            size = yield FileSize(f"{len(shards):07d}.{suffix}")
            if size is not None:
                sizes[suffix] = size
        if not sizes:
            break
        shards.append(sizes)
    return (yield from _build(shards, kind, dtype, folder)) if shards else None


def _build(
    shards: list[dict[str, int]], kind: Kind, dtype: np.dtype[Any] | None, folder: str
) -> Generator[Request, Any, Catalog]:
    check_kind(published_kind(shards), kind, folder)
    needs = NEEDS[kind]
    for shard, sizes in enumerate(shards):
        for suffix in needs:
            if suffix not in sizes:
                raise MissingShardError(
                    "a file of a shard is gone: restore it from a copy",
                    path=join_path(folder, f"{shard:07d}.{suffix}"),
                    shard=shard,
                )
    num_shards = len(shards)
    files = tuple(f"{shard:07d}.{suffix}" for suffix in needs for shard in range(num_shards))
    sizes_of = {suffix: np.array([sizes[suffix] for sizes in shards], np.int64) for suffix in needs}
    index = {
        suffix: np.where(sizes_of[suffix] > 0, np.arange(num_shards) + place * num_shards, -1).astype(np.int64)
        for place, suffix in enumerate(needs)
    }
    zeros, absent = np.zeros(num_shards, np.int64), np.full(num_shards, -1, np.int64)
    count, spans = zeros, zeros
    if ELEMENTS in needs and dtype is not None:
        count = _count_elements(sizes_of[ELEMENTS], kind, dtype, folder)
    if PAYLOAD in needs:
        entries = yield from _count_payloads(sizes_of[OFFSETS], sizes_of[PAYLOAD], folder)
        count, spans = (entries, spans) if kind == "document" else (count, entries)
    return Catalog(
        kind=kind,
        layout="published-1",
        dtype=dtype,
        format_name="",
        files=files,
        sizes=np.concatenate([sizes_of[suffix] for suffix in needs]),
        shard=np.arange(num_shards, dtype=np.int64),
        count=count,
        spans=spans,
        elements_file=index.get(ELEMENTS, absent),
        offsets_file=index.get(OFFSETS, absent),
        payload_file=index.get(PAYLOAD, absent),
        table_file=absent,
        table_stride=zeros,
    )


def _count_elements(
    sizes: npt.NDArray[np.int64], kind: Kind, dtype: np.dtype[Any], folder: str
) -> npt.NDArray[np.int64]:
    itemsize = dtype.itemsize + (SPAN_NUMBER.itemsize if kind == "stream_with_meta" else 0)
    torn = np.flatnonzero(sizes % itemsize)
    if torn.size:
        shard, size = int(torn[0]), int(sizes[torn[0]])
        raise CorruptDataError(
            f"expected a multiple of {itemsize} bytes (elements of dtype {describe_dtype(dtype)}), found {size}: "
            "the file is torn, or was written with another dtype (the published 1.x layout does not say which)",
            path=join_path(folder, f"{shard:07d}.{ELEMENTS}"),
            shard=shard,
            offset=size - size % itemsize,
        )
    return sizes // itemsize


def _count_payloads(
    offsets: npt.NDArray[np.int64], payloads: npt.NDArray[np.int64], folder: str
) -> Generator[Request, Any, npt.NDArray[np.int64]]:
    for shard, (size, payload) in enumerate(zip(offsets.tolist(), payloads.tolist(), strict=True)):
        name = f"{shard:07d}.{OFFSETS}"
        if size == 0 or size % 8:
            raise CorruptDataError(
                f"expected a multiple of 8 bytes, at least 8, found {size}: the file is torn; restore it from a copy",
                path=join_path(folder, name),
                shard=shard,
                offset=size - size % 8,
            )
        answer = yield ReadRange(name, size - 8, 8)
        last = int(np.frombuffer(answer, "<i8")[0])
        if last != payload:
            raise CorruptDataError(
                f"the last offset says that the payload file has {last} bytes, found {payload}: restore both from a "
                "copy",
                path=join_path(folder, name),
                shard=shard,
                offset=size - 8,
            )
    return offsets // 8 - 1
