"""A store whose every answer takes long: what is asked of a backend that lets several threads in, many at once."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path, PurePath

import numpy as np
import pytest

from guideloom import StreamStorage
from guideloom.errors import MissingShardError
from guideloom.io import PosixPreadIO
from guideloom.testing import CountingBackend, Fault, FaultBackend, IdStreamFormat, LatencyBackend, make_stream
from guideloom.testing.backends import Operation

TWO = "000000[12]-*.bin"


def slow(folder: Path, backend: LatencyBackend) -> StreamStorage:
    make_stream(folder, (4, 4, 4))
    return StreamStorage(folder, IdStreamFormat(np.dtype("<i8")), backend)


@pytest.mark.parametrize("operation", ["open", "filesize"])
def test_sizes_are_asked_for_at_once(operation: Operation, tmp_path: Path) -> None:
    both = threading.Barrier(2)
    backend = LatencyBackend(
        PosixPreadIO(), gate=both, operations=(operation,), match=TWO, timeout_s=20, concurrent_reads=True
    )
    with slow(tmp_path, backend).sync_reader() as reader:
        assert reader.total_length == 12


def test_asyncio_asks_for_sizes_at_once(tmp_path: Path) -> None:
    backend = LatencyBackend(
        PosixPreadIO(), gate=threading.Barrier(2), operations=("filesize",), match=TWO, timeout_s=20
    )

    async def total() -> int:
        async with slow(tmp_path, backend).async_reader() as reader:
            return reader.total_length

    assert asyncio.run(total()) == 12


class Threads(CountingBackend):
    """Notes which threads open, ask and read."""

    def __init__(self) -> None:
        super().__init__(PosixPreadIO())
        self.seen: set[int] = set()

    def before(self, operation: Operation, path: PurePath, offset: int, size: int) -> None:
        super().before(operation, path, offset, size)
        self.seen.add(threading.get_ident())


def test_a_backend_that_has_not_said_so_meets_one_thread(tmp_path: Path) -> None:
    make_stream(tmp_path, (4,) * 40)
    backend = Threads()
    with StreamStorage(tmp_path, IdStreamFormat(np.dtype("<i8")), backend).sync_reader() as reader:
        assert reader.read(0, 160).elements.tolist() == list(range(160))
    assert backend.seen == {threading.get_ident()}
    assert backend.matching("*.elements.bin").filesizes == 40


@pytest.mark.parametrize("gone", [1, 17, 39])
def test_of_many_files_the_one_that_is_gone_is_named(gone: int, tmp_path: Path) -> None:
    make_stream(tmp_path, (4,) * 40)
    name = next(tmp_path.glob(f"{gone:07}-*.bin"))
    name.unlink()
    storage = StreamStorage(
        tmp_path, IdStreamFormat(np.dtype("<i8")), CountingBackend(PosixPreadIO(), concurrent_reads=True)
    )
    with pytest.raises(MissingShardError, match=name.name), storage.sync_reader():
        pass

    async def opened() -> None:
        async with storage.async_reader():
            pass

    with pytest.raises(MissingShardError, match=name.name):
        asyncio.run(opened())


def test_an_answer_that_fails_is_raised_as_it_is_and_nothing_stays_open(tmp_path: Path) -> None:
    make_stream(tmp_path, (4,) * 40)
    counting = CountingBackend(PosixPreadIO(), concurrent_reads=True)
    fault = Fault(error=PermissionError("not yours"), operation="filesize", match="0000023-*.bin")
    storage = StreamStorage(
        tmp_path, IdStreamFormat(np.dtype("<i8")), FaultBackend(counting, fault, concurrent_reads=True)
    )
    with pytest.raises(PermissionError, match="not yours"), storage.sync_reader():
        pass
    assert counting.total.open_now == 0

    async def opened() -> None:
        async with storage.async_reader():
            pass

    counting.reset()
    fault_again = FaultBackend(counting, fault)
    storage = StreamStorage(tmp_path, IdStreamFormat(np.dtype("<i8")), fault_again)
    with pytest.raises(PermissionError, match="not yours"):
        asyncio.run(opened())
    assert counting.total.open_now == 0
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("guideloom")]


def test_files_are_opened_at_once_when_they_are_read(tmp_path: Path) -> None:
    both = threading.Barrier(2)
    backend = LatencyBackend(
        PosixPreadIO(), gate=both, operations=("open",), match=TWO, timeout_s=20, concurrent_reads=True
    )
    with slow(tmp_path, backend).sync_reader() as reader:
        assert reader.read(0, 4).elements.tolist() == [0, 1, 2, 3]  # a reader that says so was made
        found: dict[int, list[int]] = {}

        def read(shard: int) -> None:
            found[shard] = reader.read(4 * shard, 4).elements.tolist()

        threads = [threading.Thread(target=read, args=(shard,)) for shard in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {1: [4, 5, 6, 7], 2: [8, 9, 10, 11]}


def test_a_file_that_many_threads_want_is_opened_once(tmp_path: Path) -> None:
    counting = CountingBackend(PosixPreadIO(), concurrent_reads=True)
    backend = LatencyBackend(counting, delay_s=0.01, operations=("open",), match=TWO, concurrent_reads=True)
    with slow(tmp_path, backend).sync_reader() as reader:
        assert reader.read(0, 4).elements.tolist() == [0, 1, 2, 3]
        counting.reset()  # what is open stays counted
        together = threading.Barrier(8)
        found: list[list[int]] = []

        def read() -> None:
            together.wait(20)
            found.append(reader.read(4, 8).elements.tolist())

        threads = [threading.Thread(target=read) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [[4, 5, 6, 7, 8, 9, 10, 11]] * 8
        assert {name: counts.opens for name, counts in counting.per_file.items() if counts.opens} == {
            str(path): 1 for path in tmp_path.glob("*.elements.bin")
        }
    assert counting.total.open_now == 0
