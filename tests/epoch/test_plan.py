"""Plans of epochs from lengths alone: every sample once, full, balanced for any number of ranks, the same for ever."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmpack.bench.distributions import distribution
from mmpack.cost import CostModel
from mmpack.epoch.lengths import LengthIndex
from mmpack.epoch.plan import EpochPlan, PlanConfig, group_size, plan_epoch, shuffled, too_large
from mmpack.errors import ConfigError
from mmpack.indexed.permutation import mix64
from mmpack.ledger import DropLedger
from mmpack.stats import balance


def index_of(*datasets: list[int], tiles: list[int] | None = None, images: list[int] | None = None) -> LengthIndex:
    lengths = [length for dataset in datasets for length in dataset]
    starts = np.cumsum([0, *map(len, datasets)]).tolist()
    zeros = [0] * len(lengths)
    return LengthIndex(
        folder=Path("nowhere"),
        num_tokens=np.array(lengths, dtype=np.int32),
        num_tiles=np.array(tiles or zeros, dtype=np.int32),
        num_images=np.array(images or zeros, dtype=np.int32),
        starts=tuple(starts),
        drops=DropLedger(),
    )


def packs_of(plan: EpochPlan) -> list[list[int]]:
    return [plan.pack(number) for number in range(plan.num_packs)]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(-40, 30), min_size=1, max_size=120),
    st.sampled_from([1, 4]),
    st.integers(0, 5),
    st.sampled_from([None, 1, 3, 12]),
)
def test_every_usable_sample_is_planned_once(lengths: list[int], multiple: int, epoch: int, group: int | None) -> None:
    config = PlanConfig(capacity=24, group_packs=group, seed=epoch)
    rooms = [-(-abs(n) // multiple) * multiple for n in lengths]
    fits = [i for i, n in enumerate(lengths) if n and rooms[i] <= 24]
    alone = [i for i, n in enumerate(lengths) if n < 0 and rooms[i] > 24]
    index = index_of(lengths)
    if not fits and not alone:
        with pytest.raises(ConfigError, match="no sample fits a pack of 24"):
            plan_epoch(index, [len(lengths)], config, epoch, sequence_multiple=multiple)
        return
    plan = plan_epoch(index, [len(lengths)], config, epoch, sequence_multiple=multiple)
    packs = packs_of(plan)
    assert sorted(i for pack in packs for i in pack) == sorted(fits + alone)
    large = [i for i, n in enumerate(lengths) if n > 0 and rooms[i] > 24]
    assert too_large(index, config, multiple) == large
    for pack, cost in zip(packs, plan.costs, strict=True):
        assert sum(rooms[i] for i in pack) <= 24 or (len(pack) == 1 and pack[0] in alone)
        assert cost == pytest.approx(config.cost.cost(lengths=[rooms[i] for i in pack]))
    again = plan_epoch(index, [len(lengths)], config, epoch, sequence_multiple=multiple)
    assert packs_of(again) == packs


def test_limits_beside_tokens_hold() -> None:
    rng = random.Random(0)
    lengths = [rng.randint(1, 60) for _ in range(400)]
    tiles, images = [rng.randint(0, 7) for _ in lengths], [rng.randint(0, 4) for _ in lengths]
    config = PlanConfig(capacity=128, max_tiles=6, max_images=5, max_samples=4)
    index = index_of(lengths, tiles=tiles, images=images)
    plan = plan_epoch(index, [400], config, 0)
    assert too_large(index, config) == [i for i, n in enumerate(tiles) if n == 7] != []
    assert len(plan.members) == 400 - tiles.count(7)
    for pack in packs_of(plan):
        assert sum(tiles[i] for i in pack) <= 6
        assert sum(images[i] for i in pack) <= 5
        assert len(pack) <= 4
        assert sum(lengths[i] for i in pack) <= 128


@pytest.mark.parametrize("name", ["caption_4k", "tiled_16k"])
def test_packs_are_full_and_any_number_of_ranks_is_balanced(name: str) -> None:
    mix = distribution(name)
    lengths = mix.lengths(40_000, seed=1)
    config = PlanConfig(capacity=mix.capacity, cost=CostModel(per_token=1.0, per_len_squared=1 / 6144))
    plan = plan_epoch(index_of(lengths), [len(lengths)], config, 0)
    assert plan.num_packs <= 1.0005 * -(-sum(lengths) // mix.capacity) + 1
    costs = plan.costs
    mixed = plan_epoch(
        index_of(lengths), [len(lengths)], PlanConfig(capacity=mix.capacity, group_packs=1, cost=config.cost), 0
    )
    for num_ranks in (2, 3, 12, 7, 16):
        steps = [costs[i : i + num_ranks].tolist() for i in range(0, len(costs) - num_ranks, num_ranks)]
        unordered = [mixed.costs[i : i + num_ranks].tolist() for i in range(0, len(costs) - num_ranks, num_ranks)]
        assert balance(steps) < (1.001 if 60 % num_ranks == 0 else balance(unordered))
    # and the order does not grow with the cost
    thirds = [np.mean(part) for part in np.array_split(costs, 3)]
    assert max(thirds) / min(thirds) < 1.02


def test_the_shuffle_is_over_the_whole_set() -> None:
    lengths = distribution("caption_4k").lengths(20_000, seed=2)
    plan = plan_epoch(index_of(lengths), [20_000], PlanConfig(capacity=4096), 3)
    places = plan.members.astype(float)
    moved = np.abs(places - np.arange(20_000)).mean()
    assert moved == pytest.approx(20_000 / 3, rel=0.05)  # what a random order gives
    assert abs(np.corrcoef(places[:-1], places[1:])[0, 1]) < 0.05
    other = plan_epoch(index_of(lengths), [20_000], PlanConfig(capacity=4096), 4)
    assert np.mean(other.members == plan.members) < 0.01


@pytest.mark.parametrize("count", [1, 7, 10, 13, 35])
def test_epochs_go_through_a_blended_data_set_evenly(count: int) -> None:
    index = index_of([3] * 6, [5] * 10)
    drawn: list[int] = []
    for epoch in range(6):
        plan = plan_epoch(index, [6, count], PlanConfig(capacity=16), epoch)
        members = sorted(plan.members.tolist())
        assert [i for i in members if i < 6] == list(range(6))
        drawn += [i for i in members if i >= 6]
        assert len(members) == 6 + count
        counts = [drawn.count(i) for i in range(6, 16)]
        assert max(counts) - min(counts) <= 1


def test_groups_are_chosen_by_the_number_of_packs() -> None:
    assert group_size(1) == 1
    for num_packs in (31, 384, 1919, 1920, 10**6):
        assert group_size(num_packs) == 1 or num_packs / group_size(num_packs) >= 32


@given(st.integers(1, 300), st.integers(0, 2**63), st.integers(0, 9))
def test_shuffled_is_sorted_by_a_hash(size: int, seed: int, epoch: int) -> None:
    def hashed(i: int) -> int:  # splitmix64, written for Python's integers
        z = (mix64(seed, epoch) + 0x9E3779B97F4A7C15 * (i + 1)) % 2**64
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        return z ^ z >> 31

    assert shuffled(size, seed, epoch).tolist() == sorted(range(size), key=hashed)


def test_a_plan_stays_the_same_from_version_to_version() -> None:
    # A checkpoint holds no plan, only where a run stands in it. If this changes, runs cannot be resumed any more.
    lengths = [1 + (i * 7919) % 500 for i in range(1500)]
    plan = plan_epoch(index_of(lengths), [1500], PlanConfig(capacity=1024, seed=5), 2)
    assert plan.digest() == "67139cb100318f42"


@pytest.mark.slow
def test_a_million_samples_take_seconds_and_little_memory() -> None:
    mix = distribution("caption_8k")
    lengths = (mix.lengths(100_000, seed=0)) * 10
    index = index_of(lengths)
    started = time.perf_counter()
    plan = plan_epoch(index, [10**6], PlanConfig(capacity=mix.capacity), 0)
    seconds = time.perf_counter() - started
    assert seconds < 30
    kept: list[Any] = [plan.members, plan.ends, plan.costs]
    assert sum(array.nbytes for array in kept) < 8 * 10**6
    assert plan.num_packs <= 1.0001 * sum(lengths) / mix.capacity + 1
