"""Records and manifests from strangers, without end, as in ``tests/durability/test_fuzz.py``."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.durability import test_fuzz as fuzz

NUM_EXAMPLES = 400
NUM_MUTATIONS = 2000

_SETTINGS = settings(
    max_examples=NUM_EXAMPLES,
    deadline=None,
    database=None,
    derandomize=False,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate, Phase.shrink),
)


def run_properties(case: int, scratch: Path) -> int:
    """Have hypothesis try each property of the parsers on files that it makes; return how many."""
    num_files = 0

    def parsed(name: str, data: bytes) -> None:
        nonlocal num_files
        num_files += 1
        fuzz.bounded(name, data)

    files: list[tuple[st.SearchStrategy[Any], Callable[..., None]]] = [
        (fuzz.changed_files(), lambda file: parsed(*file)),
        (fuzz.cut_files(), lambda file: parsed(*file)),
        (st.tuples(st.sampled_from([fuzz.NAME, fuzz.MANIFEST]), st.binary(max_size=2000)), lambda file: parsed(*file)),
    ]
    for strategy, check in files:
        seed(case)(_SETTINGS(given(strategy)(check)))()
    return num_files


def run_mutations(case: int, scratch: Path) -> int:
    """Change good files at random, with and without a checksum that holds, and parse them; return how many."""
    chance = random.Random(case)
    num_files = 0
    for place in range(NUM_MUTATIONS):
        name, data = fuzz.seeds()[place % len(fuzz.seeds())]
        hostile = fuzz.mutated(chance, data)
        fuzz.parse(name, hostile)
        again = fuzz.resealed(hostile)
        if again is not None:
            fuzz.parse(name, again)
        num_files += 1 if again is None else 2
    return num_files
