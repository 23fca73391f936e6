"""The checkpoint's envelope: every difference is named, and ranks' states merge only when they fit."""

from __future__ import annotations

from typing import Any

import pytest

from mmpack import state
from mmpack.errors import StateError

SETTINGS = {"data.seed": 0, "stream.capacity": 512}
VERSIONS = {"mmpack": "1"}


def rank_state(rank: int, *, next_pack: int = 8, settings: dict[str, Any] | None = None) -> dict[str, Any]:
    return state.envelope(
        settings=settings or SETTINGS,
        versions=VERSIONS,
        num_streams=4,
        epoch=0,
        next_pack=next_pack,
        streams={rank: {"stream": rank}, rank + 2: None},
    )


def test_a_fitting_state_passes() -> None:
    state.check(rank_state(0), settings=SETTINGS, versions=VERSIONS, num_streams=4)


def test_each_changed_setting_is_named() -> None:
    with pytest.raises(
        StateError, match=r"data\.seed: saved 0, now 7 \(data\); stream\.capacity: saved 512, now 1024 \(order\)"
    ):
        state.check(rank_state(0), settings={"data.seed": 7, "stream.capacity": 1024}, versions=VERSIONS, num_streams=4)


def test_another_format_is_refused() -> None:
    with pytest.raises(StateError, match="format version 99"):
        state.check({**rank_state(0), "version": 99}, settings=SETTINGS, versions=VERSIONS, num_streams=4)


def test_another_version_of_mmpack_is_only_a_warning() -> None:
    with pytest.warns(UserWarning, match="mmpack: saved '1', now '2'"):
        state.check(rank_state(0), settings=SETTINGS, versions={"mmpack": "2"}, num_streams=4)


def test_states_of_all_ranks_merge() -> None:
    merged = state.merge([rank_state(0), rank_state(1)])
    assert list(merged["streams"]) == ["0", "1", "2", "3"]
    assert merged["next_pack"] == 8


def test_ranks_at_different_steps_do_not_merge() -> None:
    with pytest.raises(StateError, match="rank 1 has next_pack=10, rank 0 has 8"):
        state.merge([rank_state(0), rank_state(1, next_pack=10)])


def test_a_missing_rank_is_named_by_its_streams() -> None:
    with pytest.raises(StateError, match=r"streams \[1, 3\]"):
        state.merge([rank_state(0)])


def test_the_same_rank_twice_is_refused() -> None:
    with pytest.raises(StateError, match="streams 0, 2 are in the states of two ranks"):
        state.merge([rank_state(0), rank_state(0)])
