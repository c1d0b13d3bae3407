"""The loader's arguments, checked; and what they make it warn of."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any, Literal, Self

import numpy as np

from guideloom._base.checks import as_int
from guideloom._base.dataset_protocols import DatasetAbstract
from guideloom._base.errors import ArgumentError
from guideloom._base.protocols import DocumentStorageAbstract, StreamStorageAbstract
from guideloom._dataset.documents import DocumentDataset
from guideloom._dataset.windows import StreamDataset
from guideloom._loader import bridge

LOGGER = logging.getLogger("guideloom")

# Ranks that were given no seed must still agree on one.
_SEED_OF_NONE = 0


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a loader was asked for; the names are the loader's."""

    dataset: DatasetAbstract
    collate_fn: Callable[[list[Any]], Any] | None
    device: Any
    local_batch_size: int
    rank: int
    world_size: int
    num_workers: int
    parallel_method: Literal["thread", "process"]
    shuffle: bool
    shuffle_seed: int | None
    pin_memory: bool
    drop_last: bool
    prefetch: int
    copy_ahead: bool
    whole_epochs: bool

    @classmethod
    def checked(cls, dataset: DatasetAbstract, collate_fn: Callable[[list[Any]], Any] | None, **options: Any) -> Self:
        """Return the arguments in their own types, or refuse them; ``options`` are all the others."""
        storage = isinstance(dataset, StreamStorageAbstract | DocumentStorageAbstract)
        if storage or not callable(getattr(dataset, "sync_reader", None)):
            raise ArgumentError(
                "dataset must be a StreamDataset, a DocumentDataset or your own DatasetAbstract, "
                f"found {type(dataset).__name__}: for a storage use StatefulDataLoader.from_storage"
            )
        if collate_fn is not None and not callable(collate_fn):
            raise ArgumentError(f"collate_fn must be callable or None, found {type(collate_fn).__name__}")
        method, seed = options["parallel_method"], options["shuffle_seed"]
        if method not in ("thread", "process"):
            raise ArgumentError(f"parallel_method must be 'thread' or 'process', found {method!r}")
        least = {"local_batch_size": 1, "world_size": 1, "rank": 0, "num_workers": 0, "prefetch": 0}
        numbers = {name: at_least(name, options[name], number) for name, number in least.items()}
        if numbers["rank"] >= numbers["world_size"]:
            raise ArgumentError(
                f"rank must be in [0, {numbers['world_size']}), the ranks of this world_size, found {numbers['rank']}"
            )
        names = ("shuffle", "drop_last", "pin_memory", "copy_ahead", "whole_epochs")
        flags = {name: yes_or_no(name, options[name]) for name in names}
        device, pin_memory, copy_ahead = bridge.as_device(options["device"]), flags["pin_memory"], flags["copy_ahead"]
        if pin_memory and device.type != "cuda":
            raise ArgumentError(
                f"pin_memory=True needs a CUDA device, the batches go to {device}: "
                "pass pin_memory=False, or device='cuda'"
            )
        if copy_ahead and not (pin_memory and numbers["prefetch"]):
            raise ArgumentError(
                f"copy_ahead=True needs pin_memory=True, a CUDA device, and prefetch of at least 1, found "
                f"pin_memory={pin_memory}, device {str(device)!r} and prefetch={numbers['prefetch']}"
            )
        return cls(
            dataset,
            collate_fn,
            device,
            parallel_method=method,
            shuffle=flags["shuffle"],
            shuffle_seed=None if seed is None else as_int(seed, "shuffle_seed"),
            pin_memory=pin_memory,
            drop_last=flags["drop_last"],
            copy_ahead=copy_ahead,
            whole_epochs=flags["whole_epochs"],
            **numbers,
        )

    @property
    def seed(self) -> int:
        """The seed of the order."""
        return _SEED_OF_NONE if self.shuffle_seed is None else self.shuffle_seed

    def described(self) -> str:
        """Return them as they are written in a call; what is False, or True, by default only where it is not."""
        order = f"shuffle_seed={self.shuffle_seed}" if self.shuffle else "shuffle=False"
        ends = "" if self.drop_last else ", drop_last=False"
        whole = ", whole_epochs=True" if self.whole_epochs else ""
        return (
            f"local_batch_size={self.local_batch_size}, rank={self.rank}, world_size={self.world_size}, {order}, "
            f"num_workers={self.num_workers} ({self.parallel_method}), prefetch={self.prefetch}, "
            f"device={str(self.device)!r}{ends}{whole}"
        )

    def warn(self) -> None:
        """Say what is allowed and is hardly meant; on rank 0 only."""
        if self.rank:
            return
        if self.shuffle_seed is not None and not self.shuffle:
            # No UserWarning: one configuration for training and validation may rightly give both.
            LOGGER.warning(
                "shuffle_seed=%d changes no order with shuffle=False, batches come in that of the data set: "
                "pass shuffle=True, or leave shuffle_seed out unless it is for sample_seeds",
                self.shuffle_seed,
            )
        launched = os.environ.get("WORLD_SIZE", "1")
        if self.world_size == 1 and launched.isdecimal() and int(launched) > 1:
            LOGGER.warning(
                "world_size is 1, and the environment's WORLD_SIZE %s: each of these processes gets all batches, the "
                "same ones; if they are to share them, pass rank and world_size",
                launched,
            )
        ahead = self.prefetch * self.local_batch_size
        if ahead < self.num_workers:
            warnings.warn(
                f"prefetch * local_batch_size is {ahead}, less than num_workers, {self.num_workers}: too few "
                "samples are under way to keep all workers busy; raise prefetch or use fewer workers",
                UserWarning,
                stacklevel=_level_of_user(),
            )
        if self.device.type == "cuda" and not self.pin_memory:
            warnings.warn(
                f"batches are copied to {self.device} from pageable memory, which stops the caller for each copy: "
                "pass pin_memory=True",
                UserWarning,
                stacklevel=_level_of_user(),
            )


