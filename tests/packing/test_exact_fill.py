"""The choice of one pack from a window, against every subset there is."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmpack.packing.exact_fill import next_pack, oldest_and_best_fit, oldest_and_exact_fill


@st.composite
def windows(draw: st.DrawFn) -> tuple[list[int], int]:
    capacity = draw(st.integers(1, 80))
    return draw(st.lists(st.integers(1, capacity), min_size=1, max_size=10)), capacity


def subsets_with_oldest(lengths: list[int], capacity: int) -> list[tuple[int, ...]]:
    rest = range(1, len(lengths))
    subsets = [(0, *others) for size in range(len(lengths)) for others in combinations(rest, size)]
    return [s for s in subsets if sum(lengths[i] for i in s) <= capacity]


@given(windows())
def test_exact_fill_is_the_fullest_of_all_subsets(drawn):
    lengths, capacity = drawn
    chosen = oldest_and_exact_fill(lengths, capacity)
    fullest = max(sum(lengths[i] for i in s) for s in subsets_with_oldest(lengths, capacity))
    assert chosen[0] == 0
    assert chosen == sorted(set(chosen))
    assert sum(lengths[i] for i in chosen) == fullest


@given(windows())
def test_exact_fill_leaves_the_newest_alone(drawn):
    lengths, capacity = drawn
    chosen = oldest_and_exact_fill(lengths, capacity)
    tokens = sum(lengths[i] for i in chosen)
    equally_full = [s for s in subsets_with_oldest(lengths, capacity) if sum(lengths[i] for i in s) == tokens]
    # of all sets as full, the one whose newest is oldest, then whose next newest is oldest, and so on
    assert tuple(chosen) == min(equally_full, key=lambda s: sorted(s, reverse=True))


@given(windows())
def test_next_pack_keeps_the_oldest_and_the_capacity(drawn):
    lengths, capacity = drawn
    for choose in (next_pack, oldest_and_best_fit):
        chosen = choose(lengths, capacity)
        assert chosen[0] == 0
        assert chosen == sorted(set(chosen))
        assert sum(lengths[i] for i in chosen) <= capacity
        assert chosen == choose(tuple(lengths), capacity)


@given(windows())
def test_best_fit_takes_the_longest_that_fits_each_time(drawn):
    lengths, capacity = drawn
    room, left, chosen = capacity - lengths[0], list(range(1, len(lengths))), [0]
    while fitting := [i for i in left if lengths[i] <= room]:
        best = max(fitting, key=lambda i: (lengths[i], -i))
        left.remove(best)
        chosen.append(best)
        room -= lengths[best]
    assert oldest_and_best_fit(lengths, capacity) == sorted(chosen)


def test_long_samples_in_the_majority_decide_for_best_fit():
    half_long = [4, 8, 9, 10, 9, 5, 4, 3]  # beside the oldest, 4 + 3 is exact and 5 is the best single one
    assert next_pack(half_long, 11) == oldest_and_exact_fill(half_long, 11) == [0, 6, 7]
    mostly_long = [*half_long, 10]
    assert oldest_and_exact_fill(mostly_long, 11) == [0, 6, 7]
    assert next_pack(mostly_long, 11) == oldest_and_best_fit(mostly_long, 11) == [0, 5]


@pytest.mark.parametrize("choose", [next_pack, oldest_and_exact_fill, oldest_and_best_fit])
def test_a_sample_as_long_as_a_pack_stands_alone(choose):
    assert choose([8, 1, 1], 8) == [0]
    assert choose([8], 8) == [0]
    assert choose([1], 8) == [0]
