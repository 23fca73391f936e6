"""Plans of steps: everything once, equal steps on every rank, the same samples in a step however they are batched."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmpack.datamodules.step_plan import BATCHINGS, StepPlanner
from mmpack.errors import ConfigError

LENGTHS = st.lists(st.integers(2, 64), min_size=1, max_size=60)


def planner(batching: str, **changes: Any) -> StepPlanner:
    options = {"micro_batch_size": 1 if "packing" in batching else 2, "seq_length": 64, "capacity": 64}
    return StepPlanner(
        batching=batching, **({"global_batch_size": 8, "tokens_per_microbatch": 128} | options | changes)
    )


@given(lengths=LENGTHS, world_size=st.sampled_from([1, 2, 4]), epoch=st.integers(0, 3))
@pytest.mark.parametrize("batching", BATCHINGS)
def test_every_sample_once_and_equal_steps(batching: str, lengths: list[int], world_size: int, epoch: int) -> None:
    ranks = planner(batching, world_size=world_size).plan(lengths, epoch)
    assert len(ranks) == world_size
    seen = [i for steps in ranks for step in steps for batch in step for i in batch.indices]
    assert sorted(seen) == list(range(len(lengths)))
    shapes = [[len(step) for step in steps] for steps in ranks]
    assert all(shape == shapes[0] for shape in shapes)
    assert all(any(batch.indices for steps in ranks for batch in steps[s]) for s in range(len(shapes[0])))


@given(lengths=LENGTHS)
def test_a_step_has_the_same_samples_padded_sorted_or_packed(lengths: list[int]) -> None:
    steps = {}
    for batching in ("padding", "dynamic", "global_packing"):
        (rank,) = planner(batching).plan(lengths, epoch=1)
        steps[batching] = [sorted(i for batch in step for i in batch.indices) for step in rank]
    assert steps["padding"] == steps["dynamic"] == steps["global_packing"]


@given(lengths=LENGTHS)
def test_budgets_and_capacities_are_kept(lengths: list[int]) -> None:
    (dynamic,) = planner("dynamic").plan(lengths, 0)
    assert all(batch.positions <= 128 for step in dynamic for batch in step)
    (packed,) = planner("global_packing").plan(lengths, 0)
    assert all(sum(lengths[i] for i in batch.indices) <= 64 for step in packed for batch in step)


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    lengths = list(range(2, 42))
    one, again = (planner("padding", seed=3).plan(lengths, 0) for _ in range(2))
    assert one == again
    assert one != planner("padding", seed=4).plan(lengths, 0)
    assert one != planner("padding", seed=3).plan(lengths, 1)
    still = planner("padding", shuffle=False).plan(lengths, 5)[0]
    assert list(itertools.chain.from_iterable(b.indices for step in still for b in step)) == list(range(40))


@pytest.mark.parametrize("batching", BATCHINGS)
def test_drop_last_leaves_out_what_is_not_a_whole_step(batching: str) -> None:
    (steps,) = planner(batching, drop_last=True).plan([5] * 19, 0)
    assert sum(len(batch.indices) for step in steps for batch in step) == 16


def test_an_unknown_batching_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'padding'"):
        planner("paddings")
