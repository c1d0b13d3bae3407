"""Spans in batches: the source of every token, with a collate function, and as tensors without one."""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from guideloom import StatefulDataLoader, StreamNumpyFormat, StreamWithMetaStorage

SOURCES = {"web": 13, "books": 7, "code": 12}  # tokens of each


class SourceFormat:
    """A record is a source and its tokens; the source's name is the payload of one span."""

    numbers = StreamNumpyFormat([("token", "<u2")])
    stream_dtype = numbers.stream_dtype

    def pack_spans(self, data: tuple[str, list[int]]) -> tuple[Any, list[int], list[bytes]]:
        """Return the elements, the length of the one span, and its payload."""
        source, tokens = data
        return self.numbers.pack({"token": tokens}), [len(tokens)], [source.encode()]

    def unpack(self, stream: Any, shards: Any, index: Any, payloads: Any) -> tuple[Any, list[str]]:
        """Return a window's tokens, and the source of each."""
        names = [bytes(payload).decode() for payload in payloads]
        return stream, [names[span] for span in index]


def main(folder: Path) -> None:
    """Write into ``folder``, and read from it."""
    storage = StreamWithMetaStorage(folder, SourceFormat())
    with storage.sync_writer() as writer:
        for number, (source, count) in enumerate(SOURCES.items()):
            writer.append(0, (source, [100 * number] * count))

    # With a collate function: what unpack gave, one a sample.
    with StatefulDataLoader.from_storage(storage, list, sequence_length=8, local_batch_size=2, device="cpu") as loader:
        for batch in loader:
            print("sources of each window:", [sorted(set(sources)) for _, sources in batch])

    # Without: tensors for the whole batch, and payloads as bytes end to end. No Python a sample.
    with StatefulDataLoader.from_storage(storage, None, sequence_length=8, local_batch_size=2, device="cpu") as loader:
        for batch in loader:
            bounds, offsets = batch["span_bounds"].tolist(), batch["span_offsets"].tolist()
            payload = batch["span_payload"].numpy().tobytes()
            names = [payload[begin:end].decode() for begin, end in pairwise(offsets)]
            for window, tokens in enumerate(batch["token"]):
                mine = names[bounds[window] : bounds[window + 1]]
                for span, name in enumerate(mine):
                    inside = batch["span_index"][window] == span  # bool [T]: a loss mask for one source, say
                    print(f"window {window}: {int(inside.sum())} tokens of {name}, the first {int(tokens[inside][0])}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="an empty folder (default: a temporary one)")
    given = parser.parse_args().folder
    with TemporaryDirectory() as temporary:
        main(given or Path(temporary))
