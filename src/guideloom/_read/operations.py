"""Reading, written once: an operation is a generator that yields gathers and returns its result.

The synchronous reader and the asyncio reader run the same operations; only who executes the gathers differs. What
goes wrong in a gather is raised where the operation asked for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from pathlib import PurePath
from types import TracebackType
from typing import Protocol, TypeAlias, TypeVar

from guideloom._base.checks import octets
from guideloom._base.errors import CorruptDataError, NotOpenError
from guideloom._base.protocols import IOAsyncReaderAbstract
from guideloom._read.files import is_own_error
from guideloom._read.fileset import FileSet, FileTable
from guideloom._read.requests import Gather, Spread
from guideloom._storage.blocks import BlockChecker

ResultT = TypeVar("ResultT")

MAX_CONCURRENT_READS = 32
"""Reads of a user's asyncio backend in flight at once, for one gather."""


Operation: TypeAlias = Generator[Gather, None, ResultT]

ArrayOperation: TypeAlias = Generator[Gather | Spread, None, ResultT]
"""One that makes whole arrays, for the loader: synchronous only."""


def run(operation: ArrayOperation[ResultT], files: FileSet) -> ResultT:
    """Run an operation; this thread executes the gathers."""
    try:
        request = next(operation)
        while True:
            try:
                files.execute(request)
            except Exception as error:  # noqa: BLE001  raised again where it was asked for
                request = operation.throw(error)
            else:
                request = next(operation)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        operation.close()


class AsyncFiles(Protocol):
    """What an asyncio reader reads from."""

    async def execute(self, request: Gather) -> None:
        """Execute one gather."""

    async def close(self) -> None:
        """Close the files."""


async def run_async(operation: Operation[ResultT], files: AsyncFiles) -> ResultT:
    """Run an operation; the gathers are awaited."""
    try:
        request = next(operation)
        while True:
            try:
                await files.execute(request)
            except Exception as error:  # noqa: BLE001  raised again where it was asked for
                request = operation.throw(error)
            else:
                request = next(operation)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        operation.close()


class ThreadedFiles:
    """A synchronous file set for asyncio: each gather runs on a thread of the loop's pool, without the GIL."""

    def __init__(self, files: FileSet) -> None:
        self._files = files

    async def execute(self, request: Gather) -> None:
        """Execute one gather on a thread."""
        await asyncio.to_thread(self._files.execute, request)

    async def close(self) -> None:
        """Close the files."""
        self._files.close()


class Slots:
    """A number of places; whoever comes when all are taken waits for one, in turn.

    Unlike ``asyncio.Semaphore`` it belongs to no event loop: a reader may be opened in one and read in the next.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __aenter__(self) -> None:
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._pass_on()
            raise

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._pass_on()

    def _pass_on(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


class AsyncBackendFiles:
    """A user's own asyncio backend, through its documented methods only.

    Keeps at most ``capacity`` files open, however many gathers run at once; reads of one gather run concurrently.
    """

    def __init__(self, table: FileTable, capacity: int, make: Callable[[PurePath], IOAsyncReaderAbstract]) -> None:
        self._table = table
        self._capacity = max(1, capacity)
        self._make = make
        self._open: dict[int, asyncio.Task[IOAsyncReaderAbstract]] = {}
        self._users: dict[int, int] = {}
        self._closing = 0
        # No more reads than files: so there is always one to close for the next, and no read waits for another's file.
        self._slots = Slots(self._capacity)
        self._closed = False
        # Reads through the backend's synchronous reader, on a thread.
        self.checker: BlockChecker | None = None

    async def execute(self, request: Gather) -> None:
        """Execute one gather."""
        g = request
        if self._closed:
            raise NotOpenError("this reader is closed: open it again")
        if self.checker is not None:
            await asyncio.to_thread(self.checker.check_ranges, g.file, g.src, g.nbytes, g.lo, g.hi)
        room = asyncio.Semaphore(MAX_CONCURRENT_READS)
        view = g.out.data

        async def one(r: int) -> None:
            async with room, self._slots:
                file, at, size = int(g.file[r]), int(g.dst[r]) - g.shift, int(g.nbytes[r])
                await self._read(file, int(g.src[r]), view[at : at + size])

        tasks = [asyncio.ensure_future(one(r)) for r in range(g.lo, g.hi)]
        try:
            await asyncio.gather(*tasks)
        finally:
            # After an error the other reads must be over before their buffer goes.
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, file: int, offset: int, out: memoryview) -> None:
        self._users[file] = self._users.get(file, 0) + 1
        try:
            if file not in self._open:
                await self._make_room()
            opening = self._open.get(file)
            if opening is None:
                opening = self._open[file] = asyncio.ensure_future(self._open_one(file))
                opening.add_done_callback(partial(self._forget_failed, file))
            # Other reads may wait for the same file: one that is cancelled leaves the opening to them.
            reader = await asyncio.shield(opening)
            if self._open.get(file) is opening:
                self._open[file] = self._open.pop(file)
            try:
                data = await reader.read(offset, len(out))
            except FileNotFoundError as error:
                raise self._table.missing(file) from error
            except (ValueError, IndexError) as error:
                if is_own_error(error):
                    raise
                raise self._short(file, offset, len(out), str(error)) from error
            if len(data) != len(out):
                raise self._short(file, offset, len(out), f"read() gave {len(data)} bytes")
            out[:] = octets(data)
        finally:
            self._users[file] -= 1
            if self._closed and not self._users[file]:
                await self._close_these([file])

    def _short(self, file: int, offset: int, size: int, why: str) -> CorruptDataError:
        return CorruptDataError(
            f"the backend could not give {size} bytes: {why}",
            path=self._table.paths[file],
            shard=int(self._table.shards[file]),
            offset=offset,
        )

    async def _open_one(self, file: int) -> IOAsyncReaderAbstract:
        reader = self._make(self._table.paths[file])
        try:
            await reader.open()
        except FileNotFoundError as error:
            raise self._table.missing(file) from error
        return reader

    def _forget_failed(self, file: int, opening: asyncio.Task[IOAsyncReaderAbstract]) -> None:
        # Asking for the exception also says that it was seen: the reads that it was for may have been cancelled.
        failed = opening.cancelled() or opening.exception() is not None
        if failed and self._open.get(file) is opening:
            del self._open[file]

    async def _make_room(self) -> None:
        while len(self._open) + self._closing >= self._capacity:
            idle = next((file for file in self._open if not self._users.get(file)), None)
            if idle is None:
                return
            await self._close_these([idle])

    async def _close_these(self, files: list[int]) -> None:
        """Close files, all of them even if one fails; no read finds one that is about to be closed."""
        closings = [asyncio.ensure_future(_close_opened(self._open.pop(file))) for file in files if file in self._open]
        self._closing += len(closings)
        for closing in closings:
            closing.add_done_callback(self._note_closed)
        # A read that is cancelled must not leave a file half closed.
        results = await asyncio.shield(asyncio.gather(*closings, return_exceptions=True))
        for result in results:
            if result is not None:
                raise result

    async def close(self) -> None:
        """Close the files; those that a read still uses are closed by the last one to finish."""
        self._closed = True
        await self._close_these([file for file in self._open if not self._users.get(file)])

    def _note_closed(self, closing: asyncio.Task[None]) -> None:
        self._closing -= 1


async def _close_opened(opening: asyncio.Task[IOAsyncReaderAbstract]) -> None:
    try:
        reader = await opening
    except Exception:  # noqa: BLE001  whoever waited for it was told
        return
    await reader.close()
