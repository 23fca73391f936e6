"""Faults in a dataset: exactly the bad samples are missing, each counted with reason and key, the order intact."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import convert_llava, data_module, digest

Parts = dict[str, bytes]  # tar member's extension -> content


def rewrite(dataset: Path, change: Callable[[str, Parts], Parts]) -> None:
    """Replaces the parts of every training sample by what `change` makes of them, and indexes the shards anew."""
    from megatron.energon import CrudeWebdataset

    for shard in sorted(dataset.glob("train-*.tar")):
        with tarfile.open(shard) as tar:
            members = [(m.name, tar.extractfile(m).read()) for m in tar.getmembers()]  # type: ignore[union-attr]
        with tarfile.open(shard, "w", format=tarfile.USTAR_FORMAT) as tar:
            for key, group in itertools.groupby(members, key=lambda member: member[0].partition(".")[0]):
                for part, data in change(key, {name.partition(".")[2]: data for name, data in group}).items():
                    info = tarfile.TarInfo(f"{key}.{part}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    meta = dataset / ".nv-meta"
    kept = {name: (meta / name).read_bytes() for name in ("split.yaml", "dataset.yaml")}
    tars = sorted(str(path.relative_to(dataset)) for path in dataset.rglob("*.tar"))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        CrudeWebdataset.prepare_dataset(dataset, tars, split_parts_ratio=[("train", 1.0)], shuffle_seed=None, workers=1)
    for name, data in kept.items():
        (meta / name).write_bytes(data)


def with_text(parts: Parts, answer: str) -> Parts:
    record = json.loads(parts["json"])
    for turn in record["conversations"]:
        if turn["from"] == "gpt":
            turn["value"] = answer
    return {**parts, "json": json.dumps(record).encode()}


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A dataset, a copy with faults, and which sample got which."""
    folder = tmp_path_factory.mktemp("faults")
    good = convert_llava(folder / "good", 80, split={"train": 1.0})
    bad = folder / "bad" / "energon"
    shutil.copytree(good, bad)
    faults: dict[str, str] = {}

    def change(key: str, parts: Parts) -> Parts:
        pictures = [name for name in parts if name.endswith("png")]
        if pictures and "image_truncated" not in faults:
            faults["image_truncated"] = key
            return {**parts, pictures[0]: parts[pictures[0]][:-40]}
        if pictures and "image_missing" not in faults:
            faults["image_missing"] = key
            return {name: data for name, data in parts.items() if name != pictures[0]}
        if len(faults) == 2:
            faults["oversize"] = key
            return with_text(parts, "word " * 600)
        if len(faults) == 3:
            faults["no_answer"] = key
            return with_text(parts, " ")
        if len(faults) == 4:
            faults["broken_json"] = key
            return {**parts, "json": parts["json"][:-5]}
        return parts

    rewrite(bad, change)
    return {"good": good, "bad": bad, "faults": faults}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_exactly_the_bad_samples_are_missing_and_counted(
    datasets: dict[str, Any], tokenizer: Any, num_workers: int
) -> None:
    faults = datasets["faults"]
    assert set(faults) == {"image_truncated", "image_missing", "oversize", "no_answer", "broken_json"}
    options = {"repeat": False, "num_workers": num_workers, "num_streams": 2}
    good = [k for b in data_module(datasets["good"], tokenizer, **options).train_dataloader() for k in b.sample_keys]
    loader = data_module(datasets["bad"], tokenizer, **options).train_dataloader()
    got = [key for batch in loader for key in batch.check().sample_keys]
    assert sorted(set(good) - set(got)) == sorted(faults.values())
    assert len(got) == len(set(got)) == len(good) - 5
    counted = loader.drops.to_dict()["energon"]
    assert {reason: (entry["count"], entry["keys"]) for reason, entry in counted.items()} == {
        reason: (1, [key]) for reason, key in faults.items()
    }


