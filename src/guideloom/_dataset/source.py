"""What the loader asks of an open data set: batches of samples, or batches of arrays, by index.

Our own readers answer with batched reads; any other reader (a user's ``DatasetSyncReaderAbstract``) is asked for the
samples of a batch by ``__getitems__``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from guideloom._base.dataset_protocols import DatasetSyncReaderAbstract
from guideloom._base.errors import ArgumentError
from guideloom._kernels.desk import NO_DESK
from guideloom._storage.catalog import Catalog

Empty: TypeAlias = Callable[[tuple[int, ...], np.dtype[Any]], npt.NDArray[Any]]
"""Allocates an uninitialised C-contiguous array; the loader passes one that gives (pinned) tensor memory."""


class BatchSource(ABC):
    """Batched access to an open data set.

    Every method may be called from several threads at once. ``prepare`` does no I/O. A *prepared* object serves any
    number of ``samples`` and ``arrays`` calls over ranges ``[lo, hi)`` of the indexes that it was made for.
    """

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of samples."""

    @property
    def identity(self) -> str | None:
        """Content and order of the data set, None when unknown; may read (published 1.x layout), so ask once."""
        return None

    @property
    def snapshot(self) -> Catalog | None:
        """What was opened; a reader's ``open_snapshot`` opens exactly that again, whatever was committed since.

        None where a reader has no such method.
        """
        return None

    @property
    def view(self) -> dict[str, int | None]:
        """What of the view a state must pin, e.g. ``{"sequence_length": 2048, "overlap": 0}``; empty when nothing."""
        return {}

    @property
    def has_arrays(self) -> bool:
        """Whether ``arrays`` works, i.e. whether ``collate_fn=None`` is possible."""
        return False

    @abstractmethod
    def prepare(self, indexes: npt.NDArray[np.int64]) -> Any:
        """Plan the reads of the samples ``indexes`` (int64[n], each in ``[0, size)``)."""

    @abstractmethod
    def samples(self, prepared: Any, lo: int, hi: int, empty: Empty = np.empty) -> list[Any]:
        """Read and unpack the samples of ``indexes[lo:hi]``, in that order, out of buffers made by ``empty``."""

    @property
    def waits(self) -> bool:
        """Whether reads wait for storage at present, so that it pays to say with ``follow`` what comes."""
        return False

    @property
    def desk(self) -> npt.NDArray[np.int64]:
        """Where threads that wait find gathers to help with (``_kernels/desk.py``); by default there are none."""
        return NO_DESK

    def follow(self, prepared: Any, following: Any) -> None:  # noqa: B027
        """Say what will be read after ``prepared``: its bytes may be asked for ahead."""

    def arrays(self, prepared: Any, lo: int, hi: int, empty: Empty) -> Any:
        """Read ``indexes[lo:hi]`` as an array, or a dict of arrays, each made by ``empty``.

        The leading axis is ``hi - lo``, except where the data is ragged: values and offsets.
        """
        raise ArgumentError("this data set has no numeric batch form: pass a collate_fn")


class ItemwiseSource(BatchSource):
    """A user's own reader, asked by ``__getitems__``, or item by item if its class has none.

    Parameters
    ----------
    reader : DatasetSyncReaderAbstract
        Open.
    view : mapping, optional
        See ``BatchSource.view``.
    """

    def __init__(self, reader: DatasetSyncReaderAbstract, view: Mapping[str, int | None] | None = None) -> None:
        self._reader = reader
        self._view = dict(view or {})

    @property
    def view(self) -> dict[str, int | None]:
        return dict(self._view)

    @property
    def size(self) -> int:
        return len(self._reader)

    def prepare(self, indexes: npt.NDArray[np.int64]) -> Sequence[int]:
        return [int(index) for index in indexes]

    def samples(self, prepared: Sequence[int], lo: int, hi: int, empty: Empty = np.empty) -> list[Any]:
        indexes = prepared[lo:hi]
        read = getattr(type(self._reader), "__getitems__", None)
        if read is None:
            return [self._reader[index] for index in indexes]
        samples = list(read(self._reader, indexes))
        if len(samples) != len(indexes):
            raise ArgumentError(
                f"{type(self._reader).__name__}.__getitems__ must return a sample for each index: "
                f"expected {len(indexes)}, found {len(samples)}"
            )
        return samples


def source_of(reader: DatasetSyncReaderAbstract) -> BatchSource:
    """Return the batch source of an open reader: its own (method ``batch_source``), else item by item."""
    # Of its class: what passes unknown attributes on to another reader would give that one's samples, not its own.
    if not hasattr(type(reader), "batch_source"):
        return ItemwiseSource(reader)
    source = reader.batch_source()  # type: ignore[attr-defined]
    if not isinstance(source, BatchSource):
        raise ArgumentError(
            f"{type(reader).__name__}.batch_source() must return a BatchSource, got {type(source).__name__}"
        )
    return source
