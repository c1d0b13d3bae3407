"""Reading windows of a stream: raw rows, samples, columns.

Letters: B windows, L elements a window, R runs, S segments.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from guideloom._base.errors import ArgumentError
from guideloom._base.protocols import StreamStorageFormat
from guideloom._format.stream_numpy import StreamNumpyFormat
from guideloom._plan.windows import WindowPlan, plan_windows
from guideloom._read.operations import ArrayOperation, Operation
from guideloom._read.requests import Gather, Spread
from guideloom._storage.catalog import Catalog

I64 = npt.NDArray[np.int64]
Empty: TypeAlias = Callable[[tuple[int, ...], np.dtype[Any]], npt.NDArray[Any]]
WantedDtype: TypeAlias = npt.DTypeLike | Mapping[str, npt.DTypeLike] | None


def widened(dtype: np.dtype[Any], wanted: WantedDtype) -> np.dtype[Any]:
    """Return the element dtype in which windows arrive.

    Parameters
    ----------
    dtype : dtype
        As the format declares it.
    wanted : dtype-like, or mapping field -> dtype-like, or None
        A single dtype applies to every field of its sort, all of whose values it must hold; where there is none, to
        all numbers that it can hold, at least one. A mapping names the fields.

    Raises
    ------
    ArgumentError
        A dtype that cannot hold every value of the field, or a field that does not exist.
    """
    if wanted is None:
        return dtype

    def check(name: str, have: np.dtype[Any], want: np.dtype[Any]) -> np.dtype[Any]:
        base, shape = have.subdtype if have.subdtype else (have, ())
        if not _is_same_sort(base, want):
            raise ArgumentError(
                f"expected a wider dtype of the sort of {name} ({base}), such as int64 for integers, found {want}: "
                "convert to anything else in collate_fn"
            )
        if not np.can_cast(base, want, "safe"):
            raise ArgumentError(
                f"dtype {want} cannot hold every value of {name} ({base}): "
                f"ask for a wider one, such as {np.promote_types(base, want)}"
            )
        return np.dtype((want, shape)) if shape else want

    if dtype.names is None:
        if isinstance(wanted, Mapping):
            raise ArgumentError(f"the elements have no fields ({dtype}): give one dtype, not a mapping")
        return check("the element", dtype, _dtype_of(wanted))
    fields = {name: dtype[name] for name in dtype.names}
    if isinstance(wanted, Mapping):
        for name, want in wanted.items():
            if name not in fields:
                raise ArgumentError(f"no field {name!r} in the elements: they have {', '.join(fields)}")
            fields[name] = check(f"field {name!r}", fields[name], _dtype_of(want))
    else:
        target = _dtype_of(wanted)
        suited = [name for name, have in fields.items() if _widens(have.base, target)]
        for name, have in fields.items():
            # Left as it is, and another field changed: neither is what was asked for.
            if have.base.kind in _SORTS.get(target.kind, "") and not np.can_cast(have.base, target, "safe"):
                wider = np.promote_types(have.base, target)
                ways = [f"take a wider one, such as {wider}"] if wider.kind in _SORTS[target.kind] else []
                if suited:
                    ways.append(f"name the fields that are meant, as in dtype={dict.fromkeys(suited, str(target))}")
                raise ArgumentError(
                    f"dtype {target} cannot hold every value of field {name!r} ({have.base}): "
                    f"{', or '.join(ways) or 'convert in collate_fn'}"
                )
        # Of another sort than all fields: what was asked for is meant for those that fit in it.
        suited = suited or [
            name
            for name, have in fields.items()
            if _is_same_sort(have.base, target) and np.can_cast(have.base, target, "safe")
        ]
        if not suited:
            raise ArgumentError(
                f"dtype {target} cannot hold every value of any field of {dtype}: take a wider one, such as int64"
            )
        for name in suited:
            fields[name] = check(f"field {name!r}", fields[name], target)
    return np.dtype(list(fields.items()))


_SORTS = {"u": "iu", "i": "iu", "f": "f", "c": "c", "b": "b"}


def _dtype_of(wanted: Any) -> np.dtype[Any]:
    try:
        dtype: np.dtype[Any] = np.dtype(wanted)
    except TypeError:
        raise ArgumentError(f"expected a NumPy dtype, such as 'int64' or np.int64, found {wanted!r}") from None
    return dtype


def _is_same_sort(have: np.dtype[Any], want: np.dtype[Any]) -> bool:
    """Whether both are numbers, or of one kind: NumPy calls it safe to write numbers out as text or as objects."""
    numbers = "biufc"
    return want.kind in numbers if have.kind in numbers else want.kind == have.kind


def _widens(have: np.dtype[Any], want: np.dtype[Any]) -> bool:
    """Whether ``want`` holds every value of ``have`` and is the same sort of number."""
    return want.kind in _SORTS.get(have.kind, "") and np.can_cast(have, want, "safe")


@dataclass(frozen=True, slots=True)
class Straight:
    """The one array of a batch, where its bytes are those of the rows on disk: they are gathered straight into it.

    Parameters
    ----------
    name : str or None
        The field; None for plain elements.
    shape : tuple of int
        Of one element.
    dtype : dtype
    """

    name: str | None
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def named(self, out: npt.NDArray[Any]) -> Any:
        """Return the array as a batch."""
        return out if self.name is None else {self.name: out}


def _straight(disk_dtype: np.dtype[Any], dtype: np.dtype[Any]) -> Straight | None:
    if dtype != disk_dtype or len(dtype.names or ()) > 1:
        return None
    name = None if dtype.names is None else dtype.names[0]
    field = dtype if name is None else dtype[name]
    return Straight(name, field.shape, field.base)


class StreamOperations:
    """Operations on the windows of one open stream.

    Parameters
    ----------
    catalog : Catalog
    storage_format : StreamStorageFormat
    wanted : dtype-like, mapping, or None
        See :func:`widened`.
    """

    def __init__(self, catalog: Catalog, storage_format: StreamStorageFormat, wanted: WantedDtype = None) -> None:
        if catalog.dtype is None:
            raise ArgumentError("a stream needs an element dtype")
        self.catalog = catalog
        self.format = storage_format
        self.disk_dtype = catalog.dtype
        self.dtype = widened(np.dtype(storage_format.stream_dtype), wanted)
        self._convert = self.dtype != self.disk_dtype
        # Arrays are for tensors, which have the machine's byte order whatever a format asks for.
        self.array_dtype = self.dtype.newbyteorder("=")
        self.straight = _straight(self.disk_dtype, self.array_dtype)
        self.unpacks_fields = type(storage_format) is StreamNumpyFormat and storage_format.data_type is None

    def with_dtype(self, wanted: WantedDtype) -> StreamOperations:
        """Return the same operations with elements in other dtypes."""
        return self if wanted is None else StreamOperations(self.catalog, self.format, wanted)

    def prepare(self, begins: I64, length: int) -> WindowPlan:
        """Plan windows; pure."""
        return plan_windows(self.catalog.starts, self.catalog.elements_file, begins, length, self.disk_dtype.itemsize)

    def samples(
        self, plan: WindowPlan, lo: int, hi: int, asked: bool = False, empty: Empty = np.empty
    ) -> Operation[list[Any]]:
        """Read and unpack the windows ``[lo, hi)`` of a plan; ``asked``: see ``FileSet.gather``."""
        rows = empty((hi - lo, plan.length), self.disk_dtype)
        yield from gather_windows(plan, lo, hi, rows, asked)
        if self._convert:
            rows = rows.astype(self.dtype)
        if self.unpacks_fields:
            return unpack_fields(rows)
        lengths, shards, bounds = shard_runs(plan, self.catalog.shard, self.disk_dtype.itemsize, lo, hi)
        unpack = self.format.unpack
        samples: list[Any] = []
        try:
            for row, begin, end in zip(rows, bounds, bounds[1:], strict=False):
                samples.append(unpack(row, lengths[begin:end], shards[begin:end]))
        except Exception as error:
            name_window(error, self.catalog, plan, lo + len(samples), self.disk_dtype.itemsize)
            raise
        return samples

    def arrays(self, plan: WindowPlan, lo: int, hi: int, empty: Empty, asked: bool = False) -> ArrayOperation[Any]:
        """Read the windows ``[lo, hi)`` of a plan as C-contiguous arrays [hi - lo, L, ...].

        A dict with one a field; the array itself for plain elements.
        """
        shape = (hi - lo, plan.length)
        if self.straight is not None:
            out = empty(shape + self.straight.shape, self.straight.dtype)
            yield from gather_windows(plan, lo, hi, out, asked)
            return self.straight.named(out)
        dtype = self.array_dtype
        names = dtype.names
        fields = [dtype] if names is None else [dtype[name] for name in names]
        columns = [empty(shape + field.shape, field.base) for field in fields]
        yield Spread(
            plan.file, plan.src, plan.dst, plan.nbytes, plan.bounds[lo], plan.bounds[hi],
            self.disk_dtype, fields, columns, lo * plan.window_bytes, asked,
        )  # fmt: skip
        return columns[0] if names is None else dict(zip(names, columns, strict=True))


def gather_windows(plan: WindowPlan, lo: int, hi: int, out: npt.NDArray[Any], asked: bool = False) -> Operation[None]:
    """Read the windows ``[lo, hi)`` of a plan into ``out``, C-contiguous, of ``(hi - lo) * window_bytes`` bytes."""
    flat = out.reshape(-1).view(np.uint8)
    yield Gather(
        plan.file,
        plan.src,
        plan.dst,
        plan.nbytes,
        plan.bounds[lo],
        plan.bounds[hi],
        flat,
        lo * plan.window_bytes,
        asked,
    )


def name_window(error: Exception, catalog: Catalog, plan: WindowPlan, window: int, itemsize: int) -> None:
    """Note on what ``unpack`` raised which elements it was given."""
    if plan.length:
        run = plan.bounds[window]
        begin = int(catalog.starts[plan.segment[run]]) + int(plan.src[run]) // itemsize
        where = f"{plan.length} elements from element {begin} of {str(catalog.directory)!r}"
        error.add_note(f"while unpacking the window of {where}")


def unpack_fields(rows: npt.NDArray[Any]) -> list[dict[str, npt.NDArray[Any]]]:
    """What ``StreamNumpyFormat.unpack`` gives, for all rows [n, L] at once: views, one dict a row."""
    names = rows.dtype.names or ()
    if len(names) == 1:
        name = names[0]
        return [{name: row} for row in rows[name]]
    columns = [rows[name] for name in names]
    return [dict(zip(names, fields, strict=True)) for fields in zip(*columns, strict=True)]


@functools.lru_cache(maxsize=8)
def _whole_windows(num_windows: int) -> list[int]:
    return list(range(num_windows + 1))


def shard_runs(plan: WindowPlan, shard: I64, itemsize: int, lo: int, hi: int) -> tuple[I64, I64, list[int]]:
    """Length and shard of each run of elements from one shard, and the bounds in them of each window in [lo, hi).

    Runs of neighbouring segments of one shard are one; where a window wraps, its shard is named again.
    """
    begin, end = plan.bounds[lo], plan.bounds[hi]
    lengths = plan.nbytes[begin:end] // itemsize
    shards = shard[plan.segment[begin:end]]
    first = plan.first_run[lo : hi + 1] - begin
    if end - begin == hi - lo:
        return lengths, shards, _whole_windows(hi - lo)
    segment = plan.segment[begin:end]
    starts = np.ones(end - begin, bool)
    starts[1:] = (shards[1:] != shards[:-1]) | (segment[1:] <= segment[:-1])
    starts[first[:-1][first[:-1] < end - begin]] = True
    at = np.flatnonzero(starts)
    bounds = np.searchsorted(at, first)
    return np.add.reduceat(lengths, at) if at.size else lengths, shards[at], bounds.tolist()
