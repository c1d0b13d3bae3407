"""Columns: take rows of packed records apart into one dense array a field, widening integers on the way.

Letters: K fields, R runs, F files. Of field ``k``, ``fields[0, k]`` says how it is copied (``_kernels/status.py``),
``fields[1, k]`` where it stands in a record; ``fields[2, k]`` is the size of one of its values in the column, in bytes,
and ``fields[3, k]`` the column's address.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from guideloom._kernels.gather import are_runs, fault
from guideloom._kernels.jit import kernel
from guideloom._kernels.status import (
    BAD_RANGE,
    COPY_1,
    COPY_2,
    COPY_4,
    COPY_8,
    COPY_ANY,
    DONE,
    I4_TO_I8,
    U1_TO_I4,
    U1_TO_I8,
    U2_TO_I4,
    U2_TO_I8,
    U4_TO_I8,
)

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

_WIDENINGS = {
    ("u1", "i4"): U1_TO_I4,
    ("u2", "i4"): U2_TO_I4,
    ("u1", "i8"): U1_TO_I8,
    ("u2", "i8"): U2_TO_I8,
    ("u4", "i8"): U4_TO_I8,
    ("i4", "i8"): I4_TO_I8,
}
_COPIES = {1: COPY_1, 2: COPY_2, 4: COPY_4, 8: COPY_8}


def copy_code(source: np.dtype[Any], target: np.dtype[Any]) -> int | None:
    """Return how a kernel copies a field of one dtype into a column of another; None when only NumPy can."""
    if source == target:
        return _COPIES.get(source.itemsize, COPY_ANY)
    if source.subdtype or target.subdtype or not (source.isnative and target.isnative):
        return None
    return _WIDENINGS.get((source.str[1:], target.str[1:]))


def _view(address: int, nbytes: int) -> U8:
    import ctypes

    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


_TYPES = {
    U1_TO_I4: ("<u1", "<i4"),
    U2_TO_I4: ("<u2", "<i4"),
    U1_TO_I8: ("<u1", "<i8"),
    U2_TO_I8: ("<u2", "<i8"),
    U4_TO_I8: ("<u4", "<i8"),
    I4_TO_I8: ("<i4", "<i8"),
}


def _spread(buffer: U8, itemsize: int, fields: I64, first_value: int) -> None:
    """Take the records of a buffer apart, as the compiled loops do."""
    count = buffer.size // itemsize
    rows = buffer[: count * itemsize].reshape(count, itemsize)
    for code, offset, size, out in fields.T.tolist():
        source, target = _TYPES.get(code, (f"V{size}", f"V{size}"))
        values = np.ascontiguousarray(rows[:, offset : offset + np.dtype(source).itemsize]).view(source)
        _view(out + first_value * size, count * size).view(target)[:] = values.reshape(-1).astype(target)


def _spread_mapped_numpy(
    bases: I64, sizes: I64, file: I64, src: I64, dst: I64, nbytes: I64, lo: int, hi: int,
    itemsize: int, fields: I64, room: int, shift: int, status: I64,
) -> int:  # fmt: skip
    """Twin of :func:`spread_mapped`."""
    if not are_runs(lo, hi, file, src, dst, nbytes):
        status[0] = BAD_RANGE
        return max(lo, 0)
    for r in range(lo, hi):
        f, s, n = int(file[r]), int(src[r]), int(nbytes[r])
        if n == 0:
            continue
        first = (int(dst[r]) - shift) // itemsize
        status[0] = fault(bases, sizes, f, s, n, first * itemsize, room * itemsize)
        if status[0]:
            return r
        _spread(_view(int(bases[f]) + s, n), itemsize, fields, first)
    return DONE


@kernel(
    "int64(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64, int64, "
    "int64, int64[:, ::1], int64, int64, int64[::1])",
    twin=_spread_mapped_numpy,
    build=True,
)
def spread_mapped() -> Any:
    """Gather records out of mapped files straight into columns: each byte is touched once.

    The arguments of ``gather_mapped`` up to ``hi``; then ``itemsize, fields int64[4, K], room, shift, status``: every
    column has room for ``room`` values, ``shift`` is in bytes of records.
    """
    from guideloom._kernels import native

    return native.spread_mapped
