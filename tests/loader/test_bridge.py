"""Moving and pinning: tensors are found wherever they are, and containers keep their kind. CUDA is played by a fake."""

from __future__ import annotations

import io
import pickle
import warnings
from collections import OrderedDict, UserDict, UserList, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from guideloom._loader import bridge
from guideloom._loader.bridge import Mover, PinnedArrays, Pinner, Runtime, as_device, default_device, transform
from guideloom.errors import ArgumentError


class FakeCuda(Runtime):
    """Notes what is asked of it; 'moved' tensors are copies."""

    def __init__(self) -> None:
        self.moves: list[tuple[torch.device, bool]] = []
        self.pinned: list[int] = []
        self.allocated: list[torch.Tensor] = []
        self.chosen: list[int] = []

    def cuda_available(self) -> bool:
        return True

    def current_cuda_device(self) -> int:
        return 3

    def set_cuda_device(self, index: int) -> None:
        self.chosen.append(index)

    def pin(self, leaf: Any) -> Any:
        copy = leaf.clone()
        self.pinned.append(copy.data_ptr())
        return copy

    def empty_pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        self.allocated.append(torch.empty(shape, dtype=dtype))
        return self.allocated[-1]

    def move(self, leaf: Any, device: torch.device, non_blocking: bool) -> Any:
        self.moves.append((device, non_blocking))
        return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass(frozen=True)
class Frozen:
    value: Any
    note: str = "note"


@dataclass(slots=True)
class Slotted:
    value: Any
    derived: Any = field(init=False, default=None)
    unset: int = field(init=False)


class ReadOnly(Mapping[str, Any]):
    def __init__(self, items: Mapping[str, Any]) -> None:
        self.items_ = dict(items)

    def __getitem__(self, key: str) -> Any:
        return self.items_[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.items_)

    def __len__(self) -> int:
        return len(self.items_)


T = torch.tensor


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    monkeypatch.setattr(bridge, "RUNTIME", fake)
    return fake


def moved(value: Any, device: str = "cuda:1") -> Any:
    return Mover(torch.device(device))(value)


@pytest.mark.parametrize(
    "make",
    [
        lambda t: t,
        lambda t: {"a": t, "b": 1},
        lambda t: OrderedDict(a=t),
        lambda t: defaultdict(list, a=t),
        lambda t: UserDict(a=t),
        lambda t: ReadOnly({"a": t}),
        lambda t: [t, "text", None],
        lambda t: (t, 1.5),
        lambda t: UserList([t]),
        lambda t: Pair(t, b"bytes"),
        lambda t: Frozen(t),
        lambda t: Slotted(t),
        lambda t: {"deep": [(Pair({"x": [Frozen(t)]}, 1),)]},
    ],
)
def test_each_container_is_moved_as_its_own_kind_and_left_as_it_was(make: Any, runtime: FakeCuda) -> None:
    tensor = T([1, 2])
    value = make(tensor)
    result = moved(value)
    assert type(result) is type(value)
    assert runtime.moves == [(torch.device("cuda:1"), True)]
    found: list[torch.Tensor] = []
    transform(result, lambda leaf: found.append(leaf) or leaf)
    assert [leaf.tolist() for leaf in found] == [[1, 2]]
    assert found[0] is not tensor
    kept: list[torch.Tensor] = []
    transform(value, lambda leaf: kept.append(leaf) or leaf)
    assert kept[0] is tensor


def test_a_mapping_that_cannot_be_rebuilt_becomes_a_dict() -> None:
    result = moved(MappingProxyType({"a": T(1), "b": 2}))
    assert dict(result) == {"a": T(1), "b": 2}


def test_what_holds_no_tensor_is_given_back_as_it_is() -> None:
    array = np.arange(3)
    for value in ({"a": array}, [1, 2], ("x", b"y"), range(3), Frozen(1), "text", None, array, object(), Frozen):
        assert moved(value) is value


def test_extras_of_a_mapping_survive() -> None:
    result = moved(defaultdict(lambda: 7, a=T(1)))
    assert result["missing"] == 7


def test_packed_sequences_move_as_a_whole(runtime: FakeCuda) -> None:
    packed = pack_sequence([T([1, 2]), T([3])])
    result = moved({"packed": packed})
    assert len(runtime.moves) == 1
    assert result["packed"] is packed


