"""What the benchmarks read and write: formats, records, a loader, the copy that they are compared with, and turns."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from tqdm import tqdm

from guideloom import StatefulDataLoader, StreamNumpyFormat, StreamStorage
from guideloom.io import MmapIO, PosixPreadIO

LENGTH, BATCH = 2048, 32
TOKEN = np.dtype([("tokens", "<i4")])
BACKENDS: dict[str, Callable[[], Any]] = {"mmap": MmapIO, "pread": PosixPreadIO}

Ints = npt.NDArray[np.int64]
Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


def take_turns(calls: Mapping[Key, Callable[[], Result]], rounds: int, title: str) -> dict[Key, list[Result]]:
    """Call each once a round, and return what each gave. Every round begins one further on: nobody is always the first.

    A bar on a terminal says who has the turn.
    """
    found: dict[Key, list[Result]] = {key: [] for key in calls}
    keys = [*calls]
    with tqdm(total=rounds * len(keys), desc=title, file=sys.stderr, disable=None, leave=False) as bar:
        for number in range(rounds if keys else 0):
            first = number % len(keys)
            for key in keys[first:] + keys[:first]:
                bar.set_postfix_str(str(key), refresh=False)
                found[key].append(calls[key]())
                bar.update()
    return found


def loader(dataset: Any, collate: Any = None, workers: int = 0, prefetch: int = 0) -> StatefulDataLoader:
    return StatefulDataLoader(
        dataset,
        collate,
        local_batch_size=BATCH,
        num_workers=workers,
        prefetch=prefetch,
        shuffle=True,
        shuffle_seed=1,
        device=torch.device("cpu"),
    )


def stack(samples: list[Any]) -> Any:
    return {"tokens": torch.from_numpy(np.stack([sample["tokens"] for sample in samples]))}


def token_arrays(samples: list[Any]) -> list[Any]:
    return [sample["tokens"] for sample in samples]


def stack_and_payloads(samples: list[Any]) -> Any:
    return torch.from_numpy(np.stack([sample["tokens"] for sample in samples])), [s["payloads"] for s in samples]


@cache
def copy_runs() -> Any:
    """Return ``copy(base, src, nbytes, out, batch)``, the ceiling: one core that copies and does nothing else.

    Run ``i`` is ``nbytes[i]`` bytes from ``base + src[i]``. Runs are put end to end at ``out``, and at ``out`` again
    after each ``batch`` of them: the buffer stays in the processor's cache. All are int64, arrays of one dimension.
    """
    import numba
    from numba import types

    memcpy: Any = types.ExternalFunction("memcpy", types.intp(types.intp, types.intp, types.uintp))

    @numba.njit("void(int64, int64[::1], int64[::1], int64, int64)", nogil=True)
    def copy(base: int, src: Any, nbytes: Any, out: int, batch: int) -> None:
        at = out
        for i in range(src.size):
            if i % batch == 0:
                at = out
            memcpy(at, base + src[i], nbytes[i])
            at += nbytes[i]

    return copy


# --- streams -------------------------------------------------------------------------------------------------------


def stream_storage(folder: Path, backend: Any) -> StreamStorage:
    return StreamStorage(folder, StreamNumpyFormat(TOKEN), backend)


def tokens_of_shard(windows: int, shard: int = 0) -> npt.NDArray[np.int32]:
    """Tokens of ``windows`` windows."""
    return np.random.default_rng(shard).integers(0, 100_000, windows * LENGTH, np.int32)


# --- documents -----------------------------------------------------------------------------------------------------


class HeadFormat:
    """A document is a number and its tokens: a struct, and an array behind it."""

    def pack(self, data: tuple[int, npt.NDArray[np.int32]]) -> bytes:
        number, tokens = data
        return struct.pack("<q", number) + tokens.tobytes()

    def unpack(self, encoded: Any, shard: int) -> dict[str, Any]:
        (number,) = struct.unpack_from("<q", encoded)
        return {"number": number, "tokens": np.frombuffer(encoded, "<i4", offset=8)}


class HeadAsArrayFormat(HeadFormat):
    """The same bytes as values of one dtype: batches come as values and offsets, without ``unpack``."""

    ragged_dtype = np.dtype("<i4")


class BytesFormat:
    """Documents that are bytes already."""

    def pack(self, data: bytes) -> bytes:
        return data

    def unpack(self, encoded: Any, shard: int) -> bytes:
        return bytes(encoded)


@dataclass(frozen=True, slots=True)
class Documents:
    """``count`` documents of 225 to 1,000 tokens: 0.9 to 4 KB each.

    Parameters
    ----------
    count : int
    """

    count: int

    def sizes(self) -> Ints:
        """Tokens of each document: int64[count]."""
        return np.random.default_rng(0).integers(225, 1001, self.count)

    def records(self) -> Iterator[tuple[int, npt.NDArray[np.int32]]]:
        pool = tokens_of_shard(1)
        return ((number, pool[:size]) for number, size in enumerate(self.sizes().tolist()))

    def encoded(self) -> list[bytes]:
        """All documents as bytes of these sizes. Those of one size are one object, so that memory stays small."""
        whole = tokens_of_shard(1).tobytes()
        by_size = {size: whole[: 8 + 4 * size] for size in range(225, 1001)}
        return [by_size[size] for size in self.sizes().tolist()]


# --- spans ---------------------------------------------------------------------------------------------------------

SPANS_OF_RECORD = 50


class SpanRecord(NamedTuple):
    """Tokens, and for each span its length and its payload."""

    tokens: npt.NDArray[np.int32]
    lengths: list[int]
    payloads: list[npt.NDArray[np.int32]]


class _Unpacking:
    stream_dtype = np.dtype("<i4")

    def unpack(self, stream: Any, shards: Any, index: Any, payloads: Any) -> dict[str, Any]:
        """An array a span: many small objects in each window."""
        return {"tokens": stream, "index": index, "payloads": [np.frombuffer(payload, "<i4") for payload in payloads]}


class WholeSpanFormat(_Unpacking):
    """Gives whole spans to the writer: no Python for a token."""

    def pack_spans(self, data: SpanRecord) -> tuple[Any, list[int], list[bytes]]:
        return data.tokens, data.lengths, [payload.tobytes() for payload in data.payloads]


class PairFormat(_Unpacking):
    """Gives one pair for each token; the bytes on disk are the same."""

    def size(self, data: SpanRecord) -> int:
        return data.tokens.size

    def pack(self, data: SpanRecord) -> Generator[tuple[int, bytes | None], None, npt.NDArray[np.int32]]:
        for span, length in enumerate(data.lengths):
            yield span, data.payloads[span].tobytes()
            for _ in range(length - 1):
                yield span, None
        return data.tokens


@dataclass(frozen=True, slots=True)
class Spans:
    """``count`` spans of 1 to 200 tokens, each with a payload of 0 to 40 int32.

    Parameters
    ----------
    count : int
    """

    count: int

    def lengths(self) -> Ints:
        """Tokens of each span: int64[count]."""
        return np.random.default_rng(0).integers(1, 201, self.count)

    def payload_sizes(self) -> Ints:
        """Values of each payload: int64[count]."""
        return np.random.default_rng(1).integers(0, 41, self.count)

    def records(self) -> list[SpanRecord]:
        """All records, of 50 spans each; the last may be shorter."""
        lengths, sizes = self.lengths().tolist(), self.payload_sizes().tolist()
        pool = tokens_of_shard(5)
        payloads = {size: pool[:size] for size in range(41)}
        return [
            SpanRecord(
                pool[: sum(lengths[first : first + SPANS_OF_RECORD])],
                lengths[first : first + SPANS_OF_RECORD],
                [payloads[size] for size in sizes[first : first + SPANS_OF_RECORD]],
            )
            for first in range(0, self.count, SPANS_OF_RECORD)
        ]
