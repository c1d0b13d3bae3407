"""Documents packed into windows, and what keeps them apart there: positions, cumulative lengths, masks."""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from guideloom import SpanNumpyFormat, StatefulDataLoader, StreamWithMetaStorage


def cumulative_lengths(documents: torch.Tensor) -> torch.Tensor:
    """Return where each piece of a document begins in the flattened batch [B, T], and last B * T, as int32."""
    begins = torch.ones_like(documents, dtype=torch.bool)  # a window's first token, and each that changes the document
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    end = torch.full((1,), documents.numel(), device=documents.device)
    return torch.cat([begins.flatten().nonzero().flatten(), end]).int()


def positions(cu_seqlens: torch.Tensor) -> torch.Tensor:
    """Return how far each token of the flattened batch is behind the first one of its piece."""
    total = int(cu_seqlens[-1])
    return torch.arange(total, device=cu_seqlens.device) - cu_seqlens[:-1].repeat_interleave(cu_seqlens.diff())


def main(folder: Path) -> None:
    """Write into ``folder``, and read from it."""
    storage = StreamWithMetaStorage(folder, SpanNumpyFormat([("token", "<u2")]))
    with storage.sync_writer() as writer:
        for length in (3, 5, 0, 2, 9):
            writer.append(0, {"token": [length] * length})  # a document is a span

    options = {"sequence_length": 8, "overlap": 1, "dtype": "int64", "local_batch_size": 2, "device": "cpu"}
    with StatefulDataLoader.from_storage(storage, None, **options) as loader:
        batch = next(iter(loader))
    documents = batch["span_index"][:, :-1]  # of the inputs [B, T]
    # For attention of variable length: flash_attn_varlen_func and its like take these, and the longest of them.
    cu_seqlens = cumulative_lengths(documents)
    places = positions(cu_seqlens).view_as(documents)
    print("cu_seqlens", cu_seqlens.tolist(), "longest", int(cu_seqlens.diff().max()))
    # Else, a mask: true where a token may look: at itself and what is before it in its own document, [B, T, T].
    mask = (documents[:, :, None] == documents[:, None, :]).tril()
    # The label behind a document's last token is the next document's first: no loss there.
    counts = batch["span_index"][:, 1:] == documents
    for window in range(2):
        print("tokens   ", batch["token"][window].tolist())
        print("documents", documents[window].tolist())
        print("positions", places[window].tolist())
        print("seen     ", mask[window].sum(dim=1).tolist())
        print("counts   ", counts[window].int().tolist())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="an empty folder (default: a temporary one)")
    given = parser.parse_args().folder
    with TemporaryDirectory() as temporary:
        main(given or Path(temporary))
