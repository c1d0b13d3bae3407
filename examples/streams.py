"""A stream of tokens: write shards, read windows, iterate over shuffled batches."""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from guideloom import StatefulDataLoader, StreamDataset, StreamNumpyFormat, StreamStorage
from guideloom.io import PosixPreadIO, SeekIO


def main(folder: Path) -> None:
    """Write into ``folder``, and read from it."""
    backend = PosixPreadIO() if PosixPreadIO.is_supported() else SeekIO()
    storage = StreamStorage(folder, StreamNumpyFormat(np.dtype([("tokens", "<u2")])), backend)

    # Three shards of 400 tokens. Real data comes in many records; several processes may write different shards.
    with storage.sync_writer() as writer:
        for shard in range(3):
            for record in range(4):
                first = 400 * shard + 100 * record
                writer.append(shard, {"tokens": np.arange(first, first + 100, dtype=np.uint16)})

    # The shards are one stream, and a window may lie across two of them.
    with storage.sync_reader() as reader:
        print(f"{reader.num_shards} shards, {reader.total_length} tokens")
        print("six tokens from 397:", reader.read(397, 6)["tokens"].tolist())

    # Windows of 32 tokens and the one that follows: inputs and labels in one read. Two bytes a token on disk,
    # int64 in the batch, because that is what torch wants of labels.
    dataset = StreamDataset(storage, sequence_length=32, overlap=1, dtype="int64")
    with StatefulDataLoader(
        dataset,
        collate_fn=None,  # numeric fields arrive as one tensor each: nothing runs per sample
        device=torch.device("cpu"),
        local_batch_size=4,
        shuffle=True,
        shuffle_seed=7,
        num_workers=1,
        prefetch=2,
    ) as loader:
        print(f"{loader.dataset_size} windows, {len(loader)} batches")
        for number, batch in enumerate(loader):
            inputs, labels = batch["tokens"][:, :-1], batch["tokens"][:, 1:]
            assert torch.equal(labels, inputs + 1)  # since these tokens count up
            if number == 0:
                print(f"inputs: {inputs.dtype} {tuple(inputs.shape)}, first tokens {inputs[:, 0].tolist()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="an empty folder (default: a temporary one)")
    given = parser.parse_args().folder
    with TemporaryDirectory() as temporary:
        main(given or Path(temporary))
