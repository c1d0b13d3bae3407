"""Documents packed into windows: the document of each token, positions in it, and a mask that keeps documents apart."""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from guideloom import StatefulDataLoader, StreamWithMetaStorage


class DocumentFormat:
    """A record is the tokens of one document, which is one span without a payload to speak of."""

    stream_dtype = np.dtype("<u2")

    def pack_spans(self, data: list[int]) -> tuple[Any, list[int], list[bytes]]:
        """Return the elements, the length of the one span, and its payload."""
        return np.array(data, self.stream_dtype), [len(data)], [b""]

    def unpack(self, stream: Any, shards: Any, index: Any, payloads: Any) -> tuple[Any, Any]:
        """Return a window's tokens, and the document of each, counted from 0 in the window."""
        return stream, index


def positions(documents: torch.Tensor) -> torch.Tensor:
    """Return how far each token [B, T] is behind the first one of its document in the window."""
    place = torch.arange(documents.shape[1]).expand_as(documents)
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return place - torch.where(begins, place, 0).cummax(dim=1).values


def main(folder: Path) -> None:
    """Write into ``folder``, and read from it."""
    storage = StreamWithMetaStorage(folder, DocumentFormat())
    with storage.sync_writer() as writer:
        for length in (3, 5, 2, 9):
            writer.append(0, [length] * length)

    options = {"sequence_length": 8, "overlap": 1, "dtype": "int64", "local_batch_size": 2, "device": "cpu"}
    with StatefulDataLoader.from_storage(storage, None, **options) as loader:
        batch = next(iter(loader))
    documents = batch["span_index"][:, :-1]  # of the inputs [B, T]
    # True where a token may look: at itself and what is before it in its own document, [B, T, T].
    mask = (documents[:, :, None] == documents[:, None, :]).tril()
    # The label behind a document's last token is the next document's first: no loss there.
    counts = batch["span_index"][:, 1:] == documents
    for window in range(2):
        print("tokens   ", batch["elements"][window].tolist())
        print("documents", documents[window].tolist())
        print("positions", positions(documents)[window].tolist())
        print("seen     ", mask[window].sum(dim=1).tolist())
        print("counts   ", counts[window].int().tolist())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="an empty folder (default: a temporary one)")
    given = parser.parse_args().folder
    with TemporaryDirectory() as temporary:
        main(given or Path(temporary))
