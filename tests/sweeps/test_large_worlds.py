"""The loader of one rank among thousands, over trillions of tokens, against arithmetic on Python integers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from guideloom import StatefulDataLoader, StreamDataset, StreamStorage
from guideloom._plan.order import FeistelOrder
from guideloom.io import MmapIO, PosixPreadIO
from guideloom.testing import IdStreamFormat, make_sparse_stream
from guideloom.types import IOReaderAbstract

TOKENS, LENGTH, LOCAL, WORLD = 2 * 10**12 + 5, 8192, 8, 4096
WINDOWS = (TOKENS + 2 - 1) // LENGTH  # two shards of one token each are in front
GLOBAL = LOCAL * WORLD
STEPS = WINDOWS // GLOBAL
RANKS = [0, 1, 2047, 4095]
# Epoch and offset: the start, amidst, where another world stopped, the last full batch, the rest of it.
PLACES = [(0, 0), (1, STEPS // 2 * GLOBAL), (2**40, WINDOWS // 2 + 12_345), (0, WINDOWS - GLOBAL), (3, STEPS * GLOBAL)]
SEED = 2**70 + 1


def windows_of(rank: int, epoch: int, offset: int) -> list[int]:
    """Windows of a rank's batch at ``offset``."""
    positions = [p for p in range(offset, min(offset + GLOBAL, WINDOWS)) if p % WORLD == rank]
    return FeistelOrder(WINDOWS, SEED, epoch).at(positions).tolist()


def marks_of(window: int) -> dict[int, int]:
    """Some tokens of a window, the overlapping one among them, by their index in the stream."""
    return {i: i * 2654435761 % 251 + 1 for i in (window * LENGTH + at for at in (0, 1, LENGTH - 1, LENGTH))}


@pytest.mark.slow
def test_ranks_of_a_large_world_get_their_own_windows(tmp_path: Path) -> None:
    wanted = {(rank, *place): windows_of(rank, *place) for rank in RANKS for place in PLACES}
    marks = {i: value for windows in wanted.values() for w in windows for i, value in marks_of(w).items()}
    own = {i - 2: value for i, value in marks.items() if i >= 2}
    make_sparse_stream(tmp_path, TOKENS, "u1", own, shards_before=2)
    backends: dict[int, IOReaderAbstract] = {0: PosixPreadIO(), 1: MmapIO(), 2047: PosixPreadIO(), 4095: MmapIO()}
    for rank in RANKS:
        storage = StreamStorage(tmp_path, IdStreamFormat(np.dtype("u1")), backends[rank])
        with StatefulDataLoader(
            StreamDataset(storage, LENGTH, overlap=1),
            lambda samples: np.stack([sample.elements for sample in samples]),
            device="cpu", local_batch_size=LOCAL, rank=rank, world_size=WORLD, shuffle=True, shuffle_seed=SEED,
            drop_last=False,
        ) as loader:  # fmt: skip
            assert (loader.dataset_size, len(loader)) == (WINDOWS, -(-WINDOWS // GLOBAL))
            for epoch, offset in PLACES:
                state = {**loader.state_dict(), "epoch": epoch, "observation_offset": offset}
                loader.load_state_dict(state)
                assert loader.state_dict() == state
                iterator = iter(loader)
                batch = next(iterator)
                iterator.close()
                windows = wanted[rank, epoch, offset]
                assert batch.shape == (len(windows), LENGTH + 1)
                for row, window in zip(batch.tolist(), windows, strict=True):
                    expected = [marks.get(window * LENGTH + at, 0) for at in range(LENGTH + 1)]
                    if window == 0:
                        expected[:2] = [0, 0]  # of the shards in front
                    assert row == expected
                assert loader.state_dict()["observation_offset"] == min(offset + GLOBAL, WINDOWS)
