"""A user's asyncio backend under reads that are cancelled, that come at once, and that outlive the reader."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import PurePath

import numpy as np
import pytest

from guideloom._read.fileset import FileTable
from guideloom._read.operations import AsyncBackendFiles, Slots
from guideloom._read.requests import Gather
from guideloom.errors import CorruptDataError, MissingShardError, NotOpenError
from guideloom.types import IOAsyncReaderAbstract

SIZE = 8


class Backend:
    """Files in memory: byte ``b`` of file ``f`` is ``16 * f + b``. Each step waits for its gate, where there is one."""

    def __init__(self) -> None:
        self.gates: dict[tuple[str, int], asyncio.Event] = {}
        self.met: dict[tuple[str, int], asyncio.Event] = {}
        self.missing: set[int] = set()
        self.odd_answer: bytes | Exception | None = None
        self.close_error: OSError | None = None
        self.opened: list[int] = []
        self.closed: list[int] = []
        self.num_open = self.most_open = 0

    def hold(self, step: str, file: int) -> None:
        self.gates[step, file] = asyncio.Event()
        self.met[step, file] = asyncio.Event()

    async def pass_gate(self, step: str, file: int) -> None:
        # As any real store does, it lets others run.
        await asyncio.sleep(0)
        if (step, file) in self.gates:
            self.met[step, file].set()
            await self.gates[step, file].wait()

    def files(self, capacity: int = 8, num_files: int = 4) -> AsyncBackendFiles:
        paths: list[PurePath] = [PurePath(str(file)) for file in range(num_files)]
        table = FileTable(paths, np.full(num_files, SIZE), np.arange(num_files))
        return AsyncBackendFiles(table, capacity, lambda path: Reader(self, int(str(path))))


class Reader(IOAsyncReaderAbstract):
    def __init__(self, backend: Backend, file: int) -> None:
        self.backend = backend
        self.file = file
        self.is_open = False

    async def open(self) -> None:
        self.backend.num_open += 1
        self.backend.most_open = max(self.backend.most_open, self.backend.num_open)
        await self.backend.pass_gate("open", self.file)
        if self.file in self.backend.missing:
            self.backend.num_open -= 1
            raise FileNotFoundError(self.file)
        self.is_open = True
        self.backend.opened.append(self.file)

    async def close(self) -> None:
        assert self.is_open, "closed twice"
        self.is_open = False
        self.backend.closed.append(self.file)
        await self.backend.pass_gate("close", self.file)
        self.backend.num_open -= 1
        if self.backend.close_error is not None:
            raise self.backend.close_error

    async def filesize(self) -> int:
        return SIZE

    async def read(self, offset: int, size: int) -> bytes | bytearray:
        await self.backend.pass_gate("read", self.file)
        assert self.is_open, "read after close"
        if isinstance(self.backend.odd_answer, Exception):
            raise self.backend.odd_answer
        if self.backend.odd_answer is not None:
            return self.backend.odd_answer
        return bytearray(16 * self.file + offset + k for k in range(size))


async def read(files: AsyncBackendFiles, *numbers: int) -> list[int]:
    """Read the second byte of each file."""
    out = np.zeros(len(numbers), np.uint8)
    one = np.ones(len(numbers), np.int64)
    at = np.arange(len(numbers), dtype=np.int64)
    await files.execute(Gather(np.array(numbers, np.int64), one, at, one, 0, len(numbers), out))
    return [int(value) for value in out]


async def cancelled(task: asyncio.Task[list[int]]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def run(body: Callable[[Backend], Awaitable[None]]) -> Backend:
    backend = Backend()

    async def main() -> None:
        await asyncio.wait_for(body(backend), timeout=20)

    asyncio.run(main())
    assert sorted(backend.opened) == sorted(backend.closed)
    assert backend.num_open == 0
    return backend


def test_a_read_that_is_cancelled_leaves_the_opening_of_a_file_to_the_others() -> None:
    async def body(backend: Backend) -> None:
        files = backend.files()
        backend.hold("open", 2)
        first, second = asyncio.ensure_future(read(files, 2)), asyncio.ensure_future(read(files, 2, 1))
        await backend.met["open", 2].wait()
        await cancelled(first)
        backend.gates["open", 2].set()
        assert await second == [33, 17]
        await files.close()

    assert run(body).opened.count(2) == 1


def test_what_nobody_waits_for_any_more_is_closed_too() -> None:
    async def body(backend: Backend) -> None:
        files = backend.files()
        backend.hold("open", 2)
        only = asyncio.ensure_future(read(files, 2))
        await backend.met["open", 2].wait()
        await cancelled(only)
        backend.gates["open", 2].set()
        await files.close()

    assert run(body).closed == [2]


def test_a_failure_of_which_nobody_was_told_is_not_that_of_the_next_read() -> None:
    async def body(backend: Backend) -> None:
        files = backend.files()
        backend.missing.add(2)
        backend.hold("open", 2)
        only = asyncio.ensure_future(read(files, 2))
        await backend.met["open", 2].wait()
        await cancelled(only)
        backend.gates["open", 2].set()
        with pytest.raises(MissingShardError):
            await read(files, 2)
        backend.missing.clear()
        assert await read(files, 2) == [33]
        await files.close()

    run(body)


def test_no_file_is_given_up_that_another_read_has_come_to_use() -> None:
    async def body(backend: Backend) -> None:
        files = backend.files(capacity=2)
        backend.hold("close", 0)
        # One of the three is too many; the second is wanted again while the first is being closed.
        first = asyncio.ensure_future(read(files, 0, 1, 2))
        await backend.met["close", 0].wait()
        backend.hold("read", 1)
        second = asyncio.ensure_future(read(files, 1))
        await backend.met["read", 1].wait()
        backend.gates["close", 0].set()
        assert await first == [1, 17, 33]
        assert await read(files, 3) == [49]
        assert backend.closed == [0, 2]
        backend.gates["read", 1].set()
        assert await second == [17]
        await files.close()

    run(body)


def test_close_leaves_a_file_to_the_read_that_uses_it() -> None:
    async def body(backend: Backend) -> None:
        files = backend.files()
        assert await read(files, 0) == [1]
        backend.hold("read", 3)
        late = asyncio.ensure_future(read(files, 3))
        await backend.met["read", 3].wait()
        await files.close()
        assert backend.closed == [0]
        with pytest.raises(NotOpenError):
            await read(files, 3)
        backend.gates["read", 3].set()
        assert await late == [49]

    assert run(body).closed == [0, 3]


def test_close_while_a_file_is_being_opened() -> None:
    async def body(backend: Backend) -> None:
        files = backend.files()
        backend.hold("open", 3)
        late = asyncio.ensure_future(read(files, 3))
        await backend.met["open", 3].wait()
        await files.close()
        backend.gates["open", 3].set()
        assert await late == [49]

    run(body)


@pytest.mark.parametrize("capacity", [1, 2, 3])
def test_no_more_files_are_open_than_allowed_however_many_reads_there_are(capacity: int) -> None:
    async def body(backend: Backend) -> None:
        files = backend.files(capacity, num_files=12)
        assert await read(files, *range(12)) == [16 * file + 1 for file in range(12)]
        pairs = [(number % 12, 7 * number % 12) for number in range(60)]
        found = await asyncio.gather(*[read(files, *pair) for pair in pairs])
        assert found == [[16 * first + 1, 16 * second + 1] for first, second in pairs]
        await read(files, *range(capacity))
        num_opened = len(backend.opened)
        await read(files, *range(capacity))
        assert len(backend.opened) == num_opened
        await files.close()

    assert run(body).most_open == capacity


def test_a_read_that_is_cancelled_while_it_makes_room_leaves_nothing_half_closed() -> None:
    async def body(backend: Backend) -> None:
        files = backend.files(capacity=1)
        assert await read(files, 0) == [1]
        backend.hold("close", 0)
        only = asyncio.ensure_future(read(files, 1))
        await backend.met["close", 0].wait()
        await cancelled(only)
        backend.gates["close", 0].set()
        assert await read(files, 2) == [33]
        await files.close()

    run(body)


def test_after_an_error_no_read_goes_on_that_could_fill_the_buffer() -> None:
    """Also of a backend that takes its time to end a read that is cancelled: the error waits for it."""

    async def body(backend: Backend) -> None:
        files = backend.files()
        begun, over = asyncio.Event(), asyncio.Event()

        async def lingers(step: str, file: int) -> None:
            if (step, file) == ("read", 0):
                begun.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    for _ in range(5):
                        await asyncio.sleep(0)
                    over.set()
            elif step == "read":
                await begun.wait()
                raise OSError("a broken store")

        backend.pass_gate = lingers  # type: ignore[method-assign]
        with pytest.raises(OSError, match="a broken store"):
            await read(files, 0, 1)
        assert over.is_set()
        await files.close()

    run(body)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", r"read\(\) gave 0 bytes"),
        (b"ab", r"read\(\) gave 2 bytes"),
        (IndexError("behind the end"), "behind the end"),
        (ValueError("nothing there"), "nothing there"),
    ],
)
def test_a_backend_that_gives_another_number_of_bytes_is_named(answer: bytes | Exception, why: str) -> None:
    async def body(backend: Backend) -> None:
        files = backend.files()
        backend.odd_answer = answer
        with pytest.raises(CorruptDataError, match=f"could not give 1 bytes: {why}") as caught:
            await read(files, 2)
        assert (str(caught.value.path), caught.value.shard, caught.value.offset) == ("2", 2, 1)
        backend.odd_answer = None
        assert await read(files, 2) == [33]
        await files.close()

    run(body)


def test_what_a_file_says_as_it_is_closed_is_raised_once_all_are() -> None:
    async def body(backend: Backend) -> None:
        files = backend.files()
        await read(files, 0, 1, 2)
        backend.close_error = OSError("the connection broke")
        with pytest.raises(OSError, match="the connection broke"):
            await files.close()

    assert sorted(run(body).closed) == [0, 1, 2]


def test_a_turn_that_comes_as_its_read_is_cancelled_goes_to_the_next() -> None:
    async def take(slots: Slots, entered: asyncio.Event) -> None:
        async with slots:
            entered.set()

    async def main() -> None:
        slots, entered = Slots(1), asyncio.Event()
        async with slots:
            first, second = (asyncio.ensure_future(take(slots, entered)) for _ in range(2))
            await asyncio.sleep(0)
            third = asyncio.ensure_future(take(slots, asyncio.Event()))
            await asyncio.sleep(0)
            third.cancel()
        first.cancel()
        await asyncio.wait_for(second, timeout=20)
        assert first.cancelled()
        async with slots:
            assert third.cancelled()

    asyncio.run(main())


def test_reads_wait_for_each_other_in_one_event_loop_after_the_other() -> None:
    backend = Backend()
    files = backend.files(capacity=1)

    async def crowd() -> list[list[int]]:
        return await asyncio.gather(*[read(files, number) for number in range(4)])

    for _ in range(2):
        assert asyncio.run(crowd()) == [[1], [17], [33], [49]]
    asyncio.run(files.close())
    assert backend.num_open == 0
