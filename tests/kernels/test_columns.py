"""Columns out of packed records: the same values by every backend, compiled or not, at every itemsize and offset."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from guideloom._base.protocols import IOReaderAbstract
from guideloom._kernels.columns import _spread_mapped_numpy, copy_code, spread_mapped
from guideloom._kernels.gather import new_status
from guideloom._kernels.status import DONE
from guideloom._read.files import open_file_set
from guideloom._read.fileset import FileTable
from guideloom._read.requests import Spread
from guideloom.io import MmapIO, PosixPreadIO, SeekIO

FIELDS = [
    ("<u1", "<u1"), ("<u1", "<i4"), ("<u1", "<i8"), ("<u2", "<u2"), ("<u2", "<i4"), ("<u2", "<i8"), ("<u4", "<i8"),
    ("<i4", "<i8"), ("<f4", "<f4"), ("<i8", "<i8"), ("?", "?"), ("<f4", "<f8"), ("<i2", "<i8"), ("<c16", "<c16"),
    (("<u2", (3,)), ("<u2", (3,))), (("<u2", (2,)), ("<i8", (2,))),
]  # fmt: skip


def read(
    path: Path, records: np.ndarray, fields: list[np.dtype], runs: list[tuple[int, int]], backend: IOReaderAbstract
) -> list:
    path.write_bytes(records.tobytes())
    itemsize = records.dtype.itemsize
    paths: list[PurePath] = [path]
    files = open_file_set(backend, FileTable(paths, np.array([path.stat().st_size]), np.zeros(1, np.int64)))
    first, count = np.array(runs, np.int64).T.copy()
    total = int(count.sum())
    columns = [np.zeros((1, total, *f.shape), f.base) for f in fields]
    dst = (np.cumsum(count) - count) * itemsize
    files.execute(
        Spread(first * 0, first * itemsize, dst + 5 * itemsize, count * itemsize, 0, len(runs), records.dtype, fields,
               columns, 5 * itemsize)
    )  # fmt: skip
    files.close()
    return columns


@pytest.mark.parametrize("backend", [MmapIO(), PosixPreadIO(), SeekIO()], ids=repr)
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(
    kinds=st.lists(st.sampled_from(FIELDS), min_size=1, max_size=4),
    runs=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9)), min_size=1, max_size=5),
    seed=st.integers(0, 99),
)
def test_columns_equal_fields(tmp_path: Path, backend: IOReaderAbstract, kinds: list, runs: list, seed: int) -> None:
    dtype = np.dtype([(f"f{i}", source) for i, (source, _) in enumerate(kinds)])
    fields = [np.dtype(target) for _, target in kinds]
    raw = np.random.default_rng(seed).integers(0, 2, 30 * dtype.itemsize, dtype=np.uint8)
    records = raw.view(dtype)
    columns = read(tmp_path / "r.bin", records, fields, runs, backend)
    wanted = np.concatenate([records[first : first + count] for first, count in runs])
    for name, column in zip(dtype.names or (), columns, strict=True):
        assert column[0].tolist() == wanted[name].tolist()


def test_plain_elements_widen(tmp_path: Path) -> None:
    records = np.arange(65_000, 65_536, dtype="<u2")
    for backend in (MmapIO(), PosixPreadIO()):
        (column,) = read(tmp_path / "r.bin", records, [np.dtype("<i8")], [(500, 36), (0, 3)], backend)
        assert column[0].tolist() == [*range(65_500, 65_536), 65_000, 65_001, 65_002]


@pytest.mark.parametrize("name", ["NUMBA_DISABLE_JIT", "NUMBA_BOUNDSCHECK"])
def test_columns_run_other_ways(name: str) -> None:
    environment = {**os.environ, name: "1", "GUIDELOOM_KERNEL_CACHE": "0"}
    test = f"{__file__}::test_columns_equal_fields"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-x", test],
        env=environment, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]


def test_what_kernels_share_has_names_of_its_own() -> None:
    """Kernels out of the cache are linked by name, and by a number that begins anew in each process."""
    from guideloom._kernels import native, native_desk

    functions = {
        id(value): f"{value.py_func.__module__}.{value.py_func.__qualname__}"
        for module in (native, native_desk)
        for value in vars(module).values()
        if hasattr(value, "py_func")
    }
    assert len(functions) > 15
    assert sorted(functions.values()) == sorted(set(functions.values()))


@pytest.mark.parametrize("kernel", [spread_mapped, _spread_mapped_numpy])
def test_a_run_of_no_records_needs_no_file(kernel: Any) -> None:
    zero, status = np.zeros(1, np.int64), new_status()
    column = np.full(4, 9, np.uint8)
    fields = np.array([[copy_code(np.dtype("u1"), np.dtype("u1"))], [0], [1], [column.__array_interface__["data"][0]]])
    for file in (0, 7, -1):  # one that is not open, and two that there are not
        done = kernel(zero - 1, zero, zero + file, zero, zero, zero, 0, 1, 1, fields, 4, 0, status)
        assert done == DONE
    assert column.tolist() == [9] * 4
