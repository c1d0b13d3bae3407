"""A collate function that takes long runs in processes, while the trainer takes its step."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from guideloom import DocumentJsonFormat, DocumentStorage, StatefulDataLoader


def collate(documents: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Pad texts to one length; at module level, so that a worker process finds it by its name."""
    encoded = [torch.tensor(list(document["text"].encode())) for document in documents]
    tokens = torch.nn.utils.rnn.pad_sequence(encoded, batch_first=True, padding_value=-1)
    return {"tokens": tokens, "worker": torch.tensor(os.getpid())}


def make_loader(storage: DocumentStorage, **how: Any) -> StatefulDataLoader:
    """Return a loader; ``how`` it reads changes no batch and no state."""
    options: dict[str, Any] = {"local_batch_size": 4, "shuffle": True, "shuffle_seed": 3, "device": "cpu"}
    return StatefulDataLoader.from_storage(storage, collate, **options, **how)


def main(folder: Path) -> None:
    """Write into ``folder``, and read from it."""
    storage = DocumentStorage(folder, DocumentJsonFormat())
    with storage.sync_writer() as writer:
        for number in range(24):
            writer.append(0, {"text": "ab" * (number + 1)})

    with make_loader(storage) as loader:
        alone = list(loader)
    # The first iter starts the processes, close ends them; prefetch is the number of batches under way.
    with make_loader(storage, parallel_method="process", num_workers=2, prefetch=4) as loader:
        together = list(loader)
    assert all(torch.equal(a["tokens"], b["tokens"]) for a, b in zip(alone, together, strict=True))
    pids = {int(batch["worker"]) for batch in together}
    assert os.getpid() not in pids
    print(
        f"{len(together)} batches from {len(pids)} processes, the same as without: first",
        together[0]["tokens"].shape,
    )


if __name__ == "__main__":  # a process that is spawned imports this file
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="an empty folder (default: a temporary one)")
    given = parser.parse_args().folder
    with TemporaryDirectory() as temporary:
        main(given or Path(temporary))
