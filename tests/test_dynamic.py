"""Dynamic batching, packing for ranks and the plain baselines: NeMo-RL's numbers, and nothing lost on any number of
ranks."""

from __future__ import annotations

import subprocess
import sys
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmpack.dynamic import (
    MicroBatch,
    bucket_batches,
    deal_packs,
    dynamic_batches,
    packed_microbatches,
    padded_batches,
)
from mmpack.errors import ConfigError
from mmpack.packing import ALGORITHMS

EIGHT = [2, 4, 7, 6, 3, 4, 1, 5]
WIDE = [13, 120, 64, 33, 90, 7, 55, 128]


def plain(rank: list[MicroBatch]) -> list[tuple[list[int], int]]:
    return [(list(batch.indices), batch.padded_length) for batch in rank]


# --- numbers that NeMo-RL gives --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sequence_length_round", "max_length", "widths"), [(1, 7, [4, 7]), (4, 8, [4, 8])])
def test_one_rank_sorts_and_cuts_by_the_budget(sequence_length_round, max_length, widths):
    (rank,) = dynamic_batches(
        [2, 4, 7, 6, 3, 4],
        tokens_per_microbatch=16,
        sequence_length_round=sequence_length_round,
        max_length=max_length,
    )
    assert plain(rank) == [([0, 4, 1, 5], widths[0]), ([3, 2], widths[1])]


def test_two_ranks_cut_at_the_same_places():
    settings = {"tokens_per_microbatch": 16, "sequence_length_round": 2, "num_ranks": 2, "max_length": 8}
    rank0, rank1 = dynamic_batches(EIGHT, **settings)
    assert plain(rank0) == [([6, 4], 4), ([5, 3], 8)]
    assert plain(rank1) == [([0, 1], 4), ([7, 2], 8)]
    rank0, rank1 = dynamic_batches(EIGHT, global_batch_size=4, **settings)
    assert plain(rank0) == [([0, 3], 8), ([6, 5], 6)]
    assert plain(rank1) == [([1, 2], 8), ([4, 7], 6)]
    assert [batch.global_batch for batch in rank0] == [0, 1]


def test_rows_are_rounded_to_64():
    rank0, rank1 = dynamic_batches(WIDE, tokens_per_microbatch=256, num_ranks=2, max_length=128)
    assert plain(rank0) == [([5, 3], 64), ([2, 1], 128)]
    assert plain(rank1) == [([0, 6], 64), ([4, 7], 128)]


def test_rounding_stops_at_the_width():
    (rank,) = dynamic_batches([60, 65], tokens_per_microbatch=65, max_length=65)
    assert plain(rank) == [([0], 64), ([1], 65)]
    with pytest.raises(ConfigError, match=r"lengths\[1\]=70 makes a row of 70 tokens, tokens_per_microbatch=64"):
        dynamic_batches([60, 70], tokens_per_microbatch=64, max_length=70)


def test_packed_for_two_ranks():
    rank0, rank1 = packed_microbatches(EIGHT, capacity=16, num_ranks=2)
    assert plain(rank0) == [([2, 3, 4], 16)]
    assert plain(rank1) == [([7, 1, 5, 0, 6], 16)]
    rank0, rank1 = packed_microbatches(EIGHT, capacity=16, num_ranks=2, pad_multiple=4, global_batch_size=4)
    assert plain(rank0) == [([0, 1], 8), ([6], 4)]
    assert plain(rank1) == [([2, 3], 16), ([7, 4, 5], 16)]
    assert [batch.global_batch for batch in rank1] == [0, 1]


def test_packed_with_bins_moved_to_suit_the_ranks():
    settings = {"num_ranks": 2, "pad_multiple": 8}
    rank0, rank1 = packed_microbatches(WIDE, capacity=256, **settings)
    assert plain(rank0) == [([0, 5], 24), ([4, 2, 6], 216)]
    assert plain(rank1) == [([7, 1], 248), ([3], 40)]
    rank0, _ = packed_microbatches(WIDE, capacity=256, microbatch_order="largest_first", **settings)
    assert plain(rank0) == [([4, 2, 6], 216), ([0, 5], 24)]
    rank0, rank1 = packed_microbatches(WIDE, capacity=128, **settings)
    assert [batch.padded_length for batch in rank0] == [128, 112, 64]
    assert [batch.padded_length for batch in rank1] == [128, 40, 56]
    with pytest.raises(ConfigError, match=r"lengths\[7\], rounded up to a multiple of 8, is 128 .* holds 126"):
        packed_microbatches(WIDE, capacity=126, **settings)


# --- what must hold for any lengths and ranks ------------------------------------------------------------------------


@st.composite
def sets(draw: st.DrawFn) -> dict:
    return {
        "lengths": draw(st.lists(st.integers(1, 50), max_size=40)),
        "num_ranks": draw(st.integers(1, 5)),
        "global_batch_size": draw(st.none() | st.integers(1, 20)),
        "microbatch_order": draw(st.sampled_from(["packer", "largest_first"])),
    }


