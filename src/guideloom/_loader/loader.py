"""The loader: opening, the life of an iterator, and the position that a state holds."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Collection, Mapping
from time import monotonic
from typing import Any, Literal, Self

from guideloom._base.dataset_protocols import DatasetAbstract, StatefulDataLoaderStateDict
from guideloom._base.errors import ArgumentError, InUseError, NotOpenError
from guideloom._base.forks import FORKS
from guideloom._base.protocols import SyncContextManager
from guideloom._dataset.opened import not_picklable
from guideloom._dataset.source import source_of
from guideloom._loader import bridge
from guideloom._loader.arguments import Arguments, dataset_of, describe_samples
from guideloom._loader.bridge import CopyAhead, Mover
from guideloom._loader.feeds import make_feed
from guideloom._loader.iterator import CLOSE_TIMEOUT_S, LoaderIterator, Opened
from guideloom._loader.sharing import Sharing
from guideloom._loader.state import (
    Fixed,
    Position,
    check_match,
    check_offset,
    check_override,
    check_schema,
    make_state,
)
from guideloom._loader.work import Schedule
from guideloom._plan.order import make_order
from guideloom._plan.partition import Partition

LOGGER = logging.getLogger("guideloom")


class StatefulDataLoader(SyncContextManager):
    """Batches of a data set for one rank of a training run, resumable at any batch.

    Parameters
    ----------
    dataset : DatasetAbstract
        A ``StreamDataset``, a ``DocumentDataset``, or your own.
    collate_fn : callable or None
        Gets the list of this rank's samples, gives the batch; for random numbers see ``sample_seeds``. None (numeric
        data sets of GuideLoom): a contiguous tensor per field, ``[B, L]``, with no Python per sample.
    device : torch.device or str, optional
        Where the tensors of a batch go; by default the current CUDA device, else the CPU.
    local_batch_size : int, default 1
        Samples of this rank in a batch, B.
    rank, world_size : int, default 0 and 1
        This rank, and the number of ranks.
    num_workers : int, default 0
        Reading threads, or processes. Threads are used while that is faster than one thread alone; batches never
        depend on it.
    parallel_method : {"thread", "process"}
        Where samples are read, unpacked and, with processes, collated.
    shuffle : bool, default False
        Whether each epoch has another order.
    shuffle_seed : int or None
        The order of epoch ``e`` depends on it and on ``e`` alone. None is a fixed seed, so that ranks agree. Without
        ``shuffle=True`` it changes nothing, and the logger "guideloom" says so.
    pin_memory : bool, default False
        Whether batches wait in pinned memory; needs a CUDA device.
    drop_last : bool, default True
        Whether a last global batch that is not full is left out. If not, every rank still takes the same number of
        steps: one that has no part of the last batch gets 0 samples, and ``collate_fn`` the empty list.
    prefetch : int, default 0
        Batches made ahead, by a thread of their own, which a caller that waits helps to read. 0: no look-ahead;
        workers read parts of the present batch, where there is a ``collate_fn``.
    copy_ahead : bool, default False
        Whether batches are copied to the CUDA device ahead as well, on a stream of their own, so that a copy runs
        beside the step before. It takes device memory for ``prefetch`` batches; needs ``pin_memory`` and ``prefetch``.
    whole_epochs : bool, default False
        Whether ``iter`` ends a live iterator, and goes on at the next epoch's beginning where batches of this one were
        taken: for frameworks that count batches, or take some and start again. The first ``iter`` after
        ``load_state_dict`` gives the rest of that epoch, or the next one where nothing is left.

    Raises
    ------
    ArgumentError
        A ValueError: an argument is out of range, a flag is not True or False, or ``pin_memory`` without a CUDA device.

    Warns
    -----
    UserWarning
        ``prefetch * local_batch_size < num_workers``; a CUDA device without ``pin_memory``. On rank 0 only.

    Notes
    -----
    Use it as a context manager. One iterator is live at a time, and runs to the end of the epoch; the next one is the
    next epoch. An iterator is no longer live when it is exhausted, failed, closed, or dropped (as a ``break`` does);
    where that was before the epoch's end, the next one goes on behind the last batch delivered. So it does after
    ``load_state_dict``: with a state that was saved behind the last batch of an epoch it gives none, and the one after
    is the next epoch. (Not so with ``whole_epochs``.) The state counts the batches that were delivered: whatever was
    read ahead belongs to the future.

    The tensors that come with ``collate_fn=None`` are the caller's, to keep and to change.

    An error in a thread or process is raised as itself at the batch it belongs to, after the batches before it; it ends
    the iterator, and the position stays behind the last batch delivered.

    With ``parallel_method="process"`` the first iterator starts the processes, and they stay until ``close``: what is
    changed in ``dataset`` or ``collate_fn`` later does not reach them, and what ``collate_fn`` changes in its own
    process is there in the next epoch. To hand over a change, ``close`` the loader and ``open`` it again. They leave
    signals that the caller has handlers for to it, and the global generators of NumPy and torch differ in each.

    ``close`` waits for running reads, less than a second; a read that takes longer ends later, in its own thread, and
    the data set is closed after it. After ``fork`` an iterator of the parent is of no use: call ``iter`` again.
    """

    def __init__(
        self,
        dataset: DatasetAbstract,
        collate_fn: Callable[[list[Any]], Any] | None,
        *,
        device: Any = None,
        local_batch_size: int = 1,
        rank: int = 0,
        world_size: int = 1,
        num_workers: int = 0,
        parallel_method: Literal["thread", "process"] = "thread",
        shuffle: bool = False,
        shuffle_seed: int | None = None,
        pin_memory: bool = False,
        drop_last: bool = True,
        prefetch: int = 0,
        copy_ahead: bool = False,
        whole_epochs: bool = False,
    ) -> None:
        self._arguments = given = Arguments.checked(
            dataset,
            collate_fn,
            device=device,
            local_batch_size=local_batch_size,
            rank=rank,
            world_size=world_size,
            num_workers=num_workers,
            parallel_method=parallel_method,
            shuffle=shuffle,
            shuffle_seed=shuffle_seed,
            pin_memory=pin_memory,
            drop_last=drop_last,
            prefetch=prefetch,
            copy_ahead=copy_ahead,
            whole_epochs=whole_epochs,
        )
        given.warn()
        self._copy_ahead = CopyAhead(given.device) if given.copy_ahead else None
        self._sharing = Sharing(given.num_workers, max(1, given.prefetch))
        self._position = Position()
        self._opened: Opened | None = None
        self._fixed = self._fixed_by_arguments()
        self._loaded: tuple[dict[str, Any], frozenset[str]] | None = None
        self._iterator: weakref.ref[LoaderIterator] | None = None
        self._starts: dict[object, int] = {}  # calls of iter that are under way, in order

    @classmethod
    def from_storage(
        cls,
        storage: Any,
        collate_fn: Callable[[list[Any]], Any] | None,
        *,
        sequence_length: int | None = None,
        overlap: int = 0,
        dtype: Any = None,
        device: Any = None,
        local_batch_size: int = 1,
        rank: int = 0,
        world_size: int = 1,
        num_workers: int = 0,
        parallel_method: Literal["thread", "process"] = "thread",
        shuffle: bool = False,
        shuffle_seed: int | None = None,
        pin_memory: bool = False,
        drop_last: bool = True,
        prefetch: int = 0,
        copy_ahead: bool = False,
        whole_epochs: bool = False,
    ) -> Self:
        """Return a loader over the windows of a stream, or over documents.

        Parameters
        ----------
        storage : StreamStorageAbstract or DocumentStorageAbstract
        collate_fn
            As for the class, like all that is not named here.
        sequence_length : int
            Streams need it, documents have none.
        overlap, dtype
            As for ``StreamDataset``; streams only.

        Raises
        ------
        ArgumentError
            A ValueError: a stream without ``sequence_length``.
        TypeError
            Documents with ``sequence_length``, ``overlap`` or ``dtype``, or no storage at all.
        """
        return cls(
            dataset_of(storage, sequence_length, overlap, dtype),
            collate_fn,
            device=device,
            local_batch_size=local_batch_size,
            rank=rank,
            world_size=world_size,
            num_workers=num_workers,
            parallel_method=parallel_method,
            shuffle=shuffle,
            shuffle_seed=shuffle_seed,
            pin_memory=pin_memory,
            drop_last=drop_last,
            prefetch=prefetch,
            copy_ahead=copy_ahead,
            whole_epochs=whole_epochs,
        )

    @staticmethod
    def get_default_device() -> Any:
        """Return the ``torch.device`` that batches go to by default: the current CUDA device, else the CPU."""
        return bridge.default_device()

    # --- opening ---

    def open(self) -> None:
        """Open the data set.

        Raises
        ------
        InUseError
            A RuntimeError: the loader is open.
        ArgumentError
            A ValueError: the data set is smaller than one global batch; or ``collate_fn=None`` for a data set that has
            no numeric batches.
        StateError
            A ValueError: a state that was loaded before does not belong here.
        """
        if self._opened is not None:
            raise InUseError("the loader is open already: close() it first, or use it in one `with` only")
        bridge.require_device(self._arguments.device)
        reader = self._arguments.dataset.sync_reader()
        reader.open()
        opened = Opened(reader)
        try:
            self._open_checked(opened)
        except BaseException:
            opened.release()
            raise

    def _open_checked(self, opened: Opened) -> None:
        given = self._arguments
        source = source_of(opened.reader)
        partition = Partition(source.size, given.local_batch_size, given.rank, given.world_size, given.drop_last)
        partition.require_full_batch(describe_samples(source.view))
        if given.collate_fn is None and not source.has_arrays:
            raise ArgumentError(
                "collate_fn=None needs a data set with numeric batches (a stream, or documents in DocumentNumpyFormat "
                f"with one field), this {type(given.dataset).__name__} has none: pass a collate_fn"
            )
        fixed = Fixed(
            given.shuffle,
            given.shuffle_seed,
            given.drop_last,
            make_order(source.size, given.shuffle, given.seed, 0).name,
            source.identity,
            source.size,
            source.view,
        )
        if self._loaded is not None:
            self._adopt(*self._loaded, fixed)
        else:
            # Also the position of an earlier `with` must exist in the data set as it is now.
            check_offset(self._position, source.size)
        self._loaded = None
        opened.source = source
        opened.partition = partition
        self._fixed = fixed
        self._opened = opened

    def close(self) -> None:
        """End the live iterator, and close the data set; safe to call again. The position stays."""
        opened, self._opened = self._opened, None
        deadline = monotonic() + CLOSE_TIMEOUT_S
        iterator = self._live()
        try:
            if opened is not None:
                # First, so that no feed waits for what its workers still make.
                opened.end_workers()
            if iterator is not None:
                iterator.close()
        finally:
            if opened is not None:
                # Of iterators that were dropped, threads may still be about to end.
                opened.join(deadline)
                opened.release()

    # --- numbers ---

    def __len__(self) -> int:
        """Batches of a whole epoch; the same for every rank."""
        return self._require_open().partition.num_batches()

    @property
    def global_batch_size(self) -> int:
        """Samples of all ranks in a full batch."""
        return self._arguments.local_batch_size * self._arguments.world_size

    @property
    def dataset_size(self) -> int:
        """Samples of the data set."""
        return self._require_open().source.size

    @property
    def device(self) -> Any:
        """The ``torch.device`` that batches go to."""
        return self._arguments.device

    @property
    def dataset(self) -> DatasetAbstract:
        """The data set."""
        return self._arguments.dataset

    def __repr__(self) -> str:
        return (
            f"<StatefulDataLoader of {type(self.dataset).__name__}, {'open' if self._opened else 'closed'}: "
            f"epoch {self._position.epoch}, sample {self._position.offset}; {self._arguments.described()}>"
        )

    # --- iterating ---

    def __iter__(self) -> LoaderIterator:
        """Start the rest of the present epoch; with ``whole_epochs`` the next one, where this one was begun.

        Raises
        ------
        InUseError
            A RuntimeError: an iterator is live (not with ``whole_epochs``), or another thread, or what a signal's
            handler interrupted, starts one.
        NotOpenError
            A RuntimeError: the loader is not open.
        """
        opened = self._require_open()
        start = object()
        try:
            # Of two threads, or of a signal's handler and what it interrupted, the first one starts.
            self._starts[start] = FORKS.count
            if self._first_start() is start and self._arguments.whole_epochs:
                self._begin_whole(opened)
            if self._first_start() is not start or self._live() is not None:
                raise InUseError(
                    "this loader has a live iterator: run it to its end, close() it, or drop it before you call iter "
                    "again"
                )
            iterator = self._started(opened)
            self._iterator = weakref.ref(iterator)
        finally:
            self._starts.pop(start, None)
        if self._opened is not opened:
            iterator.close()
            raise NotOpenError("the loader was closed while an iterator started: open it again")
        return iterator

    def _begin_whole(self, opened: Opened) -> None:
        if (iterator := self._live()) is not None:
            iterator.close()
        if self._position.taken or not opened.partition.num_batches(self._position.offset):
            self._end_epoch()

    def _started(self, opened: Opened) -> LoaderIterator:
        given = self._arguments
        order = make_order(opened.source.size, given.shuffle, given.seed, self._position.epoch)
        schedule = Schedule(opened.source, order, opened.partition, self._position.offset)
        feed = make_feed(given, self._copy_ahead, opened, schedule, self._sharing)
        return LoaderIterator(self._end_epoch, feed, self._move(), opened.partition, self._position)

    def _first_start(self) -> object | None:
        # Not those of threads that a fork left behind.
        return next((start for start, forks in list(self._starts.items()) if forks == FORKS.count), None)

    def _move(self) -> Callable[[Any], Any] | None:
        """What is done to a batch when it is given; None where there is nothing to do."""
        if self._copy_ahead is not None:
            return self._copy_ahead.arrive
        device = self._arguments.device
        # Arrays that we made are on the CPU; what a user's function gives may be anywhere.
        return None if self._arguments.collate_fn is None and device.type == "cpu" else Mover(device)

    def _end_epoch(self) -> None:
        self._position = Position(self._position.epoch + 1, 0)

    def _live(self) -> LoaderIterator | None:
        iterator = None if self._iterator is None else self._iterator()
        return iterator if iterator is not None and iterator.live else None

    # --- state ---

    def state_dict(self) -> StatefulDataLoaderStateDict:
        """Return the position, and what it depends on, as plain integers, booleans and strings.

        It counts the batches that were delivered, over all ranks, and is the same on every rank. It costs about a
        microsecond: it asks no thread. Before the first ``open`` it holds the published five entries only, or, after a
        load, what was loaded.
        """
        if self._loaded is not None:
            return dict(self._loaded[0])  # type: ignore[return-value]
        return make_state(self._fixed, self._position)

    def load_state_dict(self, state_dict: Mapping[str, Any], *, override: Collection[str] = ()) -> None:
        """Continue with the batch after the last one that the state counts.

        Batch size, ranks, workers, prefetch and backend may differ; data set, view and order may not.

        Parameters
        ----------
        state_dict : mapping
            As ``state_dict`` gave it, or one of the published package, which says less and is checked less: within a
            shuffled epoch the rest then comes in this package's order, and the logger "guideloom" says so.
        override : collection of str
            Names that may differ nevertheless, e.g. ``{"identity"}``: the position is then taken as it is, as a number
            of samples of this loader's data set. "identity" and the names of the view include "dataset_size".

        Raises
        ------
        InUseError
            A RuntimeError: an iterator is live; ``whole_epochs`` closes it.
        StateSchemaError
            A ValueError: missing, unknown or ill-typed entries, a newer version, or a position behind the epoch's end.
        StateMismatchError
            A ValueError: another data set, view or order; it names the entry and both values.

        Notes
        -----
        Before ``open`` the parts that concern the data set are checked at ``open``. A state from the end of an epoch,
        before its ``StopIteration``, continues with the empty rest of that epoch.
        """
        live = self._live()
        if (live is not None and not self._arguments.whole_epochs) or self._first_start() is not None:
            raise InUseError(
                "a state cannot be loaded while an iterator is live: run it to its end, or close() it, first"
            )
        position = check_schema(state_dict)
        names = check_override(override, self._fixed)
        state = dict(state_dict)
        check_match(state, self._fixed_by_arguments() if self._opened is None else self._fixed, names)
        if live is not None:
            check_offset(position, self._fixed.dataset_size or 0)
            live.close()
        if self._opened is None:
            self._position = position
            self._loaded = (state, names)
        else:
            self._adopt(state, names, self._fixed)

    def _adopt(self, state: dict[str, Any], override: frozenset[str], fixed: Fixed) -> None:
        position = check_schema(state)
        check_match(state, fixed, override)
        check_offset(position, fixed.dataset_size or 0)
        self._position = position
        if position.offset and fixed.shuffle and "order" not in state and not self._arguments.rank:
            LOGGER.warning(
                "the state does not name its order, as those of the 1.x releases do not: the rest of epoch %d comes in "
                "the order %s, so that samples of it may come twice or not at all; the next epoch has each once",
                position.epoch,
                fixed.order,
            )
        LOGGER.info(
            "loaded a state: epoch %d, sample %d of %s, rank %d of %d",
            position.epoch,
            position.offset,
            fixed.dataset_size,
            self._arguments.rank,
            self._arguments.world_size,
        )

    # --- helpers ---

    def __getstate__(self) -> dict[str, Any]:
        if self._opened is not None:
            raise not_picklable("loader")
        return {**self.__dict__, "_iterator": None, "_starts": {}}

    def _fixed_by_arguments(self) -> Fixed:
        return Fixed(self._arguments.shuffle, self._arguments.shuffle_seed, self._arguments.drop_last)

    def _require_open(self) -> Opened:
        if self._opened is None:
            raise NotOpenError("the loader is not open: use `with loader:`, or call open() first")
        return self._opened
