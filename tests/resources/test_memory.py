"""Memory: flat over epochs, and the same for ten thousand samples and for a billion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.resources.support import run

pytestmark = pytest.mark.slow

EPOCHS = """
from guideloom.testing import make_stream
def stack(samples):
    return np.stack([sample.elements for sample in samples])

if __name__ == "__main__":
    storage = make_stream(folder, [12_500] * 8, "<u4")
    found = []
    for collate in (None, stack):
        for way in (
            dict(), dict(prefetch=4), dict(num_workers=2, prefetch=8),
            dict(num_workers=2, prefetch=8, parallel_method="process"),
        ):
            rows = []
            with StatefulDataLoader(
                StreamDataset(storage, 64), collate, local_batch_size=32, shuffle=True, device="cpu", **way
            ) as loader:
                for epoch in range(28):
                    assert sum(1 for _ in loader) == 48
                    if epoch in (7, 27):
                        rows.append(anonymous_kib())
            found.append((str(way), rows, threading.active_count()))
    print(json.dumps(found))
"""


def test_flat_over_epochs(tmp_path: Path) -> None:
    """After the first eight epochs, twenty more take no memory: one batch of each kept would be 6 MiB."""
    for way, (first, last), threads in run(EPOCHS, tmp_path / "data"):
        assert last - first < 2048, (way, first, last)
        assert threads == 1, way


WORKER = """
from guideloom.testing import make_stream

if __name__ == "__main__":
    storage = make_stream(folder, [100_000] * 2, "<u4")
    rows = []
    for collate in (None, list):
        with StatefulDataLoader(
            StreamDataset(storage, 8), collate, local_batch_size=8, num_workers=2, prefetch=8, device="cpu",
            parallel_method="process",
        ) as loader:
            for number, _ in enumerate(loader):
                if number in (500, 3000):
                    tasks = Path("/proc/self/task").iterdir()
                    pids = [pid for task in tasks for pid in (task / "children").read_text().split()]
                    assert len(pids) >= 2
                    rows.append(sum(anonymous_kib(pid) for pid in pids))
    print(json.dumps(rows))
"""


def test_flat_in_a_process_that_works_on(tmp_path: Path) -> None:
    arrays_first, arrays_last, samples_first, samples_last = run(WORKER, tmp_path / "data")
    assert arrays_last - arrays_first < 1024
    assert samples_last - samples_first < 1024


BILLION = """
from guideloom.testing.sparse import _grow, make_sparse_stream

if __name__ == "__main__":
    kind, count, name = sys.argv[2], int(sys.argv[3]), sys.argv[4]
    if kind == "stream":
        storage = make_sparse_stream(folder, 4 * count, "<u2", read_interface=backend(name)())
        dataset = StreamDataset(storage, 4)
    else:
        storage = DocumentStorage(folder, Raw(), read_interface=backend(name)())
        with storage.sync_writer() as writer:
            writer.create(0)
        # Documents of no bytes: their offsets are holes.
        _grow(folder, 0, {"count": count}, {"offsets": (8 * count + 8, {})})
        dataset = DocumentDataset(storage)
    way = dict(num_workers=2, prefetch=8, local_batch_size=32, shuffle=True, shuffle_seed=1, device="cpu")
    states = []
    for offset in (0, count // 2, count - 640):
        for collate in (list,) if kind == "document" else (None, list):
            with StatefulDataLoader(dataset, collate, **way) as loader:
                loader.load_state_dict({**loader.state_dict(), "observation_offset": offset})
                for number, _ in enumerate(loader):
                    if number == 19:
                        break
                states.append(loader.state_dict())
    assert states[-1]["observation_offset"] == count - 640 + 20 * 32
    print(json.dumps(anonymous_kib()))
"""


@pytest.mark.parametrize(
    ("kind", "backend"),
    [("stream", "MmapIO"), ("document", "PosixPreadIO")],
)
def test_a_billion_samples_take_the_memory_of_ten_thousand(kind: str, backend: str, tmp_path: Path) -> None:
    def memory(count: int) -> Any:
        return run(BILLION, tmp_path / str(count), kind, count, backend)

    small, large = memory(10_000), memory(10**9)
    assert large - small < 5 * 1024, (small, large)


TINY = """
if __name__ == "__main__":
    def most_kib():
        # Not ru_maxrss, in which what the parent had when it forked counts too.
        status = Path("/proc/self/status").read_text().splitlines()
        return int(*(line.split()[1] for line in status if line.startswith("VmHWM")))

    count = int(sys.argv[2])
    before = most_kib()
    with DocumentStorage(folder, Raw()).sync_writer() as writer:
        for number in range(count):
            writer.append(number & 3, b"tiny")
    print(most_kib() - before)
"""


def test_many_tiny_documents_are_written_in_little_memory(tmp_path: Path) -> None:
    """By how much the most that was ever resident grows: a list of their offsets would take 300 MiB."""
    few, many = run(TINY, tmp_path / "few", 1000), run(TINY, tmp_path / "many", 10_000_000)
    assert many - few < 16 * 1024 and many < 64 * 1024, (few, many)