def check_ranks(ranks: list[list[MicroBatch]], lengths: list[int], global_batch_size: int | None) -> None:
    """Every sample once, as many micro batches everywhere, no step of fillers only, global batches kept apart."""
    assert sorted(chain.from_iterable(batch.indices for rank in ranks for batch in rank)) == list(range(len(lengths)))
    assert len({len(rank) for rank in ranks}) == 1
    for step in zip(*ranks, strict=True):
        assert any(batch.indices for batch in step)
        (number,) = {batch.global_batch for batch in step}
        for batch in step:
            assert all(i // (global_batch_size or len(lengths)) == number for i in batch.indices)
    for rank in ranks:
        numbers = [batch.global_batch for batch in rank]
        assert numbers == sorted(numbers)


@given(sets(), st.integers(1, 16), st.integers(64, 200))
def test_dynamic_batches_lose_nothing(drawn, sequence_length_round, budget):
    ranks = dynamic_batches(tokens_per_microbatch=budget, sequence_length_round=sequence_length_round, **drawn)
    lengths = drawn["lengths"]
    check_ranks(ranks, lengths, drawn["global_batch_size"])
    for step in zip(*ranks, strict=True):
        assert len({(batch.num_rows, batch.padded_length) for batch in step}) == 1
        for batch in step:
            assert batch.positions <= budget
            assert all(lengths[i] <= batch.padded_length for i in batch.indices)
            assert batch.num_fillers <= 1
    for number in {batch.global_batch for rank in ranks for batch in rank}:
        fillers = sum(batch.num_fillers for rank in ranks for batch in rank if batch.global_batch == number)
        assert fillers < drawn["num_ranks"]


@given(sets(), st.integers(1, 8), st.sampled_from(list(ALGORITHMS)))
def test_packed_microbatches_lose_nothing(drawn, pad_multiple, algorithm):
    ranks = packed_microbatches(capacity=64, pad_multiple=pad_multiple, algorithm=algorithm, **drawn)
    lengths = drawn["lengths"]
    check_ranks(ranks, lengths, drawn["global_batch_size"])
    for batch in chain.from_iterable(ranks):
        assert batch.padded_length == sum(-(-lengths[i] // pad_multiple) * pad_multiple for i in batch.indices) <= 64
        assert batch.num_fillers == int(not batch.indices)


def test_samples_that_do_not_divide_get_fillers_not_copies():
    ranks = dynamic_batches([5, 1, 3], tokens_per_microbatch=8, sequence_length_round=1, num_ranks=2)
    assert [[(b.indices, b.padded_length, b.num_fillers) for b in rank] for rank in ranks] == [
        [((1,), 3, 0), ((0,), 5, 0)],
        [((2,), 3, 0), ((), 5, 1)],
    ]
    ranks = packed_microbatches([5], capacity=8, num_ranks=2)
    assert [(b.indices, b.num_fillers) for rank in ranks for b in rank] == [((0,), 0), ((), 1)]


def test_sorting_wastes_less_than_order_does():
    lengths = [1 + i * 37 % 101 for i in range(512)]
    (rank,) = dynamic_batches(lengths, tokens_per_microbatch=1024, sequence_length_round=8)
    in_order = padded_batches(lengths, batch_size=10)
    buckets = bucket_batches(lengths, bucket_size=64, tokens_per_microbatch=1024)
    positions = [sum(batch.positions for batch in batches) for batches in (rank, buckets, in_order)]
    assert sum(lengths) < positions[0] < positions[1] < positions[2]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tokens_per_microbatch": 0}, "tokens_per_microbatch=0; give a whole number of at least 1"),
        ({"sequence_length_round": 0}, "sequence_length_round=0"),
        ({"num_ranks": True}, "num_ranks=True"),
        ({"global_batch_size": 0}, "global_batch_size=0"),
        ({"microbatch_order": "largest"}, "unknown microbatch_order 'largest'; did you mean 'largest_first'"),
        ({"max_length": "8"}, "max_length='8'; give a whole number"),
        ({"max_length": 8}, r"lengths\[1\] is 9 tokens"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        dynamic_batches([3, 9], **{"tokens_per_microbatch": 16, **settings})


# --- deal_packs ------------------------------------------------------------------------------------------------------


@given(st.integers(0, 40), st.integers(1, 5), st.integers(1, 4), st.booleans())
def test_every_rank_makes_as_many_steps(num_packs, num_ranks, packs_per_step, drop_last):
    ranks = deal_packs(num_packs, num_ranks=num_ranks, packs_per_step=packs_per_step, drop_last=drop_last)
    assert len(ranks) == num_ranks
    assert len({len(steps) for steps in ranks}) == 1
    dealt = [p for steps in ranks for step in steps for p in step]
    real = sorted(p for p in dealt if p is not None)
    whole = num_packs // (num_ranks * packs_per_step) * num_ranks * packs_per_step
    assert real == list(range(whole if drop_last else num_packs))
    assert len(dealt) - len(real) < num_ranks * packs_per_step  # hence no step of fillers only
    assert not drop_last or len(dealt) == len(real)


def test_nine_packs_two_to_a_step():
    (kept,) = deal_packs(9, packs_per_step=2)
    assert len(kept) == 5
    assert kept[-1] == [8, None]
    for num_ranks in (1, 2, 3, 4):
        dropped = deal_packs(9, num_ranks=num_ranks, packs_per_step=2, drop_last=True)
        assert [len(steps) for steps in dropped] == [9 // (2 * num_ranks)] * num_ranks


# --- the plain baselines ---------------------------------------------------------------------------------------------


def test_padded_batches_keep_the_order():
    batches = padded_batches([2, 7, 4, 1, 1], batch_size=2, sequence_length_round=4)
    assert plain(batches) == [([0, 1], 8), ([2, 3], 4), ([4], 4)]
    assert padded_batches([], batch_size=2) == []


@given(
    st.lists(st.integers(1, 60), max_size=50),
    st.sampled_from([{"bucket_boundaries": [8, 20]}, {"bucket_size": 7}, {"length_tolerance": 5}]),
    st.sampled_from([{"batch_size": 3}, {"tokens_per_microbatch": 64}]),
    st.integers(0, 3),
)
def test_buckets_hold_every_index_once_and_like_lengths(lengths, kind, size, seed):
    batches = bucket_batches(lengths, **kind, **size, seed=seed)
    assert sorted(chain.from_iterable(batch.indices for batch in batches)) == list(range(len(lengths)))
    assert batches == bucket_batches(lengths, **kind, **size, seed=seed)
    ranks = {i: k for k, i in enumerate(sorted(range(len(lengths)), key=lengths.__getitem__))}
    for batch in batches:
        mine = [lengths[i] for i in batch.indices]
        assert max(mine) <= batch.padded_length
        assert batch.num_rows <= 3 if "batch_size" in size else batch.positions <= 64
        if "length_tolerance" in kind:
            assert max(mine) - min(mine) <= 5
        elif "bucket_size" in kind:
            assert len({ranks[i] // 7 for i in batch.indices}) == 1
        else:
            assert len({(length > 8) + (length > 20) for length in mine}) == 1


def test_buckets_are_shuffled_by_seed():
    lengths = [1 + i % 5 for i in range(60)]
    one, other = (bucket_batches(lengths, bucket_boundaries=[2], batch_size=6, seed=seed) for seed in (0, 1))
    assert one != other
    assert [batch.indices for batch in one] != sorted(batch.indices for batch in one)


@pytest.mark.parametrize("lengths", [None, 5, "ab"])
def test_no_list_of_lengths_is_refused(lengths):
    for make in (
        lambda: dynamic_batches(lengths, tokens_per_microbatch=16),
        lambda: packed_microbatches(lengths, capacity=16),
        lambda: padded_batches(lengths, batch_size=2),
        lambda: bucket_batches(lengths, bucket_size=2, batch_size=2),
    ):
        with pytest.raises(ConfigError, match="give a list of whole numbers"):
            make()


def test_wrong_kinds_of_settings_are_named():
    for length in (None, 1.5, 0):
        with pytest.raises(ConfigError, match=rf"lengths\[1\] is {length}"):
            packed_microbatches([3, length], capacity=16)
    with pytest.raises(ConfigError, match="capacity=None"):
        packed_microbatches([3], capacity=None)
    for num_packs in (-1, 1.5, None):
        with pytest.raises(ConfigError, match=f"num_packs={num_packs}; give a whole number of at least 0"):
            deal_packs(num_packs)
    assert dynamic_batches(np.array([3, 5]), tokens_per_microbatch=np.int64(8)) == dynamic_batches(
        [3, 5], tokens_per_microbatch=8
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bucket_boundaries": "ab", "batch_size": 2}, "bucket_boundaries='ab'"),
        ({"bucket_boundaries": 5, "batch_size": 2}, "bucket_boundaries=5"),
        ({"bucket_boundaries": [float("nan")], "batch_size": 2}, r"bucket_boundaries=\[nan\]"),
        ({"length_tolerance": "x", "batch_size": 2}, "length_tolerance='x'"),
        ({"batch_size": 2}, "exactly one of bucket_boundaries, bucket_size, length_tolerance"),
        ({"bucket_size": 2, "length_tolerance": 1, "batch_size": 2}, "exactly one of"),
        ({"bucket_size": 2}, "either batch_size or tokens_per_microbatch"),
        ({"bucket_size": 2, "batch_size": 2, "tokens_per_microbatch": 9}, "either batch_size or"),
        ({"bucket_boundaries": [5, 5], "batch_size": 2}, r"bucket_boundaries=\[5, 5\]; give rising"),
        ({"length_tolerance": -1, "batch_size": 2}, "length_tolerance=-1"),
        ({"bucket_size": 0, "batch_size": 2}, "bucket_size=0"),
        ({"bucket_size": 2, "tokens_per_microbatch": 8}, r"lengths\[1\] is 9 tokens"),
    ],
)
def test_buckets_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        bucket_batches([3, 9], **settings)


# --- DynamicWindow ---------------------------------------------------------------------------------------------------


def test_dynamic_batching_needs_no_torch():
    code = "import sys, mmpack.dynamic; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
