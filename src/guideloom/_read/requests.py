"""What an operation requests of the files: byte ranges into a buffer, or records into columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]


@dataclass(slots=True)
class Gather:
    """Runs ``[lo, hi)`` of a plan, to be read into ``out``; see ``FileSet.gather``."""

    file: I64
    src: I64
    dst: I64
    nbytes: I64
    lo: int
    hi: int
    out: U8
    shift: int = 0
    asked: bool = False


@dataclass(slots=True)
class Spread:
    """Runs ``[lo, hi)`` of a plan over packed records, to be taken apart: one dense array a field."""

    file: I64
    src: I64
    dst: I64
    nbytes: I64
    lo: int
    hi: int
    dtype: np.dtype[Any]
    fields: list[np.dtype[Any]]
    columns: list[npt.NDArray[Any]]
    shift: int = 0
    asked: bool = False

    def scratch(self) -> npt.NDArray[Any]:
        """Return a buffer for the records of all runs, for readers that cannot spread as they read."""
        return np.empty(self.columns[0].shape[:2], self.dtype)

    def as_gather(self, rows: npt.NDArray[Any]) -> Gather:
        """Return the gather that fills ``scratch()``."""
        out = rows.reshape(-1).view(np.uint8)
        return Gather(self.file, self.src, self.dst, self.nbytes, self.lo, self.hi, out, self.shift, self.asked)

    def fill(self, rows: npt.NDArray[Any]) -> None:
        """Take the records in ``rows`` apart."""
        names = self.dtype.names
        for k, column in enumerate(self.columns):
            np.copyto(column, rows if names is None else rows[names[k]], casting="safe")
