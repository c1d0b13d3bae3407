"""What makes two data sets the same: content and order, not path."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from guideloom._base.checks import descr_of
from guideloom._base.fingerprint import canonical_json, fingerprint
from guideloom._storage.catalog import Catalog, Kind
from guideloom._storage.requests import ReadRange, Request

WHOLE_LIMIT_BYTES = 64 << 20
"""Published 1.x data sets up to this size are read whole for their identity."""
SAMPLE_BYTES = 64 << 10
NUM_SAMPLES = 16
_CHUNK_BYTES = 4 << 20


def identity_of_parts(
    kind: Kind,
    dtype: np.dtype[Any] | None,
    shard: npt.NDArray[np.int64],
    count: npt.NDArray[np.int64],
    spans: npt.NDArray[np.int64],
    digests: Mapping[str, npt.NDArray[np.uint8]],
) -> str:
    """Return the identity of a data set in the current layout, from its current parts in order (P parts).

    Parameters
    ----------
    shard, count, spans : int64[P]
    digests : mapping role -> uint8[P, 16]
        XXH3-128 of each file's block checksums.
    """
    roles = sorted(digests)
    chunks = [
        canonical_json([kind, None if dtype is None else descr_of(dtype), int(shard.size), roles]),
        *(column.astype("<i8").tobytes() for column in (shard, count, spans)),
        *(digests[role].tobytes() for role in roles),
    ]
    return f"v2:{fingerprint(chunks)}"


def identify_published(catalog: Catalog) -> Generator[Request, Any, str]:
    """Return the identity of a published-1.x data set, which must be read for it.

    Up to 64 MiB in total every byte counts; beyond that, 16 pieces of 64 KiB of each file, evenly spaced from its
    first to its last byte, and the sizes of all files. An edit between two pieces then goes unnoticed: convert what
    you mean to keep.
    """
    sizes = catalog.sizes.tolist()
    whole = sum(sizes) <= WHOLE_LIMIT_BYTES
    dtype = None if catalog.dtype is None else descr_of(catalog.dtype)
    chunks = [canonical_json([catalog.kind, dtype, len(sizes), whole])]
    chunks += [
        column.astype("<i8").tobytes() for column in (catalog.shard, catalog.count, catalog.spans, catalog.sizes)
    ]
    digests = []
    for name, size in zip(catalog.files, sizes, strict=True):
        pieces = []
        for offset, length in _pieces(size, whole):
            answer: bytes | bytearray | memoryview = yield ReadRange(name, offset, length)
            pieces.append(fingerprint([memoryview(answer)]).encode("ascii"))
        digests.append(fingerprint(pieces).encode("ascii"))
    return f"p1:{fingerprint([*chunks, *digests])}"


def _pieces(size: int, whole: bool) -> list[tuple[int, int]]:
    """Offset and length of the pieces of a file that count."""
    if whole or size <= NUM_SAMPLES * SAMPLE_BYTES:
        return [(offset, min(_CHUNK_BYTES, size - offset)) for offset in range(0, size, _CHUNK_BYTES)]
    last = size - SAMPLE_BYTES
    return [(last * place // (NUM_SAMPLES - 1), SAMPLE_BYTES) for place in range(NUM_SAMPLES)]
