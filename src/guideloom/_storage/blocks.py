"""Checks the blocks that a reader touches, each once, before their bytes are used."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

from guideloom._base.errors import ArgumentError, CorruptDataError, DamagedRecordError, MissingShardError
from guideloom._base.locks import new_lock
from guideloom._base.protocols import UserBufferTypes
from guideloom._storage.catalog import Catalog
from guideloom._storage.names import BLOCK_BYTES, RECORD_LIMIT_BYTES, in_full, parse_data_name, record_name
from guideloom._storage.record import decode_record, join_path

Int64s: TypeAlias = npt.NDArray[np.int64]
Read: TypeAlias = Callable[[str, int, int], UserBufferTypes]
ReadRecord: TypeAlias = Callable[[str, int], "UserBufferTypes | None"]


class BlockChecker:
    """Checks checksums of blocks of 1 MiB as they are touched, each block once; any number of threads may share it.

    Parameters
    ----------
    catalog : Catalog
        In the current layout.
    read : callable
        ``read(name, offset, size)`` gives exactly ``size`` bytes of a data file, from the source that the reader uses.
    read_record : callable
        ``read_record(name, limit_bytes)`` gives a whole commit record, None when there is none.
    folder : str, optional
        For messages.

    Raises
    ------
    ArgumentError
        The published 1.x layout has no checksums.

    Notes
    -----
    A record is read at the first touch of one of its files, and 8 bytes are kept for each MiB of the files touched; one
    byte a block says what is checked. A block that fails stays unchecked: each access raises again.
    What is checked is what ``read`` gave. A map or a page cache that changes later is not seen.
    """

    def __init__(self, catalog: Catalog, read: Read, read_record: ReadRecord, folder: str = "") -> None:
        if catalog.layout != "current":
            raise ArgumentError(
                "the published 1.x layout holds no checksums, so reading cannot verify: convert it with "
                "guideloom upgrade",
                path=folder or None,
            )
        self._files = catalog.files
        self._sizes = catalog.sizes
        self._read = read
        self._read_record = read_record
        self._folder = folder
        self._starts = np.zeros(catalog.sizes.size + 1, np.int64)
        np.cumsum(-(-catalog.sizes // BLOCK_BYTES), out=self._starts[1:])
        self._checked = np.zeros(int(self._starts[-1]), np.bool_)
        self._sums: dict[str, npt.NDArray[np.uint64]] = {}
        # Entered as a lock, not as a condition, whose own code an interrupt could end with the lock held.
        self._lock = new_lock()
        self._changed = threading.Condition(self._lock)
        self._claimed: set[int] = set()

    @property
    def num_checked(self) -> int:
        """Blocks that were found good."""
        return int(np.count_nonzero(self._checked))

    def forget_threads(self) -> None:
        """Give up what the threads of the parent of this forked process were checking: they do not exist here."""
        self._lock = new_lock()
        self._changed = threading.Condition(self._lock)
        self._claimed = set()

    def check_ranges(self, file: Int64s, src: Int64s, nbytes: Int64s, lo: int, hi: int) -> None:
        """Check every block that holds a byte of runs ``lo`` to ``hi``, unless that was done before.

        Parameters
        ----------
        file, src, nbytes : int64[R]
            Run r is ``nbytes[r]`` bytes of file ``file[r]`` (an index into the catalog's files) from ``src[r]``, and
            lies in the file. ``file[r]`` is ignored where ``nbytes[r]`` is 0.
        lo, hi : int
            Half-open range of runs.

        Raises
        ------
        CorruptDataError
            With path, shard and offset: the bytes are not those that were committed.
        MissingShardError, DamagedRecordError
            The commit record that holds the checksums is gone, or cannot be trusted.
        """
        for block in self.unchecked(file, src, nbytes, lo, hi).tolist():
            self._check_once(block)

    def unchecked(self, file: Int64s, src: Int64s, nbytes: Int64s, lo: int, hi: int) -> Int64s:
        """Numbers of the blocks of runs that are not checked yet, rising; see :meth:`place`."""
        some = np.flatnonzero(nbytes[lo:hi] > 0) + lo
        files, begin = file[some], src[some]
        first = self._starts[files] + begin // BLOCK_BYTES
        num = (begin + nbytes[some] - 1) // BLOCK_BYTES - begin // BLOCK_BYTES + 1
        if num.size and int(num.max()) > 1:
            before = np.cumsum(num) - num
            first = (first - before).repeat(num) + np.arange(int(num.sum()), dtype=np.int64)
        return np.unique(first[~self._checked[first]])

    def place(self, block: int) -> tuple[str, int, int]:
        """Name of a block's file, its offset in bytes, and its size in bytes."""
        file = int(np.searchsorted(self._starts, block, "right")) - 1
        offset = (block - int(self._starts[file])) * BLOCK_BYTES
        return self._files[file], offset, min(BLOCK_BYTES, int(self._sizes[file]) - offset)

    def accept(self, block: int, data: UserBufferTypes) -> None:
        """Compare a block's bytes with its checksum, and remember that it is good.

        Raises
        ------
        As :meth:`check_ranges`.
        """
        name, offset, size = self.place(block)
        with memoryview(data) as view:
            found_size, found = view.nbytes, xxhash.xxh3_64_intdigest(view)
        numbers = parse_data_name(name)
        shard = None if numbers is None else numbers[0]
        if found_size != size:
            raise CorruptDataError(
                f"expected {size} bytes from byte {offset}, found {found_size}: the file shrank; restore it",
                path=join_path(self._folder, name),
                shard=shard,
                offset=offset + found_size,
            )
        expected = int(self._sums_of(name)[offset // BLOCK_BYTES])
        if found != expected:
            raise CorruptDataError(
                f"bytes [{offset}, {offset + size}) are not those that were committed: expected XXH3-64 "
                f"{expected:016x}, found {found:016x}; restore the file from a copy, or see what can be kept with: "
                f"{in_full('repair', self._folder)}",
                path=join_path(self._folder, name),
                shard=shard,
                offset=offset,
            )
        self._checked[block] = True

    def _check_once(self, block: int) -> None:
        claimed = False
        try:
            with self._lock:
                self._changed.wait_for(lambda: block not in self._claimed)
                if self._checked[block]:
                    return
                claimed = True
                self._claimed.add(block)
            self.accept(block, self._read(*self.place(block)))
        finally:
            if claimed:
                with self._lock:
                    self._claimed.discard(block)
                    self._changed.notify_all()

    def _sums_of(self, name: str) -> npt.NDArray[np.uint64]:
        sums = self._sums.get(name)
        if sums is not None:
            return sums
        numbers = parse_data_name(name)
        if numbers is None:
            raise ArgumentError(f"no data file of a data set: {name!r}", path=self._folder or None)
        record_file = record_name(*numbers)
        path = join_path(self._folder, record_file)
        data = self._read_record(record_file, RECORD_LIMIT_BYTES)
        if data is None:
            raise MissingShardError(
                "the commit record, which holds the checksums, is gone: restore it from a copy",
                path=path,
                shard=numbers[0],
            )
        record = decode_record(bytes(data), record_file, self._folder)
        theirs = {
            record.data_name(role): np.frombuffer(entry.sums, "<u8").astype(np.uint64, copy=False)
            for role, entry in record.files.items()
        }
        if name not in theirs:
            raise DamagedRecordError(
                f"expected the checksums of {name}, found those of {', '.join(sorted(theirs))}: the manifest was "
                f"gathered from another record; gather it anew with: {in_full('manifest', self._folder)}",
                path=path,
                shard=numbers[0],
            )
        self._sums.update(theirs)
        return self._sums[name]
