"""Data of other tools, converted: indexed token files (.bin and .idx), tar files of samples, tokenised documents."""

from __future__ import annotations

import argparse
import io
import json
import tarfile
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from guideloom import DocumentNumpyFormat, DocumentStorage, SpanNumpyFormat, StreamDataset, StreamWithMetaStorage
from guideloom.io import PosixPreadIO

INDEXED_DTYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}


def from_indexed(prefix: Path, folder: Path, documents_per_shard: int = 100_000) -> StreamWithMetaStorage:
    """Convert ``prefix.bin`` and ``prefix.idx``, as Megatron-LM writes them: whole documents into each shard."""
    index = prefix.with_suffix(".idx").read_bytes()
    if index[:9] != b"MMIDIDX\x00\x00":
        raise ValueError(f"{prefix}.idx is no index of this kind")
    dtype = INDEXED_DTYPES[index[17]]  # behind the version, 8 bytes
    lengths = np.frombuffer(index, "<i4", count=int.from_bytes(index[18:26], "little"), offset=34)
    tokens = np.memmap(prefix.with_suffix(".bin"), dtype, "r")
    bounds = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])

    # A document is a span, without a payload here; one of no tokens cannot be a span.
    storage = StreamWithMetaStorage(folder, SpanNumpyFormat([("token", dtype)]), PosixPreadIO())
    for shard, first in enumerate(range(0, len(lengths), documents_per_shard)):  # or each in a process of its own
        chosen = lengths[first : first + documents_per_shard]
        begin, end = bounds[first], bounds[first + len(chosen)]
        with storage.sync_writer(metadata={"from": prefix.name}) as writer:
            writer.append(shard, {"token": tokens[begin:end], "span_lengths": chosen[chosen > 0]})
    return storage


def from_tar(files: list[Path], folder: Path) -> DocumentStorage:
    """Convert tar files in which a sample is the files of one key: arrays stay arrays, text and JSON become bytes."""
    storage = DocumentStorage(folder, DocumentNumpyFormat(), PosixPreadIO())
    with storage.sync_writer() as writer:
        for shard, file in enumerate(files):
            with tarfile.open(file) as archive:
                for _, members in groupby(archive, key=lambda member: member.name.partition(".")[0]):
                    sample = {}
                    for member in members:
                        field = member.name.partition(".")[2]
                        content = archive.extractfile(member).read()  # type: ignore[union-attr]
                        array = np.load(io.BytesIO(content)) if field.endswith("npy") else np.frombuffer(content, "u1")
                        sample[field] = array
                    writer.append(shard, sample)
    return storage


def from_documents(documents: Any, folder: Path, num_shards: int = 4) -> StreamWithMetaStorage:
    """Convert an iterable of ``{"input_ids": ...}``: documents in turn into each shard."""
    storage = StreamWithMetaStorage(folder, SpanNumpyFormat([("token", "<u4")]), PosixPreadIO())
    with storage.sync_writer() as writer:
        for number, document in enumerate(documents):
            writer.append(number % num_shards, {"token": document["input_ids"]})
    return storage


def main(folder: Path) -> None:
    """Make data in three old layouts in ``folder``, convert them, and look at what came of it."""
    lengths = np.array([5, 0, 30, 7], "<i4")
    head = b"MMIDIDX\x00\x00" + np.array(1, "<u8").tobytes() + b"\x08" + np.array([4, 5], "<u8").tobytes()
    (folder / "old.idx").write_bytes(head + lengths.tobytes() + bytes(8 * 4 + 8 * 5))  # pointers are not needed
    np.arange(42, dtype="<u2").tofile(folder / "old.bin")
    storage = from_indexed(folder / "old", folder / "indexed", documents_per_shard=3)
    with StreamDataset(storage, sequence_length=8, overlap=1).sync_reader() as windows:  # theirs: a length of 8, plus 1
        tokens, documents = windows[0]["token"], windows[0]["span_index"]
        print(f"{len(windows)} windows; the first: tokens {tokens.tolist()}, documents {documents.tolist()}")

    with tarfile.open(folder / "old.tar", "w") as archive:
        array = io.BytesIO()
        np.save(array, np.arange(3, dtype=np.uint16))
        fields = {"tokens.npy": array.getvalue(), "txt": "naïve".encode(), "json": json.dumps({"weight": 2.5}).encode()}
        for field, content in fields.items():
            member = tarfile.TarInfo(f"0000.{field}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    with from_tar([folder / "old.tar"], folder / "samples").sync_reader() as samples:
        sample = samples.read(0)
        print(sample["tokens.npy"], sample["txt"].tobytes().decode(), json.loads(sample["json"].tobytes()))

    texts = ({"input_ids": list(range(count)), "attention_mask": [1] * count} for count in (3, 0, 4, 2))
    with from_documents(texts, folder / "documents", num_shards=2).sync_reader() as stream:
        tokens = stream.read(0, stream.total_length)["token"]
        print(f"{stream.total_length} tokens in {stream.num_shards} shards: {tokens}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="an empty folder (default: a temporary one)")
    given = parser.parse_args().folder
    with TemporaryDirectory() as temporary:
        main(given or Path(temporary))
