"""``guideloom upgrade``: the same content, whatever stops it on the way."""

from __future__ import annotations

import errno
import json
import shutil
import tracemalloc
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from guideloom import cli
from guideloom._storage import disk
from guideloom._storage import upgrade as module
from guideloom._storage.catalog import Kind
from guideloom._storage.upgrade import upgrade
from guideloom._storage.verify import verify
from guideloom.errors import ArgumentError, CorruptDataError, ForeignDataError, GuideLoomError, WrongKindError
from tests.storage.support import names, opened, shards_of, with_failing_step

PUBLISHED = Path(__file__).parents[1] / "data" / "published-1.1"
TOKENS = np.dtype([("tokens", "<u2"), ("mask", "|b1"), ("weight", "<f4")])
SETS: list[tuple[str, Kind, Any]] = [
    ("stream", "stream", TOKENS),
    ("documents", "document", None),
    ("stream_with_meta", "stream_with_meta", np.dtype("<i4")),
]
EACH = pytest.mark.parametrize(("name", "kind", "dtype"), SETS)


def oracle(folder: Path, kind: Kind, dtype: Any) -> list[list[Any]]:
    """Content of a published data set, with NumPy alone."""
    shards = []
    for shard in range(len({path.name[:7] for path in folder.iterdir()})):
        head = folder / f"{shard:07d}"
        if kind == "stream":
            shards.append(np.fromfile(f"{head}.in_band.bin", dtype).tolist())
            continue
        offsets = np.fromfile(f"{head}.out_of_band.index", "<i8").tolist()
        data = Path(f"{head}.out_of_band.bin").read_bytes()
        payloads = [data[low:high] for low, high in pairwise(offsets)]
        if kind == "document":
            shards.append(payloads)
        else:
            pairs = np.fromfile(f"{head}.in_band.bin", [("number", "<i4"), ("element", dtype)]).tolist()
            shards.append([(element, payloads[number]) for number, element in pairs])
    return shards


def content(folder: Path, kind: Kind, dtype: Any) -> list[list[Any]]:
    return shards_of(folder, opened(kind, folder, dtype))


