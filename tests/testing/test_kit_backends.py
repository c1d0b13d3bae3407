"""The wrappers count, hold back and fail exactly as they were told."""

from __future__ import annotations

import asyncio
import errno
import pickle
import threading
from pathlib import Path

import pytest

from guideloom.io import PosixPreadIO
from guideloom.testing import CountingBackend, Fault, FaultBackend, FileCounts, LatencyBackend, MinimalBackend
from guideloom.types import IOReaderAbstract

CONTENT = bytes(range(100))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.elements.bin"
    path.write_bytes(CONTENT)
    return path


def read(backend: IOReaderAbstract, path: Path, offset: int = 0, size: int = 10) -> bytes:
    with backend.sync_reader()(path) as reader:
        return bytes(reader.read(offset, size))


def test_counts_are_per_file_and_total(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "b.payload.bin"
    other.write_bytes(CONTENT)
    backend = CountingBackend(PosixPreadIO())
    with backend.sync_reader()(path) as first, backend.sync_reader()(other) as second:
        assert first.filesize() == 100
        first.read(0, 10)
        first.read_into(90, memoryview(bytearray(10)))
        second.read(5, 0)
        with pytest.raises(IndexError):
            second.read(99, 2)
        assert backend.total.open_now == 2
    assert backend.per_file == {
        str(path): FileCounts(opens=1, closes=1, filesizes=1, reads=2, bytes_read=20),
        str(other): FileCounts(opens=1, closes=1, filesizes=0, reads=1, bytes_read=0),
    }
    assert backend.total == FileCounts(2, 2, 1, 3, 20)
    assert backend.matching("*.payload.bin") == FileCounts(1, 1, 0, 1, 0)
    assert backend.peak_open == 2


def test_a_second_close_does_not_count(path: Path) -> None:
    backend = CountingBackend()
    reader = backend.sync_reader()(path)
    reader.close()
    reader.open()
    reader.close()
    reader.close()
    assert (backend.total.opens, backend.total.closes) == (1, 1)


def test_reset_keeps_what_is_open(path: Path) -> None:
    backend = CountingBackend()
    with backend.sync_reader()(path):
        backend.reset()
        assert backend.total == FileCounts(opens=1)
    assert backend.total == FileCounts(opens=1, closes=1)


def test_counts_from_many_threads_are_exact(path: Path) -> None:
    backend = CountingBackend(MinimalBackend())
    barrier = threading.Barrier(8)

    def work() -> None:
        barrier.wait()
        for offset in range(50):
            read(backend, path, offset, 3)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert backend.total == FileCounts(400, 400, 0, 400, 1200)


def test_async_calls_count_too(path: Path) -> None:
    backend = CountingBackend()

    async def main() -> None:
        async with backend.async_reader()(path) as reader:
            await reader.filesize()
            assert bytes(await reader.read(4, 4)) == CONTENT[4:8]

    asyncio.run(main())
    assert backend.total == FileCounts(1, 1, 1, 1, 4)


def test_the_wrapped_backend_is_the_one_given(path: Path) -> None:
    inner = CountingBackend()
    read(LatencyBackend(inner), path)
    assert inner.total.reads == 1


def test_a_pickled_wrapper_counts_anew(path: Path) -> None:
    backend = CountingBackend()
    read(backend, path)
    copy = pickle.loads(pickle.dumps(backend))
    assert copy.total == FileCounts()
    read(copy, path)
    assert copy.total == backend.total == FileCounts(1, 1, 0, 1, 10)


def test_reads_wait_for_the_event(path: Path) -> None:
    gate = threading.Event()
    backend = LatencyBackend(gate=gate)
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.append(read(backend, path)))
    thread.start()
    backend.wait_for_waiting(1)
    assert found == [] and backend.waiting == 1
    backend.gate = None  # cannot be pickled
    copy = pickle.loads(pickle.dumps(backend))
    gate.set()
    thread.join()
    assert found == [CONTENT[:10]] and backend.waiting == 0
    assert copy.waiting == 0  # nobody waits in the copy


def test_reads_meet_at_a_barrier(path: Path) -> None:
    backend = LatencyBackend(gate=threading.Barrier(3), timeout_s=30)
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda i=i: found.append(read(backend, path, i, 1))) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [b"\0", b"\1", b"\2"]


