"""The manifest: all commit records of a data set as columns in one file, so that opening is one read."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from guideloom._base.checks import descr_of
from guideloom._base.errors import DamagedRecordError
from guideloom._storage.catalog import Kind
from guideloom._storage.names import FORMAT_VERSION, KINDS, MANIFEST, MAX_NUMBER, MAX_SIZE, ROLES
from guideloom._storage.parts import Int64s, Parts
from guideloom._storage.record import join_path, parse_dtype, seal, unseal

_REGATHER = "the manifest repeats what the commit records say: gather it anew with: guideloom manifest"
_COLUMNS = ("shard", "part", "replaces", "count", "spans", "stride", "payload")
_KEYS = frozenset(
    (*_COLUMNS, "guideloom", "kind", "dtype", "tag", "record", "digest", "format", "metadata", "pending", "checksum")
)


@dataclass(frozen=True)
class Manifest:
    """Parts, and those that were about to be committed when they were gathered."""

    parts: Parts
    pending: tuple[tuple[int, int], ...]


def encode_manifest(parts: Parts, pending: Sequence[tuple[int, int]]) -> bytes:
    """Return the manifest's file.

    Parameters
    ----------
    parts : Parts
        All committed parts, superseded ones included.
    pending : sequence of (shard, part)
        Parts whose data files are there and whose record is not.
    """
    format_values, format_index = _distinct(parts.formats)
    notes_values, notes_index = _distinct(parts.metadata)
    data, _ = seal(
        {
            "guideloom": FORMAT_VERSION,
            "kind": parts.kind,
            "dtype": None if parts.dtype is None else descr_of(parts.dtype),
            "shard": parts.shard.tolist(),
            "part": parts.part.tolist(),
            "replaces": parts.replaces.astype(np.int64).tolist(),
            "count": parts.count.tolist(),
            "spans": parts.spans.tolist(),
            "stride": parts.stride.tolist(),
            "payload": parts.payload.tolist(),
            "tag": "".join(parts.tags),
            "record": "".join(parts.checksums),
            "digest": {role: digests.tobytes().hex() for role, digests in parts.digests.items()},
            "format": {"values": format_values, "index": format_index},
            "metadata": {"values": notes_values, "index": notes_index},
            "pending": [list(numbers) for numbers in pending],
        }
    )
    return data


def _distinct(values: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """Distinct values in order of appearance, and for each value its place among them."""
    places: dict[Any, int] = {}
    kept: list[Any] = []
    index = []
    last, place = None, -1
    for value in values:
        if place < 0 or value is not last:
            key = value if isinstance(value, str) else repr(value)
            place = places.setdefault(key, len(kept))
            if place == len(kept):
                kept.append(value)
            last = value
        index.append(place)
    return kept, index


def decode_manifest(data: bytes, folder: str = "") -> Manifest:
    """Parse and check a manifest from a source that is not trusted; columns are checked as arrays.

    Raises
    ------
    NewerVersionError, DamagedRecordError
        With the path.
    """
    return _Reader(join_path(folder, MANIFEST)).read(data)


class _Reader:
    def __init__(self, path: str) -> None:
        self._path = path

    def damaged(self, message: str) -> DamagedRecordError:
        return DamagedRecordError(message, remedy=_REGATHER, path=self._path)

    def read(self, data: bytes) -> Manifest:
        value = unseal(data, self._path, _REGATHER)
        if set(value) != _KEYS:
            raise self.damaged(f"expected the keys {sorted(_KEYS)}, found {sorted(value)!r:.400}")
        if value["kind"] not in KINDS:
            raise self.damaged(f"'kind': expected one of {', '.join(KINDS)}, found {value['kind']!r:.80}")
        kind = cast(Kind, value["kind"])
        dtype = parse_dtype(kind, value["dtype"], self._path, _REGATHER)
        itemsize = 1 if dtype is None else dtype.itemsize
        shard = self.column(value, "shard", None, MAX_NUMBER)
        num_parts = shard.size
        if num_parts == 0:
            raise self.damaged("expected at least one part, found none")
        part = self.column(value, "part", num_parts, MAX_NUMBER)
        steps = np.diff(shard)
        if (steps < 0).any() or (np.diff(part)[steps == 0] <= 0).any():
            raise self.damaged("the parts are not in order of shard and part")
        replaces = self.column(value, "replaces", num_parts, 1).astype(bool)
        if (replaces & (part == 0)).any():
            raise self.damaged("'replaces': part 0 has nothing to replace")
        count = self.column(value, "count", num_parts, MAX_SIZE // max(itemsize, 8))
        spans = self.column(value, "spans", num_parts, MAX_SIZE // 32)
        stride = self.column(value, "stride", num_parts, MAX_NUMBER)
        payload = self.column(value, "payload", num_parts, MAX_SIZE)
        if kind == "stream_with_meta":
            if ((spans > count) | ((count > 0) & (spans == 0)) | (stride == 0)).any():
                raise self.damaged("'spans' and 'stride' do not fit 'count'")
        elif spans.any() or stride.any() or (kind == "stream" and payload.any()):
            raise self.damaged(f"'spans', 'stride' or 'payload' of a {kind} data set are not 0")
        digest = value["digest"]
        if not isinstance(digest, dict) or set(digest) != set(ROLES[kind]):
            raise self.damaged(f"'digest': expected an object with {', '.join(ROLES[kind])}")
        parts = Parts(
            kind=kind,
            dtype=dtype,
            shard=shard,
            part=part,
            replaces=replaces,
            count=count,
            spans=spans,
            stride=stride,
            payload=payload,
            tags=self.hex_column(value["tag"], "tag", num_parts),
            checksums=self.hex_column(value["record"], "record", num_parts),
            digests={
                role: np.frombuffer(self.hex_bytes(digest[role], "digest", 32 * num_parts), np.uint8).reshape(-1, 16)
                for role in ROLES[kind]
            },
            formats=self.spread(value["format"], "format", num_parts, str),
            metadata=self.spread(value["metadata"], "metadata", num_parts, dict),
        )
        return Manifest(parts, self.pending(value["pending"]))

    def column(self, value: Mapping[str, Any], key: str, num_parts: int | None, high: int) -> Int64s:
        found = self.integers(value[key], key)
        if num_parts is not None and found.size != num_parts:
            raise self.damaged(f"{key!r}: expected {num_parts} entries, found {found.size}")
        if found.size and (int(found.min()) < 0 or int(found.max()) > high):
            raise self.damaged(f"{key!r}: expected integers from 0 to {high}")
        return found

    def integers(self, values: Any, key: str) -> Int64s:
        if not isinstance(values, list):
            raise self.damaged(f"{key!r}: expected a list, found {type(values).__name__}")
        if not values:
            return np.zeros(0, np.int64)
        if set(map(type, values)) != {int}:
            raise self.damaged(f"{key!r}: expected a list of integers")
        try:
            return np.array(values, np.int64)
        except OverflowError:
            raise self.damaged(f"{key!r}: an integer beyond 64 bits") from None

    def hex_bytes(self, text: Any, key: str, length: int) -> bytes:
        if isinstance(text, str) and len(text) == length:
            with contextlib.suppress(ValueError):
                data = bytes.fromhex(text)
                # There and back: capitals and spaces would be accepted, too.
                if data.hex() == text:
                    return data
        raise self.damaged(f"{key!r}: expected {length} hex digits")

    def hex_column(self, text: Any, key: str, num_parts: int) -> list[str]:
        self.hex_bytes(text, key, 16 * num_parts)
        return [text[start : start + 16] for start in range(0, len(text), 16)]

    def spread(self, value: Any, key: str, num_parts: int, kind: type) -> list[Any]:
        if not isinstance(value, dict) or set(value) != {"values", "index"} or not isinstance(value["values"], list):
            raise self.damaged(f"{key!r}: expected an object with a list 'values' and a list 'index'")
        values = value["values"]
        if any(not isinstance(entry, kind) for entry in values):
            raise self.damaged(f"{key!r}: a value is no {kind.__name__}")
        index = self.column(value, "index", num_parts, len(values) - 1)
        return [values[place] for place in index.tolist()]

    def pending(self, value: Any) -> tuple[tuple[int, int], ...]:
        flat: npt.NDArray[np.int64] = np.zeros((0, 2), np.int64)
        if value:
            if not isinstance(value, list) or any(not isinstance(pair, list) or len(pair) != 2 for pair in value):
                raise self.damaged("'pending': expected a list of [shard, part]")
            flat = self.integers([number for pair in value for number in pair], "pending").reshape(-1, 2)
            if int(flat.min()) < 0 or int(flat.max()) > MAX_NUMBER:
                raise self.damaged(f"'pending': expected numbers from 0 to {MAX_NUMBER}")
        elif value != []:
            raise self.damaged("'pending': expected a list")
        return tuple((int(shard), int(part)) for shard, part in flat.tolist())