@pytest.mark.parametrize(("device", "non_blocking"), [("cuda:0", True), ("mps", False), ("meta", False)])
def test_only_cuda_copies_without_waiting(device: str, non_blocking: bool, runtime: FakeCuda) -> None:
    moved([T(1)], device)
    assert runtime.moves == [(torch.device(device), non_blocking)]


def test_a_tensor_that_is_there_already_stays() -> None:
    batch = {"a": T(1)}
    assert Mover(torch.device("cpu"))(batch) is batch


def test_pinning_chooses_the_device_of_the_batches(runtime: FakeCuda) -> None:
    pinner = Pinner(torch.device("cuda", 1))
    pinner.enter_thread()
    Pinner(torch.device("cuda")).enter_thread()
    assert runtime.chosen == [1, 3]
    batch = pinner({"a": T([1]), "b": [T([2])]})
    assert len(runtime.pinned) == 2
    assert batch["b"][0].data_ptr() == runtime.pinned[1]


def test_pinned_arrays_are_the_tensors_that_were_allocated(runtime: FakeCuda) -> None:
    arrays = PinnedArrays()
    one = arrays.empty((2, 3), np.dtype("<i4"))
    two = arrays.empty((2,), np.dtype("<u2"))
    text = arrays.empty((2,), np.dtype("S3"))
    one[:], two[:], text[:] = 5, 6, b"abc"
    result = arrays.tensors({"one": one, "two": two, "part": one[:1], "text": text})
    assert result["one"] is runtime.allocated[0]
    assert result["two"] is runtime.allocated[1]
    assert result["one"].tolist() == [[5, 5, 5]] * 2
    # Not an array of ours as a whole: pinned by copying.
    assert runtime.pinned == [result["part"].data_ptr()]
    assert result["text"] is text


def test_devices() -> None:
    assert default_device() == torch.device("cuda", 3)
    assert as_device(None) == torch.device("cuda", 3)
    assert as_device("cpu") == torch.device("cpu")
    with pytest.raises(ArgumentError, match=r"torch\.device"):
        as_device("nowhere")
    with pytest.raises(ArgumentError, match=r"torch\.device"):
        as_device([])  # type: ignore[arg-type]


def sparse_rows() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says once that these are new
        return torch.eye(3).to_sparse_csr()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6).reshape(2, 3),
        torch.arange(6).reshape(2, 3).t(),
        torch.tensor(1.5),
        torch.tensor(1.5, dtype=torch.bfloat16),
        torch.ones(2, 2).to(torch.float8_e4m3fn),
        torch.empty((0, 3)),
        torch.ones(2, requires_grad=True),
        torch.ones(2, dtype=torch.complex64).conj(),
        torch.eye(3).to_sparse(),
        sparse_rows(),
        torch.nn.Parameter(torch.ones(2)),
    ],
    ids=lambda tensor: f"{tensor.dtype} {tuple(tensor.shape)} {type(tensor).__name__} {tensor.layout}",
)
def test_the_pickler_keeps_every_tensor_whole(tensor: torch.Tensor) -> None:
    buffers: list[pickle.PickleBuffer] = []
    out = io.BytesIO()
    bridge.TensorPickler(out, protocol=5, buffer_callback=buffers.append).dump({"t": tensor})
    found = pickle.loads(out.getvalue(), buffers=[bytearray(buffer.raw()) for buffer in buffers])["t"]
    assert type(found) is type(tensor)
    assert (found.dtype, found.shape, found.requires_grad) == (tensor.dtype, tensor.shape, tensor.requires_grad)
    assert torch.equal(found.to_dense().float() if found.is_floating_point() else found, dense(tensor))


def dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_dense().float() if tensor.is_floating_point() else tensor


def test_pinned_memory_is_the_hosts_whatever_device_is_the_default() -> None:
    with torch.device("meta"):
        if torch.cuda.is_available():
            assert Runtime().empty_pinned((2,), torch.uint8).is_pinned()
        else:
            # Which is said depends on torch's release, and on whether it was built for CUDA.
            with pytest.raises(RuntimeError, match="pin_memory|NVIDIA driver"):
                Runtime().empty_pinned((2,), torch.uint8)
