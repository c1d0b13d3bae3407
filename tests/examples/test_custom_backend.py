"""The backend that people copy from the examples passes the tests that theirs has to pass."""

from __future__ import annotations

from examples.custom_backend import CountingIO
from guideloom.testing import BackendConformance
from guideloom.types import IOReaderAbstract


class TestCountingIO(BackendConformance):
    def make_backend(self) -> IOReaderAbstract:
        return CountingIO()
