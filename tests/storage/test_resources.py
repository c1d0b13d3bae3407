"""Writers at the limits of the machine: few descriptors, little memory, a full disk."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from guideloom._storage import disk
from guideloom._storage.leftovers import find_leftovers
from guideloom._storage.writer import DocumentWriter, StreamWriter
from tests.storage.support import (
    FORMATS,
    KINDS,
    WRITERS,
    Raw,
    Tokens,
    in_child,
    names,
    opened,
    record_of,
    shards_of,
    write,
    writer,
    written,
)


@pytest.mark.slow
def test_3000_shards_with_256_descriptors(tmp_path: Path) -> None:
    def many() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        block = np.arange(20_000, dtype="<i4")
        with StreamWriter(tmp_path, Tokens()) as stream:
            for shard in range(3000):
                stream.append(shard, block[: shard % 8])
            # More than a buffer each, in turn, so that more files are being written than may be open.
            for _ in range(2):
                for shard in range(0, 3000, 30):
                    stream.append(shard, block)

    assert in_child(many) == 0
    counts = opened("stream", tmp_path).shard_counts
    assert counts.tolist() == [shard % 8 + (40_000 if shard % 30 == 0 else 0) for shard in range(3000)]


def test_memory_does_not_grow_with_documents(tmp_path: Path) -> None:
    process = psutil.Process()
    with DocumentWriter(tmp_path, Raw()) as documents:
        for _ in range(50_000):
            documents.append(0, b"")
        before = process.memory_info().rss
        for _ in range(400_000):
            documents.append(0, b"tiny")
        # As a list of offsets these would be 16 MB, as objects 14 MB more.
        assert process.memory_info().rss - before < 8 << 20
        assert documents.length(0) == 450_000
    assert opened("document", tmp_path).total == 450_000


def large(kind: Any, size: int, number: int) -> Any:
    if kind == "stream":
        return np.full(size // 4, number, "<i4")
    if kind == "document":
        return bytes([number]) * size
    return [(index // 7, b"%d" % index, number) for index in range(size // 4)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [100_000, 2_000_000])
def test_a_full_disk_is_an_error_at_the_append(kind: Any, size: int, tmp_path: Path) -> None:
    """The append that fails changes nothing, those before it are kept, and the shard can still be committed."""
    if kind == "stream_with_meta":
        size //= 20

    def fill_and_commit() -> None:
        soft = resource.getrlimit(resource.RLIMIT_FSIZE)
        opened_writer = writer(kind, tmp_path)
        opened_writer.open()
        limit = (3 << 20) if kind != "stream_with_meta" else 200_000
        opened_writer._buffer_limit = min(1 << 20, limit // 3)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, soft[1]))
        added = 0
        with pytest.raises(OSError, match=r"\.tmp-") as caught:
            for number in range(10_000):
                opened_writer.append(0, large(kind, size, number % 100))
                added += 1
        assert caught.value.errno == errno.EFBIG
        assert added > 0
        resource.setrlimit(resource.RLIMIT_FSIZE, soft)
        assert opened_writer.length(0) == added * (1 if kind == "document" else size // 4)
        opened_writer.append(0, large(kind, size, 77))
        opened_writer.close()
        (tmp_path / "added").write_text(str(added))

    assert in_child(fill_and_commit) == 0
    added = int((tmp_path / "added").read_text())
    (tmp_path / "added").unlink()
    with WRITERS[kind](tmp_path / "clean", FORMATS[kind]()) as clean:
        for number in [*(number % 100 for number in range(added)), 77]:
            clean.append(0, large(kind, size, number))
    expected = opened(kind, tmp_path / "clean")
    found = opened(kind, tmp_path)
    assert found.identity == expected.identity
    assert find_leftovers(tmp_path) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("failing", [errno.ENOSPC, errno.EIO])
def test_a_full_disk_at_the_close_leaves_the_old_state(
    kind: Any, failing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever write or sync of the close fails, the shard is as it was, and the other shard is committed."""
    write(kind, tmp_path / "base", {0: [1], 1: [2]})
    real_write, real_sync = os.pwrite, os.fsync

    def session(folder: Path, fail_at: int) -> int:
        calls = 0

        def step() -> None:
            nonlocal calls
            calls += 1
            if calls == fail_at:
                raise OSError(failing, os.strerror(failing))

        def pwrite(descriptor: int, data: Any, offset: int) -> int:
            step()
            return real_write(descriptor, data, offset)

        def fsync(descriptor: int) -> None:
            step()
            real_sync(descriptor)

        opened_writer = writer(kind, folder, "overwrite")
        opened_writer.open()
        for shard in (0, 1):
            opened_writer.append(shard, record_of(kind, 5 + shard))
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", pwrite)
            patch.setattr(os, "fsync", fsync)
            opened_writer.close()
        return calls

    shutil.copytree(tmp_path / "base", tmp_path / "count")
    total = session(tmp_path / "count", 0)
    assert total > 8
    for fail_at in range(1, total + 1):
        folder = tmp_path / f"at{fail_at}"
        shutil.copytree(tmp_path / "base", folder)
        with pytest.raises(OSError, match=str(folder)) as caught:
            session(folder, fail_at)
        assert caught.value.errno == failing
        found = shards_of(folder, opened(kind, folder))
        for shard in (0, 1):
            assert found[shard] in (written(kind, [1 + shard]), written(kind, [5 + shard]))
        assert not [name for name in names(folder) if name.startswith(".tmp")]
        shutil.rmtree(folder)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("mode", ["create", "overwrite"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_full_disk_at_the_first_append_to_a_shard_begins_no_shard(
    kind: Any, mode: Any, again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above all none that is empty, and would replace what is committed."""

    def fail(step: str, path: str) -> None:
        if step == "write":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    if mode == "overwrite":
        write(kind, tmp_path, {0: [1], 1: [2]})
    opened_writer = writer(kind, tmp_path, mode)
    opened_writer.open()
    opened_writer.append(0, record_of(kind, 5))
    opened_writer._buffer_limit = 1
    with monkeypatch.context() as patch:
        patch.setattr(disk, "before", fail)
        with pytest.raises(OSError, match=r"No space left"):
            opened_writer.append(1, record_of(kind, 6))
    with pytest.raises(KeyError):
        opened_writer.length(1)
    if again:
        opened_writer.append(1, record_of(kind, 7))
    opened_writer.close()
    second = [7] if again else [2] if mode == "overwrite" else None
    expected = [written(kind, [5])] + ([] if second is None else [written(kind, second)])
    assert shards_of(tmp_path, opened(kind, tmp_path)) == expected
    assert not [name for name in names(tmp_path) if name.startswith(".tmp")]
