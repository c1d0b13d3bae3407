"""Window length and batch size of a measurement: what the user gave, and for the rest what the data has room for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from guideloom._base.errors import ArgumentError

SEQUENCE_LENGTH = 2048
BATCH_SIZE = 32

LEAST_BATCHES = 4
"""An epoch that is chosen here has as many batches at least, so that there are some behind the first one."""

LEAST_LENGTH = 64
"""Below this many elements a window is not made shorter: fewer of them are taken for a batch."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is measured.

    Parameters
    ----------
    sequence_length : int or None
        Elements of a window, T; None for documents.
    batch_size : int
        Samples of a batch, B.
    note : str or None
        Says what was chosen smaller than by default, and why.
    """

    sequence_length: int | None
    batch_size: int
    note: str | None = None


def choose_sizes(
    total: int | None,
    *,
    is_document: bool,
    sequence_length: int | None = None,
    batch_size: int | None = None,
    path: Path | None = None,
) -> Sizes:
    """Keep what was given, and choose the rest: the defaults, or smaller ones where the data set is small.

    Parameters
    ----------
    total : int or None
        Elements or documents of the data set; None where it does not say, and the defaults are taken.
    is_document : bool
    sequence_length, batch_size : int, optional
        As the user gave them, at least 1.
    path : pathlib.Path, optional
        For the errors.

    Raises
    ------
    ArgumentError
        The data set is empty, or has less than one batch of what was given; it names the options and their limits.
    """
    given = [
        f"--{name} {value:,}"
        for name, value in (("batch-size", batch_size), ("sequence-length", sequence_length))
        if value is not None
    ]
    default_length = None if is_document else SEQUENCE_LENGTH
    if total is None:
        return Sizes(sequence_length or default_length, batch_size or BATCH_SIZE)
    unit = "documents" if is_document else "elements"
    if total == 0:
        raise ArgumentError(f"the data set has no {unit}: there is nothing to measure", path=path)
    length = 1 if is_document else sequence_length or _fitting_length(total, batch_size)
    samples = total // length
    if samples < (batch_size or 1):
        raise ArgumentError(
            f"{' and '.join(given)}: one batch needs {(batch_size or 1) * length:,} {unit}, the data set has "
            f"{total:,}; {_limits(total, sequence_length, batch_size)}",
            path=path,
        )
    size = batch_size or max(1, min(BATCH_SIZE, samples // LEAST_BATCHES))
    chosen = [
        f"{option} {value:,} instead of {default:,}"
        for option, wanted, value, default in (
            ("--sequence-length", sequence_length, length, SEQUENCE_LENGTH),
            ("--batch-size", batch_size, size, BATCH_SIZE),
        )
        if wanted is None and value != default and not (is_document and option == "--sequence-length")
    ]
    note = f"with {total:,} {unit} only, it measures {' and '.join(chosen)}; give your own" if chosen else None
    return Sizes(None if is_document else length, size, note)


def _fitting_length(total: int, batch_size: int | None) -> int:
    """Return a power of two of which ``total`` has some batches, as far as that goes."""
    room = total // (LEAST_BATCHES * (batch_size or BATCH_SIZE))
    length = min(SEQUENCE_LENGTH, 1 << max(0, room.bit_length() - 1))
    # A batch size that the user gave is kept, however short the windows get. Else these stay long enough to measure.
    return length if batch_size else min(total, max(length, LEAST_LENGTH))


def _limits(total: int, sequence_length: int | None, batch_size: int | None) -> str:
    remedies = []
    if batch_size is not None and total >= (sequence_length or 1):
        remedies.append(f"--batch-size of at most {total // (sequence_length or 1):,}")
    if sequence_length is not None and total >= (batch_size or 1):
        remedies.append(f"--sequence-length of at most {total // (batch_size or 1):,}")
    return f"give {', or '.join(remedies)}" if remedies else f"their product may be at most {total:,}"
