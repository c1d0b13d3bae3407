"""The sizes of a demo run, and where its files lie."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that decides what a run computes; equal settings and equal text give equal losses."""

    corpus_bytes: int
    tokenizer_bytes: int
    vocabulary: int
    num_shards: int
    num_writers: int
    sequence_length: int
    batch_size: int
    steps: int
    checkpoint_every: int
    kill_after_step: int
    width: int
    layers: int
    heads: int
    dropout: float = 0.1
    peak_learning_rate: float = 2e-3
    warmup_steps: int = 20
    seed: int = 2026
    threads: int = 2

    def __post_init__(self) -> None:
        if not self.checkpoint_every < self.kill_after_step < self.steps:
            raise ValueError("the kill must come after the first checkpoint and before the last step")
        if self.kill_after_step % self.checkpoint_every == 0:
            raise ValueError("the kill must not fall on a checkpoint: there would be no lost work to do again")

    def save(self, path: Path) -> None:
        """Write the settings as JSON."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Settings:
        """Read what ``save`` wrote."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))


FULL = Settings(
    corpus_bytes=24_000_000,
    tokenizer_bytes=8_000_000,
    vocabulary=4096,
    num_shards=8,
    num_writers=4,
    sequence_length=128,
    batch_size=12,
    steps=240,
    checkpoint_every=40,
    kill_after_step=147,
    width=128,
    layers=3,
    heads=4,
)
"""About a minute and a half on two idle cores; where others use them too, two or three times that."""

QUICK = Settings(
    corpus_bytes=600_000,
    tokenizer_bytes=200_000,
    vocabulary=512,
    num_shards=3,
    num_writers=2,
    sequence_length=32,
    batch_size=4,
    steps=400,  # of 2 ms each: the kill must arrive before the last one on a busy machine too
    checkpoint_every=20,
    kill_after_step=47,
    width=32,
    layers=1,
    heads=2,
    warmup_steps=4,
    threads=1,  # steps this small would only wait for the other thread
)
"""The same path in seconds, for the tests."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a demo run keeps its files."""

    root: Path

    @property
    def settings(self) -> Path:
        return self.root / "settings.json"

    @property
    def tokenizer(self) -> Path:
        return self.root / "tokenizer.json"

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def picture(self) -> Path:
        return self.root / "loss.png"

    @property
    def summary(self) -> Path:
        return self.root / "summary.json"

    def checkpoint(self, run: str) -> Path:
        """The checkpoint of the training run named ``run``."""
        return self.root / "runs" / run / "checkpoint.pt"
