"""What holds for the tests of the loader."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator

import pytest

from guideloom._kernels.desk import gather_helped
from guideloom._kernels.spin import hand_over


@pytest.fixture(autouse=True, scope="session")
def _compiled() -> None:
    """On an empty cache a thread that compiles outlasts a close, which these tests are not about."""
    for kernel in (hand_over, gather_helped):
        kernel.get()


@pytest.fixture
def _forked() -> Iterator[None]:
    """Worker processes are forked, whatever this Python's default is: what is defined in a test reaches them."""
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("fork", force=True)
    yield
    multiprocessing.set_start_method(before, force=True)
