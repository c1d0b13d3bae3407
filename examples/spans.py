"""A stream with metadata: one payload for each span of tokens, here the page that they came from."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from guideloom import StreamDataset, StreamWithMetaStorage
from guideloom.types import StorageBufferTypes

Page = tuple[str, bytes]  # address and text


class PageFormat:
    """A book is a list of pages; its tokens are the bytes of the text, and a span is a page."""

    stream_dtype: np.dtype[Any] = np.dtype("u1")

    def pack_spans(self, data: list[Page]) -> tuple[npt.NDArray[np.uint8], list[int], list[bytes]]:
        """Give all tokens, the length of each span, and the payload of each span. A span has at least one token."""
        pages = [(address, text) for address, text in data if text]
        tokens = np.frombuffer(b"".join(text for _, text in pages), dtype=np.uint8)
        return tokens, [len(text) for _, text in pages], [address.encode() for address, _ in pages]

    def unpack(
        self,
        stream: npt.NDArray[np.uint8],
        document_shard: npt.NDArray[np.int64],
        document_index: npt.NDArray[np.int32],
        document_data: Sequence[StorageBufferTypes],
    ) -> list[tuple[str, str]]:
        """Return the window as pieces of text, each with its address."""
        addresses = [bytes(payload).decode() for payload in document_data]
        return [(addresses[span], stream[document_index == span].tobytes().decode()) for span in range(len(addresses))]


def main(folder: Path) -> None:
    """Write into ``folder``, and read from it."""
    storage = StreamWithMetaStorage(folder, PageFormat())
    with storage.sync_writer() as writer:
        writer.append(0, [("moby/1", b"Call me Ishmael. "), ("moby/2", b"I stuffed a shirt or two. ")])
        writer.append(1, [("emma/1", b"Emma Woodhouse, handsome, clever, and rich. ")])

    # A window knows the spans that it touches, and nothing is stored beside each token for it.
    with StreamDataset(storage, sequence_length=28).sync_reader() as windows:
        for number in range(len(windows)):
            for address, text in windows[number]:
                print(f"window {number}: {text!r} is from {address}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="an empty folder (default: a temporary one)")
    given = parser.parse_args().folder
    with TemporaryDirectory() as temporary:
        main(given or Path(temporary))
