"""Documents of NumPy arrays: read as views, and batched as flat values and offsets without a collate function."""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from guideloom import DocumentNumpyFormat, DocumentStorage, StatefulDataLoader


def main(folder: Path) -> None:
    """Write into ``folder``, and read from it."""
    # Several named arrays a document, each of its own length. Reading copies nothing.
    rollouts = DocumentStorage(folder / "rollouts", DocumentNumpyFormat({"tokens": "<u2", "rewards": "<f4"}))
    with rollouts.sync_writer() as writer:
        for number in range(3):
            writer.append(0, {"tokens": np.arange(number, 3 * number + 2), "rewards": [0.5 * number]})
    with rollouts.sync_reader() as reader:
        rollout = reader.read(2)
        print("tokens", rollout["tokens"].tolist(), "rewards", rollout["rewards"].tolist())

    # Without fields each document says itself what it holds: pictures of any size, say.
    pictures = DocumentStorage(folder / "pictures", DocumentNumpyFormat())
    with pictures.sync_writer() as writer:
        writer.append(0, {"pixels": np.zeros((4, 6, 3), np.uint8), "label": np.int64(7)})
    with pictures.sync_reader() as reader:
        picture = reader.read(0)
        print("pixels", picture["pixels"].shape, "label", int(picture["label"]))

    # One field: a batch is all values end to end, and where each document begins. No padding, no Python a document.
    texts = DocumentStorage(folder / "texts", DocumentNumpyFormat({"tokens": "<i4"}))
    with texts.sync_writer() as writer:
        for number in range(8):
            writer.append(number % 2, {"tokens": np.full(number + 1, number)})
    options = {"device": "cpu", "local_batch_size": 4, "shuffle": True, "shuffle_seed": 1}
    with StatefulDataLoader.from_storage(texts, None, **options) as loader:
        for batch in loader:
            lengths = torch.diff(batch["offsets"])
            nested = torch.split(batch["values"], lengths.tolist())
            print("lengths", lengths.tolist(), "first tokens", [int(tokens[0]) for tokens in nested])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="an empty folder (default: a temporary one)")
    given = parser.parse_args().folder
    with TemporaryDirectory() as temporary:
        main(given or Path(temporary))
