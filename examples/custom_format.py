"""Formats of your own: documents as a struct and an array view, spans whose metadata is encoded once."""

from __future__ import annotations

import argparse
import json
import struct
from collections.abc import Generator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from guideloom import DocumentStorage, StreamNumpyFormat, StreamWithMetaStorage
from guideloom.types import StorageBufferTypes, UserBufferTypes


class Rollout(NamedTuple):
    """What a policy said, and what it got for it."""

    prompt: int
    reward: float
    tokens: npt.NDArray[np.uint32]


class RolloutFormat:
    """A document is a fixed head and an array behind it. A format is two methods; it needs no base class."""

    _head = "<qf4x"  # prompt, reward, and a gap, so that the tokens start at a multiple of their size

    def pack(self, data: Rollout) -> bytes:
        """Encode one document."""
        return struct.pack(self._head, data.prompt, data.reward) + data.tokens.astype("<u4", casting="safe").tobytes()

    def unpack(self, encoded: StorageBufferTypes, shard: int) -> Rollout:
        """Decode one document: the tokens are a view on the read buffer, nothing is copied."""
        prompt, reward = struct.unpack_from(self._head, encoded)
        return Rollout(prompt, reward, np.frombuffer(encoded, "<u4", offset=struct.calcsize(self._head)))


class SourcedFormat:
    """Tokens in a row; each contiguous piece from one source is a span, and the span's payload tells the source."""

    stream_dtype: np.dtype[Any] = np.dtype("<u4")
    _numbers = StreamNumpyFormat([("token", stream_dtype)])

    def __init__(self) -> None:
        self.num_encoded = 0  # only for this example's last line

    def size(self, data: dict[str, Any]) -> int:
        """Elements that ``pack`` will give."""
        return len(data["tokens"])

    def pack(self, data: dict[str, Any]) -> Generator[tuple[int, UserBufferTypes | None], None, npt.NDArray[np.uint32]]:
        """Yield the source of each token, and its payload where a span begins: None everywhere else.

        For a source that is known token by token. Where whole spans are known, ``pack_spans`` as in ``spans.py`` is
        many times faster.
        """
        before = None
        for source in data["source"]:
            yield source, None if source == before else self._encode(data["about"][source])
            before = source
        # Refuses a token that does not fit; NumPy's own casts wrap it.
        return self._numbers.pack({"token": data["tokens"]})["token"]

    def _encode(self, about: dict[str, Any]) -> bytes:
        self.num_encoded += 1
        return json.dumps(about).encode()

    def unpack(
        self,
        stream: npt.NDArray[np.uint32],
        document_shard: npt.NDArray[np.int64],
        document_index: npt.NDArray[np.int32],
        document_data: Sequence[StorageBufferTypes],
    ) -> list[tuple[int, dict[str, Any]]]:
        """Decode each payload once, whatever the number of tokens that share it."""
        about = [json.loads(bytes(payload)) for payload in document_data]
        return [(token, about[span]) for token, span in zip(stream.tolist(), document_index.tolist(), strict=True)]


def documents(folder: Path) -> None:
    """Write and read rollouts."""
    storage = DocumentStorage(folder, RolloutFormat())
    with storage.sync_writer() as writer:
        for prompt in range(4):
            writer.append(prompt % 2, Rollout(prompt, 0.25 * prompt, np.arange(prompt, prompt + 3, dtype=np.uint32)))

    # Shard 0 comes first, so the rollouts are in the order 0, 2, 1, 3.
    with storage.sync_reader() as reader:
        for rollout in reader.read_many([3, 0]):
            copied = "a view" if rollout.tokens.base is not None else "a copy"
            print(f"prompt {rollout.prompt}, reward {rollout.reward}: tokens {rollout.tokens.tolist()}, {copied}")


def spans(folder: Path) -> None:
    """Write and read tokens with their sources."""
    sourced = SourcedFormat()
    storage = StreamWithMetaStorage(folder, sourced)
    about = [{"source": "code", "licence": "MIT"}, {"source": "web", "licence": None}]
    with storage.sync_writer() as writer:
        writer.append(0, {"tokens": range(1000), "source": [0] * 600 + [1] * 400, "about": about})

    # A window that lies across the two spans gets both payloads, and only those.
    with storage.sync_reader() as reader:
        for token, source in reader.read(598, 4):
            print(f"token {token} is from {source['source']}, licence {source['licence']}")
        print(f"{reader.total_length} tokens, metadata encoded {sourced.num_encoded} times")


def main(folder: Path) -> None:
    """Write into ``folder``, and read from it."""
    documents(folder / "rollouts")
    spans(folder / "sourced")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="an empty folder (default: a temporary one)")
    given = parser.parse_args().folder
    with TemporaryDirectory() as temporary:
        main(given or Path(temporary))