def test_a_gate_may_be_a_function_of_the_read(path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    backend = LatencyBackend(gate=lambda path, offset, size: seen.append((path.name, offset, size)))
    read(backend, path, 7, 2)
    assert seen == [("a.elements.bin", 7, 2)]


def test_only_matching_calls_wait(path: Path) -> None:
    shut = threading.Event()
    assert read(LatencyBackend(gate=shut, match="*.payload.bin"), path) == CONTENT[:10]
    assert read(LatencyBackend(gate=shut, operations=("filesize",)), path) == CONTENT[:10]


def test_a_gate_that_stays_shut_is_an_error(path: Path) -> None:
    with pytest.raises(TimeoutError, match="stayed shut"):
        read(LatencyBackend(gate=threading.Event(), timeout_s=0), path)


def test_async_reads_wait_without_blocking_the_loop(path: Path) -> None:
    gate = threading.Event()
    backend = LatencyBackend(gate=gate)

    async def main() -> bytes:
        async with backend.async_reader()(path) as reader:
            task = asyncio.create_task(reader.read(0, 3))
            await asyncio.to_thread(backend.wait_for_waiting, 1)
            assert not task.done()
            gate.set()
            return bytes(await task)

    assert asyncio.run(main()) == CONTENT[:3]


def test_latency_with_a_delay_can_be_pickled(path: Path) -> None:
    backend = pickle.loads(pickle.dumps(LatencyBackend(delay_s=1e-6)))
    assert read(backend, path) == CONTENT[:10]


def test_the_nth_read_fails(path: Path) -> None:
    backend = FaultBackend(None, Fault(OSError(errno.EIO, "worn out"), after=2))
    with backend.sync_reader()(path) as reader:
        assert bytes(reader.read(0, 1) + reader.read(1, 1)) == CONTENT[:2]
        with pytest.raises(OSError, match="worn out") as caught:
            reader.read(2, 1)
        assert caught.value.errno == errno.EIO
        assert bytes(reader.read(2, 1)) == CONTENT[2:3]
    assert backend.happened == [1]


def test_a_fault_may_last_and_be_bound_to_a_file_and_an_offset(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "b.bin"
    other.write_bytes(CONTENT)
    backend = FaultBackend(None, Fault(lambda: PermissionError("no"), match="b.*", offset=50, times=None))
    assert read(backend, path, 0, 100) == CONTENT
    assert read(backend, other, 0, 50) == CONTENT[:50]
    assert read(backend, other, 51, 49) == CONTENT[51:]
    for _ in range(3):
        with pytest.raises(PermissionError):
            read(backend, other, 50, 1)


def test_opening_and_sizes_may_fail(path: Path) -> None:
    backend = FaultBackend(
        None,
        Fault(FileNotFoundError("gone"), operation="open"),
        Fault(OSError("stale"), operation="filesize"),
    )
    reader = backend.sync_reader()(path)
    with pytest.raises(FileNotFoundError, match="gone"):
        reader.open()
    with reader, pytest.raises(OSError, match="stale"):
        reader.filesize()


def test_short_and_flipped_reads(path: Path) -> None:
    backend = FaultBackend(None, Fault(short_by=3, after=1), Fault(flip_at=20, times=None))
    assert read(backend, path, 0, 10) == CONTENT[:10]
    assert read(backend, path, 0, 10) == CONTENT[:7]
    assert read(backend, path, 18, 4) == bytes([18, 19, 20 ^ 0xFF, 21])
    assert read(backend, path, 21, 4) == CONTENT[21:25]
    assert backend.happened == [1, 1]


def test_async_reads_fail_too(path: Path) -> None:
    backend = FaultBackend(None, Fault(OSError("worn out")))

    async def main() -> None:
        async with backend.async_reader()(path) as reader:
            with pytest.raises(OSError, match="worn out"):
                await reader.read(0, 1)

    asyncio.run(main())


def test_a_fault_is_one_thing(path: Path) -> None:
    for wrong in (lambda: Fault(), lambda: Fault(OSError(), short_by=1), lambda: Fault(short_by=1, operation="open")):
        with pytest.raises(ValueError):
            wrong()


def test_each_raise_is_a_new_exception(path: Path) -> None:
    backend = FaultBackend(None, Fault(OSError(5, "x"), times=2))
    errors = []
    for _ in range(2):
        with pytest.raises(OSError) as caught:
            read(backend, path)
        errors.append(caught.value)
    assert errors[0] is not errors[1] and errors[0].args == errors[1].args == (5, "x")
