"""What is measured: a data set as a loader reads it, with a backend, workers and prefetch still to choose."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from guideloom._base.errors import ArgumentError
from guideloom._base.protocols import IOReaderAbstract
from guideloom._dataset.storages import DocumentStorage, StreamStorage, StreamWithMetaStorage
from guideloom._format.document_numpy import DocumentNumpyFormat
from guideloom._format.documents import DocumentJsonFormat
from guideloom._format.reading import ReadingFormat, ReadingStreamFormat
from guideloom._format.stream_numpy import StreamNumpyFormat
from guideloom._io.mapped import MmapIO
from guideloom._io.pread import PosixPreadIO
from guideloom._io.seek import SeekIO
from guideloom._loader.bridge import tensors
from guideloom._loader.loader import StatefulDataLoader
from guideloom._storage.catalog import Catalog

SEED = 0
"""Every setting reads the same windows in the same order."""

Collate = Callable[[list[Any]], Any] | None


@dataclass(frozen=True, slots=True)
class Setting:
    """What a user chooses: the name of a backend, reading threads, batches made ahead."""

    backend: str
    workers: int
    prefetch: int

    def __str__(self) -> str:
        return f"{self.backend} workers={self.workers} prefetch={self.prefetch}"


def backends() -> dict[str, IOReaderAbstract]:
    """Return the backends that work on this platform, by name."""
    found: dict[str, IOReaderAbstract] = {"seek": SeekIO()}
    if PosixPreadIO.is_supported():
        found["pread"] = PosixPreadIO()
    if PosixPreadIO.is_supported(advice=True):
        found["pread+advice"] = PosixPreadIO(advice=True)
    if MmapIO.is_supported():
        found["mmap"] = MmapIO()
    return found


@dataclass(frozen=True)
class Subject:
    """A data set and everything about its loader that is given.

    Parameters
    ----------
    directory : pathlib.Path
    catalog : Catalog
    storage_format
        See :func:`default_format`.
    collate_fn : callable or None
    sequence_length : int or None
        None for documents.
    batch_size : int
    device : torch.device
    """

    directory: Path
    catalog: Catalog
    storage_format: Any
    collate_fn: Collate
    sequence_length: int | None
    batch_size: int
    device: Any

    def loader(self, backend: IOReaderAbstract, workers: int, prefetch: int) -> StatefulDataLoader:
        """Return a loader at the start of epoch 0."""
        storages: dict[str, Any] = {
            "stream": StreamStorage,
            "stream_with_meta": StreamWithMetaStorage,
            "document": DocumentStorage,
        }
        storage = storages[self.catalog.kind](self.directory, self.storage_format, backend)
        with warnings.catch_warnings():
            # Few batches for many workers is what is to be found out here.
            warnings.simplefilter("ignore", UserWarning)
            return StatefulDataLoader.from_storage(
                storage,
                self.collate_fn,
                sequence_length=self.sequence_length,
                device=self.device,
                local_batch_size=self.batch_size,
                num_workers=workers,
                prefetch=prefetch,
                shuffle=True,
                shuffle_seed=SEED,
                pin_memory=self.device.type == "cuda",
            )

    @cached_property
    def sample_bytes(self) -> float:
        """Bytes on disk of a sample, on average."""
        data_bytes = float(self.catalog.sizes.sum())
        return data_bytes / max(1, self.catalog.total) * (self.sequence_length or 1)

    @property
    def files(self) -> list[Path]:
        """The data files."""
        return [self.directory / name for name in self.catalog.files]


# --- formats and collate functions ---------------------------------------------------------------


class _RawStream(ReadingStreamFormat):
    def unpack(self, stream: Any, *rest: Any) -> Any:
        return {"elements": stream, "payloads": rest[2]} if len(rest) == 3 else stream


class _RawDocument(ReadingFormat):
    def unpack(self, encoded: Any, shard: int) -> Any:
        return encoded


def default_format(catalog: Catalog) -> Any:
    """Return a format that needs no code of the user's: fields as arrays, payloads and most documents as bytes.

    Documents of arrays and of JSON are decoded as in training, since their commit records say what they are.
    """
    if catalog.kind == "document":
        if catalog.format_name == "DocumentJsonFormat":
            return DocumentJsonFormat()
        return DocumentNumpyFormat.from_format_name(catalog.format_name) or _RawDocument()
    if catalog.dtype is None:
        raise ArgumentError("the published 1.x layout does not say its dtype: give it with --dtype")
    if catalog.kind == "stream" and catalog.dtype.names is not None:
        return StreamNumpyFormat(catalog.dtype)
    return _RawStream(catalog.dtype)


def keep(samples: list[Any]) -> list[Any]:
    """``--collate list``: the samples as they are."""
    return samples


def stack(samples: list[Any]) -> Any:
    """``--collate stack``: a tensor a field, what is no array stays a list."""
    first = samples[0]
    if isinstance(first, np.ndarray):
        return tensors(np.stack(samples))
    if isinstance(first, Mapping):
        return {name: stack([sample[name] for sample in samples]) for name in first}
    return samples


def load_object(name: str) -> Any:
    """Import ``module:object``, also from the working folder."""
    module, _, path = name.partition(":")
    if not module or not path:
        raise ArgumentError(f"expected module:object, such as my_training.data:collate, found {name!r}")
    with _working_folder_importable():
        try:
            value: Any = import_module(module)
            for part in path.split("."):
                value = getattr(value, part)
        except (ImportError, AttributeError) as error:
            raise ArgumentError(f"cannot import {name!r}: {error}; run this where `import {module}` works") from error
    return value


@contextmanager
def _working_folder_importable() -> Iterator[None]:
    # A console script does not look there, `python -m` does.
    here = os.getcwd()
    sys.path.append(here)
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.path.remove(here)


# --- the page cache -------------------------------------------------------------------------------


def evict(paths: list[Path]) -> float | None:
    """Drop the pages of files from the page cache; needs no rights but to read them.

    Returns
    -------
    float or None
        Share of a sample of pages that are still cached: pages that any process has mapped stay. None when this
        cannot be told.
    """
    for path in paths:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with suppress(OSError):
                os.fdatasync(fd)  # a dirty page stays; a folder that is read-only has none
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
    return _share_cached(paths)


def _share_cached(paths: list[Path]) -> float | None:
    cached = total = 0
    for path in paths[:: max(1, len(paths) // 16)]:
        size = path.stat().st_size
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for offset in range(0, size, max(4096, size // 16)):
                total += 1
                try:
                    os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT)
                    cached += 1
                except BlockingIOError:
                    pass
        except (OSError, AttributeError):
            return None  # the file system has no such reads, or the platform
        finally:
            os.close(fd)
    return cached / total if total else 0.0
