"""One pass over the rest of an epoch, and the open reader that it shares with its loader and its threads."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from time import monotonic
from types import TracebackType
from typing import Any, Self

from guideloom._base.dataset_protocols import DatasetSyncReaderAbstract
from guideloom._base.errors import InUseError, NotOpenError
from guideloom._base.forks import FORKS
from guideloom._base.interrupts import interrupts_later
from guideloom._base.locks import new_rlock
from guideloom._dataset.source import BatchSource
from guideloom._loader.recycling import Recycler
from guideloom._loader.state import Position
from guideloom._loader.work import EndOfEpoch, Feed
from guideloom._loader.workers import Workers
from guideloom._plan.partition import Partition

CLOSE_TIMEOUT_S = 0.9
"""How long a close waits for running reads; they then end on their own."""

_LOADER = -1


class LoaderIterator(Iterator[Any]):
    """The rest of one epoch; a context manager that closes itself.

    Threads may share it: each batch goes to one of them, and one that was not given when it was closed comes from the
    next iterator. Who asks for a batch while its own thread takes one, a signal's handler say, gets an ``InUseError``.
    """

    def __init__(
        self,
        end_epoch: Callable[[], None],
        feed: Feed,
        move: Callable[[Any], Any] | None,
        partition: Partition,
        position: Position,
    ) -> None:
        self._end_epoch = end_epoch
        self._feed = feed
        self._take = feed.take
        self._move = move
        self._position = position
        self._partition = partition
        self._global_batch_size = partition.global_batch_size
        self._size = partition.size
        self._forks = FORKS.count
        # Re-entrant, so that who asks for a batch while this thread takes one is told, and does not wait for ever.
        self._lock = new_rlock()
        self._taking = False
        # Either a batch is counted before the iterator is closed, or it is not given: the next iterator begins with it.
        self._counting = new_rlock()
        self._closed = False
        self._exhausted = False

    @property
    def live(self) -> bool:
        """Whether batches, or the end of the epoch, may still come."""
        return not self._closed and self._forks == FORKS.count

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._forks != FORKS.count:
            # A thread that the fork left behind may hold the locks.
            self._counting = new_rlock()
            return self._following()
        with self._lock:
            if self._taking:
                raise InUseError(
                    "a batch was asked for while this thread takes one from the same iterator, by a signal's handler "
                    "or collate_fn perhaps: have it set a flag, and ask where the other batch was returned"
                )
            self._taking = True
            try:
                return self._following()
            finally:
                self._taking = False

    def _following(self) -> Any:
        if self._closed:
            if self._exhausted:
                raise StopIteration
            raise NotOpenError("this iterator was closed before the end of the epoch: call iter(loader) to go on")
        try:
            batch = self._take()
            if self._move is not None:
                batch = self._move(batch)
        except EndOfEpoch:
            return self._end()
        except StopIteration as error:
            # As itself it would end the caller's loop as if the epoch were over.
            self.close()
            raise RuntimeError("StopIteration was raised while a batch was made, by collate_fn perhaps") from error
        except BaseException:
            self.close()
            raise
        with self._counting:
            self._require_open()
            offset = self._position.offset + self._global_batch_size
            self._position.offset = offset if offset < self._size else self._size
        return batch

    def _end(self) -> Any:
        with self._counting:
            if self._partition.num_batches(self._position.offset):
                # The feed was stopped: an epoch that is cut short must never look like one that is over.
                self._closed = True
            self._require_open()
            self._exhausted = True
            self._end_epoch()
            first = self._close_once()
        self._end_feed(first)
        raise StopIteration

    def _require_open(self) -> None:
        if self._closed:
            raise NotOpenError(
                "this iterator was closed while it waited for a batch, by another thread or a signal's handler: call "
                "iter(loader) to go on"
            )

    def close(self) -> None:
        """End the threads and processes, waiting less than a second for them; safe to call again."""
        if self._forks != FORKS.count:
            self._counting = new_rlock()
        with self._counting:
            first = self._close_once()
        self._end_feed(first)

    def _close_once(self) -> bool:
        first = not self._closed
        self._closed = True
        return first

    def _end_feed(self, first: bool) -> None:
        if first:
            self._feed.stop()
            self._feed.join(CLOSE_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # Without waiting: the collector runs this in any thread, perhaps in one of the feed's own.
        feed = getattr(self, "_feed", None)
        if feed is not None:
            feed.stop()


class Opened:
    """An open reader, closed when the loader and the last thread that may read are done with it.

    Worker processes, which have readers of their own, stay from one epoch to the next, until ``end_workers`` or until
    this object is dropped.
    """

    source: BatchSource
    partition: Partition

    def __init__(self, reader: DatasetSyncReaderAbstract) -> None:
        self.reader = reader
        self.feeds: Feeds = Feeds()
        self.workers = Workers()
        self.memory = Recycler()
        # The loader, and above it the process of each feed. Changed in single steps, and no lock, which a fork might
        # find held by a thread that it leaves behind.
        self._users = [_LOADER]

    def lend(self, feed: Feed) -> None:
        """Keep the reader open until ``feed`` has called ``release``."""
        self._users.append(FORKS.count)
        self.feeds.append(feed)

    def release(self) -> None:
        """Give up the reader."""
        user = self._users.pop()
        while user not in (_LOADER, FORKS.count):
            # A feed that a fork left behind: nobody else will release it.
            user = self._users.pop()
        if user == _LOADER:
            self.reader.close()

    def end_workers(self) -> None:
        """Tell worker processes to end, now or when their feed is done with them, without waiting."""
        with interrupts_later():
            self.workers.close()

    def join(self, deadline: float) -> None:
        """Stop all feeds and workers, and wait for them until ``deadline``, a time of ``monotonic``."""
        self.end_workers()
        try:
            self.feeds.join(deadline)
        finally:
            self.workers.join()

    def __del__(self) -> None:
        # Without waiting: the collector runs this in any thread.
        workers = getattr(self, "workers", None)
        if workers is not None:
            workers.close()


class Feeds:
    """Feeds whose threads may still run. Running threads keep their feed, so that it need not be kept here."""

    def __init__(self) -> None:
        self._feeds: list[weakref.ref[Feed]] = []

    def _alive(self) -> list[Feed]:
        return [feed for feed in (known() for known in self._feeds) if feed is not None]

    def append(self, feed: Feed) -> None:
        # One iterator is live at a time. Others were stopped, unless an interrupt came between a feed and its iterator.
        alive = self._alive()
        for old in alive:
            old.stop()
        self._feeds = [weakref.ref(old) for old in alive if not old.join(0)]
        self._feeds.append(weakref.ref(feed))

    def join(self, deadline: float) -> None:
        alive = self._alive()
        for feed in alive:
            feed.stop()
        for feed in alive:
            feed.join(max(0.0, deadline - monotonic()))
