"""Folders and files that may not be read or written: a clear error with the path, and the old state intact."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from guideloom import DocumentStorage, StreamStorage, StreamWithMetaStorage, cli
from guideloom._storage.leftovers import find_leftovers
from guideloom._storage.local import LocalFolder
from guideloom._storage.verify import verify
from tests.storage.support import FORMATS, KINDS, names, opened, record_of, shards_of, write, writer, written

FORK = multiprocessing.get_context("fork")
NOBODY = 65_534
STORAGES = {"stream": StreamStorage, "document": DocumentStorage, "stream_with_meta": StreamWithMetaStorage}


def as_user(function: Callable[[], Any]) -> Any:
    """Call a function in a forked child that is not root, whatever this process is; return what it gave or raised."""
    receiver, sender = FORK.Pipe(duplex=False)

    def child() -> None:
        if os.getuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        try:
            result = function()
        except Exception as error:  # noqa: BLE001 - the parent looks at it
            result = error
        sender.send(result)

    process = FORK.Process(target=child)
    process.start()
    sender.close()
    result = receiver.recv()
    process.join()
    assert process.exitcode == 0
    return result


@pytest.fixture(autouse=True, scope="module")
def _all_is_imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The child may not be able to read the Python that runs it."""
    for kind in KINDS:
        folder = tmp_path_factory.mktemp("once") / kind
        write(kind, folder, {0: [1]})
        read(kind, folder)
        command("verify", str(folder))


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that belongs to whom :func:`as_user` is; pytest's own are closed to all others."""
    folder = Path(tempfile.mkdtemp(prefix="guideloom-permissions-"))
    if os.getuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    yield folder
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir():
            path.chmod(0o700)
    shutil.rmtree(folder)


@contextlib.contextmanager
def mode_of(path: Path, mode: int) -> Iterator[None]:
    before = path.stat().st_mode & 0o7777
    path.chmod(mode)
    try:
        yield
    finally:
        path.chmod(before)


def refused(result: Any, path: Path) -> None:
    """Permission was refused, and the message has the path."""
    assert isinstance(result, PermissionError), result
    assert str(path) in str(result)


def command(*arguments: str) -> tuple[int, str]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            status = cli.main(list(arguments))
        except SystemExit as stop:
            status = stop.code  # type: ignore[assignment]
    return status, err.getvalue()


def read(kind: Any, folder: Path) -> int:
    """Open and read through the public reader; the number of elements or documents."""
    with STORAGES[kind](folder, FORMATS[kind]()).sync_reader() as reader:
        if kind == "document":
            return len(reader.read_many(range(reader.total_length)))
        reader.read(0, reader.total_length)
        return reader.total_length


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["create", "append", "overwrite"])
def test_a_folder_that_may_not_be_written(kind: Any, mode: Any, place: Path) -> None:
    folder = place / "data"
    assert as_user(lambda: write(kind, folder, {0: [1]})) is None
    before = {name: (folder / name).read_bytes() for name in names(folder)}

    def add() -> None:
        with writer(kind, folder, mode) as opened_writer:
            opened_writer.append(1 if mode == "create" else 0, record_of(kind, 2))

    with mode_of(folder, 0o500):
        refused(as_user(add), folder)
        assert as_user(lambda: read(kind, folder)) == len(written(kind, [1]))
        assert as_user(lambda: verify(folder).findings) == ()
    assert {name: (folder / name).read_bytes() for name in names(folder)} == before
    assert as_user(add) is None
    assert find_leftovers(folder) == [] or mode == "overwrite"


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_that_is_closed_to_a_writer_at_work(kind: Any, place: Path) -> None:
    folder = place / "data"
    assert as_user(lambda: write(kind, folder, {0: [1], 1: [2]})) is None

    def add() -> None:
        opened_writer = writer(kind, folder, "append")
        opened_writer.open()
        for shard in (0, 1):
            opened_writer.append(shard, record_of(kind, 3))
            opened_writer._parts[shard].flush()
        folder.chmod(0o500)
        opened_writer.close()

    result = as_user(add)
    refused(result, folder)
    assert result.__notes__ == ["Shards that are not committed: 0, 1"]
    assert shards_of(folder, opened(kind, folder)) == [written(kind, [1]), written(kind, [2])]
    folder.chmod(0o700)
    assert as_user(lambda: write(kind, folder, {0: [4]}, "append")) is None
    assert shards_of(folder, opened(kind, folder)) == [written(kind, [1, 4]), written(kind, [2])]
    assert {leftover.kind for leftover in find_leftovers(folder)} == {"temporary"}


def test_a_folder_that_may_not_be_made(place: Path) -> None:
    with mode_of(place, 0o500):
        refused(as_user(lambda: write("stream", place / "a" / "b", {0: [1]})), place / "a")
    assert names(place) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_that_may_not_be_read(kind: Any, place: Path) -> None:
    folder = place / "data"
    assert as_user(lambda: write(kind, folder, {0: [1]})) is None
    with mode_of(folder, 0o000):
        refused(as_user(lambda: read(kind, folder)), folder)
        refused(as_user(lambda: write(kind, folder, {0: [2]}, "append")), folder)
        for arguments in (["verify"], ["clean", "--yes"], ["manifest"], ["repair", "--yes"], ["info"]):
            status, text = as_user(lambda arguments=arguments: command(arguments[0], str(folder), *arguments[1:]))
            assert status == 2 and str(folder) in text and "ermission" in text, (arguments, status, text)
    assert shards_of(folder, opened(kind, folder)) == [written(kind, [1])]


def test_a_folder_whose_names_alone_may_be_read(place: Path) -> None:
    """The sizes of its files cannot be asked for: the error names the file as the caller would."""
    folder = place / "data"
    assert as_user(lambda: write("stream", folder, {0: [1]})) is None
    (folder / "manifest.json").unlink()
    (data,) = folder.glob("*.bin")
    with mode_of(folder, 0o400):
        refused(as_user(lambda: LocalFolder(folder).listing()), data)
        refused(as_user(lambda: LocalFolder(folder).file_size(data.name)), data)


@pytest.mark.parametrize("kind", KINDS)
def test_each_file_that_may_not_be_read(kind: Any, place: Path) -> None:
    """An error that names it: never a data set without it, and never a damage that repair would drop."""
    folder = place / "data"
    assert as_user(lambda: write(kind, folder, {0: [1], 1: [2]})) is None
    for name in names(folder):
        with mode_of(folder / name, 0o000):
            is_named_elsewhere = name.endswith(".commit.json")  # by the manifest, so that only verify reads it
            if not is_named_elsewhere:
                refused(as_user(lambda: read(kind, folder)), folder / name)
            findings = as_user(lambda: verify(folder).findings)
            assert [finding.path for finding in findings] == [str(folder / name)]
            assert findings[0].severity == "error" and "ermission" in findings[0].found
            as_user(lambda: command("repair", str(folder), "--yes"))
        assert shards_of(folder, opened(kind, folder)) == [written(kind, [1]), written(kind, [2])], name
    (folder / "manifest.json").unlink()
    record = folder / "0000001-0000.commit.json"
    with mode_of(record, 0o000):
        refused(as_user(lambda: read(kind, folder)), record)
        refused(as_user(lambda: find_leftovers(folder)), record)
