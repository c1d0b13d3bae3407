"""The only importer of torch: devices, tensors, pinned memory and the move of a batch.

What differs between a machine with CUDA and one without goes through :class:`Runtime`, so that a test can put a fake in
its place.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from guideloom._base.errors import ArgumentError

try:
    import torch
    from torch.nn.utils.rnn import PackedSequence
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "StatefulDataLoader needs PyTorch, which is not installed: pip install torch (the rest needs none)",
        name="torch",
    ) from None

_LEAVES = (torch.Tensor, PackedSequence)
_PLAIN = (str, bytes, bytearray, memoryview, int, float, complex, type(None), np.ndarray, np.generic, range)


class Runtime:
    """What is asked of torch about the machine; one method for each question."""

    def cuda_available(self) -> bool:
        """Whether a CUDA device can be used."""
        return torch.cuda.is_available()

    def current_cuda_device(self) -> int:
        """Index of the CUDA device of the calling thread."""
        return torch.cuda.current_device()

    def set_cuda_device(self, index: int) -> None:
        """Choose the CUDA device of the calling thread."""
        torch.cuda.set_device(index)

    def pin(self, leaf: Any) -> Any:
        """Return a copy of a tensor in pinned memory, or the tensor if it is pinned."""
        return leaf.pin_memory()

    def empty_pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Allocate an uninitialised tensor in pinned memory."""
        return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=True)  # also where the default is another

    def move(self, leaf: Any, device: torch.device, non_blocking: bool) -> Any:
        """Copy a tensor to a device."""
        return leaf.to(device, non_blocking=non_blocking)

    def new_stream(self, device: torch.device) -> Any:
        """Make a CUDA stream beside the one that the caller computes on."""
        return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def on_stream(self, stream: Any) -> AbstractContextManager[Any]:
        """Return a context in which copies are queued on ``stream``."""
        return torch.cuda.stream(stream)

    def record(self, stream: Any) -> Any:
        """Return an event that comes when all that is queued on ``stream`` by now is done."""
        return stream.record_event()

    def await_event(self, event: Any, device: torch.device) -> None:
        """Let what the caller queues from now on wait for an event; the host goes on."""
        torch.cuda.current_stream(device).wait_event(event)

    def keep_for_caller(self, tensor: Any, device: torch.device) -> None:
        """Keep a tensor's memory from reuse until what the caller queued by its end is done."""
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(device))


RUNTIME = Runtime()


def default_device() -> torch.device:
    """Return the current CUDA device, or the CPU where there is none."""
    if RUNTIME.cuda_available():
        return torch.device("cuda", RUNTIME.current_cuda_device())
    return torch.device("cpu")


def as_device(device: torch.device | str | int | None) -> torch.device:
    """Return ``device`` as a ``torch.device``; None is the default device."""
    if device is None:
        return default_device()
    if isinstance(device, torch.device):
        return device
    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ArgumentError(
            f"device must be a torch.device or its name, such as 'cpu' or 'cuda:0', got {device!r}"
        ) from error


def require_device(device: torch.device) -> None:
    """Refuse a device that is not there, before the first batch is made for it."""
    if device.type == "cuda" and not RUNTIME.cuda_available():
        raise ArgumentError(f"device is {str(device)!r}, but torch finds no CUDA device here: pass device='cpu'")


