"""What ``verify`` advises is what ``repair`` then does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guideloom._storage.repair import apply, plan_repair
from guideloom._storage.verify import verify
from tests.storage.support import names, write

CREATE_EMPTY = "--create-empty"

sessions = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["append", "overwrite"])), min_size=0, max_size=3
)  # on top of shards 0 to 2


@settings(max_examples=40)
@given(data=st.data(), more=sessions)
def test_the_advice_is_true(data: st.DataObject, more: list[Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("advice")
    write("stream", folder, {0: [1], 1: [2], 2: [3]})
    for shard, mode in more:
        write("stream", folder, {shard: [4]}, mode)
    whole = names(folder)
    for name in data.draw(st.lists(st.sampled_from(whole), min_size=1, max_size=3, unique=True)):
        damage = data.draw(st.sampled_from(["flip", "cut", "remove"]))
        content = bytearray((folder / name).read_bytes())
        content[len(content) // 2] ^= 1
        if damage == "remove":
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(content if damage == "flip" else content[:-1])
    errors = verify(folder).errors
    if not any(name.endswith("commit.json") for name in names(folder)):
        return
    refused = [action for action in plan_repair(folder) if action.kind == "refused"]
    advised = [error for error in errors if CREATE_EMPTY in error.remedy]
    assert bool(refused) == bool(advised), ([str(error) for error in errors], refused)
    if refused:
        assert CREATE_EMPTY in refused[0].text
    apply(plan_repair(folder, create_empty=bool(refused)))
    if any(name.endswith("commit.json") for name in names(folder)):
        assert verify(folder).is_sound
