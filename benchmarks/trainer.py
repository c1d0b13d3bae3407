"""What loading costs beside a training step: the step's time with batches in memory against batches of GuideLoom.

    python -m benchmarks.trainer [DIR] [--steps 10] [--rounds 25] [--width 32]

The step is real (an embedding, two matrix products, backward, an optimiser) and keeps all of torch's threads busy on
the CPU, which is the hardest case: whatever a loading thread takes, it takes from the step. Ways of loading take turns,
and ratios within a round are compared. Without DIR it makes a data set of 64 MiB in a temporary folder.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.workloads import LENGTH, loader, stream_storage
from guideloom import StreamDataset
from guideloom.io import PosixPreadIO

VOCABULARY = 8192
NUM_READY = 256
SETTINGS = ((0, 0), (0, 4), (1, 4))


class Step:
    """One step of a small model."""

    def __init__(self, width: int) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Embedding(VOCABULARY, width),
            torch.nn.Linear(width, 4 * width),
            torch.nn.GELU(),
            torch.nn.Linear(4 * width, width),
        )
        self.optimiser = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def __call__(self, batch: Any) -> None:
        tokens = batch["tokens"][:, :256].long() % VOCABULARY
        self.optimiser.zero_grad(set_to_none=True)
        self.model(tokens).square().mean().backward()
        self.optimiser.step()


def make(folder: Path) -> Path:
    with stream_storage(folder, PosixPreadIO()).sync_writer() as writer:
        for shard in range(4):
            writer.append(shard, {"tokens": np.random.default_rng(shard).integers(0, VOCABULARY, 1 << 22, np.int32)})
    return folder


def times(step: Step, batches: Iterator[Any], num: int) -> list[float]:
    """Seconds of each step, its batch included, after three that do not count."""
    for batch in islice(batches, 3):
        step(batch)
    found = []
    for _ in range(num):
        begun = time.perf_counter()
        step(next(batches))
        found.append(time.perf_counter() - begun)
    return found


def compare(folder: Path, steps: int, rounds: int, width: int) -> dict[str, Any]:
    """Return for each way of loading the median step in seconds, and its ratio to batches in memory.

    The ratio is the median over the rounds of the ratio within a round, so that other work on the machine, which comes
    and goes, weighs less. "memory again" is the same thing a second time: how far it is from 1 is the noise.
    """
    step = Step(width)
    dataset = StreamDataset(stream_storage(folder, PosixPreadIO()), LENGTH)
    with loader(dataset) as source:
        # More than the processor's caches hold: in no training run does a batch lie there before its step.
        ready = list(islice(iter(source), NUM_READY))
    in_memory = cycle(ready)
    ways: dict[str, tuple[int, int] | None] = {"memory": None, "memory again": None}
    ways |= {f"workers={workers} prefetch={prefetch}": (workers, prefetch) for workers, prefetch in SETTINGS}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        turn = number % len(ways)
        for name in [*ways][turn:] + [*ways][:turn]:
            setting = ways[name]
            if setting is None:
                found[name].append(statistics.median(times(step, in_memory, steps)))
            else:
                with loader(dataset, None, *setting) as source:
                    found[name].append(statistics.median(times(step, iter(source), steps)))
    memory = found["memory"]
    return {
        "threads": torch.get_num_threads(),
        "rounds": rounds,
        "step_s": {name: statistics.median(values) for name, values in found.items()},
        "ratio": {
            name: statistics.median(value / base for value, base in zip(values, memory, strict=True))
            for name, values in found.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Step time with GuideLoom against batches in memory.")
    parser.add_argument("directory", nargs="?", type=Path, help="a stream with one int32 field named tokens")
    parser.add_argument("--steps", type=int, default=10, help="steps of a round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=25, help="default: %(default)s")
    parser.add_argument("--width", type=int, default=32, help="of the model (default: %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.directory or make(Path(scratch))
        print(json.dumps(compare(folder, options.steps, options.rounds, options.width), indent=2))


if __name__ == "__main__":
    main()
