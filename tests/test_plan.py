"""Forecasts: the arithmetic of NeMo's documentation, and that a plan says what the loader then does."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmpack.errors import ConfigError, Reason
from mmpack.plan import (
    Forecast,
    PackingPlan,
    SampleSize,
    Sizes,
    forecast,
    packed_global_batch_size,
    plan_packs,
    quantiles,
    read_sizes,
)
from tests.conftest import data_module


def size(num_tokens: int, **changes: int) -> SampleSize:
    values = {"num_tokens": num_tokens, "room": num_tokens, "num_image_tokens": 0, "num_tiles": 0, "num_bytes": 10}
    return SampleSize(**(values | changes))


def plan(**changes: Any) -> PackingPlan:
    options = {"capacity": 100, "packed_sequence_size": 100, "packing_buffer_size": 20, "tile_bytes": 12}
    return PackingPlan(**(options | changes))


@given(st.integers(1, 4096), st.floats(1, 500), st.integers(1, 64), st.integers(1, 8))
def test_the_global_batch_size_is_the_nearest_multiple(samples: int, n: float, ranks: int, micro: int) -> None:
    size = packed_global_batch_size(samples, n, data_parallel_size=ranks, micro_batch_size=micro)
    unit = ranks * micro
    assert size % unit == 0
    assert size >= unit
    assert size == unit or abs(size - samples / n) <= unit / 2 + 1e-6


def test_the_example_of_the_documentation() -> None:
    # 128 samples a step, 8 samples a pack: 16 packs a step
    assert packed_global_batch_size(128, 8.0) == 16
    assert packed_global_batch_size(128, 8.0, data_parallel_size=32) == 32


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=60))
def test_quantiles_are_values_of_the_list(values: list[int]) -> None:
    found = quantiles(values)
    assert (found.smallest, found.largest) == (min(values), max(values))
    assert found.median in values
    assert sum(v <= found.median for v in values) >= len(values) / 2
    assert sum(v <= found.p95 for v in values) >= 0.95 * len(values)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=80), st.booleans())
def test_planned_packs_hold_every_sample(rooms: list[int], repeat: bool) -> None:
    packs = list(plan_packs(rooms, 100, 20, repeat=repeat))
    assert all(sum(rooms[i] for i in pack) <= 100 for pack in packs)
    count = len(list(itertools.chain.from_iterable(packs)))
    assert count >= len(rooms) if repeat else count == len(rooms)


def test_both_formulas_of_n_agree_where_packs_are_full() -> None:
    sizes = Sizes(streams=[[size(n) for n in (10, 20, 30, 40) * 50]] * 2, num_in_split=400)
    result = forecast(sizes, plan(samples_per_step=40, data_parallel_size=2))
    assert result.fill_percent == pytest.approx(100)
    assert result.n_from_packs == pytest.approx(result.n_from_lengths, rel=0.05)
    assert result.n_from_lengths == pytest.approx(100 / 25)
    assert result.num_packs == pytest.approx(400 / result.n_from_packs, abs=1)
    assert result.global_batch_size == 10
    assert result.window_bytes == 200  # half of the two streams' windows, 20 samples of 10 bytes


def test_tiles_and_pixels_are_counted_per_pack() -> None:
    sizes = Sizes(streams=[[size(50, num_tiles=n, num_image_tokens=25) for n in (1, 2)] * 10], num_in_split=20)
    result = forecast(sizes, plan())
    assert result.tiles_per_pack.largest == 3
    assert result.pixel_bytes_per_pack == 36
    assert result.image_token_percent == 50


def test_no_usable_sample_and_impossible_sizes_are_refused() -> None:
    with pytest.raises(ConfigError, match="no usable sample"):
        forecast(Sizes(streams=[[]], num_in_split=0), plan())
    with pytest.raises(ConfigError, match="data_parallel_size=0"):
        plan(data_parallel_size=0)


def planned(path: Path, tokenizer: Any, max_samples: int | None = None, **changes: Any) -> tuple[Sizes, Forecast, Any]:
    module = data_module(path, tokenizer, **changes)
    factory = module.factory("train", training=True)
    sizes = read_sizes(
        factory.source, factory.encoder, module.task_encoder.layout, num_streams=4, max_samples=max_samples
    )
    settings = plan(
        capacity=factory.stream.capacity,
        packed_sequence_size=512,
        packing_buffer_size=factory.stream.packing_buffer_size,
        repeat=factory.source.repeat,
    )
    return sizes, forecast(sizes, settings), module


def test_the_plan_of_an_epoch_is_what_the_loader_gives(energon_dataset: Path, tokenizer: Any) -> None:
    sizes, result, module = planned(energon_dataset, tokenizer, repeat=False)
    batches = list(module.train_dataloader())
    lengths = [length for batch in batches for length in batch.cu_seqlens.diff().tolist()]
    assert sorted(s.num_tokens for s in sizes.samples) == sorted(lengths)
    assert result.num_packs == len(batches)
    assert result.num_samples == sum(batch.num_samples for batch in batches)
    assert result.fill_percent == pytest.approx(100 * sum(lengths) / (512 * len(batches)))
    assert result.tiles_per_pack.largest == max(batch.pixels.shape[0] for batch in batches)
    images = sum(int((batch.tokens < 0).sum()) for batch in batches)
    assert result.image_token_percent == pytest.approx(100 * images / sum(lengths))


def test_a_few_samples_tell_about_the_whole(energon_dataset: Path, tokenizer: Any) -> None:
    sizes, result, _ = planned(energon_dataset, tokenizer, max_samples=80)
    _, whole, _ = planned(energon_dataset, tokenizer)
    assert len(sizes.samples) == 80
    assert result.num_samples == whole.num_samples == 340
    assert result.n_from_packs == pytest.approx(whole.n_from_packs, rel=0.25)


def test_samples_that_are_too_long_are_counted_even_where_they_would_stop_a_run(
    energon_dataset: Path, tokenizer: Any
) -> None:
    sizes, result, _ = planned(energon_dataset, tokenizer, seq_length=250, oversize="raise")
    assert sizes.drops.counts()[Reason.OVERSIZE] == result.dropped["oversize"] > 0
    assert result.num_samples_read + result.dropped["oversize"] == 340
    assert result.num_samples == result.num_samples_read
    assert result.tokens.largest <= 250
