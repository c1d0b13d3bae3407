"""Who gets which positions of an epoch: pure arithmetic on Python integers.

The rules, for N samples, global batch size G, world size W, and an epoch that is entered at offset ``o``:

- Global batch ``k`` is the positions ``[o + k * G, min(o + (k + 1) * G, N))``; with ``drop_last`` only full ones count.
- Position ``p`` belongs to rank ``p % W``, whatever the offset. So another world size with the same G leaves the
  content of every global batch as it was.
- Every rank takes the same number of steps. In a last batch of fewer than G positions, ranks differ by at most one
  sample, and a rank may have none.
"""

from __future__ import annotations

from dataclasses import dataclass

from guideloom._base.checks import as_int
from guideloom._base.errors import ArgumentError, OutOfRangeError


@dataclass(frozen=True, slots=True)
class Partition:
    """The part of one rank.

    Parameters
    ----------
    size : int
        Number of samples N of the epoch, at least 0.
    local_batch_size : int
        Samples of one rank in a full batch, at least 1.
    rank : int
        In ``[0, world_size)``.
    world_size : int
        Number of ranks W, at least 1.
    drop_last : bool
        Whether a last batch that is not full is left out.

    Raises
    ------
    ArgumentError
        An argument is no integer, or out of range.

    Notes
    -----
    Every method is O(1).
    """

    size: int
    local_batch_size: int
    rank: int
    world_size: int
    drop_last: bool

    def __post_init__(self) -> None:
        for name in ("size", "local_batch_size", "rank", "world_size"):
            object.__setattr__(self, name, as_int(getattr(self, name), name))
        object.__setattr__(self, "drop_last", bool(self.drop_last))
        for name, least in (("size", 0), ("local_batch_size", 1), ("world_size", 1)):
            if getattr(self, name) < least:
                raise ArgumentError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not 0 <= self.rank < self.world_size:
            raise ArgumentError(f"rank must be in [0, world_size) = [0, {self.world_size}), got {self.rank}")

    @property
    def global_batch_size(self) -> int:
        """Samples of all ranks in a full batch, G."""
        return self.local_batch_size * self.world_size

    def require_full_batch(self, samples: str = "samples") -> None:
        """Refuse a data set that cannot fill one global batch, also with ``drop_last=False``.

        Parameters
        ----------
        samples : str
            What the samples are, for the message.

        Raises
        ------
        ArgumentError
            ``size < global_batch_size``.
        """
        if self.size < self.global_batch_size:
            raise ArgumentError(
                f"the data set must hold at least one global batch of {self.global_batch_size} samples "
                f"(local_batch_size {self.local_batch_size} * world_size {self.world_size}), it holds {self.size} "
                f"{samples}: "
                + (
                    "use a smaller batch or more data"
                    if self.size
                    else "there is nothing to make a batch of: use more data or, of a stream, shorter windows"
                )
            )

    def num_batches(self, offset: int = 0) -> int:
        """Return the number of steps from ``offset`` to the end of the epoch; it is the same for every rank.

        Parameters
        ----------
        offset : int
            Positions delivered already, in ``[0, size]``.

        Raises
        ------
        OutOfRangeError
            ``offset`` is outside ``[0, size]``.
        """
        left = self.size - self._checked_offset(offset)
        return left // self.global_batch_size if self.drop_last else -(-left // self.global_batch_size)

    def span(self, offset: int, step: int) -> tuple[int, int]:
        """Return the positions ``[lo, hi)`` of all ranks in batch ``step`` after ``offset``.

        Parameters
        ----------
        offset : int
            Where the epoch was entered, in ``[0, size]``.
        step : int
            In ``[0, num_batches(offset))``.

        Raises
        ------
        OutOfRangeError
            ``offset`` or ``step`` is outside its range.
        """
        offset, step = self._checked_offset(offset), as_int(step, "step")
        steps = self.num_batches(offset)
        if not 0 <= step < steps:
            raise OutOfRangeError(
                f"step {step} is outside [0, {steps}), the batches from offset {offset} to the end of the epoch"
            )
        lo = offset + step * self.global_batch_size
        return lo, min(lo + self.global_batch_size, self.size)

    def batch_positions(self, offset: int, step: int) -> tuple[int, int, int]:
        """Return this rank's positions in batch ``step`` after ``offset``: ``(start, stride, count)``.

        Returns
        -------
        tuple of int
            Positions ``start, start + stride, ...``, ``count`` of them: ``local_batch_size``, or less in the last batch
            of an epoch with ``drop_last=False``. When it is 0, ``start`` may be past the last position.

        Raises
        ------
        OutOfRangeError
            ``offset`` or ``step`` is outside its range, see :meth:`span`.
        """
        lo, hi = self.span(offset, step)
        start = lo + (self.rank - lo) % self.world_size
        return start, self.world_size, max(0, -(-(hi - start) // self.world_size))

    def _checked_offset(self, offset: int) -> int:
        offset = as_int(offset, "offset")
        if not 0 <= offset <= self.size:
            raise OutOfRangeError(f"offset {offset} is outside [0, {self.size}], the positions of the epoch")
        return offset
