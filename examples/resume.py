"""Stop in the middle of an epoch and go on with the batch after, even with another batch size and other threads."""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from guideloom import StatefulDataLoader, StreamNumpyFormat, StreamStorage
from guideloom.errors import StateMismatchError


def first_tokens(samples: list[dict[str, np.ndarray]]) -> list[int]:
    """Collate to what tells windows apart."""
    return [int(sample["tokens"][0]) for sample in samples]


def make_loader(storage: StreamStorage, batch_size: int, workers: int = 0, seed: int = 42) -> StatefulDataLoader:
    """Return a loader of shuffled windows of 10 tokens."""
    return StatefulDataLoader.from_storage(
        storage,
        first_tokens,
        sequence_length=10,
        device=torch.device("cpu"),
        local_batch_size=batch_size,
        shuffle=True,
        shuffle_seed=seed,
        num_workers=workers,
        prefetch=2 * workers,
    )


def main(folder: Path) -> None:
    """Write into ``folder``, and read from it."""
    storage = StreamStorage(folder, StreamNumpyFormat(np.dtype([("tokens", "<i4")])))
    with storage.sync_writer() as writer:
        writer.append(0, {"tokens": np.arange(480, dtype=np.int32)})

    with make_loader(storage, batch_size=4) as loader:
        uninterrupted = [sample for batch in loader for sample in batch]

    # Five batches, with two more already prefetched: these do not count.
    with make_loader(storage, batch_size=4, workers=1) as loader, closing(iter(loader)) as batches:
        before = [sample for batch in islice(batches, 5) for sample in batch]
        saved = json.dumps(loader.state_dict())
    print("state:", saved)

    with make_loader(storage, batch_size=7, workers=3) as loader:
        loader.load_state_dict(json.loads(saved))
        after = [sample for batch in loader for sample in batch]
    assert before + after == uninterrupted
    print(f"{len(before)} windows before, {len(after)} after: the same as {len(uninterrupted)} without a stop")

    with make_loader(storage, batch_size=4, seed=43) as loader:
        try:
            loader.load_state_dict(json.loads(saved))
        except StateMismatchError as error:
            print("another seed is refused:", error)

    # More data is other data, and refused too, unless you say that the position is meant: here 20 windows are done.
    with storage.sync_writer(mode="append") as writer:
        writer.append(0, {"tokens": np.arange(480, 520, dtype=np.int32)})
    with make_loader(storage, batch_size=4) as loader:
        loader.load_state_dict(json.loads(saved), override={"identity"})
        print(f"{sum(map(len, loader))} of {loader.dataset_size} windows left, in an order of their own")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="an empty folder (default: a temporary one)")
    given = parser.parse_args().folder
    with TemporaryDirectory() as temporary:
        main(given or Path(temporary))
