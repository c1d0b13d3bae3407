"""A loader's state: its schema, and what of it must agree with the loader that takes it up."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from guideloom._base.checks import as_int
from guideloom._base.dataset_protocols import StatefulDataLoaderStateDict
from guideloom._base.errors import ArgumentError, StateMismatchError, StateSchemaError

VERSION = 1
"""Version of the schema that this module writes; larger ones are refused."""

PUBLISHED_KEYS = ("epoch", "observation_offset", "shuffle", "shuffle_seed", "drop_last")
"""What every state holds, also one of the published package."""

# The most telling first: another window length also changes the number of samples.
_PINNED = ("identity", "sequence_length", "overlap", "shuffle", "shuffle_seed", "order", "drop_last", "dataset_size")
_KNOWN = frozenset((*PUBLISHED_KEYS, *_PINNED, "version"))
_VIEW_KEYS = ("sequence_length", "overlap")
_WHAT = {
    "identity": "another data set (identity is content and order, not path)",
    "sequence_length": "windows of another length",
    "overlap": "windows with another overlap",
    "shuffle": "another order",
    "shuffle_seed": "another order",
    "order": "another order",
    "drop_last": "another end of the epoch",
    "dataset_size": "another number of samples",
}
_MAX_INT = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Fixed:
    """What of a loader does not change while it runs.

    Parameters
    ----------
    shuffle, shuffle_seed, drop_last
        As the user gave them.
    order : str or None
        Name of the order; None, like the next three, until the data set was opened.
    identity : str or None
        Content and order of the data set; None when it has none.
    dataset_size : int or None
    view : mapping
        What of the view must stay: window length and overlap.
    """

    shuffle: bool
    shuffle_seed: int | None
    drop_last: bool
    order: str | None = None
    identity: str | None = None
    dataset_size: int | None = None
    view: Mapping[str, int | None] | None = None


@dataclass(slots=True)
class Position:
    """Where a loader is: ``offset`` samples of ``epoch`` were delivered, over all ranks; an iterator counts it up.

    It was at ``begun`` when the epoch began here, or when a state was loaded.
    """

    epoch: int = 0
    offset: int = 0
    begun: int = 0

    @property
    def taken(self) -> bool:
        """Whether batches were delivered since then."""
        return self.offset > self.begun


def make_state(fixed: Fixed, position: Position) -> StatefulDataLoaderStateDict:
    """Return the state as plain integers, booleans and strings; the same arguments always give the same state."""
    state: dict[str, Any] = {
        "epoch": position.epoch,
        "observation_offset": position.offset,
        "shuffle": fixed.shuffle,
        "shuffle_seed": fixed.shuffle_seed,
        "drop_last": fixed.drop_last,
        "version": VERSION,
    }
    if fixed.order is not None:
        state["order"] = fixed.order
    if fixed.identity is not None:
        state["identity"] = fixed.identity
    if fixed.dataset_size is not None:
        state["dataset_size"] = fixed.dataset_size
    state.update(fixed.view or {})
    return state  # type: ignore[return-value]


def check_schema(state: Mapping[str, Any]) -> Position:
    """Return the position in a state, after checks that need no data set.

    Raises
    ------
    StateSchemaError
        A key is missing, or a value has another type or is out of range, or the version is newer.
    """
    if not isinstance(state, Mapping):
        raise StateSchemaError(f"a state must be a mapping, as state_dict() gives it, found {type(state).__name__}")
    version = state.get("version", VERSION)
    if type(version) is not int or version < 1:
        raise StateSchemaError(f"the state's version must be an integer from 1, found {version!r}")
    if version > VERSION:
        raise StateSchemaError(
            f"the state has version {version}, this GuideLoom knows versions up to {VERSION}: "
            "use the GuideLoom that saved it"
        )
    missing = [key for key in PUBLISHED_KEYS if key not in state]
    if missing:
        raise StateSchemaError(
            f"the state lacks {_names(missing)}, found {_names(sorted(map(str, state)))}: "
            "pass what state_dict() gave, whole"
        )
    offset = _integer(state, "observation_offset")
    position = Position(_integer(state, "epoch"), offset, begun=offset)
    for key in ("shuffle", "drop_last"):
        if not isinstance(state[key], bool):
            raise StateSchemaError(f"the state's {key} must be True or False, found {state[key]!r}")
    if state["shuffle_seed"] is not None:
        _as_int(state["shuffle_seed"], "shuffle_seed")
    for key in ("order", "identity"):
        if state.get(key) is not None and not isinstance(state[key], str):
            raise StateSchemaError(f"the state's {key} must be a string, found {state[key]!r}")
    for key in ("dataset_size", *_VIEW_KEYS):
        if state.get(key) is not None:
            _integer(state, key)
    if state.get("dataset_size") is not None:
        check_offset(position, state["dataset_size"])
    return position


def check_offset(position: Position, dataset_size: int) -> None:
    """Refuse a position behind the end of the epoch."""
    if position.offset > dataset_size:
        raise StateSchemaError(
            f"the state's observation_offset must be at most the {dataset_size} samples of the data set, "
            f"found {position.offset}: load the state with the data set that it was saved with"
        )


def check_override(override: Collection[str], fixed: Fixed) -> frozenset[str]:
    """Return the names in ``override``, each of which must be one that :func:`check_match` checks."""
    names = frozenset((override,) if isinstance(override, str) else override)
    allowed = {*_PINNED, *(fixed.view or {})}
    unknown = sorted(str(name) for name in names - allowed)
    if unknown:
        raise ArgumentError(f"override takes names out of {_names(sorted(allowed))}, found {_names(unknown)}")
    return names


def check_match(state: Mapping[str, Any], fixed: Fixed, override: frozenset[str]) -> None:
    """Compare a state with the loader that is to take it up; only what both know is compared.

    Parameters
    ----------
    state : mapping
        Passed :func:`check_schema`.
    fixed : Fixed
        The loader's own values; what is None there is not known yet (``identity`` may stay so).
    override : frozenset of str
        Names that may differ. Another data set or another view also has another number of samples, so they include it.

    Raises
    ------
    StateMismatchError
        The first difference.
    StateSchemaError
        A key that no state of this data set has.
    """
    opened = fixed.dataset_size is not None
    own: dict[str, Any] = {"shuffle": fixed.shuffle, "shuffle_seed": fixed.shuffle_seed, "drop_last": fixed.drop_last}
    if opened:
        view = dict(fixed.view or {})
        unknown = sorted(str(key) for key in state if key not in _KNOWN and key not in view)
        if unknown:
            raise StateSchemaError(
                f"the state has unknown entries {_names(unknown)}: "
                "pass what state_dict() gave, and keep your own values beside it"
            )
        own.update(order=fixed.order, identity=fixed.identity, dataset_size=fixed.dataset_size)
        # A view of documents has no window length: a state that has one belongs to a stream.
        own.update({key: view.get(key) for key in (*_VIEW_KEYS, *view)})
    if override & {"identity", "sequence_length", "overlap", *(fixed.view or {})}:
        override |= {"dataset_size"}
    if override & {"shuffle"}:
        override |= {"order"}
    for key in (*_PINNED, *(key for key in own if key not in _PINNED)):
        if key not in own or key not in state or key in override:
            continue
        expected, found = own[key], state[key]
        if key == "identity" and (expected is None or found is None):
            continue
        if expected != found:
            raise StateMismatchError(
                f"the state belongs to {_WHAT.get(key, 'another view of the data set')}: "
                f"this loader has {key} {expected!r}, the state has {found!r}. "
                f"Make the loader as it was when the state was saved, or load it with override=({key!r},) "
                "if the difference is meant: the position then counts samples of this loader's data set",
                key=key,
                expected=expected,
                found=found,
            )


def _integer(state: Mapping[str, Any], key: str) -> int:
    value = _as_int(state[key], key)
    if not 0 <= value <= _MAX_INT:
        raise StateSchemaError(f"the state's {key} must be an integer in [0, 2**63), found {value}")
    return value


def _as_int(value: object, key: str) -> int:
    try:
        return as_int(value, key)
    except ArgumentError:
        raise StateSchemaError(
            f"the state's {key} must be an integer, found {value!r} of type {type(value).__name__}"
        ) from None


def _names(names: Collection[str]) -> str:
    return ", ".join(map(repr, names)) if names else "nothing"
