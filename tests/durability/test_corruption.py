"""Each file truncated, extended, flipped, deleted, swapped and renamed: found and placed, and never a wrong element."""

from __future__ import annotations

import base64
import copy
import json
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from guideloom import DocumentStorage, StreamStorage, StreamWithMetaStorage
from guideloom._storage.blocks import BlockChecker
from guideloom._storage.catalog import Kind
from guideloom._storage.findings import Finding, Report
from guideloom._storage.local import LocalFolder
from guideloom._storage.names import parse_data_name, parse_record_name
from guideloom._storage.verify import verify
from guideloom.errors import GuideLoomError
from tests.storage.support import FORMATS, KINDS, names, opened, resealed, shards_of, write
from tests.sweeps.support import BACKENDS

STORAGES: dict[Kind, Any] = {
    "stream": StreamStorage,
    "document": DocumentStorage,
    "stream_with_meta": StreamWithMetaStorage,
}
PER_KIND = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    value: Kind = request.param
    return value


@pytest.fixture
def good(kind: Kind, tmp_path: Path) -> Path:
    """Three shards; the second has two parts, the third has an empty part and one."""
    folder = tmp_path / "good"
    write(kind, folder, {0: range(700), 1: range(5), 2: ()})
    write(kind, folder, {1: range(20, 600), 2: range(3)}, "append")
    return folder


@pytest.fixture
def copied(good: Path, tmp_path: Path) -> Callable[[], Path]:
    """Make a fresh copy of the data set."""

    def copied() -> Path:
        target = tmp_path / "copy"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(good, target)
        return target

    return copied


def content(kind: Kind, folder: Path, backend: Any) -> Any:
    """All that a reader gives."""
    with STORAGES[kind](folder, FORMATS[kind](), backend()).sync_reader() as reader:
        if kind == "document":
            return list(reader.read_many(range(reader.total_length)))
        read = reader.read(0, reader.total_length)
        return [part.tolist() if isinstance(part, np.ndarray) else list(map(bytes, part)) for part in _parts(read)]


def _parts(read: Any) -> Any:
    return read if isinstance(read, tuple) else (read,)


def placed(report: Report, name: str) -> list[Finding]:
    """The errors about one file."""
    return [finding for finding in report.errors if Path(finding.path).name == name]


def reads_right_or_not_at_all(kind: Kind, folder: Path, expected: Any) -> None:
    for backend in BACKENDS.values():
        try:
            found = content(kind, folder, backend)
        except GuideLoomError:
            continue
        assert found == expected


def test_a_good_one_is_sound(kind: Kind, good: Path) -> None:
    report = verify(good, jobs=2)
    assert report.findings == ()
    assert (report.num_shards, report.num_parts, report.kind) == (3, 5, kind)
    assert report.bytes_checked == sum(path.stat().st_size for path in good.glob("*.bin"))
    assert verify(good, quick=True).bytes_checked == 0


def test_truncated_and_extended_by_one_byte(kind: Kind, good: Path, copied: Callable[[], Path]) -> None:
    expected = content(kind, good, BACKENDS["seek"])
    for name in names(good):
        for grown in (False, True):
            folder = copied()
            path = folder / name
            data = path.read_bytes()
            if not grown and not data:
                continue
            path.write_bytes(data + b"\0" if grown else data[:-1])
            for quick in (True, False):
                (finding,) = placed(verify(folder, quick), name)
                if name.endswith(".bin"):
                    assert finding.what == "size"
                    edge = (len(data), len(data) + 1) if grown else (len(data) - 1, len(data))
                    assert (finding.begin, finding.end) == edge
                    assert (finding.shard, finding.part) == parse_data_name(name)
                    assert str(len(data)) in finding.expected
            if not name.startswith("manifest") and parse_record_name(name) is None:
                with pytest.raises(GuideLoomError, match=name):
                    opened(kind, folder)
            reads_right_or_not_at_all(kind, folder, expected)


