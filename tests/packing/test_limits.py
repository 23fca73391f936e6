"""Limits beside tokens: tiles, pictures, samples. Every algorithm obeys all of them; what cannot fit is refused."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmpack.bench.distributions import DISTRIBUTIONS
from mmpack.errors import ConfigError
from mmpack.packing import ALGORITHMS, make_limits, next_pack, pack_lengths
from mmpack.packing.exact_fill import oldest_and_exact_fill
from mmpack.window import Window

EVERY_ALGORITHM = pytest.mark.parametrize("algorithm", list(ALGORITHMS))


@st.composite
def limited_sets(draw: st.DrawFn, max_size: int = 40) -> tuple[list[int], int, dict[str, tuple[list[int], int]], int]:
    capacity = draw(st.integers(1, 60))
    lengths = draw(st.lists(st.integers(1, capacity), min_size=1, max_size=max_size))
    limits = {}
    for name in ("tiles", "pictures"):
        most = draw(st.integers(0, 8))
        costs = draw(st.lists(st.integers(0, most), min_size=len(lengths), max_size=len(lengths)))
        limits[name] = (costs, most)
    return lengths, capacity, limits, draw(st.integers(1, 6))


def within(pack: list[int], lengths: list[int], capacity: int, limits: dict, max_samples: int) -> bool:
    return (
        sum(lengths[i] for i in pack) <= capacity
        and len(pack) <= max_samples
        and all(sum(costs[i] for i in pack) <= most for costs, most in limits.values())
    )


@EVERY_ALGORITHM
@given(limited_sets(), st.integers(0, 2))
def test_no_pack_is_over_any_limit(algorithm, drawn, seed):
    lengths, capacity, limits, max_samples = drawn
    packs = pack_lengths(lengths, capacity, algorithm=algorithm, seed=seed, limits=limits, max_samples=max_samples)
    assert sorted(chain.from_iterable(packs)) == list(range(len(lengths)))
    assert all(pack and within(pack, *drawn) for pack in packs)


@EVERY_ALGORITHM
@given(limited_sets())
def test_limits_that_never_bind_change_nothing(algorithm, drawn):
    lengths, capacity, limits, _ = drawn
    loose = {name: (costs, sum(costs) + most) for name, (costs, most) in limits.items()}
    limited = pack_lengths(lengths, capacity, algorithm=algorithm, limits=loose, max_samples=len(lengths))
    free = pack_lengths(lengths, capacity, algorithm=algorithm)
    if algorithm == "best_fit_decreasing":
        assert list(map(sorted, limited)) == list(map(sorted, free))
    else:
        assert limited == free


@given(limited_sets())
def test_first_and_best_fit_equal_the_slow_ones(drawn):
    lengths, capacity, limits, max_samples = drawn
    decreasing = sorted(range(len(lengths)), key=lambda i: (lengths[i], i), reverse=True)
    for name, order, best in (
        ("first_fit", range(len(lengths)), False),
        ("first_fit_decreasing", decreasing, False),
        ("best_fit_decreasing", decreasing, True),
    ):
        slow: list[list[int]] = []
        for i in order:
            rooms = [capacity - sum(lengths[j] for j in pack) for pack in slow]
            fitting = [(rooms[p] if best else 0, p) for p, pack in enumerate(slow) if within([*pack, i], *drawn)]
            slow[min(fitting)[1]].append(i) if fitting else slow.append([i])
        assert pack_lengths(lengths, capacity, algorithm=name, limits=limits, max_samples=max_samples) == slow


@given(limited_sets())
def test_greedy_knapsack_takes_the_longest_that_fits(drawn):
    lengths, capacity, limits, max_samples = drawn
    left = sorted(range(len(lengths)), key=lambda i: (lengths[i], i), reverse=True)
    slow: list[list[int]] = []
    while left:
        pack: list[int] = []
        for i in left:
            if within([*pack, i], *drawn):
                pack.append(i)
        left = [i for i in left if i not in pack]
        slow.append(pack)
    packs = pack_lengths(lengths, capacity, algorithm="greedy_knapsack", limits=limits, max_samples=max_samples)
    assert packs == slow


@given(limited_sets(max_size=10))
def test_one_limited_pack_has_the_oldest_and_is_as_full_as_best_fit(drawn):
    lengths, capacity, limits, max_samples = drawn
    beside = make_limits(limits, len(lengths), max_samples=max_samples)
    for choose in (next_pack, oldest_and_exact_fill):
        pack = choose(lengths, capacity, beside)
        assert pack[0] == 0
        assert pack == sorted(set(pack))
        assert within(pack, *drawn)


def test_three_limits_at_once():
    """At most 100 tokens, 3 samples and 4 pictures a pack; the last sample has 5 pictures, and no pack holds it."""
    tokens, pictures = [10] * 9, [1, 1, 1, 1, 0, 3, 2, 4, 5]
    for algorithm in ALGORITHMS:
        with pytest.raises(ConfigError, match=r"limits\['pictures'\]: sample 8 costs 5, a pack holds at most 4"):
            pack_lengths(tokens, 100, algorithm=algorithm, limits={"pictures": (pictures, 4)}, max_samples=3)
        packs = pack_lengths(
            tokens[:8], 100, algorithm=algorithm, limits={"pictures": (pictures[:8], 4)}, max_samples=3
        )
        assert sorted(chain.from_iterable(packs)) == list(range(8))
        assert max(map(len, packs)) <= 3
        assert max(sum(pictures[i] for i in pack) for pack in packs) <= 4


@EVERY_ALGORITHM
def test_a_cap_is_never_an_average(algorithm):
    """Eight samples of 7 in packs of 8: eight packs; an even share of 56 tokens would put two into one."""
    packs = pack_lengths([7] * 8, 8, algorithm=algorithm)
    assert len(packs) == 8
    with pytest.raises(ConfigError, match=r"lengths\[0\] is 9 tokens, a pack holds 8"):
        pack_lengths([9], 8, algorithm=algorithm)


def test_what_is_too_long_is_named():
    with pytest.raises(ConfigError, match=r"lengths\[4\] is 20 tokens, a pack holds 8; raise .* or drop or cut"):
        pack_lengths([5, 2, 3, 1, 20, 9, 8], 8)
    kept = [5, 2, 3, 1, 8]
    assert sorted(chain.from_iterable(pack_lengths(kept, 8))) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("limits", "max_samples", "message"),
    [
        ({"tiles": ([1, 2], 4)}, None, r"limits\['tiles'\] has 2 costs for 3 samples"),
        ({"tiles": ([1, 2, -1], 4)}, None, r"limits\['tiles'\]: sample 2 costs -1; a cost is a whole number"),
        ({"tiles": ([1, 2, 0.5], 4)}, None, "sample 2 costs 0.5"),
        ({"tiles": ([1, 2, 3], -1)}, None, "a pack holds at most -1"),
        ({"tiles": ([1, 2, 3], True)}, None, "a pack holds at most True"),
        (None, 0, "max_samples=0: a pack holds a whole number of samples, at least 1"),
        (None, 1.5, "max_samples=1.5"),
    ],
)
def test_limits_of_no_use_are_refused(limits, max_samples, message):
    with pytest.raises(ConfigError, match=message):
        pack_lengths([1, 2, 3], 8, limits=limits, max_samples=max_samples)


@pytest.mark.parametrize("max_samples", [5, 8, None])
def test_exact_fill_stays_full_where_limits_leave_it_a_choice(max_samples):
    mix = DISTRIBUTIONS["caption_4k"]
    lengths = mix.lengths(3000, seed=2)
    pictures = [int(length > 576) for length in lengths]
    limits = {"pictures": (pictures, 6)}
    packs = pack_lengths(lengths, mix.capacity, limits=limits, max_samples=max_samples)
    best = pack_lengths(lengths, mix.capacity, algorithm="best_fit_decreasing", limits=limits, max_samples=max_samples)
    fewest = max(-(-sum(lengths) // mix.capacity), -(-sum(pictures) // 6), -(-3000 // (max_samples or 3000)))
    assert len(packs) <= len(best)
    assert len(packs) <= 1.01 * fewest


# --- the window ------------------------------------------------------------------------------------------------------


@given(limited_sets(), st.integers(1, 20))
def test_packs_of_a_window_obey_its_limits(drawn, max_window):
    lengths, capacity, limits, max_samples = drawn
    window = Window[int](
        capacity,
        max_window,
        limits={name: most for name, (_, most) in limits.items()},
        max_pack_samples=max_samples,
    )
    packs = []
    for i, length in enumerate(lengths):
        window.add(i, length, [costs[i] for costs, _ in limits.values()])
        while window.full:
            packs.append(window.take_pack())
    while len(window):
        packs.append(window.take_pack())
    assert sorted(chain.from_iterable(packs)) == list(range(len(lengths)))
    assert all(within(pack, *drawn) for pack in packs)
    assert window.costs == ()


@pytest.mark.parametrize("most_tiles", [58, 60, 62])
def test_a_window_fills_as_far_as_a_binding_limit_lets_it(most_tiles):
    mix = DISTRIBUTIONS["tiled_16k"]
    lengths = mix.lengths(4000, seed=1)
    tiles = [length // 256 for length in lengths]
    window = Window[int](mix.capacity, 200, limits={"tiles": most_tiles}, max_pack_samples=12)
    fills = []
    for i, length in enumerate(lengths):
        window.add(i, length, (tiles[i],))
        while window.full:
            pack = window.take_pack()
            assert sum(tiles[j] for j in pack) <= most_tiles
            assert len(pack) <= 12
            fills.append(sum(lengths[j] for j in pack) / mix.capacity)
    tiles_of_a_full_pack = sum(tiles) / sum(lengths) * mix.capacity  # 60.9
    assert sum(fills) / len(fills) > 0.998 * min(1.0, most_tiles / tiles_of_a_full_pack)


def test_a_window_refuses_costs_that_cannot_be():
    window = Window[str](8, 5, limits={"pictures": 4})
    with pytest.raises(ConfigError, match=r"sample 0 of the window has 0 costs; .* \['pictures'\]"):
        window.add("a", 3)
    with pytest.raises(ConfigError, match=r"limits\['pictures'\]: sample 0 of the window costs 5, .* at most 4"):
        window.add("a", 3, (5,))
    assert len(window) == 0
    window.add("a", 3, (4,))
    assert window.costs == ((4,),)
    with pytest.raises(ConfigError, match="max_pack_samples=0"):
        Window[str](8, 5, max_pack_samples=0)


@pytest.mark.parametrize("limits", [[1], "tiles", {"tiles": [1, 2, 3]}, {"tiles": None}, {"tiles": (3, 3)}])
def test_limits_of_another_form_are_refused(limits):
    with pytest.raises(ConfigError, match=r"limits.*; give .*\(cost of each sample, most that a pack holds\)"):
        pack_lengths([1, 2], 10, limits=limits)