class Mover:
    """Moves the tensors of a batch to a device, in the caller's thread.

    Tensors are found inside mappings, sequences, named tuples and dataclasses; a container in which nothing moved is
    given back as it is, any other is copied, never changed.

    Parameters
    ----------
    device : torch.device
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # Only CUDA orders a copy before what is queued on the stream later; elsewhere a batch could be read too early.
        self._non_blocking = device.type == "cuda"

    def __call__(self, batch: Any) -> Any:
        if type(batch) is dict:
            # By far the most common batch where nothing is to move.
            for value in batch.values():
                if type(value) is not torch.Tensor or value.device != self.device:
                    break
            else:
                return batch
        return transform(batch, self._leaf)

    def _leaf(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.device == self.device:
            return leaf
        return RUNTIME.move(leaf, self.device, self._non_blocking)


class Copied(NamedTuple):
    """A batch whose copy to the device is queued, and the event of its end."""

    batch: Any
    event: Any


class CopyAhead:
    """Copies batches to a CUDA device before the caller takes them, on a stream that runs beside the caller's.

    Parameters
    ----------
    device : torch.device

    Notes
    -----
    The order follows PyTorch's notes on CUDA streams: the caller's stream waits for the event of the copy, and each
    tensor is recorded on the caller's stream, since its memory belongs to the copying one.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._mover = Mover(device)
        self._stream: Any = None

    def __call__(self, batch: Any) -> Copied:
        """Queue the copy; called for one batch at a time."""
        if self._stream is None:
            self._stream = RUNTIME.new_stream(self._device)
        with RUNTIME.on_stream(self._stream):
            return Copied(self._mover(batch), RUNTIME.record(self._stream))

    def arrive(self, copied: Copied) -> Any:
        """Return the batch, for use on the caller's stream; in the caller's thread."""
        RUNTIME.await_event(copied.event, self._device)
        transform(copied.batch, self._keep)
        return copied.batch

    def _keep(self, leaf: Any) -> Any:
        # A packed sequence holds several tensors, or None in their place.
        for tensor in leaf if isinstance(leaf, PackedSequence) else (leaf,):
            if tensor is not None:
                RUNTIME.keep_for_caller(tensor, self._device)
        return leaf