def test_one_bit_in_each_file_at_several_places(kind: Kind, good: Path, copied: Callable[[], Path]) -> None:
    expected = content(kind, good, BACKENDS["seek"])
    for name in names(good):
        size = (good / name).stat().st_size
        for place in sorted({0, size // 3, size // 2, size - 1} if size else ()):
            folder = copied()
            data = bytearray((folder / name).read_bytes())
            data[place] ^= 1 << (place % 8)
            (folder / name).write_bytes(data)
            (finding,) = placed(verify(folder), name)
            assert finding.begin is not None and finding.end is not None
            assert finding.begin <= place < finding.end
            if name.endswith(".bin"):
                assert finding.what == "checksum"
                # The size is right, so only the bytes can tell, before any of them is used.
                with pytest.raises(GuideLoomError, match=name):
                    _check_all(kind, folder)
            else:
                reads_right_or_not_at_all(kind, folder, expected)


def _check_all(kind: Kind, folder: Path) -> BlockChecker:
    """What a reader with checking does before it touches all bytes."""
    catalog = opened(kind, folder)
    local = LocalFolder(folder)
    checker = BlockChecker(catalog, local.read_range, local.read_file, str(folder))
    file = np.arange(catalog.sizes.size)
    checker.check_ranges(file, np.zeros_like(file), catalog.sizes, 0, file.size)
    return checker


def test_each_file_deleted(kind: Kind, good: Path, copied: Callable[[], Path]) -> None:
    expected = content(kind, good, BACKENDS["seek"])
    for name in names(good):
        folder = copied()
        (folder / name).unlink()
        report = verify(folder, quick=True)
        if name == "manifest.json":
            assert report.is_sound and [finding.what for finding in report.findings] == ["manifest"]
            assert content(kind, folder, BACKENDS["seek"]) == expected
            continue
        (finding,) = placed(report, name)
        assert finding.what == "missing"
        with pytest.raises(GuideLoomError):
            opened(kind, folder)
        reads_right_or_not_at_all(kind, folder, expected)


def test_a_record_gone_together_with_the_manifest(kind: Kind, good: Path, copied: Callable[[], Path]) -> None:
    """Only the last part of the last shard can go unseen: nothing is left that speaks of it but its data files."""
    for name in names(good):
        numbers = parse_record_name(name)
        if numbers is None:
            continue
        folder = copied()
        (folder / name).unlink()
        (folder / "manifest.json").unlink()
        report = verify(folder)
        is_newest = numbers in ((1, 1), (2, 1))
        assert report.is_sound is is_newest
        if is_newest:
            assert {(note.shard, note.part) for note in report.findings if note.what == "leftover"} == {numbers}
        else:
            assert [(finding.shard, finding.part) for finding in report.errors] == [numbers]
            with pytest.raises(GuideLoomError):
                opened(kind, folder)


def test_two_files_swapped(kind: Kind, good: Path, copied: Callable[[], Path]) -> None:
    expected = content(kind, good, BACKENDS["seek"])
    everything = names(good)
    for one, other in pairwise(everything):
        if (good / one).read_bytes() == (good / other).read_bytes():
            continue
        folder = copied()
        (folder / one).rename(folder / "swap")
        (folder / other).rename(folder / one)
        (folder / "swap").rename(folder / other)
        report = verify(folder)
        # Without its record nobody can say what a data file should be.
        records = [name for name in (one, other) if name.endswith(".json")]
        assert all(placed(report, name) for name in records or (one, other))
        reads_right_or_not_at_all(kind, folder, expected)


def test_files_of_one_size_swapped(tmp_path: Path) -> None:
    """Sizes say nothing here: the bytes must."""
    write("stream", tmp_path, {0: [1, 2, 3], 1: [4, 5, 6]})
    one, other = (name for name in names(tmp_path) if name.endswith(".bin"))
    first, second = (tmp_path / one).read_bytes(), (tmp_path / other).read_bytes()
    (tmp_path / one).write_bytes(second)
    (tmp_path / other).write_bytes(first)
    assert verify(tmp_path, quick=True).is_sound
    assert [finding.what for finding in verify(tmp_path).errors] == ["checksum", "checksum"]
    with pytest.raises(GuideLoomError, match="not those that were committed"):
        _check_all("stream", tmp_path)


def test_each_file_renamed(kind: Kind, good: Path, copied: Callable[[], Path]) -> None:
    expected = content(kind, good, BACKENDS["seek"])
    for name in names(good):
        for target in ("x" + name, name.replace("000000", "000001", 1), name.replace("-0000", "-0003", 1)):
            if target == name:
                continue
            folder = copied()
            (folder / name).rename(folder / target)
            report = verify(folder, quick=True)
            assert report.is_sound is name.startswith("manifest")
            reads_right_or_not_at_all(kind, folder, expected)


def test_the_block_is_named_in_a_large_file(tmp_path: Path) -> None:
    with STORAGES["stream"](tmp_path, FORMATS["stream"]("<u2")).sync_writer() as writer:
        writer.append(0, np.arange(5 << 20).astype("<u2"))
    (path,) = tmp_path.glob("*.bin")
    data = bytearray(path.read_bytes())
    for place in (1 << 20, (3 << 20) + 5, (4 << 20) + 1):
        data[place] ^= 8
    path.write_bytes(data)
    found = [(finding.begin, finding.end) for finding in verify(tmp_path, jobs=3).errors]
    assert found == [(1 << 20, 2 << 20), (3 << 20, 5 << 20)]
    path.write_bytes(data[: 4 << 20])
    findings = {
        finding.what: (finding.begin, finding.end) for finding in verify(tmp_path).errors if finding.end != 2 << 20
    }
    assert findings == {"size": (4 << 20, 10 << 20), "checksum": (3 << 20, 4 << 20)}


# --- each field of each record ---


def broken_values(original: Any) -> list[Any]:
    if type(original) is bool:
        return [not original, None, 1]
    if type(original) is int:
        return [original + 1, original - 1, -1, 2**63, 10**30, str(original), None]
    if isinstance(original, str):
        return [original + "x", original[:-1], "../" + original, "/etc/passwd", None, 1]
    return [None, [], {}, [original], 7]


def fields(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [at] if at else []
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in pairs:
        found += fields(entry, (*at, key))
    return found


def test_each_field_of_a_record_and_of_the_manifest(kind: Kind, good: Path, copied: Callable[[], Path]) -> None:
    expected = content(kind, good, BACKENDS["seek"])
    tried = 0
    for name in ("0000001-0001.commit.json", "manifest.json"):
        value = json.loads((good / name).read_bytes())
        folder = copied()
        # What the user wrote about the data set, and the name of the format, change no element.
        for at in fields(value):
            if at[0] in ("metadata", "format", "checksum"):
                continue
            original = value
            for key in at:
                original = original[key]
            for new in broken_values(original):
                changed = copy.deepcopy(value)
                target = changed
                for key in at[:-1]:
                    target = target[key]
                target[at[-1]] = new
                if changed == value:
                    continue
                tried += 1
                for data in (resealed(changed), _with_old_checksum(changed)):
                    (folder / name).write_bytes(data)
                    # Manifest and records repeat each other: who forges one of them is found out by the other.
                    assert not verify(folder, quick=True).is_sound, (name, at, new)
                    if name == "manifest.json" and data == resealed(changed):
                        continue  # opening reads the manifest and no record: it cannot know that it lies
                    for backend in ("seek", "user"):
                        try:
                            found = content(kind, folder, BACKENDS[backend])
                        except GuideLoomError:
                            continue
                        assert found == expected, (name, at, new)
    assert tried > 100


def _with_old_checksum(value: dict[str, Any]) -> bytes:
    body = json.dumps({key: entry for key, entry in value.items() if key != "checksum"}, sort_keys=True)
    return body[:-1].replace(" ", "").encode() + b',"checksum":"' + str(value["checksum"]).encode() + b'"}\n'


# --- content that is wrong with checksums that hold ---


def forge(folder: Path, role: str, data: bytes, **changes: Any) -> None:
    """Give part 0 of shard 0 another file of a role, with a record that agrees."""
    record = folder / "0000000-0000.commit.json"
    value = json.loads(record.read_bytes())
    value.update(changes)
    sums = b"".join(
        xxhash.xxh3_64_intdigest(data[begin : begin + (1 << 20)]).to_bytes(8, "little")
        for begin in range(0, len(data), 1 << 20)
    )
    value["files"][role].update(size=len(data), sums=base64.b64encode(sums).decode())
    digests = [
        xxhash.xxh3_128_digest(base64.b64decode(value["files"][name]["sums"])) for name in sorted(value["files"])
    ]
    tag = xxhash.xxh3_64_hexdigest(b"".join(digests))
    for name, entry in value["files"].items():
        old = folder / entry["name"]
        entry["name"] = f"0000000-0000.{tag}.{name}.bin"
        old.rename(folder / entry["name"])
    (folder / value["files"][role]["name"]).write_bytes(data)
    record.write_bytes(resealed(value))
    (folder / "manifest.json").unlink(missing_ok=True)


@pytest.mark.parametrize("at", [0, 1, 300, 131071, 131072, 140000, 150000])
def test_offsets_that_fall(at: int, tmp_path: Path) -> None:
    write("document", tmp_path, {0: [1]})
    offsets = np.arange(150001)
    forge(tmp_path, "payload", b"x" * 150000)
    forge(tmp_path, "offsets", offsets.astype("<i8").tobytes(), count=150000)
    assert verify(tmp_path).is_sound
    offsets[at] = -5 if at < 150000 else 149990
    forge(tmp_path, "offsets", offsets.astype("<i8").tobytes())
    errors = verify(tmp_path).errors
    assert {finding.what for finding in errors} == {"offsets"}
    assert any(finding.begin <= 8 * at < finding.end for finding in errors if finding.begin is not None and finding.end)


@pytest.mark.parametrize(
    ("row", "column", "value"),
    [(0, 0, 1), (0, 1, 1), (5, 0, 4), (5, 1, 0), (65536, 0, 65535), (65536, 1, 3), (69999, 0, 2**40), (70000, 0, 5),
     (70000, 1, 9)],
)  # fmt: skip
def test_span_rows_that_are_wrong(row: int, column: int, value: int, tmp_path: Path) -> None:
    num_spans, stride = 70000, 256
    write("stream_with_meta", tmp_path, {0: [1]})
    rows = np.repeat(np.arange(num_spans + 1), 2).reshape(-1, 2)
    facts = {"count": num_spans, "spans": num_spans}

    def table(sample: np.ndarray[Any, Any]) -> bytes:
        return rows.astype("<i8").tobytes() + sample.astype("<i8").tobytes()

    sample = rows[:-1:stride, 0].copy()
    forge(tmp_path, "payload", b"x" * num_spans)
    forge(tmp_path, "elements", bytes(4 * num_spans))
    forge(tmp_path, "spans", table(sample), **facts)
    assert verify(tmp_path).findings[0].what == "manifest" and verify(tmp_path).is_sound
    rows[row, column] = value
    forge(tmp_path, "spans", table(sample))
    errors = verify(tmp_path).errors
    assert {finding.what for finding in errors} == {"spans"}
    assert any(
        finding.begin <= 16 * row < finding.end for finding in errors if finding.begin is not None and finding.end
    )
    rows[row, column] = row
    for place in (0, 3, 256, 273):
        wrong = sample.copy()
        wrong[place] += 1
        forge(tmp_path, "spans", table(wrong))
        (finding,) = verify(tmp_path).errors
        assert finding.begin == 16 * (num_spans + 1) + 8 * place and "sample" in finding.expected


# --- the published layout ---


def test_published(tmp_path: Path) -> None:
    source = Path(__file__).parents[1] / "data" / "published-1.1"
    for name, dtype in (("documents", None), ("stream_with_meta", np.dtype("<i4"))):
        folder = tmp_path / name
        shutil.copytree(source / name, folder)
        assert verify(folder, dtype=dtype).findings == ()
        index = folder / "0000001.out_of_band.index"
        data = bytearray(index.read_bytes())
        data[9] ^= 0x7F
        index.write_bytes(data)
        assert [finding.what for finding in verify(folder, dtype=dtype).errors] == ["offsets"]
        assert verify(folder, quick=True, dtype=dtype).is_sound
    elements = tmp_path / "stream_with_meta" / "0000000.in_band.bin"
    data = bytearray(elements.read_bytes())
    data[8 * 3 + 2] ^= 1
    elements.write_bytes(data)
    errors = verify(tmp_path / "stream_with_meta", dtype=np.dtype("<i4")).errors
    assert "spans" in {finding.what for finding in errors if finding.shard == 0}
    elements.write_bytes(data[:-1])
    assert any(finding.what == "size" for finding in verify(elements.parent, quick=True, dtype=np.dtype("<i4")).errors)
    assert not any(finding.what == "size" for finding in verify(elements.parent, quick=True).errors)


def test_content_helper_reads_what_is_there(kind: Kind, good: Path) -> None:
    """The oracle of this file is no constant: it agrees with NumPy alone, in size."""
    catalog = opened(kind, good)
    first = content(kind, good, BACKENDS["seek"])
    total = sum(map(len, shards_of(good, catalog)))
    assert len(first) == total if kind == "document" else len(first[0]) == total
