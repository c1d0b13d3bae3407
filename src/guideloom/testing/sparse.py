"""Data sets of any size on a few kilobytes of disk: committed shards whose files are mostly holes.

They are built from ``docs/format.md`` alone, so they also check that the page says enough.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from guideloom._base.protocols import IOReaderAbstract, StreamStorageFormat
from guideloom.testing.records import INT64, IdStreamFormat

if TYPE_CHECKING:
    from guideloom._dataset.storages import DocumentStorage, StreamStorage


def make_sparse_stream(
    directory: Path,
    count: int,
    dtype: npt.DTypeLike = INT64,
    marks: Mapping[int, Any] | None = None,
    *,
    shards_before: int = 0,
    stream_format: StreamStorageFormat | None = None,
    read_interface: IOReaderAbstract | None = None,
) -> StreamStorage:
    """Write a stream of ``count`` zeros, except for ``marks``, in one shard, and return its storage.

    Parameters
    ----------
    directory : Path
        Folder to write, on a file system with sparse files.
    count : int
        Elements; the file takes the disk space of the marks only. The commit record takes 11 bytes for each MiB, and at
        most 64 MiB: so up to about 6 TiB.
    dtype : dtype
        Element dtype.
    marks : mapping of int to value
        Elements that are not zero, by their index in the sparse shard.
    shards_before : int
        Ordinary shards of one zero element each in front of the sparse one.
    stream_format : StreamStorageFormat, optional
        :class:`IdStreamFormat` when not given.
    read_interface : IOReaderAbstract, optional
        The storage's backend.
    """
    from guideloom._dataset.storages import StreamStorage

    dtype = np.dtype(dtype)
    storage = StreamStorage(directory, stream_format or IdStreamFormat(dtype), read_interface=read_interface)
    plain = StreamStorage(directory, IdStreamFormat(dtype))
    with plain.sync_writer() as writer:
        for shard in range(shards_before + 1):
            writer.append(shard, np.zeros(1, dtype))
    contents = {
        index * dtype.itemsize: np.asarray(value, dtype).reshape(1).tobytes() for index, value in (marks or {}).items()
    }
    _grow(directory, shards_before, {"count": count}, {"elements": (count * dtype.itemsize, contents)})
    return storage


def make_sparse_document(
    directory: Path,
    size: int,
    marks: Mapping[int, bytes] | None = None,
    *,
    read_interface: IOReaderAbstract | None = None,
) -> DocumentStorage:
    """Write two documents in one shard: zero bytes except for marks, then ``b"end"``.

    Parameters
    ----------
    directory : pathlib.Path
    size : int
        Bytes of the first document.
    marks : mapping of int -> bytes, optional
        What stands at which offset of it.
    read_interface : IOReaderAbstract, optional

    Returns
    -------
    DocumentStorage
        It hands out the encoded bytes as they are read.
    """
    from guideloom._dataset.storages import DocumentStorage

    storage = DocumentStorage(directory, _RawDocuments(), read_interface=read_interface)
    with storage.sync_writer() as writer:
        writer.append(0, b"")
        writer.append(0, b"end")
    offsets = np.array([0, size, size + 3], "<i8").tobytes()
    _grow(
        directory,
        0,
        {},
        {"payload": (size + 3, {0: b"\0\0\0", **(marks or {}), size: b"end"}), "offsets": (24, {0: offsets})},
    )
    return storage


class _RawDocuments:
    def pack(self, data: bytes) -> bytes:
        return data

    def unpack(self, encoded: Any, shard: int) -> Any:
        return encoded


def _grow(
    directory: Path, shard: int, changes: Mapping[str, Any], files: Mapping[str, tuple[int, Mapping[int, bytes]]]
) -> None:
    """Give files of part 0 of a shard another size and content, and the part a record that agrees."""
    from xxhash import xxh3_64_hexdigest, xxh3_128_digest

    record_path = directory / f"{shard:07}-0000.commit.json"
    record = json.loads(record_path.read_bytes())
    record.update(changes)
    digests = b""
    for role, entry in sorted(record["files"].items()):
        if role in files:
            path = directory / entry["name"]
            size, contents = files[role]
            with open(path, "r+b") as file:
                file.truncate(size)
                for offset, content in contents.items():
                    file.seek(offset)
                    file.write(content)
            entry["size"] = size
            entry["sums"] = base64.b64encode(_sums(path, size, entry["block"], contents)).decode("ascii")
        digests += xxh3_128_digest(base64.b64decode(entry["sums"]))
    for role, entry in record["files"].items():
        old, entry["name"] = entry["name"], f"{shard:07}-0000.{xxh3_64_hexdigest(digests)}.{role}.bin"
        os.rename(directory / old, directory / entry["name"])
    del record["checksum"]
    body = json.dumps(record, sort_keys=True, separators=(",", ":"))[:-1].encode("ascii")
    (directory / "manifest.json").unlink(missing_ok=True)
    record_path.write_bytes(body + f',"checksum":"{xxh3_64_hexdigest(body)}"}}\n'.encode("ascii"))


def _sums(path: Path, size: int, block: int, contents: Mapping[int, bytes]) -> bytes:
    """Block checksums of a file that is zero wherever ``contents`` does not reach: reads those blocks and the last."""
    from xxhash import xxh3_64_intdigest

    count = -(-size // block)
    sums = np.full(count, xxh3_64_intdigest(bytes(block)), "<u8")
    touched = {count - 1} if count else set()
    for offset, content in contents.items():
        touched.update(range(offset // block, -(-(offset + len(content)) // block)))
    with open(path, "rb") as file:
        for b in sorted(touched):
            file.seek(b * block)
            sums[b] = xxh3_64_intdigest(file.read(block))
    return sums.tobytes()
