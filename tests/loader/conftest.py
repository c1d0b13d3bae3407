"""What holds for the tests of the loader."""

from __future__ import annotations

import pytest

from guideloom._kernels.desk import gather_helped
from guideloom._kernels.spin import hand_over


@pytest.fixture(autouse=True, scope="session")
def _compiled() -> None:
    """On an empty cache a thread that compiles outlasts a close, which these tests are not about."""
    for kernel in (hand_over, gather_helped):
        kernel.get()
