"""One training process: ``python -m demo.train FOLDER RUN``. Goes on from the run's checkpoint if there is one.

It knows nothing of being killed. What makes the run resumable is all here: the checkpoint holds the model, the
optimizer, the random state and ``loader.state_dict()``, and it replaces the one before in a single step.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import time
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from demo.model import Transformer, num_parameters, set_learning_rate
from demo.records import Finished, Record, Saved, Started, Step, to_line
from demo.settings import Layout, Settings
from demo.storage import Window, open_storage
from guideloom import StatefulDataLoader, StreamDataset


class Batch(NamedTuple):
    """Tokens as int64[B, T + 1], and for each sample the files it came from."""

    tokens: Tensor
    sources: list[tuple[str, ...]]


def collate(samples: list[Window]) -> Batch:
    """Stack the samples of a batch."""
    return Batch(torch.stack([torch.from_numpy(sample.tokens) for sample in samples]), [s.sources for s in samples])


def make_loader(folder: Path, settings: Settings) -> StatefulDataLoader:
    """Return the loader of shuffled windows; inputs and labels share a window, hence the overlap of one token."""
    dataset = StreamDataset(open_storage(folder), sequence_length=settings.sequence_length, overlap=1)
    return StatefulDataLoader(
        dataset,
        collate,
        device=torch.device("cpu"),
        local_batch_size=settings.batch_size,
        shuffle=True,
        shuffle_seed=settings.seed,
        num_workers=1,
        prefetch=4,
    )


def make_deterministic(settings: Settings) -> None:
    """Equal inputs shall give equal bits: fixed threads, fixed algorithms, seeded random numbers."""
    torch.set_num_threads(settings.threads)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(settings.seed)


def learning_rate(step: int, settings: Settings) -> float:
    """Rate of ``step`` (from 0): linear warm-up, then a cosine down to a tenth of the peak."""
    if step < settings.warmup_steps:
        return settings.peak_learning_rate * (step + 1) / settings.warmup_steps
    progress = (step - settings.warmup_steps) / max(1, settings.steps - settings.warmup_steps)
    return settings.peak_learning_rate * (0.1 + 0.45 * (1.0 + math.cos(math.pi * progress)))


def save_checkpoint(
    path: Path, step: int, model: Transformer, optimizer: torch.optim.Optimizer, loader: StatefulDataLoader
) -> None:
    """Replace the checkpoint at ``path``; a kill in here leaves the old one or the new one, never a torn one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".tmp")
    with unfinished.open("wb") as file:
        torch.save(
            {
                "step": step,
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "random": torch.get_rng_state(),
                "loader": dict(loader.state_dict()),
            },
            file,
        )
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)


def load_checkpoint(
    path: Path, model: Transformer, optimizer: torch.optim.Optimizer, loader: StatefulDataLoader
) -> int:
    """Bring everything to where the checkpoint at ``path`` was; return the number of steps done, 0 without one."""
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["random"])
    loader.load_state_dict(state["loader"])
    return int(state["step"])


def endless(loader: StatefulDataLoader) -> Generator[Batch, None, None]:
    """Yield batches, one epoch after the other."""
    while True:
        yield from loader


def digest_of(batch: Batch) -> str:
    """Return a hash of a batch's tokens and source files, in order."""
    digest = hashlib.blake2b(batch.tokens.numpy().tobytes(), digest_size=8)
    digest.update(repr(batch.sources).encode())
    return digest.hexdigest()


def digest_of_weights(model: Transformer) -> str:
    """Return a hash of all weights."""
    digest = hashlib.blake2b(digest_size=8)
    for name, weight in model.state_dict().items():
        digest.update(name.encode())
        digest.update(weight.numpy().tobytes())
    return digest.hexdigest()


def tell(record: Record) -> None:
    """Send ``record`` to the parent, at once."""
    print(to_line(record), flush=True)


def train(layout: Layout, run: str) -> None:
    """Train to the last step, from the run's checkpoint if there is one."""
    settings = Settings.load(layout.settings)
    checkpoint = layout.checkpoint(run)
    make_deterministic(settings)
    model = Transformer(
        settings.vocabulary, settings.sequence_length, settings.width, settings.layers, settings.heads, settings.dropout
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.01)
    tokens_per_step = settings.batch_size * settings.sequence_length
    with make_loader(layout.data, settings) as loader:
        done = load_checkpoint(checkpoint, model, optimizer, loader)
        tell(Started(done, num_parameters(model)))
        waited_s = took_s = 0.0
        sources: list[tuple[str, ...]] = []
        with (
            closing(endless(loader)) as batches,
            tqdm(
                total=settings.steps,
                initial=done,
                desc=run,
                unit="step",
                dynamic_ncols=True,
                disable=None,
                smoothing=0.1,
            ) as bar,
        ):
            for step in range(done + 1, settings.steps + 1):
                began = time.perf_counter()
                batch = next(batches)
                arrived = time.perf_counter()
                set_learning_rate(optimizer, learning_rate(step - 1, settings))
                loss = model.loss(batch.tokens)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                value = loss.item()
                ended = time.perf_counter()
                waited_s += arrived - began
                took_s += ended - began
                sources = batch.sources
                tell(Step(step, value, digest_of(batch), arrived - began, ended - began))
                bar.set_postfix_str(
                    f"loss {value:.3f}, {tokens_per_step * (step - done) / took_s:,.0f} tokens/s, "
                    f"waited {waited_s * 1e3:.0f} ms for data",
                    refresh=False,
                )
                bar.update()
                if step % settings.checkpoint_every == 0:
                    save_checkpoint(checkpoint, step, model, optimizer, loader)
                    tell(Saved(step))
    tell(Finished(digest_of_weights(model), [list(names) for names in sources]))


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where demo.run prepared the data")
    parser.add_argument("run", help="name of the run; its checkpoint lies under FOLDER/runs/RUN")
    arguments = parser.parse_args()
    train(Layout(arguments.folder), arguments.run)


if __name__ == "__main__":
    main()