def test_a_picture_that_fails_after_planning_moves_nothing_else(datasets: dict[str, Any], tokenizer: Any) -> None:
    key = datasets["faults"]["image_truncated"]

    def only_truncated(name: str, parts: Parts) -> Parts:
        pictures = [part for part in parts if part.endswith("png")]
        return {**parts, pictures[0]: parts[pictures[0]][:-40]} if name == key else parts

    bad = datasets["bad"].parent / "one"
    shutil.copytree(datasets["good"], bad)
    rewrite(bad, only_truncated)
    options = {"repeat": False, "num_streams": 2}
    good = list(data_module(datasets["good"], tokenizer, **options).train_dataloader())
    got = list(data_module(bad, tokenizer, **options).train_dataloader())
    assert len(good) == len(got)
    hit = 0
    for expected, batch in zip(good, got, strict=True):
        if key not in expected.sample_keys:
            assert digest(batch) == digest(expected)
            continue
        hit += 1
        assert [k for k in expected.sample_keys if k != key] == list(batch.check().sample_keys)
        assert batch.cu_seqlens_padded.tolist() == expected.cu_seqlens_padded.tolist()
        place = expected.sample_keys.index(key)
        start, end = expected.cu_seqlens_padded[place : place + 2].tolist()
        assert bool(batch.padding_mask[0, start:end].all())
        assert float(batch.loss_weight[0, start:end].sum()) == 0.0
        outside = [i for i in range(batch.num_tokens) if not start <= i < end]
        assert batch.tokens[0, outside].tolist() == expected.tokens[0, outside].tolist()
        assert batch.labels[0, outside].tolist() == expected.labels[0, outside].tolist()
    assert hit == 1


def test_a_buffered_sample_that_vanished_keeps_its_place(
    datasets: dict[str, Any], tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mmpack.energon.reader import Source

    options = {"repeat": False, "num_streams": 1}
    module = data_module(datasets["good"], tokenizer, **options)
    iterator = iter(module.train_dataloader())
    next(iterator)
    state = module.state_dict()
    expected = list(iterator)
    victim = state["streams"]["0"]["window"][3]
    original = Source.read

    def read(self: Source, key: Any) -> Any:
        sample = original(self, key)
        if sample.__key__ == victim[2]:
            raise OSError("the shard is gone")
        return sample

    monkeypatch.setattr(Source, "read", read)
    resumed = data_module(datasets["good"], tokenizer, **options)
    resumed.load_state_dict(state)
    got = list(resumed.train_dataloader())
    assert [b.cu_seqlens_padded.tolist() for b in got] == [b.cu_seqlens_padded.tolist() for b in expected]
    lost = {k for b in expected for k in b.sample_keys} - {k for b in got for k in b.sample_keys}
    assert lost == {victim[2]}
    assert resumed.train_dataloader().drops.to_dict()["energon"]["unreadable"] == {"count": 1, "keys": [victim[2]]}


def test_a_buffered_sample_of_another_length_is_an_error_that_names_it(
    datasets: dict[str, Any], tokenizer: Any
) -> None:
    from mmpack.errors import StateError

    options = {"repeat": False, "num_streams": 1}
    module = data_module(datasets["good"], tokenizer, **options)
    next(iter(module.train_dataloader()))
    state = module.state_dict()
    victim = state["streams"]["0"]["window"][3]
    victim[1] += 1
    resumed = data_module(datasets["good"], tokenizer, **options)
    resumed.load_state_dict(state)
    with pytest.raises(StateError, match=f"sample '{victim[2]}' of 'energon' had {victim[1]} tokens"):
        next(iter(resumed.train_dataloader()))


def test_two_loaders_read_in_two_threads(datasets: dict[str, Any], tokenizer: Any) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def keys(seed: int) -> list[str]:
        loader = data_module(datasets["good"], tokenizer, repeat=False, seed=seed).train_dataloader()
        return sorted(key for batch in loader for key in batch.sample_keys)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(keys, [0, 1])
    assert len(first) == 80
    assert first == second
