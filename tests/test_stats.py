"""Fill, waits, displacement and balance against their definitions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmpack.stats import attention_cost, balance, displacements, fill_stats, packs_before_drain, waits
from mmpack.window import stream_packs


def test_fill():
    stats = fill_stats([10, 10, 7, 1], 10)
    assert (stats.num_packs, stats.num_full_packs, stats.num_tokens) == (4, 2, 28)
    assert stats.mean_fill == pytest.approx(0.7)
    assert stats.full_share == 0.5
    both = stats + fill_stats([10], 10)
    assert (both.num_packs, both.num_full_packs, both.num_tokens) == (5, 3, 38)


def test_fill_of_nothing_is_no_fault():
    assert (fill_stats([], 10).mean_fill, fill_stats([], 10).full_share) == (1.0, 1.0)


def test_fill_of_different_packs_does_not_add_up():
    with pytest.raises(ValueError, match="packs of 10 and of 20 tokens"):
        fill_stats([1], 10) + fill_stats([1], 20)


@given(st.lists(st.integers(1, 30), max_size=80), st.integers(1, 20))
def test_waits_are_what_a_stopwatch_shows(lengths, window):
    emitted = 0
    emitted_when_read: list[int] = []

    def read():
        for length in lengths:
            emitted_when_read.append(emitted)
            yield length

    packs, measured = [], [0] * len(lengths)
    for pack in stream_packs(read(), 30, window=window):
        for sample in pack:
            measured[sample] = emitted - emitted_when_read[sample]
        emitted += len(pack)
        packs.append(pack)
    assert waits(packs, window) == measured


def test_packs_before_drain():
    packs = [[0, 3], [1, 2, 4], [5]]  # with a window of 4: 4 of 6 in, 4 in, 1 in
    assert packs_before_drain(packs, 4) == packs[:2]
    assert packs_before_drain(packs, 1) == packs
    assert packs_before_drain(packs, 7) == []
    assert packs_before_drain([], 4) == []


def test_displacements():
    assert displacements([[0, 1], [2]]) == [0, 0, 0]
    assert displacements([[0, 2], [1]]) == [0, 1, 1]


def test_balance_and_cost():
    assert attention_cost([3, 4]) == 25
    assert balance([[2, 2, 2]]) == 1.0
    assert balance([[4, 2, 0], [1, 1, 1]]) == 1.5
    assert balance([]) == 1.0
    assert balance([[0, 0]]) == 1.0