@EACH
@pytest.mark.parametrize("chunk", [24, 1000, 4 << 20])
def test_the_content_is_the_same(
    name: str, kind: Kind, dtype: Any, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", chunk)
    seen: list[tuple[int, int]] = []
    done = upgrade(PUBLISHED / name, tmp_path, dtype=dtype, progress=lambda *pair: seen.append(pair))
    expected = oracle(PUBLISHED / name, kind, dtype)
    assert content(tmp_path, kind, dtype) == expected
    assert (done.kind, done.num_shards, done.num_resumed) == (kind, len(expected), 0)
    assert done.count == sum(map(len, expected))
    assert verify(tmp_path).findings == ()
    total = 2 * sum(path.stat().st_size for path in (PUBLISHED / name).iterdir())
    assert seen[-1] == (total, total) and seen == sorted(seen)


@EACH
def test_stopped_at_each_step_it_goes_on(
    name: str, kind: Kind, dtype: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = tmp_path / "expected"
    upgrade(PUBLISHED / name, expected, dtype=dtype)
    resumed = set()
    for stop_at in range(1000):
        new = tmp_path / f"new-{stop_at}"
        steps = 0

        def stop(step: str, path: str, stop_at: int = stop_at) -> None:
            nonlocal steps
            steps += 1
            if steps > stop_at:
                raise KeyboardInterrupt  # as a kill: nothing is cleaned up, for each later step is refused too

        with monkeypatch.context() as patch:
            patch.setattr(disk, "before", stop)
            try:
                upgrade(PUBLISHED / name, new, dtype=dtype)
                break
            except KeyboardInterrupt:
                pass
        resumed.add(upgrade(PUBLISHED / name, new, dtype=dtype).num_resumed)
        report = verify(new)
        assert report.is_sound and {finding.what for finding in report.findings} <= {"leftover"}
        final = [path for path in names(new) if not path.startswith(".tmp-")]
        assert final == names(expected)
        assert all(
            (new / path).read_bytes() == (expected / path).read_bytes() for path in final if path != "manifest.json"
        )
        shutil.rmtree(new)
    assert resumed == set(range(len(oracle(PUBLISHED / name, kind, dtype)) + 1))


@EACH
def test_each_step_fails(name: str, kind: Kind, dtype: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is that of the disk, and what was upgraded before it counts."""
    expected = oracle(PUBLISHED / name, kind, dtype)
    failed = set()
    for fail_at in range(1000):
        new = tmp_path / f"new-{fail_at}"
        failing, error = with_failing_step(
            monkeypatch, fail_at, errno.ENOSPC, partial(upgrade, PUBLISHED / name, new, dtype=dtype)
        )
        if failing is None:
            break
        if error is None:
            # Temporary files that stay are leftovers.
            assert failing == "unlink"
        else:
            assert error.errno == errno.ENOSPC
            assert list(new.glob(".tmp-*")) == []
            failed.add(failing)
        upgrade(PUBLISHED / name, new, dtype=dtype)
        assert content(new, kind, dtype) == expected
        shutil.rmtree(new)
    assert failed >= {"mkdir", "create", "write", "sync", "link", "rename", "sync_folder"}


def published(folder: Path, numbers: list[int], elements: list[int], payloads: list[bytes]) -> None:
    folder.mkdir()
    pairs = np.zeros(len(numbers), [("number", "<i4"), ("element", "<i4")])
    pairs["number"], pairs["element"] = numbers, elements
    pairs.tofile(folder / "0000000.in_band.bin")
    offsets = np.cumsum([0, *map(len, payloads)]).astype("<i8")
    offsets.tofile(folder / "0000000.out_of_band.index")
    (folder / "0000000.out_of_band.bin").write_bytes(b"".join(payloads))


def test_payloads_that_no_element_uses_are_left_out(tmp_path: Path) -> None:
    published(
        tmp_path / "old", [0, 0, 2, 3, 5], [1, 2, 3, 4, 5], [b"a", b"unused", b"cc", b"", b"unused", b"f", b"end"]
    )
    upgrade(tmp_path / "old", tmp_path / "new", dtype=np.dtype("<i4"))
    expected = [[(1, b"a"), (2, b"a"), (3, b"cc"), (4, b""), (5, b"f")]]
    assert content(tmp_path / "new", "stream_with_meta", "<i4") == expected
    assert verify(tmp_path / "new").findings == ()


def test_memory_does_not_grow_with_spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    num_spans = 300_000
    published(tmp_path / "old", list(range(num_spans)), [7] * num_spans, [b"x"] * num_spans)
    monkeypatch.setattr(module, "CHUNK_BYTES", 1 << 14)
    tracemalloc.start()
    try:
        upgrade(tmp_path / "old", tmp_path / "new", dtype=np.dtype("<i4"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # The table has 4.8 MB.
    assert peak < 2_000_000, peak


def test_empty_shards(tmp_path: Path) -> None:
    published(tmp_path / "old", [], [], [])
    upgrade(tmp_path / "old", tmp_path / "new", dtype=np.dtype("<i4"))
    assert content(tmp_path / "new", "stream_with_meta", "<i4") == [[]]
    assert verify(tmp_path / "new").findings == ()


@pytest.mark.parametrize("chunk", [16, 4 << 20])
@pytest.mark.parametrize(("numbers", "wrong"), [([0, 1, 1, 0], 3), ([0, 1, 1, 2], 3), ([-1, 0, 0, 1], 0)])
def test_numbers_that_are_wrong(
    numbers: list[int], wrong: int, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", chunk)
    published(tmp_path / "old", numbers, [1, 2, 3, 4], [b"a", b"b"])
    with pytest.raises(CorruptDataError, match="span numbers") as caught:
        upgrade(tmp_path / "old", tmp_path / "new", dtype=np.dtype("<i4"))
    assert caught.value.path == str(tmp_path / "old" / "0000000.in_band.bin")
    assert caught.value.offset == 8 * wrong
    assert not list((tmp_path / "new").iterdir())


@pytest.mark.parametrize("name", ["documents", "stream_with_meta"])
def test_an_index_that_does_not_begin_with_0(name: str, tmp_path: Path) -> None:
    shutil.copytree(PUBLISHED / name, tmp_path / "old")
    index = tmp_path / "old" / "0000001.out_of_band.index"
    offsets = np.fromfile(index, "<i8")
    np.maximum(offsets, 1).tofile(index)
    with pytest.raises(CorruptDataError, match="offset") as caught:
        upgrade(tmp_path / "old", tmp_path / "new", dtype=None if name == "documents" else np.dtype("<i4"))
    assert (caught.value.path, caught.value.shard, caught.value.offset) == (str(index), 1, 0)


@pytest.mark.parametrize(("chunk", "entry"), [(4 << 20, 1), (16, 2)])
@pytest.mark.parametrize("name", ["documents", "stream_with_meta"])
def test_an_index_that_falls(
    name: str, chunk: int, entry: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", chunk)
    shutil.copytree(PUBLISHED / name, tmp_path / "old")
    index = tmp_path / "old" / "0000001.out_of_band.index"
    offsets = np.fromfile(index, "<i8")
    offsets[entry] = 1 << 40
    offsets.tofile(index)
    dtype = None if name == "documents" else np.dtype("<i4")
    with pytest.raises(CorruptDataError, match="offset") as caught:
        upgrade(tmp_path / "old", tmp_path / "new", dtype=dtype)
    assert caught.value.path == str(index) and caught.value.shard == 1
    # Documents: the one behind is smaller. Payloads: it is beyond the end of their file.
    assert caught.value.offset == 8 * (entry + 1 if name == "documents" else entry)
    # What was whole is there, and the copy goes on when the old one is restored.
    shutil.copy(PUBLISHED / name / index.name, index)
    assert upgrade(tmp_path / "old", tmp_path / "new", dtype=dtype).num_resumed == 1


def test_the_new_folder_holds_something_else(tmp_path: Path) -> None:
    shutil.copytree(PUBLISHED / "documents", tmp_path / "old")
    upgrade(tmp_path / "old", tmp_path / "new")
    payload = tmp_path / "old" / "0000001.out_of_band.bin"
    data = bytearray(payload.read_bytes())
    data[-1] ^= 1
    payload.write_bytes(data)
    with pytest.raises(ForeignDataError, match="does not hold what the old data set holds") as caught:
        upgrade(tmp_path / "old", tmp_path / "new")
    assert (caught.value.shard, caught.value.offset) == (1, len(data) - 1)
    with pytest.raises(ForeignDataError, match="another folder"):
        upgrade(PUBLISHED / "stream", tmp_path / "new", dtype=TOKENS)
    with pytest.raises(GuideLoomError):
        upgrade(PUBLISHED / "documents", PUBLISHED / "stream")


def test_arguments(tmp_path: Path) -> None:
    documents, stream = PUBLISHED / "documents", PUBLISHED / "stream"
    for old, options, error in (
        (stream, {}, ArgumentError),
        (documents, {"dtype": TOKENS}, ArgumentError),
        (stream, {"kind": "document"}, WrongKindError),
        (tmp_path, {}, ArgumentError),
        (stream, {"dtype": np.dtype("<u2")}, CorruptDataError),
    ):
        with pytest.raises(error):
            upgrade(old, tmp_path / "new", **options)
    with pytest.raises(ArgumentError, match="own"):
        upgrade(documents, documents)
    upgrade(documents, tmp_path / "new")
    with pytest.raises(ArgumentError, match="already"):
        upgrade(tmp_path / "new", tmp_path / "newer")


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["upgrade", str(PUBLISHED / "stream"), str(tmp_path / "new")]
    assert cli.main(arguments) == 2
    assert "--dtype" in capsys.readouterr().err
    arguments += ["--dtype", "[('tokens', '<u2'), ('mask', '|b1'), ('weight', '<f4')]", "--kind", "stream"]
    assert cli.main([*arguments, "--format", "StreamNumpyFormat"]) == 0
    assert "357 elements" in capsys.readouterr().out
    assert cli.main(arguments) == 0
    assert "3 of them by an earlier run" in capsys.readouterr().out
    assert cli.main(["info", str(tmp_path / "new"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["format"] == "StreamNumpyFormat"
