"""Tests of the storage layer do not wait for the disk."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    # It makes no difference short of a power failure; that every file is synced before it is named is checked in
    # test_modes.py by the order of the steps.
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
