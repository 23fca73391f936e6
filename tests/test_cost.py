"""The cost model and the planner of a finished global batch: fits, brute force on small cases, peers' numbers."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmpack.bench.distributions import distribution
from mmpack.cost import CostModel, balanced_packs, fit_cost_model, non_negative_least_squares, rank_plan
from mmpack.dynamic import packed_microbatches
from mmpack.errors import ConfigError

TOKENS_ONLY = CostModel(per_token=1.0, per_len_squared=0.0)


def brute_force(costs: list[float], num_ranks: int, num_steps: int) -> tuple[float, float]:
    """The least lock-step cost of all plans, and the least cost of the busiest rank of all plans."""
    padded = costs + [0.0] * (num_ranks * num_steps - len(costs))
    lock_step = busiest = float("inf")
    for order in set(itertools.permutations(padded)):
        steps = [order[i : i + num_ranks] for i in range(0, len(order), num_ranks)]
        lock_step = min(lock_step, sum(map(max, steps)))
        busiest = min(busiest, max(map(sum, zip(*steps, strict=True))))
    return lock_step, busiest


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), st.sampled_from([1, 2, 3]))
def test_lock_step_cost_is_the_least_there_is(costs: list[int], num_ranks: int) -> None:
    plan = rank_plan(costs, num_ranks)
    num_steps = -(-len(costs) // num_ranks)
    lock_step, busiest = brute_force([float(c) for c in costs], num_ranks, num_steps)
    assert plan.lock_step_cost == lock_step
    assert plan.max_rank_cost <= 4 / 3 * busiest + 1e-9  # the bound of longest-first
    given_out = [pack for rank in plan.packs for pack in rank if pack is not None]
    assert sorted(given_out) == list(range(len(costs)))
    assert {len(rank) for rank in plan.packs} == {num_steps}


@given(st.lists(st.floats(0, 1e6), max_size=40), st.integers(1, 9), st.integers(0, 3))
def test_every_pack_has_one_place_and_sums_hold(costs: list[float], num_ranks: int, more: int) -> None:
    steps = -(-len(costs) // num_ranks) + more
    plan = rank_plan(costs, num_ranks, steps)
    assert sorted(p for rank in plan.packs for p in rank if p is not None) == list(range(len(costs)))
    assert [len(rank) for rank in plan.packs] == [steps] * num_ranks
    for rank, packs in enumerate(plan.packs):
        assert plan.rank_costs[rank] == pytest.approx(sum(costs[p] for p in packs if p is not None)) if steps else True
    assert plan.max_rank_cost <= plan.lock_step_cost * (1 + 1e-9)
    assert plan == rank_plan(costs, num_ranks, steps)


def test_exchanges_relieve_the_busiest_rank() -> None:
    # Given out one by one, rank 0 would get 8 + 2 + 2 and rank 1 7 + 3 + 0; an exchange inside a step evens that out.
    plan = rank_plan([8, 7, 3, 2, 2, 0], num_ranks=2)
    assert (plan.lock_step_cost, plan.max_rank_cost) == (13, 11)


def test_lock_step_cost_of_a_peers_batch() -> None:
    # The bins of NeMo-RL's packer for this batch, every length rounded up to 8, run 24 + 216 against 248 + 40 tokens.
    lengths = [13, 120, 64, 33, 90, 7, 55, 128]
    rooms = [-(-n // 8) * 8 for n in lengths]
    peers = packed_microbatches(lengths, capacity=256, num_ranks=2, pad_multiple=8)
    steps = list(zip(*([b.padded_length for b in rank] for rank in peers), strict=True))
    assert sum(map(max, steps)) == 464
    bins = [tokens for step in steps for tokens in step]
    assert rank_plan(bins, num_ranks=2).lock_step_cost == 288  # the same bins, dealt better
    packs = balanced_packs(rooms, 256, num_ranks=2, model=TOKENS_ONLY, packs_per_rank=2)
    plan = rank_plan([sum(rooms[i] for i in pack) for pack in packs], num_ranks=2)
    assert plan.lock_step_cost <= 272  # half of all tokens are 264


@pytest.mark.parametrize(("batch", "floor"), [(64, 0.949), (128, 0.966), (256, 0.981), (512, 0.989)])
def test_ranks_work_most_of_the_time(batch: int, floor: float) -> None:
    mix, ranks, model = distribution("caption_8k"), 8, CostModel()
    lengths = mix.lengths(10 * batch, seed=3)
    ours, peers, packs_used = [], [], []
    for start in range(0, len(lengths), batch):
        mine = lengths[start : start + batch]
        packs = balanced_packs(mine, mix.capacity, ranks, model=model)
        assert sorted(i for pack in packs for i in pack) == list(range(batch))
        assert all(sum(mine[i] for i in pack) <= mix.capacity for pack in packs)
        ours.append(rank_plan([model.cost(lengths=[mine[i] for i in p]) for p in packs], ranks).efficiency)
        packs_used.append(len(packs) / ranks)
        peer = packed_microbatches(mine, capacity=mix.capacity, num_ranks=ranks)
        costs = [[model.cost(lengths=[mine[i] for i in b.indices]) for b in rank] for rank in peer]
        peers.append(sum(map(sum, costs)) / ranks / sum(map(max, zip(*costs, strict=True))))
    assert np.mean(ours) >= floor
    assert np.mean(ours) > np.mean(peers)
    assert np.mean(packs_used) <= 1.1 * sum(lengths) / 10 / ranks / mix.capacity + 0.75


def test_no_room_is_said() -> None:
    with pytest.raises(ConfigError, match=r"4 samples of 24 tokens do not fit 1 packs of 8 on each of 2 ranks"):
        balanced_packs([6, 6, 6, 6], 8, num_ranks=2, packs_per_rank=1)
    assert len(balanced_packs([6, 6, 6, 6], 8, num_ranks=2)) == 4
    with pytest.raises(ConfigError, match="a sample of 9 tokens"):
        balanced_packs([9], 8, num_ranks=1)
    with pytest.raises(ConfigError, match="packs_per_rank of at least 2"):
        rank_plan([1, 2, 3], num_ranks=2, packs_per_rank=1)


@pytest.mark.parametrize("num_ranks", [0, -1, 1.5, "2", None])
def test_a_number_of_ranks_that_cannot_be_is_named(num_ranks: Any) -> None:
    for make in (lambda: rank_plan([1.0, 2.0], num_ranks), lambda: balanced_packs([1, 2], 10, num_ranks)):
        with pytest.raises(ConfigError, match=f"num_ranks={num_ranks!r}; give a whole number of at least 1"):
            make()


def test_tiles_count() -> None:
    model = CostModel(per_token=1.0, per_len_squared=0.0, per_tile=100.0)
    packs = balanced_packs([10, 10, 10, 10], 40, num_ranks=2, model=model, num_tiles=[5, 0, 0, 5])
    assert sorted(map(sorted, packs)) in ([[0, 1], [2, 3]], [[0, 2], [1, 3]])


def records(num_steps: int, noise_s: float = 0.0) -> list[dict[str, float]]:
    rng = random.Random(0)
    made: list[dict[str, float]] = [{"kind": "val", "val_loss": 1.0}]  # type: ignore[dict-item]
    for _ in range(num_steps):
        positions, squares, tiles = rng.randint(4000, 8192), rng.randint(10**6, 6 * 10**7), rng.randint(0, 40)
        work = 2e-5 * positions + 3e-9 * squares + 1e-3 * tiles + 0.05 + rng.gauss(0, noise_s)
        made.append({"num_positions": positions, "sum_len_squared": squares, "num_tiles": tiles,
                     "step_s": work + 0.5, "wait_s": 0.5})  # fmt: skip
    return made


def test_a_fit_finds_the_coefficients() -> None:
    fit = fit_cost_model(records(40))
    assert fit.model.per_token == pytest.approx(2e-5)
    assert fit.model.per_len_squared == pytest.approx(3e-9)
    assert fit.model.per_tile == pytest.approx(1e-3)
    assert fit.model.per_step == pytest.approx(0.05)
    assert fit.r_squared == pytest.approx(1.0)
    noisy = fit_cost_model(records(400, noise_s=0.02))
    assert noisy.model.per_tile == pytest.approx(1e-3, rel=0.2)
    assert 0.85 < noisy.r_squared < 1


def test_a_coefficient_is_never_negative() -> None:
    falling = [
        {
            "num_positions": i,
            "sum_len_squared": 0,
            "num_tiles": r["num_tiles"],
            "step_s": 5 + i / 10 - r["num_tiles"] / 100,
        }
        for i, r in enumerate(records(30)[1:])
    ]
    model = fit_cost_model(falling).model
    assert model.per_tile == 0.0
    assert model.per_token == pytest.approx(0.1, rel=0.1)
    with pytest.raises(ConfigError, match="needs at least 4"):
        fit_cost_model(records(5))
    with pytest.raises(ConfigError, match="do not grow"):
        fit_cost_model([{**step, "num_positions": 1, "num_tiles": 0, "step_s": 0} for step in falling])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_non_negative_least_squares_meets_the_conditions_of_an_optimum(seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrix, target = rng.normal(size=(12, 4)), rng.normal(size=12)
    x = non_negative_least_squares(matrix, target)
    gradient = matrix.T @ (matrix @ x - target)
    assert (x >= 0).all()
    assert (gradient >= -1e-8).all()  # no coefficient could grow
    assert np.abs(gradient[x > 0]).max(initial=0.0) < 1e-8  # none that is in use could move


def test_a_model_is_kept_in_a_file(tmp_path: Path) -> None:
    model = CostModel(per_token=2.0, per_len_squared=0.25, per_tile=3.0, per_step=0.5)
    model.save(tmp_path / "cost.json")
    assert CostModel.load(tmp_path / "cost.json") == model
    (tmp_path / "cost.json").write_text(json.dumps({"per_token": 1.5}))
    assert CostModel.load(tmp_path / "cost.json") == CostModel(per_token=1.5, per_len_squared=0.0)
    (tmp_path / "cost.json").write_text(json.dumps({"per_tok": 1.5}))
    with pytest.raises(ConfigError, match=r"unknown names \['per_tok'\]"):
        CostModel.load(tmp_path / "cost.json")
    with pytest.raises(ConfigError, match="cannot be read"):
        CostModel.load(tmp_path / "none.json")
    for wrong in ({"per_tile": -1.0}, {"per_token": float("nan")}, {"per_token": 0.0, "per_len_squared": 0.0}):
        with pytest.raises(ConfigError, match="cost model"):
            CostModel(**wrong)
