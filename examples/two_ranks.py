"""Two ranks of torch.distributed share an epoch; one rank alone finishes it."""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from guideloom import StatefulDataLoader, StreamNumpyFormat, StreamStorage

NUM_WINDOWS = 48
GLOBAL_BATCH = 8


def first_tokens(samples: list[dict[str, np.ndarray]]) -> torch.Tensor:
    """Collate to what tells windows apart."""
    return torch.tensor([int(sample["tokens"][0]) for sample in samples])


def make_loader(folder: Path, rank: int, world_size: int) -> StatefulDataLoader:
    """Return this rank's loader; the global batch is the same for any number of ranks."""
    return StatefulDataLoader.from_storage(
        StreamStorage(folder, StreamNumpyFormat(np.dtype([("tokens", "<i4")]))),
        first_tokens,
        sequence_length=10,
        device=torch.device("cpu"),
        local_batch_size=GLOBAL_BATCH // world_size,
        rank=rank,
        world_size=world_size,
        shuffle=True,
        shuffle_seed=42,
    )


def run_rank(rank: int, world_size: int, folder: Path, steps: int) -> None:
    """Take ``steps`` batches; rank 0 notes down what all ranks together saw, and the state."""
    dist.init_process_group("gloo", init_method=f"file://{folder / 'rendezvous'}", rank=rank, world_size=world_size)
    seen: list[list[int]] = []
    with make_loader(folder / "data", rank, world_size) as loader, closing(iter(loader)) as batches:
        for local in islice(batches, steps):
            parts = [torch.empty_like(local) for _ in range(world_size)]
            dist.all_gather(parts, local)
            # Position p of a global batch belongs to rank p % world_size.
            seen.append(torch.stack(parts, dim=1).flatten().tolist())
        if rank == 0:
            notes = {"seen": seen, "state": loader.state_dict()}
            (folder / "notes.json").write_text(json.dumps(notes), encoding="utf-8")
    dist.destroy_process_group()


def main(folder: Path) -> None:
    """Write into ``folder``, and read from it."""
    storage = StreamStorage(folder / "data", StreamNumpyFormat(np.dtype([("tokens", "<i4")])))
    with storage.sync_writer() as writer:
        writer.append(0, {"tokens": np.arange(10 * NUM_WINDOWS, dtype=np.int32)})
    with make_loader(folder / "data", rank=0, world_size=1) as loader:
        alone = [batch.tolist() for batch in loader]

    spawn(run_rank, args=(2, folder, 4), nprocs=2)  # type: ignore[no-untyped-call]
    notes = json.loads((folder / "notes.json").read_text(encoding="utf-8"))
    together = notes["seen"]
    assert together == alone[:4]
    print("two ranks, 4 steps: each global batch is that of one rank, e.g.", together[0])

    # Any rank's state is everybody's state.
    with make_loader(folder / "data", rank=0, world_size=1) as loader:
        loader.load_state_dict(notes["state"])
        rest = [batch.tolist() for batch in loader]
    assert rest == alone[4:]
    seen = sorted(sample // 10 for batch in together + rest for sample in batch)
    assert seen == list(range(NUM_WINDOWS))
    print(f"one rank, {len(rest)} steps more: every one of {NUM_WINDOWS} windows was seen once")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="an empty folder (default: a temporary one)")
    given = parser.parse_args().folder
    with TemporaryDirectory() as temporary:
        main(given or Path(temporary))
