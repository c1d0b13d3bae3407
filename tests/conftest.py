"""What holds for all tests: which examples hypothesis tries, and that no test leaves a thread behind."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# No deadline: the first call of a kernel compiles it. Derandomised: what passed here passes in CI.
settings.register_profile(
    "default", deadline=None, max_examples=60, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("thorough", deadline=None, max_examples=2000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# A shell without job control ignores Ctrl-C in the background, and so would we, and every program that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _no_thread_left_behind() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = []
    for thread in set(threading.enumerate()) - before:
        if not thread.daemon or thread.name.startswith("guideloom"):
            if thread.is_alive():  # a thread whose start was interrupted is listed for ever, and cannot be joined
                thread.join(timeout=2)  # one that is on its way out may take a moment
            if thread.is_alive():
                left.append(thread.name)
    assert not left, f"threads that outlived the test: {left}"
