"""The streaming window: what it must hold on known mixes, its edges, and the aligned blocks behind it."""

from __future__ import annotations

import json
from itertools import chain, count, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmpack.bench.distributions import DISTRIBUTIONS
from mmpack.errors import ConfigError, StateError
from mmpack.stats import attention_cost, balance, displacements, fill_stats, packs_before_drain, waits
from mmpack.window import AlignedPlans, Window, quantile_order, stream_packs

REALISTIC = [name for name, mix in DISTRIBUTIONS.items() if mix.realistic and not mix.in_tokens]


# --- the numbers that packing promises -------------------------------------------------------------------------------
# Fill is that of the packs chosen from a full window: the window is full before the first pack, so there is no
# warm-up to leave out, and the drain at the end of the stream is another matter. Waits and displacement cover all.


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("name", "window", "least_fill", "most_windows_waited", "most_displacement"),
    [
        *((name, 200, 0.999, 1.25, 10.0) for name in REALISTIC),
        ("uniform_8k", 200, 0.98, 2.2, 130.0),  # no rule keeps both this fill and the order; see exact_fill.next_pack
        *((name, 50, 0.999, 1.75, 10.0) for name in REALISTIC),
        ("uniform_8k", 50, 0.96, 2.2, 35.0),
    ],
)
def test_fill_wait_and_order_on_known_mixes(name, window, least_fill, most_windows_waited, most_displacement, seed):
    mix = DISTRIBUTIONS[name]
    lengths = mix.lengths(20_000, seed)
    packs = list(stream_packs(lengths, mix.capacity, window=window))
    pack_tokens = [sum(lengths[i] for i in pack) for pack in packs]
    assert sorted(chain.from_iterable(packs)) == list(range(len(lengths)))
    assert max(pack_tokens) <= mix.capacity
    steady = packs_before_drain(packs, window)
    assert sum(map(len, steady)) > 0.95 * len(lengths)
    assert fill_stats(pack_tokens[: len(steady)], mix.capacity).mean_fill >= least_fill
    assert max(waits(packs, window)) <= most_windows_waited * window
    moved = displacements(packs)
    assert sum(moved) / len(moved) <= most_displacement


@pytest.mark.parametrize("name", REALISTIC)
def test_the_drain_needs_hardly_more_packs_than_its_tokens(name):
    mix = DISTRIBUTIONS[name]
    lengths = mix.lengths(2_000, seed=5)
    packs = list(stream_packs(lengths, mix.capacity, window=200))
    assert len(packs) <= -(-sum(lengths) // mix.capacity) + 1


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_window_of_four_capacities_fills_chats_of_which_a_few_are_very_long(seed):
    mix = DISTRIBUTIONS["chat_32k"]
    lengths = mix.lengths(20_000, seed)
    packs = list(stream_packs(lengths, mix.capacity, window=None, window_tokens=4 * mix.capacity))
    assert sorted(chain.from_iterable(packs)) == list(range(len(lengths)))
    tokens_left = sum(lengths)
    fills = []
    for pack in packs:
        if tokens_left < 4 * mix.capacity:
            break  # the stream has ended and the window drains
        fills.append(sum(lengths[i] for i in pack) / mix.capacity)
        tokens_left -= sum(lengths[i] for i in pack)
    assert len(fills) > 0.95 * len(packs)
    assert sum(fills) / len(fills) >= 0.999
    moved = displacements(packs)
    assert sum(moved) / len(moved) <= 10


@pytest.mark.parametrize("name", ["caption_8k", "tiled_16k"])
@pytest.mark.parametrize(
    ("window", "carried_first_fit_decreasing"), [(16, 0.991), (32, 0.994), (64, 0.995), (128, 0.997)]
)
def test_fill_is_above_that_of_packers_that_carry_open_packs_over(name, window, carried_first_fit_decreasing):
    """First fit decreasing that emits packs from 98 % on and keeps the rest open reaches this on such a mix."""
    mix = DISTRIBUTIONS[name]
    lengths = mix.lengths(10_000, seed=3)
    packs = list(stream_packs(lengths, mix.capacity, window=window))
    steady = packs_before_drain(packs, window)
    fill = fill_stats((sum(lengths[i] for i in pack) for pack in steady), mix.capacity).mean_fill
    assert fill > carried_first_fit_decreasing
    assert max(waits(packs, window)) < {16: 159, 32: 332, 64: 911, 128: 1448}[window]  # the longest wait there


# --- stream_packs ----------------------------------------------------------------------------------------------------


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[int], int, int]:
    capacity = draw(st.integers(1, 50))
    return draw(st.lists(st.integers(1, capacity), max_size=80)), capacity, draw(st.integers(1, 30))


