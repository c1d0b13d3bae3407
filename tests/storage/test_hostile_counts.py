"""Counts that each may be, and that no data set can hold together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from guideloom._storage.local import drive
from guideloom._storage.manifest import encode_manifest
from guideloom._storage.names import MANIFEST, MAX_SIZE
from guideloom._storage.opening import open_catalog
from guideloom._storage.parts import Parts
from guideloom._storage.requests import FileSizes, ListFolder, ReadFile, Request
from guideloom.errors import DamagedRecordError


def parts_of(counts: list[int]) -> Parts:
    number = len(counts)
    none = np.zeros(number, np.int64)
    return Parts(
        kind="stream", dtype=np.dtype("u1"), shard=np.arange(number), part=none, replaces=none.astype(bool),
        count=np.array(counts, np.int64), spans=none, stride=none, payload=none, tags=["0" * 16] * number,
        checksums=["0" * 16] * number, digests={"elements": np.zeros((number, 16), np.uint8)}, formats=[""] * number,
        metadata=[{}] * number,
    )  # fmt: skip


@pytest.mark.parametrize("listing", [True, False])
def test_a_total_beyond_64_bits(listing: bool) -> None:
    """Some file systems, and a user's backend, give files any size."""
    largest = MAX_SIZE // 8

    def open_it(counts: list[int]) -> Any:
        parts = parts_of(counts)
        sizes = dict(zip(parts.data_names("elements"), counts, strict=True))

        def answer(request: Request) -> Any:
            match request:
                case ListFolder():
                    return {MANIFEST: 1, **dict.fromkeys(parts.record_names, -1), **sizes} if listing else None
                case ReadFile(name):
                    return encode_manifest(parts, ()) if name == MANIFEST else None
                case FileSizes(names):
                    return [sizes[name] for name in names]

        return drive(open_catalog("stream", np.dtype("u1"), ""), answer)

    assert open_it([largest] * 8).total == MAX_SIZE
    for number in (9, 16, 17, 33):
        with pytest.raises(DamagedRecordError, match="in all shards"):
            open_it([largest] * number)
