"""Whole documents of any size: write them as JSON, read some by number, iterate over shuffled batches."""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from guideloom import DocumentJsonFormat, DocumentStorage, StatefulDataLoader

TURNS = ("What does the loader count?", "Batches delivered.", "And those prefetched?", "They do not count.")


def collate(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """Documents stay lists of text; their lengths become a tensor."""
    return {
        "names": [document["name"] for document in documents],
        "num_turns": torch.tensor([len(document["turns"]) for document in documents]),
    }


def main(folder: Path) -> None:
    """Write into ``folder``, and read from it."""
    storage = DocumentStorage(folder, DocumentJsonFormat())

    with storage.sync_writer() as writer:
        for number in range(10):
            writer.append(number % 2, {"name": f"chat-{number}", "turns": TURNS[: number % 5]})

    # Documents of shard 0 come first; any order may be asked for, and repeats.
    with storage.sync_reader() as reader:
        print(f"{reader.total_length} documents in {reader.num_shards} shards")
        print("documents 9, 0, 0:", [document["name"] for document in reader.read_many([9, 0, 0])])

    with StatefulDataLoader.from_storage(
        storage, collate, device=torch.device("cpu"), local_batch_size=5, shuffle=True, shuffle_seed=7
    ) as loader:
        names: list[str] = []
        for batch in loader:
            print(f"batch: {', '.join(batch['names'])}; turns {batch['num_turns'].tolist()}")
            names += batch["names"]
    assert sorted(names) == [f"chat-{number}" for number in range(10)]
    print("every document once")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="an empty folder (default: a temporary one)")
    given = parser.parse_args().folder
    with TemporaryDirectory() as temporary:
        main(given or Path(temporary))
