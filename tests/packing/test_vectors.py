"""Packs that NeMo and NeMo-RL make of given lengths, obtained by running them; ours are the same, index for index."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmpack.encode import LengthLimit
from mmpack.errors import ConfigError, Reason, SampleError
from mmpack.packing import pack_lengths, packing_metrics
from mmpack.packing.pack_count import with_pack_count
from mmpack.sample import EncodedSample
from mmpack.tiling import TileSpec, make_tiling

FOURTEEN = [100, 60, 55, 50, 40, 34, 33, 30, 20, 17, 16, 10, 5, 1]
EIGHT = [4, 1, 3, 2, 1, 3, 4, 5]


@pytest.mark.parametrize(
    ("lengths", "capacity", "expected"),
    [
        (EIGHT, 8, [[7, 2], [5, 3, 1, 4], [0, 6]]),
        (EIGHT, 5, [[7], [0], [6], [2, 3], [5, 1, 4]]),
        (FOURTEEN, 100, [[0], [1, 4], [2, 5, 11, 13], [7, 8, 9, 10], [3, 6, 12]]),
        ([4, 2, 2, 3, 4, 5, 4], 12, [[2], [4, 6, 3], [5, 0, 1]]),
        ([51, 27, 26, 23, 51, 27, 26, 23], 101, [[0, 7, 1], [4, 3, 5], [2, 6]]),
        ([50, 50, 34, 33, 33, 17, 17, 16, 16, 1], 100, [[5, 6, 7, 8, 9], [0, 1], [2, 3, 4]]),
        ([10] * 7, 35, [[6], [0, 1, 2], [3, 4, 5]]),
    ],
)
def test_modified_first_fit_decreasing(lengths: list[int], capacity: int, expected: list[list[int]]) -> None:
    assert pack_lengths(lengths, capacity, algorithm="modified_first_fit_decreasing") == expected


@pytest.mark.parametrize(
    ("lengths", "capacity", "expected"),
    [
        ([3, 5, 2, 7, 4, 6], 10, [[3, 0], [5, 4], [1, 2]]),
        ([4, 4, 4, 4], 8, [[3, 2], [1, 0]]),
        ([1] * 7, 3, [[6, 5, 4], [3, 2, 1], [0]]),
        (EIGHT, 8, [[7, 5], [6, 0], [2, 3, 4, 1]]),
        ([], 3, []),
    ],
)
def test_greedy_knapsack(lengths: list[int], capacity: int, expected: list[list[int]]) -> None:
    assert pack_lengths(lengths, capacity, algorithm="greedy_knapsack") == expected


@pytest.mark.parametrize(
    ("algorithm", "lengths", "capacity", "expected"),
    [
        ("greedy_knapsack", [10, 1, 9, 2, 8, 3], 10, [[10], [9, 1], [8, 2], [3]]),
        ("greedy_knapsack", [4, 3, 3, 2, 2, 2], 8, [[4, 3], [3, 2, 2], [2]]),
        ("first_fit", [3, 5, 2, 7, 4, 6], 10, [[3, 5, 2], [7], [4, 6]]),
        ("first_fit", [4, 8, 1, 4, 2, 1], 10, [[4, 1, 4, 1], [8, 2]]),
        ("first_fit", EIGHT, 8, [[4, 1, 3], [2, 1, 3], [4], [5]]),
        ("first_fit", [2048, 1024, 512, 1, 1536, 512], 2048, [[2048], [1024, 512, 1], [1536, 512]]),
        (
            "first_fit",
            [1200, 700, 640, 2048, 300, 900, 128, 64, 1500, 512],
            2048,
            [[1200, 700, 128], [640, 300, 900, 64], [2048], [1500, 512]],
        ),
        ("first_fit_decreasing", [3, 5, 2, 7, 4, 6], 10, [[7, 3], [6, 4], [5, 2]]),
        ("first_fit_decreasing", [4, 8, 1, 4, 2, 1], 10, [[8, 2], [4, 4, 1, 1]]),
        ("first_fit_shuffle", [3, 5, 2, 7, 4, 6], 10, [[6, 2], [5, 3], [7], [4]]),
    ],
)
def test_lengths_of_the_packs(algorithm: str, lengths: list[int], capacity: int, expected: list[list[int]]) -> None:
    packs = pack_lengths(lengths, capacity, algorithm=algorithm)
    assert [[lengths[i] for i in pack] for pack in packs] == expected


def test_shuffling_leaves_numpys_generator_alone() -> None:
    np.random.seed(3)  # noqa: NPY002
    expected = np.random.rand()  # noqa: NPY002
    np.random.seed(3)  # noqa: NPY002
    pack_lengths([3, 5, 2, 7, 4, 6], 10, algorithm="first_fit_shuffle", seed=1)
    assert np.random.rand() == expected  # noqa: NPY002


MFFD = "modified_first_fit_decreasing"


@pytest.mark.parametrize(
    ("algorithm", "lengths", "capacity", "num_bins", "utilization", "balance"),
    [
        (MFFD, EIGHT, 5, 5, 0.92, 0.8809),
        ("first_fit_decreasing", EIGHT, 5, 5, 0.92, 0.8056),
        ("first_fit_decreasing", FOURTEEN, 100, 5, 0.942, 0.8623),
        (MFFD, FOURTEEN, 100, 5, 0.942, 0.9136),
        ("concatenative", FOURTEEN, 100, 6, 0.785, None),
    ],
)
def test_metrics(
    algorithm: str, lengths: list[int], capacity: int, num_bins: int, utilization: float, balance: float | None
) -> None:
    metrics = packing_metrics(pack_lengths(lengths, capacity, algorithm=algorithm), lengths, capacity)
    assert metrics.num_bins == num_bins
    assert metrics.num_sequences == len(lengths)
    assert metrics.bin_utilization == pytest.approx(utilization, abs=5e-5)
    assert metrics.waste_ratio == pytest.approx(1 - utilization, abs=5e-5)
    assert metrics.packing_efficiency == pytest.approx(-(-sum(lengths) // capacity) / num_bins)
    if balance is not None:
        assert metrics.bin_balance == pytest.approx(balance, abs=5e-5)


def test_metrics_of_nothing_and_of_one() -> None:
    nothing, one = packing_metrics([], [], 8), packing_metrics([[0]], [4], 8)
    assert (nothing.bin_utilization, nothing.waste_ratio, nothing.bin_balance, nothing.packing_efficiency) == (
        1,
        0,
        1,
        1,
    )
    assert (one.bin_utilization, one.waste_ratio, one.bin_balance, one.packing_efficiency) == (0.5, 0.5, 1, 1)


def test_bins_in_a_multiple() -> None:
    packs = with_pack_count(pack_lengths(FOURTEEN, 100, algorithm=MFFD), multiple=4)
    assert packs == [[0], [1, 4], [2, 5, 11, 13], [7], [3, 6, 12], [10], [9], [8]]
    assert packing_metrics(packs, FOURTEEN, 100).bin_utilization == pytest.approx(0.5887, abs=1e-4)


def test_bins_of_a_least_number() -> None:
    packs = pack_lengths([30, 30, 30, 5, 5], 100, algorithm=MFFD)
    assert with_pack_count(packs, at_least=4) == [[0, 1], [4], [3], [2]]
    with pytest.raises(ConfigError, match="2 samples cannot fill 4 packs"):
        with_pack_count([[0, 1]], at_least=4)
    with pytest.raises(ConfigError, match="0 samples cannot fill 2 packs"):
        with_pack_count([], at_least=2)


@pytest.mark.parametrize("algorithm", ["greedy_knapsack", "first_fit_decreasing"])
def test_knapsack_and_first_fit_decreasing_agree(algorithm: str) -> None:
    lengths = [1200, 700, 640, 2048, 300, 900, 128, 64, 1500, 512]
    packs = [[lengths[i] for i in pack] for pack in pack_lengths(lengths, 2048, algorithm=algorithm)]
    assert packs == [[2048], [1500, 512], [1200, 700, 128], [900, 640, 300, 64]]
    assert [sum(pack) for pack in packs] == [2048, 2012, 2028, 1904]


def test_what_no_bin_holds_is_an_error() -> None:
    for lengths in ([101], [3, 12, 4]):
        with pytest.raises(ConfigError, match=r"is \d+ tokens, a pack holds"):
            pack_lengths(lengths, 100 if lengths == [101] else 10, algorithm=MFFD)


@pytest.mark.parametrize(("room", "found"), [(1, None), (2, 0), (4, 1), (5, 3), (8, 3), (100, 4)])
def test_the_longest_that_fits_a_room(room: int, found: int | None) -> None:
    """Beside a first sample; of lengths 2, 3, 5, 5, 9 the longest that fits goes next, the later of equals."""
    lengths = [2, 3, 5, 5, 9, 1000 - room]
    pack = next(pack for pack in pack_lengths(lengths, 1000, algorithm="greedy_knapsack") if 5 in pack)
    assert pack[1:2] == ([] if found is None else [found])


def test_exact_fill_finds_the_optimum_that_the_knapsack_misses() -> None:
    lengths = [4, 3, 3, 2, 2, 2]
    packs = pack_lengths(lengths, 8)
    assert sorted(sorted(lengths[i] for i in pack) for pack in packs) == [[2, 2, 4], [2, 3, 3]]


@given(st.lists(st.integers(1, 50), max_size=40))
def test_first_fit_decreasing_and_knapsack_fill_alike(lengths: list[int]) -> None:
    contents = [
        sorted(sorted(lengths[i] for i in pack) for pack in pack_lengths(lengths, 50, algorithm=algorithm))
        for algorithm in ("first_fit_decreasing", "greedy_knapsack")
    ]
    assert contents[0] == contents[1]


def test_what_is_too_long_is_dropped_or_stands_alone_and_the_rest_keeps_its_order() -> None:
    """StepFun's greedy packer: (first sample, number of samples) of its packs, with two ways for long samples."""
    lengths = [3, 9, 4, 4, 2, 8, 12, 1]
    samples = [
        EncodedSample(
            key=str(i), source="s", token_ids_n=np.ones(length, dtype=np.int64), trained_n=np.ones(length, dtype=bool),
            pictures=(), num_tokens=length,
        )
        for i, length in enumerate(lengths)
    ]  # fmt: skip
    tiling = make_tiling("single", TileSpec(tile_size_px=1, embeddings_per_tile=1))
    with_own_pack = [LengthLimit(seq_length=8, oversize="own_pack").apply(sample, tiling) for sample in samples]
    alone = [int(sample.key) for sample in with_own_pack if sample.own_pack]
    assert alone == [1, 6]
    for i in alone:
        with pytest.raises(SampleError) as caught:
            LengthLimit(seq_length=8, oversize="drop").apply(samples[i], tiling)
        assert caught.value.reason is Reason.OVERSIZE
    ranges = []
    for start, end in ((0, 1), (2, 6), (7, 8)):  # there a pack ends before a long sample, whatever becomes of that
        packs = pack_lengths(lengths[start:end], 8, algorithm="concatenative")
        ranges += [(start + pack[0], len(pack)) for pack in packs]
    assert ranges == [(0, 1), (2, 2), (4, 1), (5, 1), (7, 1)]
    assert len(ranges) + len(alone) == 7
    kept = [i for i in range(len(lengths)) if i not in alone]
    packs = pack_lengths([lengths[i] for i in kept], 8, algorithm="concatenative")
    assert [[kept[k] for k in pack] for pack in packs] == [[0, 2], [3, 4], [5], [7]]  # here it does not
