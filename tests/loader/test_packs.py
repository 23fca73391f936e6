"""The global sequence of packs: the same from any ranks and workers, full, and every sample once an epoch."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from mmpack.errors import ConfigError, StateError
from mmpack.packing import load_metrics
from tests.conftest import data_module, digest


def packs(dataset: Path, tokenizer: Any, count: int | None, **options: Any) -> list[Any]:
    return list(itertools.islice(data_module(dataset, tokenizer, **options).train_dataloader(), count))


def test_the_same_packs_from_every_layout(energon_dataset: Path, tokenizer: Any) -> None:
    expected = [digest(b.check()) for b in packs(energon_dataset, tokenizer, 24)]
    assert len(set(expected)) == 24
    for num_workers in (1, 2):
        assert [digest(b) for b in packs(energon_dataset, tokenizer, 24, num_workers=num_workers)] == expected
    ranks = [
        packs(energon_dataset, tokenizer, 12, num_workers=1, data_parallel_rank=r, data_parallel_size=2) for r in (0, 1)
    ]
    assert [digest(b) for pair in zip(*ranks, strict=True) for b in pair] == expected


def test_packs_are_numbered_in_their_global_order(energon_dataset: Path, tokenizer: Any) -> None:
    assert [b.pack_index for b in packs(energon_dataset, tokenizer, 30, num_workers=2)] == list(range(30))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_epoch_has_every_sample_once(energon_dataset: Path, tokenizer: Any, num_workers: int) -> None:
    keys = [
        key
        for batch in packs(energon_dataset, tokenizer, None, repeat=False, num_workers=num_workers)
        for key in batch.sample_keys
    ]
    assert len(keys) == len(set(keys)) == 340


def test_an_epoch_has_the_same_packs_on_two_ranks(energon_dataset: Path, tokenizer: Any) -> None:
    expected = {b.pack_index: digest(b) for b in packs(energon_dataset, tokenizer, None, repeat=False)}
    got: dict[int, str] = {}
    for rank in (0, 1):
        options = {"data_parallel_rank": rank, "data_parallel_size": 2, "repeat": False}
        got |= {b.pack_index: digest(b) for b in packs(energon_dataset, tokenizer, None, **options)}
    assert got == expected


def test_the_loader_knows_how_full_its_packs_are(energon_dataset: Path, tokenizer: Any) -> None:
    data = data_module(energon_dataset, tokenizer, repeat=False)
    loader = data.train_dataloader()
    for _ in range(2):  # every epoch for itself
        taken = list(loader)
        expected = load_metrics(
            [b.num_real_tokens for b in taken], [512] * len(taken), num_sequences=sum(b.num_samples for b in taken)
        )
        assert loader.pack_capacity == data.pack_capacity == 512
        assert loader.packing == expected
        assert (expected.num_sequences, expected.num_bins) == (340, len(taken))
    loader.load_state_dict(loader.state_dict())
    assert loader.packing.num_bins == 0


def test_another_seed_is_another_order(energon_dataset: Path, tokenizer: Any) -> None:
    first, second = (packs(energon_dataset, tokenizer, 6, seed=seed) for seed in (0, 1))
    assert [b.sample_keys for b in first] != [b.sample_keys for b in second]


def test_a_pack_never_has_a_sample_twice(energon_dataset: Path, tokenizer: Any) -> None:
    # The window is larger than a stream, so two epochs meet in it.
    for batch in packs(energon_dataset, tokenizer, 80, packing_buffer_size=200):
        assert len(set(batch.sample_keys)) == len(batch.sample_keys)


def test_packs_are_full(energon_dataset: Path, tokenizer: Any) -> None:
    batches = packs(energon_dataset, tokenizer, 60, num_streams=1, packing_buffer_size=200, packed_sequence_size=1024)
    real = [b.num_real_tokens for b in batches]
    assert max(real) <= 1024
    assert sum(real) / len(real) >= 0.999 * 1024


def test_validation_is_the_whole_split_the_same_every_time(energon_dataset: Path, tokenizer: Any) -> None:
    loader = data_module(energon_dataset, tokenizer, num_workers=2).val_dataloader()
    next(iter(loader))  # a run that stops early must not change the next
    first = list(loader)
    keys = [key for batch in first for key in batch.sample_keys]
    assert len(keys) == len(set(keys)) == 60
    assert [digest(b) for b in loader] == [digest(b) for b in first]


def test_sizes_that_do_not_divide_name_those_that_do(energon_dataset: Path, tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match=r"world_size=5 does not divide num_streams=12.*1, 2, 3, 4, 6, 12"):
        data_module(energon_dataset, tokenizer, data_parallel_size=5, data_parallel_rank=0, num_streams=12)
    with pytest.raises(ConfigError, match=r"num_workers=13.*0\.\.12 workers"):
        data_module(energon_dataset, tokenizer, num_workers=13, num_streams=12)


def test_two_iterations_at_once_are_refused(energon_dataset: Path, tokenizer: Any) -> None:
    loader = data_module(energon_dataset, tokenizer).train_dataloader()
    first, second = iter(loader), iter(loader)
    next(first)
    next(second)
    with pytest.raises(StateError, match="another one of the same loader has begun"):
        next(first)
    next(second)


def test_a_state_of_another_number_of_streams_is_refused(energon_dataset: Path, tokenizer: Any) -> None:
    module = data_module(energon_dataset, tokenizer, num_streams=4)
    next(iter(module.train_dataloader()))
    with pytest.raises(StateError, match="num_streams: saved 4, now 2"):
        data_module(energon_dataset, tokenizer, num_streams=2).load_state_dict(module.state_dict())
    with pytest.raises(StateError, match="not a state of mmpack's loader"):
        module.load_state_dict({})


def test_a_stream_without_a_usable_sample_is_told(energon_dataset: Path, tokenizer: Any) -> None:
    module = data_module(energon_dataset, tokenizer, seq_length=2, oversize="drop")
    with pytest.raises(ConfigError, match=r"stream 0 of 4 .* has no usable sample \(left out so far: \d+ oversize\)"):
        next(iter(module.train_dataloader()))


def test_validation_works_on_any_number_of_ranks(energon_dataset: Path, tokenizer: Any) -> None:
    keys = []
    for rank in range(3):
        module = data_module(energon_dataset, tokenizer, num_streams=3, data_parallel_rank=rank, data_parallel_size=3)
        keys += [key for batch in module.val_dataloader() for key in batch.sample_keys]
    assert len(keys) == len(set(keys)) == 60