@given(streams())
def test_stream_gives_every_index_once_and_the_oldest_first(drawn):
    lengths, capacity, window = drawn
    packs = list(stream_packs(lengths, capacity, window=window))
    assert sorted(chain.from_iterable(packs)) == list(range(len(lengths)))
    waiting = set(range(len(lengths)))
    for pack in packs:
        assert sum(lengths[i] for i in pack) <= capacity
        assert pack == sorted(pack)
        assert pack[0] == min(waiting)
        waiting -= set(pack)
    assert packs == list(stream_packs(iter(lengths), capacity, window=window))


@given(streams())
def test_stream_reads_no_further_than_the_window(drawn):
    lengths, capacity, window = drawn
    num_read = 0

    def read():
        nonlocal num_read
        for length in lengths:
            num_read += 1
            yield length

    emitted = 0
    for pack in stream_packs(read(), capacity, window=window):
        assert num_read == min(len(lengths), emitted + window)
        emitted += len(pack)


def test_stream_may_be_endless():
    packs = list(islice(stream_packs((1 + i % 7 for i in count()), 16, window=20), 100))
    assert len(packs) == 100


def test_stream_refuses_what_no_pack_holds_when_it_comes():
    packs = stream_packs([3, 9, 4], 8, window=2)
    with pytest.raises(ConfigError, match=r"lengths\[1\] is 9 tokens, a pack holds 8"):
        next(packs)


@pytest.mark.parametrize(("capacity", "window", "message"), [(0, 5, "capacity=0"), (8, 0, "max_samples=0")])
def test_stream_refuses_bad_sizes_at_once(capacity, window, message):
    with pytest.raises(ConfigError, match=message):
        stream_packs([1], capacity, window=window)


# --- Window ----------------------------------------------------------------------------------------------------------


def filled(capacity: int, max_samples: int, lengths: list[int]) -> Window[str]:
    window = Window[str](capacity, max_samples)
    for i, length in enumerate(lengths):
        window.add(f"s{i}", length)
    return window


def test_window_counts_what_it_holds():
    window = filled(8, 5, [5, 4, 2, 3])
    assert (len(window), window.total_tokens, window.lengths, window.full) == (4, 14, (5, 4, 2, 3), False)
    assert list(window) == list(window.items) == ["s0", "s1", "s2", "s3"]
    assert window.take_pack() == ["s0", "s3"]
    assert (len(window), window.total_tokens, window.lengths) == (2, 6, (4, 2))
    assert window.take_pack() == ["s1", "s2"]
    assert (len(window), window.total_tokens) == (0, 0)
    with pytest.raises(IndexError, match="no sample"):
        window.take_pack()


def test_window_is_full_by_samples_or_by_tokens():
    window = Window[int](capacity=8, max_samples=3, max_tokens=10)
    window.add(0, 6)
    assert not window.full
    window.add(1, 4)
    assert window.full
    by_samples = filled(8, 2, [1, 1])
    assert by_samples.full


@pytest.mark.parametrize(
    ("max_samples", "max_tokens", "message"),
    [
        (None, None, "a window needs a size"),
        (0, None, "max_samples=0"),
        ("5", None, "max_samples='5'"),
        (float("nan"), None, "max_samples=nan"),
        (None, "9", "max_tokens='9'"),
        (5, 7, "max_tokens=7: the window could not fill a pack of 8 tokens"),
    ],
)
def test_window_of_no_use_is_refused(max_samples, max_tokens, message):
    with pytest.raises(ConfigError, match=message):
        Window[int](8, max_samples, max_tokens)


@pytest.mark.parametrize("length", [0, 9, 2.0])
def test_window_refuses_a_sample_that_cannot_be_packed(length):
    window = filled(8, 5, [5])
    with pytest.raises(ConfigError, match="the length of sample 1 of the window is"):
        window.add("bad", length)
    assert len(window) == 1


@given(streams(), st.integers(0, 10))
def test_window_restored_from_its_samples_goes_on_alike(drawn, packs_before):
    lengths, capacity, max_samples = drawn
    window = filled(capacity, max_samples, lengths)
    for _ in range(packs_before):
        if len(window):
            window.take_pack()
    again = Window[str](capacity, max_samples)
    for item, length in zip(window.items, window.lengths, strict=True):
        again.add(item, length)
    while len(window):
        assert again.take_pack() == window.take_pack()
    assert len(again) == 0


# --- AlignedPlans ----------------------------------------------------------------------------------------------------


def through(plans: AlignedPlans[int], costs: list[int]) -> list[int]:
    """Sends plans of these costs through `plans`, as a stream does; their places as they come out."""
    source = iter(enumerate(costs))
    out: list[int] = []
    while True:
        while plans.wants_plan and (following := next(source, None)) is not None:
            plans.add(*following)
        if not len(plans):
            return out
        out.append(plans.take())


def test_a_block_of_one_passes_through():
    assert through(AlignedPlans(1, seed=0), [5, 3, 9, 1]) == [0, 1, 2, 3]


