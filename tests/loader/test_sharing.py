"""How many threads share the reading: in simulated runs, by the cost of a batch with each number of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from guideloom._loader.sharing import Sharing


def run(
    batches: int,
    cost_s: Callable[[int, int], float],
    num_readers: int = 8,
    waiting: float = 1.0,
    processors: int = 2,
    window: int = 4,
) -> tuple[float, list[int]]:
    """Return the time of a run with costs ``cost_s(number, width)``, and the width at each batch.

    ``waiting``: which part of the time of a batch read alone is spent in waits.
    """
    sharing = Sharing(num_readers, window, processors)
    total, widths = 0.0, []
    for number in range(batches):
        cost = cost_s(number, sharing.width)
        total += cost
        widths.append(sharing.width)
        sharing.note(sharing.shared, cost, waiting * cost)
    return total, widths


def waiting(width: int) -> float:
    """A device that serves any number of reads at once, in 5 ms."""
    return 0.005 / max(1, width)


def convoy(width: int) -> float:
    """Reads that hold the interpreter lock: the more threads, the slower."""
    return 0.0005 * (1 + width / 2)


def test_cheap_batches_are_never_shared() -> None:
    _, widths = run(5000, lambda number, width: 0.0001 if not width else 0.001)
    assert set(widths) == {0}


def test_one_slow_batch_does_not_count() -> None:
    _, widths = run(5000, lambda number, width: 0.1 if number in (0, 900) else 0.0001)
    assert set(widths) == {0}


def test_a_slow_device_gets_all_threads_within_a_few_batches() -> None:
    total, widths = run(5000, lambda number, width: waiting(width))
    assert widths[:40] == [0] * 4 + [2] * 12 + [4] * 12 + [8] * 12
    assert total < 1.1 * 5000 * waiting(8)


def test_a_deep_queue_does_not_keep_a_slow_device_waiting_for_its_threads() -> None:
    total, widths = run(5000, lambda number, width: waiting(width), 16, window=32)
    assert widths[:77] == [0] * 4 + [2] * 12 + [4] * 12 + [8] * 16 + [16] * 33
    assert total < 1.15 * 5000 * waiting(16)


def test_what_many_threads_read_ahead_does_not_speak_for_few() -> None:
    # A trial of fewer begins with batches that wait in the queue, and cost nothing.
    changed = [0, 0]

    def cost(number: int, width: int) -> float:
        if width != changed[1]:
            changed[:] = number, width
        return 0.0001 if 0 < width < 16 and number > 500 and number - changed[0] < 24 else waiting(width)

    _, widths = run(3000, cost, 16, window=32)
    assert 8 in widths[500:] and set(widths[500:]) == {8, 16}
    assert widths[500:].count(16) > 2000


def test_reads_that_never_wait_are_not_shared_among_more_threads_than_processors() -> None:
    _, widths = run(5000, lambda number, width: waiting(width), waiting=0.1, processors=2)
    assert set(widths) == {0}
    _, widths = run(5000, lambda number, width: waiting(width), waiting=0.1, processors=4)
    assert set(widths) == {0, 2}


def test_a_few_waits_are_no_waiting() -> None:
    sharing = Sharing(8, 4, 2)
    for number in range(1000):
        sharing.note(False, 0.005, 0.004 if number % 4 == 0 else 0.0)
    assert sharing.width == 0


@pytest.mark.parametrize("num_readers", [1, 2, 3, 8, 16])
def test_a_convoy_is_avoided(num_readers: int) -> None:
    total, widths = run(3000, lambda number, width: convoy(width), num_readers)
    assert total < 1.05 * 3000 * convoy(0)
    assert max(widths) <= 2


def test_a_number_between_is_found() -> None:
    costs = {0: 0.004, 2: 0.002, 4: 0.001, 8: 0.003}
    total, widths = run(5000, lambda number, width: costs[width])
    assert total < 1.1 * 5000 * costs[4]
    assert set(widths) == {0, 2, 4, 8}


def test_a_slow_start_does_not_decide_for_ever() -> None:
    # A cold cache: after a while a batch costs little, and more with threads.
    _, widths = run(8000, lambda number, width: waiting(width) if number < 200 else convoy(width) / 10)
    assert 8 in widths[:100]
    assert set(widths[6000:]) == {0}


def test_a_device_that_becomes_slow_is_found_out() -> None:
    _, widths = run(30_000, lambda number, width: waiting(width) if number > 6000 else convoy(width) / 10)
    assert set(widths[:6000]) == {0}
    assert 8 in widths[6000:7000]
    assert widths[15_000:].count(8) > 14_000


def test_batches_of_the_way_before_do_not_count() -> None:
    sharing = Sharing(8, 4)
    for _ in range(100):
        sharing.note(True, 100.0)
    assert sharing.width == 0
    for _ in range(4):
        sharing.note(False, 1.0, 0.9)
    assert sharing.width == 2


def test_without_threads_there_is_nothing_to_share() -> None:
    sharing = Sharing(0, 4)
    for _ in range(1000):
        sharing.note(False, 1.0, 1.0)
    assert not sharing.shared


def test_more_threads_must_be_much_faster_and_fewer_need_not() -> None:
    near = {0: 0.004, 2: 0.002, 4: 0.001, 8: 0.0009}
    _, widths = run(20_000, lambda number, width: near[width])
    assert widths[10_000:].count(4) > 9000
    near = {0: 0.004, 2: 0.002, 4: 0.0009, 8: 0.001}
    _, widths = run(30_000, lambda number, width: waiting(width) if number < 1000 else near[width])
    assert widths[999] == 8
    assert widths[20_000:].count(4) > 9000
