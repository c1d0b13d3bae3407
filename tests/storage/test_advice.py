"""What ``verify`` advises is what ``repair`` then does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guideloom._storage.names import record_name
from guideloom._storage.repair import apply, plan_repair, rebuild_manifest
from guideloom._storage.verify import verify
from tests.storage.support import names, write

CREATE_EMPTY = "--create-empty"

sessions = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["append", "overwrite"])), min_size=0, max_size=3
)  # on top of shards 0 to 2


@pytest.mark.parametrize("gathered", [False, True])
@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("shard", [1, 2])
def test_a_record_is_gone_before_a_later_part(shard: int, part: int, gathered: bool, tmp_path: Path) -> None:
    """Where a shard has lost its first part nothing of it can stay, and a later shard needs its number."""
    write("stream", tmp_path, {0: [1], 1: [2], 2: [3]})
    for _ in range(2):
        write("stream", tmp_path, {shard: [4]}, "append")
    (tmp_path / record_name(shard, part)).unlink()
    if gathered:
        rebuild_manifest(tmp_path)
    (error,) = verify(tmp_path).errors
    needs_empty = (shard, part) == (1, 0)
    assert (CREATE_EMPTY in error.remedy) is needs_empty, str(error)
    assert [action.kind == "refused" for action in plan_repair(tmp_path)][:1] == [needs_empty]
    apply(plan_repair(tmp_path, create_empty=needs_empty))
    assert verify(tmp_path).is_sound


def test_a_missing_shard_before_none_that_is_whole(tmp_path: Path) -> None:
    """No later shard needs its number, so no empty one is advised, and repair asks for none."""
    write("stream", tmp_path, {0: [1], 1: [2], 2: [3]})
    (tmp_path / record_name(1, 0)).unlink()
    (tmp_path / "manifest.json").unlink()
    (elements,) = tmp_path.glob("0000002-*.elements.bin")
    elements.write_bytes(b"?" * elements.stat().st_size)
    assert not [str(error) for error in verify(tmp_path).errors if CREATE_EMPTY in error.remedy]
    apply(plan_repair(tmp_path))
    assert verify(tmp_path).is_sound


@settings(max_examples=40)
@given(data=st.data(), more=sessions)
def test_the_advice_is_true(data: st.DataObject, more: list[Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("advice")
    write("stream", folder, {0: [1], 1: [2], 2: [3]})
    replaced: set[str] = set()
    for shard, mode in more:
        if mode == "overwrite":
            replaced |= {name for name in names(folder) if name.startswith(f"{shard:07}-")}
        write("stream", folder, {shard: [4]}, mode)
    # What was replaced stays whole: verify does not read it, and cannot know whether repair could go back to it.
    whole = [name for name in names(folder) if name not in replaced]
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
