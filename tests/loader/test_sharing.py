"""When reading is shared: in a simulated run, by the cost of a batch either way."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from guideloom._loader.sharing import Sharing


def run(batches: int, alone_s: Callable[[int], float], shared_s: Callable[[int], float]) -> tuple[float, list[bool]]:
    """Return the time of a run, and what was done for each batch."""
    sharing = Sharing(True, 4)
    total, modes = 0.0, []
    for number in range(batches):
        mode = sharing.shared
        cost = (shared_s if mode else alone_s)(number)
        total += cost
        modes.append(mode)
        sharing.note(mode, cost)
    return total, modes


def test_cheap_batches_are_never_shared() -> None:
    _, modes = run(5000, lambda number: 0.0001, lambda number: 0.001)
    assert not any(modes)


def test_a_slow_device_is_shared_from_the_second_batch_on() -> None:
    total, modes = run(5000, lambda number: 0.005, lambda number: 0.001)
    assert modes[0] is False
    assert all(modes[1:17])
    assert total < 5000 * 0.001 * 1.1


def test_sharing_that_does_not_pay_is_given_up() -> None:
    total, modes = run(5000, lambda number: 0.0005, lambda number: 0.0015)
    assert total < 5000 * 0.0005 * 1.1
    assert sum(modes) < 150


def test_a_slow_start_does_not_decide_for_ever() -> None:
    # Compilation, a cold cache: after a while a batch costs little.
    total, modes = run(5000, lambda number: 0.00005 if number > 200 else 0.005, lambda number: 0.0004)
    assert not any(modes[2000:])
    assert total < 0.6


def test_a_device_that_becomes_slow_is_found_out() -> None:
    _, modes = run(20_000, lambda number: 0.005 if number > 6000 else 0.0001, lambda number: 0.001)
    assert not any(modes[:6000])
    assert sum(modes[12_000:]) > 7500


@pytest.mark.parametrize("shared", [False, True])
def test_batches_of_the_way_before_do_not_count(shared: bool) -> None:
    sharing = Sharing(True, 4)
    for _ in range(100):
        sharing.note(True, 100.0)
    assert sharing.shared is False
    sharing.note(False, 1.0)
    assert sharing.shared is True