def dataset_of(storage: Any, sequence_length: int | None, overlap: int, dtype: Any) -> DatasetAbstract:
    """Return the data set that a storage is for a loader; see ``StatefulDataLoader.from_storage``."""
    if isinstance(storage, DocumentStorageAbstract):
        if sequence_length is not None or overlap != 0 or dtype is not None:
            raise TypeError(
                "documents are read whole: sequence_length, overlap and dtype are for streams, leave them out"
            )
        return DocumentDataset(storage)
    if not isinstance(storage, StreamStorageAbstract):
        raise TypeError(
            "storage must be a StreamStorage, StreamWithMetaStorage or DocumentStorage, "
            f"found {type(storage).__name__}: a data set goes to StatefulDataLoader(dataset, ...)"
        )
    if sequence_length is None:
        raise ArgumentError("a stream is read in windows: pass sequence_length, their number of elements")
    return StreamDataset(storage, sequence_length, overlap=overlap, dtype=dtype)


def at_least(name: str, value: int, least: int) -> int:
    """Return ``value`` as an int, or refuse it."""
    number = as_int(value, name)
    if number < least:
        raise ArgumentError(f"{name} must be at least {least}, found {number}")
    return number


def yes_or_no(name: str, value: Any) -> bool:
    """Return ``value`` as a bool, or refuse it: the "false" of a configuration or a command line is true to Python."""
    if not isinstance(value, bool | int | np.bool_) or value not in (0, 1):
        raise ArgumentError(f"{name} must be True or False, found {value!r}")
    return bool(value)


_PACKAGE = __name__.rpartition(".")[0] + "."


def _level_of_user() -> int:
    """Stack level, for a warning by the calling function, of the first frame outside this package: the user's line."""
    frame: FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    return level


def describe_samples(view: Mapping[str, int | None]) -> str:
    """Say what the samples of a data set are: windows of a length are something else than documents."""
    length = view.get("sequence_length")
    if length is None:
        return "samples"
    overlap = view.get("overlap") or 0
    return f"windows of sequence_length {length}" + (f" and overlap {overlap}" if overlap else "")
