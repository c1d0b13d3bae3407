"""Several processes write one data set, each its own shards; later ones append, and replace."""

from __future__ import annotations

import argparse
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from guideloom import StreamNumpyFormat, StreamStorage
from guideloom.errors import ShardExistsError

NUM_SHARDS = 4


def make_storage(folder: Path) -> StreamStorage:
    """Return the storage; it opens nothing, so every process may make its own."""
    return StreamStorage(folder, StreamNumpyFormat(np.dtype([("tokens", "<u2")])))


def write_shard(folder: Path, shard: int) -> int:
    """Write one shard: it is there, whole, when the writer closes; notes for whoever finds it lie beside it."""
    with make_storage(folder).sync_writer(metadata={"tokenizer": "count-1"}) as writer:
        for first in range(0, 300, 100):
            writer.append(shard, {"tokens": 1000 * shard + np.arange(first, first + 100)})
        return writer.length(shard)


def main(folder: Path) -> None:
    """Write into ``folder``, and read from it."""
    with get_context("spawn").Pool(2) as pool:  # no locks, no coordinator: a shard has one writer, that is all
        lengths = pool.starmap(write_shard, [(folder, shard) for shard in range(NUM_SHARDS)])
    print("written by two processes:", lengths)

    try:
        write_shard(folder, 0)
    except ShardExistsError as error:
        print("a second time it is refused:", error)
    with make_storage(folder).sync_writer(mode="append") as writer:
        writer.append(0, {"tokens": [7, 7, 7]})
    with make_storage(folder).sync_writer(mode="overwrite") as writer:
        writer.append(3, {"tokens": [9]})
    with make_storage(folder).sync_reader() as reader:
        print("appended to, and replaced:", [reader.length(shard) for shard in range(reader.num_shards)])
        print("the last three:", reader.read(reader.total_length - 3, 3)["tokens"].tolist())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="an empty folder (default: a temporary one)")
    given = parser.parse_args().folder
    with TemporaryDirectory() as temporary:
        main(given or Path(temporary))
