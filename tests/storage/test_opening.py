"""Opening: what is refused and by which name, what it costs, and that a race with a writer is none."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from guideloom._base.errors import (
    CorruptDataError,
    DamagedRecordError,
    DataSetNotFoundError,
    ForeignDataError,
    MissingShardError,
    NewerVersionError,
    WrongKindError,
)
from guideloom._storage.local import LocalFolder, drive, drive_async
from guideloom._storage.manifest import encode_manifest
from guideloom._storage.opening import open_catalog
from guideloom._storage.parts import parts_from_records
from guideloom._storage.record import CommitRecord, FileEntry
from guideloom._storage.repair import plan_repair, rebuild_manifest
from guideloom._storage.requests import FileSizes, ListFolder, ReadFile, Request
from guideloom._storage.writer import DocumentWriter, StreamWriter
from tests.storage.support import KINDS, Raw, Tokens, opened, shards_of, write, written

BOTH = pytest.mark.parametrize("listing", [True, False])


def test_a_folder_of_data_sets_is_none_and_names_them(tmp_path: Path) -> None:
    """Beside other files and folders too; in a form that a shell takes."""
    (tmp_path / "README").write_bytes(b"")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_bytes(b"")
    with pytest.raises(ForeignDataError, match="README"):
        opened("stream", tmp_path)
    for number, name in enumerate(("one it's", "two", "v3", "v4")):
        write("stream", tmp_path / name, {0: [number]})
    first = str(tmp_path / "one it's")
    expected = (
        f"no data set, but a folder with data sets in it, \"one it's\", 'two', 'v3', ... (4 in all): give one of them, "
        f"as in: guideloom info {shlex.quote(first)} [path {str(tmp_path)!r}]"
    )
    with pytest.raises(DataSetNotFoundError) as caught:
        opened("stream", tmp_path)
    assert str(caught.value) == expected
    for act in (plan_repair, rebuild_manifest):
        with pytest.raises(DataSetNotFoundError) as caught:
            act(tmp_path)
        assert str(caught.value) == expected


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(DataSetNotFoundError, match="holds no files; write it first, or name the folder in it"):
        opened("stream", tmp_path)
    with pytest.raises(DataSetNotFoundError, match="does not exist"):
        opened("stream", tmp_path / "none")
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(FileNotFoundError, match=r"0000000-0000\.commit\.json"):
            opened("stream", folder, listing=False)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ForeignDataError, match="found a file; give the folder that holds it"):
        opened("stream", tmp_path / "file")
    with pytest.raises(ForeignDataError, match="a part of this path is no folder"):
        opened("stream", tmp_path / "file" / "data")
    with pytest.raises(ForeignDataError, match=r"1 other file \(file\); give the folder"):
        opened("stream", tmp_path)


def test_only_a_writers_work_in_progress(tmp_path: Path) -> None:
    (tmp_path / ".tmp-0123-0000000.elements").write_bytes(b"1234")
    (tmp_path / "0000000-0000.0123456789abcdef.elements.bin").write_bytes(b"1234")
    with pytest.raises(DataSetNotFoundError, match="not finished"):
        opened("stream", tmp_path)


@BOTH
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("asked", KINDS)
def test_kinds(kind: Any, asked: Any, listing: bool, tmp_path: Path) -> None:
    write(kind, tmp_path, {0: [1]})
    if kind == asked:
        assert opened(asked, tmp_path, listing=listing).kind == kind
    else:
        storage = {
            "stream": "StreamStorage",
            "document": "DocumentStorage",
            "stream_with_meta": "StreamWithMetaStorage",
        }
        with pytest.raises(WrongKindError, match=f"asked for .*{storage[asked]}.*use {storage[kind]}") as caught:
            opened(asked, tmp_path, listing=listing)
        assert caught.value.path == str(tmp_path)


def test_dtypes(tmp_path: Path) -> None:
    write("stream", tmp_path, {0: [1]})
    assert opened("stream", tmp_path, ">i4").dtype == np.dtype("<i4")
    for other in ("<u4", "<i8", [("a", "<i4")], ("S4")):
        with pytest.raises(WrongKindError, match="<i4"):
            opened("stream", tmp_path, other)


def test_formats(tmp_path: Path) -> None:
    for name in ("DocumentPickleFormat", "Mine"):
        storage_format = type(name, (Raw,), {})()
        with DocumentWriter(tmp_path / name, storage_format) as documents:
            documents.append(0, b"x")
    for name in ("DocumentPickleFormat", "Mine", ""):
        assert (
            opened("document", tmp_path / "DocumentPickleFormat", format_name=name).format_name
            == "DocumentPickleFormat"
        )
        assert opened("document", tmp_path / "Mine", format_name=name).format_name == "Mine"
    with pytest.raises(WrongKindError, match=r"asked for DocumentJsonFormat.*use DocumentPickleFormat") as caught:
        opened("document", tmp_path / "DocumentPickleFormat", format_name="DocumentJsonFormat")
    assert caught.value.path == str(tmp_path / "DocumentPickleFormat")
    opened("document", tmp_path / "Mine", format_name="DocumentJsonFormat")


@pytest.mark.parametrize(
    ("shards", "missing"),
    [
        ([1, 2], "1 is missing: 0"),
        ([0, 2], "1 is missing: 1"),
        ([0, 4, 9], "7 are missing: 1 to 3, 5 to 8"),
        ([2**31 - 1], "2147483647 are missing: 0 to 2147483646"),
    ],
)
def test_holes(shards: list[int], missing: str, tmp_path: Path) -> None:
    write("stream", tmp_path, {shard: [1] for shard in shards})
    with pytest.raises(MissingShardError, match=rf"but {missing}\..*writer\.create\(shard\)") as caught:
        opened("stream", tmp_path)
    assert caught.value.shard == int(missing.split(": ")[1].split()[0])
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(MissingShardError):
        opened("stream", tmp_path)


def test_a_missing_part(tmp_path: Path) -> None:
    for number in range(5):
        write("stream", tmp_path, {0: [number]}, "append")
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "0000000-0003.commit.json").unlink()
    (tmp_path / "0000000-0001.commit.json").unlink()
    with pytest.raises(MissingShardError, match=r"part 1 of shard 0 .* restore 0000000-0001\.commit\.json"):
        opened("stream", tmp_path)
    write("stream", tmp_path, {0: [5]}, "overwrite")
    assert shards_of(tmp_path, opened("stream", tmp_path)) == [written("stream", [5])]


@BOTH
@pytest.mark.parametrize("kind", KINDS)
def test_each_file_gone_shorter_or_longer(kind: Any, listing: bool, tmp_path: Path) -> None:
    write(kind, tmp_path / "good", {0: range(3), 1: range(4)})
    catalog = opened(kind, tmp_path / "good")
    assert len(catalog.files) == 2 * {"stream": 1, "document": 2, "stream_with_meta": 3}[kind]
    for place, name in enumerate(catalog.files):
        size = int(catalog.sizes[place])
        folder = tmp_path / name
        shutil.copytree(tmp_path / "good", folder)
        (folder / name).unlink()
        with pytest.raises(MissingShardError, match=f"expected {size} bytes") as gone:
            opened(kind, folder, listing=listing)
        assert gone.value.path == str(folder / name) and gone.value.shard == int(name[:7])
        for change in (-1, 1):
            (folder / name).write_bytes(bytes(size + change))
            with pytest.raises(CorruptDataError, match=f"expected {size} bytes, found {size + change}") as torn:
                opened(kind, folder, listing=listing)
            assert torn.value.path == str(folder / name)
            assert torn.value.shard == int(name[:7]) and torn.value.offset == min(size, size + change)


def test_a_record_gone(tmp_path: Path) -> None:
    write("stream", tmp_path, {0: [1], 1: [2]})
    (tmp_path / "0000001-0000.commit.json").unlink()
    with pytest.raises(MissingShardError, match=r"0000001-0000\.commit\.json"):
        opened("stream", tmp_path)


@BOTH
def test_a_newer_or_damaged_record(listing: bool, tmp_path: Path) -> None:
    write("stream", tmp_path, {0: [1]})
    for name in ("manifest.json", "0000000-0000.commit.json"):
        good = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(good.replace(b'"guideloom":2', b'"guideloom":3'))
        with pytest.raises(NewerVersionError, match="upgrade") as newer:
            opened("stream", tmp_path, listing=listing)
        assert newer.value.path == str(tmp_path / name)
        (tmp_path / name).write_bytes(good.replace(b"stream", b"strean"))
        with pytest.raises(DamagedRecordError, match="checksum") as damaged:
            opened("stream", tmp_path, listing=listing)
        assert damaged.value.path == str(tmp_path / name)
        (tmp_path / name).unlink()


def test_other_files_beside_the_data_are_ignored(tmp_path: Path) -> None:
    write("stream", tmp_path, {0: [1]})
    before = opened("stream", tmp_path).identity
    for name in ("README.md", ".tmp-x", "x.commit.json", "0000001-0000.0123456789abcdef.elements.bin"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "folder").mkdir()
    assert opened("stream", tmp_path).identity == before
    (tmp_path / "0000000.in_band.bin").write_bytes(b"1234")
    with pytest.raises(ForeignDataError, match=r"1\.x"):
        opened("stream", tmp_path)


def test_records_win_over_an_older_manifest(tmp_path: Path) -> None:
    write("stream", tmp_path, {0: [1]})
    old = (tmp_path / "manifest.json").read_bytes()
    write("stream", tmp_path, {0: [2]}, "append")
    write("stream", tmp_path, {1: [3]})
    (tmp_path / "manifest.json").write_bytes(old)
    assert shards_of(tmp_path, opened("stream", tmp_path)) == [written("stream", [1, 2]), written("stream", [3])]


def test_a_commit_while_the_folder_is_listed(tmp_path: Path) -> None:
    """The listing misses what the manifest already names, or files whose record it has: a second listing settles it."""
    write("stream", tmp_path, {0: [1]})
    local = LocalFolder(tmp_path)
    before = local.listing()
    write("stream", tmp_path, {1: [2]})
    torn = {name: size for name, size in local.listing().items() if not name.startswith("0000001") or "commit" in name}
    for early in (before, torn):
        listings = [early]

        def answer(request: Request, listings: list[Any] = listings) -> Any:
            return listings.pop() if listings and isinstance(request, ListFolder) else local.answer(request)

        catalog = drive(open_catalog("stream", np.dtype("<i4"), ""), answer)
        assert shards_of(tmp_path, catalog) == [written("stream", [1]), written("stream", [2])]


def test_the_async_driver_gives_the_same(tmp_path: Path) -> None:
    write("document", tmp_path, {0: [1], 1: [2]})
    local = LocalFolder(tmp_path)

    async def answer(request: Request) -> Any:
        await asyncio.sleep(0)
        return local.answer(request)

    catalog = asyncio.run(drive_async(open_catalog("document", None, ""), answer))
    expected = opened("document", tmp_path)
    assert (catalog.files, catalog.identity, catalog.count.tolist()) == (expected.files, expected.identity, [1, 1])
    with pytest.raises(WrongKindError):
        asyncio.run(drive_async(open_catalog("stream", np.dtype("<i4"), ""), answer))


def test_metadata_of_all_parts(tmp_path: Path) -> None:
    for shard, notes in enumerate([{"a": 1, "b": 1}, None, {"b": 2}]):
        with StreamWriter(tmp_path, Tokens(), "create", notes) as stream:
            stream.append(shard, [1])
    assert opened("stream", tmp_path).metadata == {"a": 1, "b": 2}


@BOTH
def test_what_opening_asks_for(listing: bool, tmp_path: Path) -> None:
    """Counted: 10,000 shards take one listing and one read; a backend without a listing is asked for each size."""
    num_shards = 10_000 if listing else 50
    dtype = np.dtype("<i4")
    sources = [tmp_path / f".tmp-{size}" for size in (0, 4)]
    for size, source in zip((0, 4), sources, strict=True):
        source.write_bytes(b"1234"[:size])
    records = []
    for shard in range(num_shards):
        sums = xxhash.xxh3_64_digest(b"1234")[::-1] if shard % 2 else b""
        files = {"elements": FileEntry(shard % 2 * 4, sums)}
        record = CommitRecord("stream", shard, 0, False, dtype, "Tokens", shard % 2, 0, 0, files, checksum="0" * 16)
        records.append(record)
        # Links are quicker to make than files; no record is read, so any content will do.
        os.link(sources[0], tmp_path / record.name)
        os.link(sources[shard % 2], tmp_path / record.data_name("elements"))
    (tmp_path / "manifest.json").write_bytes(encode_manifest(parts_from_records(records), ()))
    local = LocalFolder(tmp_path)
    asked: Counter[type] = Counter()

    def answer(request: Request) -> Any:
        asked[type(request)] += 1
        return None if not listing and isinstance(request, ListFolder) else local.answer(request)

    catalog = drive(open_catalog("stream", dtype, "Tokens"), answer)
    assert catalog.num_shards == num_shards and catalog.total == num_shards // 2
    if listing:
        assert asked == {ListFolder: 1, ReadFile: 1}
    else:
        assert asked == {ListFolder: 1, ReadFile: 2, FileSizes: 1}
    assert (catalog.elements_file >= 0).tolist() == [bool(shard % 2) for shard in range(num_shards)]
