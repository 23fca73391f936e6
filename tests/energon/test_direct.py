"""Samples by number are those that energon's own reader gives, for every kind of dataset that it can number."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from mmpack.energon.direct import open_direct
from mmpack.energon.reader import SourceConfig
from mmpack.energon.source import EnergonSource
from mmpack.errors import ConfigError, DataError, Reason, SampleError
from mmpack.sample import Conversation
from tests.sources.shards import CRUDE, picture, typed, write_dataset


def in_order(path: Path, split: str = "train") -> SourceConfig:
    return SourceConfig(
        path=path, split=split, training=False, repeat=False, shuffle_buffer_size=None, max_samples_per_sequence=None
    )


def by_energon(path: Path, split: str = "train") -> list[Any]:
    source = EnergonSource(in_order(path, split), stream=0, num_streams=1, on_fault=lambda error, name: None)
    return [drawn.sample for drawn in source]


def directly(path: Path, split: str = "train") -> list[Any]:
    samples = []
    for part in open_direct(in_order(path, split)):
        numbers = list(range(len(part.dataset)))
        random.Random(0).shuffle(numbers)  # any order
        read = {number: part.dataset.sample(number) for number in numbers}
        samples += [read[number] for number in sorted(numbers)]
    return samples


@pytest.mark.parametrize("split", ["train", "val"])
def test_our_own_datasets(energon_dataset: Path, split: str) -> None:
    assert directly(energon_dataset, split) == by_energon(energon_dataset, split)


def crude_folder(folder: Path, name: str, count: int) -> Path:
    samples = {
        f"{name}{i:03d}": {"jpg": picture(i % 9), "json": json.dumps({"caption": f"{name} {i}"}).encode()}
        for i in range(count)
    }
    return write_dataset(folder / name, samples, CRUDE)


def test_crude_and_typed_datasets(tmp_path: Path) -> None:
    crude = crude_folder(tmp_path, "crude", 7)
    assert len(directly(crude)) == 7
    assert directly(crude) == by_energon(crude)
    samples = {f"k{i}": {"jpg": picture(i), "json": json.dumps({"c": f"caption {i}"}).encode()} for i in range(5)}
    mapped = write_dataset(
        tmp_path / "typed", samples, typed("CaptioningSample", field_map={"image": "jpg", "caption": "json[c]"})
    )
    assert directly(mapped) == by_energon(mapped)
    assert [sample.turns[1].text for sample in directly(mapped)] == [f"caption {i}" for i in range(5)]


def metadataset(folder: Path, split: dict[str, Any]) -> Path:
    content = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"train": split}}
    (folder / "meta.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    return folder / "meta.yaml"


def test_subsets_and_blends(tmp_path: Path) -> None:
    for name, count in ("one", 20), ("two", 8):
        crude_folder(tmp_path, name, count)
    subset = metadataset(tmp_path, {"path": "one", "subset": {"range": ["25%", "75%"]}})
    assert [sample.key for sample in directly(subset)] == [f"one{i:03d}" for i in range(5, 15)]
    assert directly(subset) == by_energon(subset)
    entries = [{"path": "one", "repetitions": 1.5}, {"path": "two", "repetitions": 2}]
    parts = open_direct(in_order(metadataset(tmp_path, {"blend_epochized": entries})))
    assert [(part.dataset.name, part.per_epoch) for part in parts] == [("one", 30), ("two", 16)]
    entries = [{"path": "one", "weight": 1}, {"path": "two", "weight": 3}]
    parts = open_direct(in_order(metadataset(tmp_path, {"blend": entries})))
    assert [(part.dataset.name, part.per_epoch) for part in parts] == [("one", 7), ("two", 21)]


def test_excluded_samples_have_no_number(tmp_path: Path) -> None:
    path = crude_folder(tmp_path, "set", 12)
    split = path / ".nv-meta" / "split.yaml"
    content = yaml.safe_load(split.read_text())
    content["exclude"] = ["shard.tar/set{000,004,005,011}"]
    split.write_text(yaml.safe_dump(content))
    keys = [sample.key for sample in directly(path)]
    assert keys == [f"set{i:03d}" for i in (1, 2, 3, 6, 7, 8, 9, 10)]
    cut = metadataset(tmp_path, {"path": "set", "subset": {"range": [3, 8]}})
    assert [sample.key for sample in directly(cut)] == [f"set{i:03d}" for i in (3, 6, 7)]


def test_a_description_tells_datasets_apart(tmp_path: Path) -> None:
    one, copy = crude_folder(tmp_path, "one", 6), tmp_path / "copy" / "one"
    shutil.copytree(one, copy)
    described = [part.dataset.describe() for path in (one, copy) for part in open_direct(in_order(path))]
    assert described[0] == described[1]  # where it lies is no part of it
    (copy / ".nv-meta" / "index.uuid").write_text("another")
    other = [open_direct(in_order(copy))[0].dataset.describe()]
    subset = metadataset(tmp_path, {"path": "one", "subset": {"range": [0, 5]}})
    other.append(open_direct(in_order(subset))[0].dataset.describe())
    assert len({described[0], *other}) == 3


def test_damage_is_named(tmp_path: Path) -> None:
    path = crude_folder(tmp_path, "set", 6)
    dataset = open_direct(in_order(path))[0].dataset
    shard = path / "shard.tar"
    whole = shard.read_bytes()
    assert dataset.sample(5).key == "set005"
    os.truncate(shard, len(whole) // 2)  # while it is open
    with pytest.raises(SampleError, match=r"sample 'shard.tar#5': unreadable: shard.tar ends at byte") as caught:
        dataset.sample(5)
    assert caught.value.reason is Reason.UNREADABLE
    assert dataset.sample(0).key == "set000"
    with pytest.raises(DataError, match=r"7 offsets up to \d+; the shard has 6 samples and \d+ bytes"):
        open_direct(in_order(path))
    shard.write_bytes(whole[512:] + whole[:512])
    with pytest.raises(SampleError, match=r"shard.tar#0"):
        open_direct(in_order(path))[0].dataset.sample(0)
    (path / "shard.tar.idx").unlink()
    with pytest.raises(DataError, match=r"shard .* cannot be read"):
        open_direct(in_order(path))


def test_a_broken_record_has_its_name_and_reason(tmp_path: Path) -> None:
    samples = {"good": {"json": b'{"text": "a b"}'}, "bad": {"json": b"{"}, "none": {"jpg": picture(1)}}
    dataset = open_direct(in_order(write_dataset(tmp_path / "set", samples, CRUDE)))[0].dataset
    assert isinstance(dataset.sample(0), Conversation)
    reasons = []
    for number in 1, 2:
        with pytest.raises(SampleError) as caught:
            dataset.sample(number)
        reasons.append((caught.value.key, caught.value.reason))
    assert reasons == [("bad", Reason.BROKEN_JSON), ("none", Reason.MISSING_FIELD)]


def test_what_has_no_numbers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot open split 'test'"):
        open_direct(in_order(crude_folder(tmp_path, "set", 3), "test"))
    folder = tmp_path / "lines"
    folder.mkdir()
    (folder / "data.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    from megatron.energon.flavors.jsonl.crude_jsonl_dataset import CrudeJsonlDatasetFactory

    CrudeJsonlDatasetFactory.prepare_dataset(folder / "data.jsonl")
    with pytest.raises(ConfigError, match="no joins, no JSONL"):
        open_direct(in_order(folder / "data.jsonl"))


_SHARED: list[Any] = []  # what forked processes inherit


def _key(index: int) -> str:
    return str(_SHARED[0].sample(index).key)


def test_forked_processes_read_from_one_object(energon_dataset: Path) -> None:
    _SHARED[:] = [open_direct(in_order(energon_dataset))[0].dataset]
    expected = [_key(i) for i in range(40)]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(_key, range(40), chunksize=1) == expected
