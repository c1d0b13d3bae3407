"""What a training process tells its parent: one JSON object a line on standard output."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Started:
    """The run is about to take its first step.

    Parameters
    ----------
    step : int
        Steps already done, i.e. those of the checkpoint; 0 for a fresh run.
    parameters : int
        Trainable numbers of the model.
    """

    step: int
    parameters: int


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step.

    Parameters
    ----------
    step : int
        From 1.
    loss : float
        Cross entropy in nats a token. JSON keeps all its bits.
    digest : str
        Hash of the batch: tokens and source files.
    wait_s, step_s : float
        Time waited for the batch, and of the whole step with the wait, in seconds.
    """

    step: int
    loss: float
    digest: str
    wait_s: float
    step_s: float


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint is on disk, whole."""

    step: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The run is complete.

    Parameters
    ----------
    weights : str
        Hash of all the model's weights.
    sources : list of list of str
        For each sample of the last batch the files it came from.
    """

    weights: str
    sources: list[list[str]]


Record: TypeAlias = Started | Step | Saved | Finished
_KINDS: dict[str, type[Record]] = {kind.__name__: kind for kind in (Started, Step, Saved, Finished)}


def to_line(record: Record) -> str:
    """Return ``record`` as one line of JSON, without the line end."""
    return json.dumps({"record": type(record).__name__, **asdict(record)})


def from_line(line: str) -> Record:
    """Return the record in a line that ``to_line`` made."""
    fields = json.loads(line)
    return _KINDS[fields.pop("record")](**fields)