@given(st.lists(st.integers(1, 100), max_size=40), st.integers(1, 9))
def test_blocks_lose_nothing_and_move_nothing_beyond_their_ends(lengths, block_plans):
    plans = AlignedPlans[int](block_plans, seed=3)
    out = through(plans, lengths)
    assert sorted(out) == list(range(len(lengths)))
    assert all(place // block_plans == i // block_plans for place, i in enumerate(out))
    assert len(plans) == 0
    plans.restart()
    assert through(plans, lengths) == out


def test_every_stream_emits_the_same_quantiles():
    block_plans = 8
    generator_of = {stream: [(i * (37 + 2 * stream)) % 101 + 1 for i in range(32)] for stream in range(5)}
    ranks_by_stream = []
    for lengths in generator_of.values():
        out = through(AlignedPlans(block_plans, seed=7), lengths)
        costs = [lengths[i] for i in out]
        ranks = []
        for start in range(0, 32, block_plans):
            block = costs[start : start + block_plans]
            ranks += [sorted(block).index(cost) for cost in block]
        ranks_by_stream.append(ranks)
    assert all(ranks == ranks_by_stream[0] for ranks in ranks_by_stream)
    assert ranks_by_stream[0][:8] != ranks_by_stream[0][8:16]  # another order in another block


def test_the_quantile_order_is_fixed_for_ever():
    # A changed order would break the resume of every saved run.
    assert quantile_order(8, seed=0, block=0) == [3, 5, 6, 7, 0, 2, 1, 4]
    assert quantile_order(8, seed=0, block=1) == [4, 0, 7, 6, 3, 5, 1, 2]


@pytest.mark.parametrize("stop", range(26))
def test_aligned_plans_resume_anywhere(stop):
    costs = [13, 2, 8, 5, 21, 1, 34, 3, 55, 9, 7, 11, 6]

    def run(plans: AlignedPlans[int], place: int, steps: int) -> tuple[list[int], int]:
        """Up to `steps` adds and takes, from cost number `place` on: the plans taken, and the next place."""
        out: list[int] = []
        for _ in range(steps):
            if plans.wants_plan and place < len(costs):
                plans.add(place, costs[place])
                place += 1
            elif len(plans):
                out.append(plans.take())
        return out, place

    whole, _ = run(AlignedPlans(4, seed=1), 0, steps=26)
    plans = AlignedPlans[int](4, seed=1)
    before, place = run(plans, 0, steps=stop)
    again = AlignedPlans[int](4, seed=1)
    again.restore(json.loads(json.dumps(plans.state())), plans.plans)
    rest, _ = run(again, place, steps=26 - stop)
    assert sorted(whole) == list(range(len(costs)))
    assert before + rest == whole


def test_aligned_plans_refuse_a_state_that_does_not_fit():
    plans = AlignedPlans[int](4, seed=0)
    for i in range(3):
        plans.add(i, 1)
    with pytest.raises(StateError, match="3 held plans restored, the state counts 3, align_window is 2"):
        AlignedPlans[int](2, seed=0).restore(plans.state(), plans.plans)
    with pytest.raises(StateError, match="2 held plans restored, the state counts 3"):
        AlignedPlans[int](4, seed=0).restore(plans.state(), plans.plans[:2])


def test_aligned_plans_have_nothing_to_give_when_empty():
    with pytest.raises(IndexError, match="no plan held"):
        AlignedPlans[int](4, seed=0).take()


def test_aligned_plans_need_a_block():
    with pytest.raises(ConfigError, match="align_window=0"):
        AlignedPlans[int](0, seed=0)


def test_blocks_give_every_rank_equal_work():
    """16 simulated ranks at 8,192 tokens: the cost of a step's packs, attention and the rest (width 2048)."""
    mix, num_steps = DISTRIBUTIONS["caption_8k"], 64
    balances = []
    for block_plans in (1, 32):
        costs_by_rank = []
        for rank in range(16):
            lengths = mix.lengths(13 * num_steps + 200, seed=100 + rank)
            packs = stream_packs(lengths, mix.capacity)
            plans = AlignedPlans[list[int]](block_plans, seed=0)
            costs = []
            while len(costs) < num_steps:
                while plans.wants_plan:
                    pack = next(packs)
                    plans.add(pack, attention_cost(lengths[i] for i in pack))
                pack_lengths = [lengths[i] for i in plans.take()]
                costs.append(attention_cost(pack_lengths) + 6 * 2048 * sum(pack_lengths))
            costs_by_rank.append(costs)
        balances.append(balance(list(zip(*costs_by_rank, strict=True))))
    unaligned, aligned = balances
    assert unaligned > 1.04
    assert aligned < 1.02  # the promise is 1.03; the bench of packers has 64 ranks
