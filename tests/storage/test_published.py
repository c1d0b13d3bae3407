"""The published 1.x layout, from samples that the published package wrote."""

from __future__ import annotations

import json
import os
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from guideloom._base.errors import CorruptDataError, MissingShardError, ReadOnlyLayoutError, WrongKindError
from guideloom._storage.catalog import Catalog
from guideloom._storage.identity import SAMPLE_BYTES, WHOLE_LIMIT_BYTES, identify_published
from guideloom._storage.local import LocalFolder, drive
from tests.storage.support import KINDS, names, opened, writer

DATA = Path(__file__).parent.parent / "data" / "published-1.1"
EXPECTED = json.loads((DATA / "expected.json").read_text())
FOLDERS: dict[Any, str] = {"stream": "stream", "document": "documents", "stream_with_meta": "stream_with_meta"}
STREAM = np.dtype([tuple(field) for field in EXPECTED["stream"]["dtype"]])
DTYPES: dict[Any, Any] = {"stream": STREAM, "document": None, "stream_with_meta": "<i4"}


def folder_of(kind: Any, tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA / FOLDERS[kind], tmp_path / FOLDERS[kind]))


def identity(folder: Path, catalog: Catalog) -> str:
    return drive(identify_published(catalog), LocalFolder(folder).answer)


@pytest.mark.parametrize("listing", [True, False])
def test_content(listing: bool) -> None:
    stream = opened("stream", DATA / "stream", STREAM, listing=listing)
    assert (stream.layout, stream.identity, stream.num_shards) == ("published-1", None, 3)
    for shard, fields in enumerate(EXPECTED["stream"]["shards"]):
        assert stream.count[shard] == len(fields["tokens"])
        place = stream.elements_file[shard]
        assert (place < 0) == (not fields["tokens"])
        if place >= 0:
            found = np.fromfile(DATA / "stream" / stream.files[place], stream.dtype)
            assert found["tokens"].tolist() == fields["tokens"]

    documents = opened("document", DATA / "documents", listing=listing)
    for shard, texts in enumerate(EXPECTED["documents"]["shards"]):
        offsets = np.fromfile(DATA / "documents" / documents.files[documents.offsets_file[shard]], "<i8")
        payload = (DATA / "documents" / documents.files[documents.payload_file[shard]]).read_bytes()
        found = [payload[low:high].hex() for low, high in pairwise(offsets)]
        assert found == texts and documents.count[shard] == len(texts)

    spans = opened("stream_with_meta", DATA / "stream_with_meta", "<i4", listing=listing)
    assert spans.dtype == np.dtype("<i4")
    for shard in range(2):
        elements = np.fromfile(
            DATA / "stream_with_meta" / spans.files[spans.elements_file[shard]], [("span", "<i4"), ("element", "<i4")]
        )
        tokens = [token for record in EXPECTED["stream_with_meta"]["shards"][shard] for token in record["tokens"]]
        assert elements["element"].tolist() == tokens
        assert spans.count[shard] == len(tokens) and spans.spans[shard] == elements["span"].max() + 1


