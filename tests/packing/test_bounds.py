"""What is proven about each algorithm, against the optimum; and that none is slow on any kind of set."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmpack.bench.distributions import DISTRIBUTIONS
from mmpack.packing import ALGORITHMS, next_pack, pack_lengths
from mmpack.packing.exact_fill import oldest_and_exact_fill

REALISTIC = [name for name, mix in DISTRIBUTIONS.items() if mix.realistic]


def fewest_packs(lengths: list[int], capacity: int) -> int:
    """The optimum, by trying every place for every sample, longest first."""
    order = sorted(lengths, reverse=True)
    best = len(order)

    def place(k: int, rooms: list[int]) -> None:
        nonlocal best
        if len(rooms) >= best:
            return
        if k == len(order):
            best = len(rooms)
            return
        for room in set(rooms):
            if room >= order[k]:
                others = rooms.copy()
                others.remove(room)
                place(k + 1, [*others, room - order[k]])
        place(k + 1, [*rooms, capacity - order[k]])

    place(0, [])
    return best


def test_the_oracle_of_the_optimum():
    assert fewest_packs([4, 3, 3, 2, 2, 2], 8) == 2  # 4 2 2 and 3 3 2; greedy knapsack needs 3
    assert fewest_packs([5, 5, 5], 8) == 3
    assert fewest_packs([], 8) == 0


@given(st.integers(4, 40).flatmap(lambda c: st.tuples(st.lists(st.integers(1, c), max_size=8), st.just(c))))
def test_bounds_against_the_optimum(drawn):
    lengths, capacity = drawn
    optimum = fewest_packs(lengths, capacity)
    for algorithm, factor, extra in (
        ("first_fit", 1.7, 0.0),
        ("first_fit_shuffle", 1.7, 0.0),
        ("first_fit_decreasing", 11 / 9, 6 / 9),
        ("greedy_knapsack", 11 / 9, 6 / 9),
        ("best_fit_decreasing", 11 / 9, 6 / 9),
        ("exact_fill", 11 / 9, 6 / 9),
        ("modified_first_fit_decreasing", 2.0, 0.0),
        ("concatenative", 2.0, 0.0),
    ):
        num_packs = len(pack_lengths(lengths, capacity, algorithm=algorithm))
        assert optimum <= num_packs <= factor * optimum + extra + 1e-9, algorithm


@pytest.mark.parametrize("name", REALISTIC)
@pytest.mark.parametrize("seed", range(4))
def test_exact_fill_needs_the_fewest_packs_of_realistic_sets(name, seed):
    mix = DISTRIBUTIONS[name]
    lengths = mix.lengths(20_000, seed)
    packs = pack_lengths(lengths, mix.capacity, seed=seed)
    assert len(packs) <= -(-sum(lengths) // mix.capacity) + 1
    assert len(packs) <= len(pack_lengths(lengths, mix.capacity, algorithm="best_fit_decreasing"))


@pytest.mark.slow
@pytest.mark.parametrize("name", REALISTIC)
def test_a_million_lengths_need_hardly_more_packs_than_their_tokens(name):
    mix = DISTRIBUTIONS[name]
    lengths = mix.lengths(1_000_000, seed=0)
    start = time.process_time()
    packs = pack_lengths(lengths, mix.capacity)
    assert time.process_time() - start < 15  # about 2 s on a quiet core
    assert len(packs) <= 1.0001 * -(-sum(lengths) // mix.capacity) + 1


SETS = {  # 50,000 lengths each
    "equal": [7] * 50_000,
    "rising": [1 + i * 8191 // 50_000 for i in range(50_000)],
    "uniform": [1 + i * 7919 % 8192 for i in range(50_000)],
    "halves": [4096 + i % 3 - 1 for i in range(50_000)],
    "thirds": [2730 + i % 5 for i in range(50_000)],
    "even": [2 * (1 + i * 7919 % 1000) for i in range(50_000)],  # never fills an odd capacity
    "ones": [1] * 50_000,
    "two kinds": [1 if i % 2 else 8000 for i in range(50_000)],
}


@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
@pytest.mark.parametrize("kind", list(SETS))
def test_no_set_makes_an_algorithm_quadratic(algorithm, kind):
    start = time.process_time()
    packs = pack_lengths(SETS[kind], 8193, algorithm=algorithm)
    assert time.process_time() - start < 5  # quadratic in 50,000 would be minutes
    assert sum(map(len, packs)) == 50_000


@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
def test_limits_do_not_make_an_algorithm_quadratic(algorithm):
    lengths = [1 + i * 7919 % 2000 for i in range(10_000)]
    pictures = [i % 4 for i in range(10_000)]
    start = time.process_time()
    packs = pack_lengths(lengths, 8192, algorithm=algorithm, limits={"pictures": (pictures, 4)}, max_samples=6)
    assert time.process_time() - start < 20
    assert all(sum(pictures[i] for i in pack) <= 4 for pack in packs)


# --- capacities that no bit set should be as long as -----------------------------------------------------------------


@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
@pytest.mark.parametrize("longest", [1_000, 10**6, 10**9])
def test_a_huge_capacity_is_not_slow(algorithm, longest):
    lengths = [1 + i * 2_654_435_761 % longest for i in range(3_000)]
    start = time.process_time()
    packs = pack_lengths(lengths, 10**9, algorithm=algorithm)
    assert time.process_time() - start < 5
    assert sorted(i for pack in packs for i in pack) == list(range(3_000))
    assert max(sum(lengths[i] for i in pack) for pack in packs) <= 10**9
    if algorithm == "exact_fill":
        assert len(packs) <= len(pack_lengths(lengths, 10**9, algorithm="best_fit_decreasing"))


@pytest.mark.parametrize("longest", [10, 10**6, 4 * 10**8, 10**9])
def test_one_pack_of_a_huge_capacity_is_nearly_full(longest):
    lengths = [1 + i * 2_654_435_761 % longest for i in range(200)]
    capacity = min(10**9, max(2 * longest, sum(lengths) // 3))
    for choose in (next_pack, oldest_and_exact_fill):
        start = time.process_time()
        pack = choose(lengths, capacity)
        assert time.process_time() - start < 1
        assert pack[0] == 0
        assert pack == sorted(set(pack))
        assert capacity >= sum(lengths[i] for i in pack)
    assert sum(lengths[i] for i in oldest_and_exact_fill(lengths, capacity)) > 0.999 * capacity - 1


@given(
    st.integers(2**20 + 2, 2**24).flatmap(
        lambda c: st.tuples(st.lists(st.integers(1, c), min_size=1, max_size=12), st.just(c))
    )
)
def test_counting_in_units_never_goes_over(drawn):
    lengths, capacity = drawn
    pack = oldest_and_exact_fill(lengths, capacity)
    assert pack[0] == 0
    assert pack == sorted(set(pack))
    assert sum(lengths[i] for i in pack) <= capacity
    room = capacity - sum(lengths[i] for i in pack)
    assert all(lengths[i] > room for i in range(len(lengths)) if i not in pack)
