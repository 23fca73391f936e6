"""The order without memory: one to one for every size, another for every key, and no position is preferred."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmpack.indexed import Permutation


@given(size=st.integers(1, 3000), seed=st.integers(0, 2**64), epoch=st.integers(0, 9))
def test_every_number_once(size: int, seed: int, epoch: int) -> None:
    order = Permutation(size, seed, epoch)
    assert sorted(order(i) for i in range(size)) == list(range(size))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 9, 16, 17, 4096, 99_991])
def test_every_number_once_at_the_edges(size: int) -> None:
    order = Permutation(size, 1)
    assert sorted(order(i) for i in range(size)) == list(range(size))


def test_large_sizes_stay_within() -> None:
    for size in (5_000_000, 10_000_019, 2**40 + 1):
        order = Permutation(size, 7)
        drawn = {order(i) for i in range(0, size, size // 1000)}
        assert len(drawn) == len(range(0, size, size // 1000))
        assert max(drawn) < size
        assert max(drawn) > 0.9 * size


def test_keys_change_the_order() -> None:
    orders = [[Permutation(500, *keys)(i) for i in range(500)] for keys in ((1, 0), (1, 1), (2, 0))]
    same = [sum(a == b for a, b in zip(orders[i], orders[j], strict=True)) for i, j in ((0, 1), (0, 2), (1, 2))]
    assert max(same) < 10  # a random pair agrees in 1 place


@pytest.mark.parametrize("size", [5, 12, 30])
def test_every_place_is_as_likely_as_every_other(size: int) -> None:
    num_seeds = 4000
    for position in (0, size // 2, size - 1):
        counts = Counter(Permutation(size, seed)(position) for seed in range(num_seeds))
        expected = num_seeds / size
        chi_square = sum((counts[i] - expected) ** 2 / expected for i in range(size))
        assert chi_square < size + 6 * (2 * size) ** 0.5  # mean + 6 deviations


def test_neighbours_do_not_stay_neighbours() -> None:
    size = 10_000
    order = Permutation(size, 3)
    steps = [order(i + 1) - order(i) for i in range(size - 1)]
    assert sum(abs(step) == 1 for step in steps) < 20  # 2 expected
    assert abs(sum(order(i) for i in range(100)) / 100 / size - 0.5) < 0.15