class Pinner:
    """Puts the CPU tensors of a batch into pinned memory, in the batch thread.

    Parameters
    ----------
    device : torch.device
        The CUDA device that the batches go to; it is made current in each thread that pins, so that no context is
        created on device 0.
    """

    def __init__(self, device: torch.device) -> None:
        self._index = RUNTIME.current_cuda_device() if device.index is None else device.index

    def enter_thread(self) -> None:
        """Call once in each thread of ours that pins."""
        RUNTIME.set_cuda_device(self._index)

    def __call__(self, batch: Any) -> Any:
        return transform(batch, self._leaf)

    def _leaf(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.device.type != "cpu":
            return leaf
        return RUNTIME.pin(leaf)


# Exact types that are no tensors and hold none: a list of hundreds of arrays is passed over at the speed of C.
_NO_TENSORS = frozenset((bool, int, float, complex, str, bytes, bytearray, memoryview, type(None), np.ndarray))


def transform(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """Apply ``leaf`` to each tensor in nested containers; containers in which nothing changed are kept."""
    kind = type(value)
    if kind is list or kind is tuple:
        return _transform_sequence(value, leaf)
    if kind is dict:
        return _transform_mapping(value, leaf)
    if isinstance(value, _LEAVES):
        return leaf(value)
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Mapping):
        return _transform_mapping(value, leaf)
    if isinstance(value, Sequence):
        return _transform_sequence(value, leaf)
    if is_dataclass(value) and not isinstance(value, type):
        return _transform_dataclass(value, leaf)
    return value


def _transform_mapping(value: Mapping[Any, Any], leaf: Callable[[Any], Any]) -> Any:
    changed = {}
    for key, item in value.items():
        new = transform(item, leaf)
        if new is not item:
            changed[key] = new
    if not changed:
        return value
    if type(value) is dict:
        return {**value, **changed}
    if hasattr(value, "__setitem__"):
        # A copy keeps what else the mapping holds: a defaultdict's factory, an encoding's offsets.
        clone: Any = copy.copy(value)
        for key, new in changed.items():
            clone[key] = new
        return clone
    merged = {**value, **changed}
    try:
        return type(value)(merged)  # type: ignore[call-arg]
    except TypeError:
        return merged


def _transform_sequence(value: Sequence[Any], leaf: Callable[[Any], Any]) -> Any:
    if _NO_TENSORS.issuperset(map(type, value)):
        return value
    items = [transform(item, leaf) for item in value]
    if all(new is old for new, old in zip(items, value, strict=True)):
        return value
    if isinstance(value, tuple):
        if hasattr(value, "_make"):
            return value._make(items)
        return tuple(items) if type(value) is tuple else _rebuilt(value, items)
    return items if type(value) is list else _rebuilt(value, items)


def _rebuilt(value: Sequence[Any], items: list[Any]) -> Any:
    try:
        return type(value)(items)  # type: ignore[call-arg]
    except TypeError:
        return items


def _transform_dataclass(value: Any, leaf: Callable[[Any], Any]) -> Any:
    changed = {}
    for field in fields(value):
        if hasattr(value, field.name):
            item = getattr(value, field.name)
            new = transform(item, leaf)
            if new is not item:
                changed[field.name] = new
    if not changed:
        return value
    clone = copy.copy(value)
    for name, new in changed.items():
        # Also for frozen ones; dataclasses.replace would run __init__ again and refuses fields with init=False.
        object.__setattr__(clone, name, new)
    return clone


# --- collate_fn=None ---------------------------------------------------------------------------


def tensors(arrays: Any) -> Any:
    """Turn an array, or a mapping of arrays, into tensors that share its memory.

    An array whose dtype torch does not have stays an array.
    """
    if isinstance(arrays, np.ndarray):
        return _tensor(arrays)
    return {name: _tensor(array) for name, array in arrays.items()}


def _tensor(array: npt.NDArray[Any]) -> Any:
    try:
        return torch.from_numpy(array)
    except TypeError:
        return array


class PinnedArrays:
    """Allocates the arrays of one batch in pinned memory, and gives their tensors back.

    The tensors that were allocated are handed on, not new ones over the same bytes: the allocator of pinned memory
    waits for the copies of the tensors it knows before it reuses their memory.
    """

    def __init__(self) -> None:
        self._made: list[tuple[npt.NDArray[Any], torch.Tensor]] = []

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Allocate; a dtype that torch does not have gets ordinary memory."""
        try:
            wanted = torch.from_numpy(np.empty(0, dtype)).dtype
        except TypeError:
            return np.empty(shape, dtype)
        tensor = RUNTIME.empty_pinned(tuple(shape), wanted)
        array: npt.NDArray[Any] = tensor.numpy()
        self._made.append((array, tensor))
        return array

    def tensors(self, arrays: Any) -> Any:
        """As the function of the same name; an array that ``empty`` did not make is pinned by copying."""
        if not isinstance(arrays, np.ndarray):
            return {name: self.tensors(array) for name, array in arrays.items()}
        for made, tensor in self._made:
            if made is arrays:
                return tensor
        found = _tensor(arrays)
        return RUNTIME.pin(found) if isinstance(found, torch.Tensor) else found


# --- between processes -------------------------------------------------------------------------


class TensorPickler(pickle.Pickler):
    """Pickles dense CPU tensors as arrays, whose bytes can travel out of band; torch's own way copies them twice."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is not torch.Tensor or obj.device.type != "cpu" or obj.layout is not torch.strided:
            return NotImplemented
        if obj.requires_grad or obj.is_conj() or obj.is_neg() or obj.is_quantized or not obj.is_contiguous():
            return NotImplemented
        try:
            return tensor_of, (obj.numpy(), None)
        except TypeError:
            # bfloat16 and the small floats have no NumPy dtype: their bytes travel, and the dtype beside them.
            return tensor_of, (obj.reshape(-1).view(torch.uint8).numpy(), (obj.dtype, tuple(obj.shape)))


def tensor_of(array: npt.NDArray[Any], kind: tuple[torch.dtype, tuple[int, ...]] | None) -> torch.Tensor:
    """Undo what :class:`TensorPickler` did."""
    tensor: torch.Tensor = torch.from_numpy(array)
    return tensor if kind is None else tensor.view(kind[0]).reshape(kind[1])


def one_thread() -> None:
    """Keep torch to one thread in a worker: its pool does not survive a fork, and workers are many."""
    torch.set_num_threads(1)


def draw_other_numbers(number: int) -> None:
    """Seed torch in a worker anew, from what its generator would have drawn and the worker's ``number``."""
    words = [*torch.randint(0, 1 << 32, (2,), device="cpu").tolist(), number]
    torch.manual_seed(int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0] >> np.uint64(1)))