@pytest.mark.parametrize("kind", KINDS)
def test_writers_refuse(kind: Any, tmp_path: Path) -> None:
    folder = folder_of(kind, tmp_path)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for mode in ("create", "append", "overwrite"):
        with pytest.raises(ReadOnlyLayoutError, match="read-only"):
            writer(kind, folder, mode).open()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("listing", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("asked", KINDS)
def test_kinds(kind: Any, asked: Any, listing: bool) -> None:
    if kind != asked:
        with pytest.raises(WrongKindError, match="use "):
            opened(asked, DATA / FOLDERS[kind], DTYPES[kind] or "<i4", listing=listing)


@pytest.mark.parametrize("listing", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_each_file_torn_or_gone(kind: Any, listing: bool, tmp_path: Path) -> None:
    for name in names(DATA / FOLDERS[kind]):
        folder = folder_of(kind, tmp_path)
        size = (folder / name).stat().st_size
        for change in (-1, 1):
            if size + change >= 0:
                os.truncate(folder / name, size + change)
                with pytest.raises(CorruptDataError, match=name[:10]) as torn:
                    opened(kind, folder, DTYPES[kind], listing=listing)
                assert torn.value.shard == int(name[:7])
        last = name == names(folder)[-1]
        (folder / name).unlink()
        if kind == "stream" and not listing:
            # Without a listing a shard that has no files is where the data set ends.
            pass
        elif kind == "stream" and last:
            assert opened(kind, folder, DTYPES[kind]).num_shards == 2
        elif kind == "stream":
            with pytest.raises(MissingShardError):
                opened(kind, folder, DTYPES[kind])
        else:
            with pytest.raises(MissingShardError, match="gone"):
                opened(kind, folder, DTYPES[kind], listing=listing)
        shutil.rmtree(folder)


def test_another_dtype_is_noticed_where_it_can_be() -> None:
    with pytest.raises(CorruptDataError, match="another dtype"):
        opened("stream", DATA / "stream", "<i8")


@pytest.mark.parametrize("kind", KINDS)
def test_identity_is_content_and_order(kind: Any, tmp_path: Path) -> None:
    folder = folder_of(kind, tmp_path)
    catalog = opened(kind, folder, DTYPES[kind])
    original = identity(folder, catalog)
    assert original == identity(DATA / FOLDERS[kind], opened(kind, DATA / FOLDERS[kind], DTYPES[kind]))
    assert original.startswith("p1:")
    for name in names(folder):
        data = (folder / name).read_bytes()
        for place in {0, len(data) // 2} if data else ():
            (folder / name).write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
            assert identity(folder, catalog) != original
        (folder / name).write_bytes(data)
    one, two = (next(folder.glob(f"000000{shard}*.bin")) for shard in (0, 1 if kind != "stream" else 2))
    one.rename(folder / "x")
    two.rename(one)
    (folder / "x").rename(two)
    if kind == "stream":
        assert identity(folder, opened(kind, folder, DTYPES[kind])) != original


def test_identity_of_a_large_data_set_reads_pieces(tmp_path: Path) -> None:
    size = WHOLE_LIMIT_BYTES + 4096
    with (tmp_path / "0000000.in_band.bin").open("wb") as file:
        file.truncate(size)
    catalog = opened("stream", tmp_path, "<i4")
    local = LocalFolder(tmp_path)
    read = []

    def answer(request: Any) -> Any:
        read.append((request.offset_bytes, request.size_bytes))
        return local.answer(request)

    original = drive(identify_published(catalog), answer)
    assert len(read) == 16 and sum(length for _, length in read) == 16 * SAMPLE_BYTES
    assert read[0][0] == 0 and sum(read[-1]) == size
    with (tmp_path / "0000000.in_band.bin").open("r+b") as file:
        file.seek(size - 1)
        file.write(b"x")
    assert drive(identify_published(catalog), local.answer) != original


@pytest.mark.parametrize(("more", "is_whole"), [(0, True), (4, False)])
def test_every_byte_counts_up_to_64_mib(more: int, is_whole: bool, tmp_path: Path) -> None:
    """In all files together: states that were saved with an identity name it for ever."""
    sizes = (32 << 20, (32 << 20) + more)
    for shard, size in enumerate(sizes):
        with (tmp_path / f"{shard:07d}.in_band.bin").open("wb") as file:
            file.truncate(size)
    num_read = 0

    def answer(request: Any) -> Any:
        nonlocal num_read
        num_read += request.size_bytes
        return memoryview(zeros)[: request.size_bytes]

    zeros = bytes(64 << 20)
    drive(identify_published(opened("stream", tmp_path, "<i4")), answer)
    assert num_read == (sum(sizes) if is_whole else 2 * 16 * SAMPLE_BYTES)
