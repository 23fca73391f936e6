"""Numbered draws: the state of a reader does not grow with the data; its order is a shuffle that goes on exactly."""

from __future__ import annotations

import collections
import itertools
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from mmpack.energon.draws import NumberedDraws, draw
from mmpack.energon.reader import Source, SourceConfig
from tests.sources.shards import CRUDE, write_dataset


def text_dataset(folder: Path, count: int) -> Path:
    samples = {f"{i:06d}": {"json": f'{{"text": "sample {i}"}}'.encode()} for i in range(count)}
    return write_dataset(folder, samples, CRUDE)


def open_source(path: Path, *, stream: int = 0, num_streams: int = 1, **options: Any) -> Source:
    config = SourceConfig(path=path, **{"shuffle_buffer_size": 8, "max_samples_per_sequence": 2, **options})
    return Source(config, stream=stream, num_streams=num_streams, on_fault=lambda error, name: None)


def keys(source: Source, count: int | None = None) -> list[str]:
    return [sample.__key__ for sample, _ in itertools.islice(source, count)]


def test_a_state_does_not_grow_with_the_data_or_the_step(tmp_path: Path) -> None:
    sizes = []
    for count in (40, 4000):
        source = open_source(text_dataset(tmp_path / str(count), count))
        for taken in (1, 30, 3000 if count == 4000 else 500):
            keys(source, taken)
            sizes.append(len(pickle.dumps(source.state())))
    assert max(sizes) < 3000
    assert max(sizes) - min(sizes) < 400


@pytest.mark.parametrize("taken", [0, 1, 7, 50, 99, 100, 101, 250])
def test_a_restored_reader_goes_on_in_this_and_the_next_epochs(tmp_path: Path, taken: int) -> None:
    path = text_dataset(tmp_path / "set", 100)
    source = open_source(path)
    keys(source, taken)
    state = pickle.loads(pickle.dumps(source.state()))
    expected = keys(source, 230)
    for used in (False, True):
        again = open_source(path)
        if used:  # one that stands elsewhere
            keys(again, 33)
        again.restore(state)
        assert keys(again, 230) == expected


def test_an_epoch_is_a_shuffle_of_all_samples_and_each_is_another(tmp_path: Path) -> None:
    path = text_dataset(tmp_path / "set", 300)
    source = open_source(path, repeat=False)
    epochs = [keys(source) for _ in range(3)]
    assert all(sorted(epoch) == [f"{i:06d}" for i in range(300)] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    places = [abs(int(key) - place) for place, key in enumerate(epochs[0])]
    assert sum(places) / 300 > 60  # 100 for a random order
    assert keys(open_source(path, repeat=False)) == epochs[0]
    assert keys(open_source(path, repeat=False, seed=1)) != epochs[0]


def test_blended_datasets_are_drawn_by_weight_and_apart(tmp_path: Path) -> None:
    for name in ("one", "two"):
        text_dataset(tmp_path / name, 60)
    entries = [{"path": "one", "weight": 3}, {"path": "two", "weight": 1}]
    content = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"train": {"blend": entries}}}
    (tmp_path / "blend.yaml").write_text(yaml.safe_dump(content))
    source = open_source(tmp_path / "blend.yaml")
    drawn = [sample for sample, _ in itertools.islice(source, 2000)]
    origins = collections.Counter(sample.__sources__[0].dataset_path.name for sample in drawn)
    assert origins["one"] / 2000 == pytest.approx(0.75, abs=0.03)
    orders = [[s.__key__ for s in drawn if s.__sources__[0].dataset_path.name == name][:40] for name in origins]
    assert orders[0] != orders[1]
    state = source.state()
    assert len(pickle.dumps(state)) < 4000
    following = keys(source, 100)
    again = open_source(tmp_path / "blend.yaml")
    again.restore(state)
    assert keys(again, 100) == following


def test_draws_follow_their_weights() -> None:
    draws = NumberedDraws(seed=3, number=1)
    counts = collections.Counter(draws.choice_idx(torch.tensor([0.0, 1.0, 0.0, 3.0, 0.0])) for _ in range(4000))
    assert set(counts) == {1, 3}
    assert counts[3] / 4000 == pytest.approx(0.75, abs=0.03)
    below = collections.Counter(draws.randbelow(5) for _ in range(5000))
    assert all(abs(below[i] - 1000) < 150 for i in range(5))
    assert draws.choice_idx(torch.tensor([2.0])) == 0
    assert sorted(draws.shuffle(list("abcdef"))) == list("abcdef")
    state = draws.save_state()
    expected = [draws.randbelow(1000) for _ in range(5)]
    other = NumberedDraws(seed=3, number=1)
    other.restore_state(state)
    assert [other.randbelow(1000) for _ in range(5)] == expected
    assert len({draw(seed, stream, 0) for seed in range(50) for stream in range(50)}) == 2500
