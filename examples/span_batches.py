"""Spans in batches: the source of every token, with a collate function, and as tensors without one."""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from guideloom import SpanNumpyFormat, StatefulDataLoader, StreamWithMetaStorage

SOURCES = {"web": 13, "books": 7, "code": 12}  # tokens of each


def main(folder: Path) -> None:
    """Write into ``folder``, and read from it."""
    storage = StreamWithMetaStorage(folder, SpanNumpyFormat([("token", "<u2")]))
    with storage.sync_writer() as writer:
        for number, (source, count) in enumerate(SOURCES.items()):
            writer.append(0, {"token": [100 * number] * count, "span_payloads": [source.encode()]})

    # With a collate function: a dict for each window.
    with StatefulDataLoader.from_storage(storage, list, sequence_length=8, local_batch_size=2, device="cpu") as loader:
        for batch in loader:
            print("sources:", [[bytes(payload).decode() for payload in window["span_payloads"]] for window in batch])

    # Without: tensors for the whole batch, and payloads as bytes end to end. No Python a sample.
    with StatefulDataLoader.from_storage(storage, None, sequence_length=8, local_batch_size=2, device="cpu") as loader:
        for batch in loader:
            bounds, offsets = batch["span_bounds"].tolist(), batch["span_offsets"].tolist()
            payload = batch["span_payload"].numpy().tobytes()
            names = [payload[begin:end].decode() for begin, end in pairwise(offsets)]
            for window, tokens in enumerate(batch["token"].long()):  # of uint16 torch can do little
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
