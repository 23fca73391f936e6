"""`mmpack.check` finds exactly the faults that were put in, and what it leaves out, training never meets."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import braceexpand
import pytest
import yaml

from mmpack.check import CheckConfig, check, dataset_splits, histogram, quarantine
from mmpack.check.quarantine import literal
from mmpack.errors import ConfigError
from mmpack.layout import Layout
from mmpack.report.check import check_html
from tests.check.injector import KINDS, inject
from tests.conftest import convert_llava, data_module, digest, write_llava


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convert_llava(tmp_path_factory.mktemp("check"), 160, split={"train": 1.0}, max_samples_per_shard=30)


@pytest.fixture(scope="module")
def bad(good: Path) -> tuple[Path, dict[str, str]]:
    path = good.parent / "bad" / "energon"
    return path, inject(good, path, per_kind=2)


def config(path: Path, tokenizer: Any, **changes: Any) -> CheckConfig:
    task = data_module_encoder(tokenizer)
    options: dict[str, Any] = {"encoder": task.build_encoder(512), "layout": Layout(), "packed_sequence_size": 512}
    return CheckConfig(path=path, packing_buffer_size=40, **(options | changes))


def data_module_encoder(tokenizer: Any) -> Any:
    from mmpack.datamodules import MultiModalTaskEncoder
    from tests.conftest import tile_spec

    return MultiModalTaskEncoder(
        tokenizer=tokenizer,
        image_processor=tile_spec(),
        packed_sequence_size=512,
        num_image_embeddings_per_tile=4,
        oversize="drop",
    )


def test_clean_data_is_clean(good: Path, tokenizer: Any) -> None:
    report = check(config(good, tokenizer, deep=True))
    assert report.passed
    assert report.faults == {}
    assert report.damaged_shards == ()
    assert (report.num_samples, report.num_good) == (160, 160)
    assert report.splits == ("train",)
    assert report.fill is not None
    packs = list(data_module(good, tokenizer, repeat=False, num_streams=1).train_dataloader())
    assert abs(report.fill.num_packs - len(packs)) <= 1
    assert sum(report.counts.tokens) == sum(int(batch.cu_seqlens.diff().sum()) for batch in packs)


@pytest.mark.parametrize("workers", [1, 2])
def test_exactly_the_faults_that_were_put_in(bad: tuple[Path, dict[str, str]], tokenizer: Any, workers: int) -> None:
    path, lost = bad
    seen: list[tuple[int, int]] = []
    report = check(config(path, tokenizer, deep=True, workers=workers), lambda done, total: seen.append((done, total)))
    assert {sample.key: sample.reason.value for sample in report.counts.bad} == lost
    assert report.faults == Counter(lost.values())
    assert report.num_samples == 160
    assert report.num_good == 160 - len(lost)
    assert not report.passed
    assert len(report.damaged_shards) == 2
    assert seen[-1] == (160, 160)
    again = check(config(path, tokenizer, deep=True))
    assert report.to_json() | {"seconds": 0} == again.to_json() | {"seconds": 0}


def test_without_deep_only_damaged_pixels_escape(bad: tuple[Path, dict[str, str]], tokenizer: Any) -> None:
    path, lost = bad
    found = {sample.key for sample in check(config(path, tokenizer)).counts.bad}
    missed = set(lost) - found
    assert found <= set(lost)
    assert {lost[key] for key in missed} <= {"image_truncated"}
    assert len(missed) <= 2  # "picture cut"


def test_the_budget_is_a_share(bad: tuple[Path, dict[str, str]], tokenizer: Any) -> None:
    path, _ = bad
    share = check(config(path, tokenizer)).bad_share
    assert check(config(path, tokenizer, max_bad=share)).passed
    assert not check(config(path, tokenizer, max_bad=share - 1e-9)).passed


def test_training_over_the_faults(good: Path, bad: tuple[Path, dict[str, str]], tokenizer: Any) -> None:
    """Two workers: every good sample once in an epoch, the counts add up, in two epochs, with little memory."""
    import psutil

    path, lost = bad
    keys = {key for b in data_module(good, tokenizer, repeat=False).train_dataloader() for key in b.sample_keys}
    loader = data_module(path, tokenizer, repeat=False, num_workers=2, num_streams=4).train_dataloader()
    before, started = psutil.Process().memory_info().rss, time.monotonic()
    for epoch in (1, 2):
        got = [key for batch in loader for key in batch.check().sample_keys]
        assert sorted(got) == sorted(keys - set(lost))
        assert {reason.value: n for reason, n in loader.drops.counts().items()} == {
            reason: epoch * n for reason, n in Counter(lost.values()).items()
        }
    assert time.monotonic() - started < 60
    assert psutil.Process().memory_info().rss - before < 200 << 20


def test_what_is_quarantined_is_not_met_again(bad: tuple[Path, dict[str, str]], tokenizer: Any, tmp_path: Path) -> None:
    path, lost = bad
    copy = tmp_path / "energon"
    shutil.copytree(path, copy)
    split_file = copy / ".nv-meta" / "split.yaml"
    before = split_file.read_bytes()
    report = check(config(copy, tokenizer, deep=True))
    (written,) = quarantine(report.counts.bad)
    assert written == (split_file, len(lost))
    assert (split_file.parent / "split.yaml.1.bak").read_bytes() == before
    assert yaml.safe_load(split_file.read_text())["split_parts"] == yaml.safe_load(before)["split_parts"]
    assert quarantine(report.counts.bad) == [(split_file, 0)]
    clean = check(config(copy, tokenizer, deep=True))
    assert clean.faults == {}
    assert clean.num_samples == 160 - len(lost)
    options = {"repeat": False, "num_streams": 2}
    with_faults = data_module(path, tokenizer, **options).train_dataloader()
    loader = data_module(copy, tokenizer, **options).train_dataloader()
    packs = list(loader)
    assert loader.drops.to_dict() == {}
    assert {key for batch in packs for key in batch.sample_keys} == {k for b in with_faults for k in b.sample_keys}
    assert len({digest(batch) for batch in packs}) == len(packs)


def test_energon_itself_reads_none_of_the_quarantined(good: Path, tokenizer: Any, tmp_path: Path) -> None:
    """Faults inside samples, in sound shards: energon's own loader skips them by the same entries."""
    from megatron.energon import WorkerConfig, get_val_dataset

    copy = tmp_path / "energon"
    shutil.copytree(good, copy)
    from tests.energon.test_faults import rewrite

    victims = {"00000003": KINDS["no answer"][2], "00000041": KINDS["json cut"][2]}
    rewrite(copy, lambda key, parts: victims[key](parts) if key in victims else parts)
    quarantine(check(config(copy, tokenizer)).counts.bad)
    from mmpack.energon.reader import _Undecoded

    worker = WorkerConfig(rank=0, world_size=1, num_workers=0)
    dataset = get_val_dataset(
        copy, split_part="train", worker_config=worker, batch_size=None, task_encoder=_Undecoded()
    )
    worker.worker_activate(0)
    keys = {sample.__key__ for sample in dataset}
    worker.worker_deactivate()
    assert len(keys) == 158
    assert not keys & set(victims)


def test_names_in_brace_patterns_mean_themselves() -> None:
    for name in ("s.tar/a", "s.tar/a{1,2}", "s.tar/{", "s.tar/}x{", "s.tar/a\\b", "s.tar/{1..3}", "s.tar/#7"):
        assert list(braceexpand.braceexpand(literal(name))) == [name]


def test_a_file_of_records(tokenizer: Any, tmp_path: Path) -> None:
    file = write_llava(tmp_path / "llava", 30)
    records = json.loads(file.read_text())
    images = tmp_path / "llava" / "images"
    with_picture = [i for i, record in enumerate(records) if isinstance(record.get("image"), str)]
    gone, cut = with_picture[:2]
    (images / records[gone]["image"]).unlink()
    damaged = images / records[cut]["image"]
    damaged.write_bytes(damaged.read_bytes()[:-30])
    silent = next(i for i in range(30) if i not in (gone, cut))
    records[silent]["conversations"] = []
    file.write_text(json.dumps(records))
    for workers in (1, 2):
        report = check(config(file, tokenizer, image_root=images, deep=True, workers=workers))
        assert {(int(sample.key), sample.reason.value) for sample in report.counts.bad} == {
            (gone, "image_missing"),
            (cut, "image_truncated"),
            (silent, "empty_conversation"),
        }
        assert report.num_good == 27
    with pytest.raises(ConfigError, match="no Energon dataset"):
        quarantine(report.counts.bad)


def test_a_metadataset(good: Path, bad: tuple[Path, dict[str, str]], tokenizer: Any, tmp_path: Path) -> None:
    path, lost = bad
    blend = [
        {"path": str(good), "split_part": "train", "weight": 1},
        {"path": str(path), "split_part": "train", "weight": 2},
    ]
    content = {
        "__module__": "megatron.energon",
        "__class__": "MetadatasetV2",
        "splits": {"train": {"blend": blend}},
    }
    meta = tmp_path / "blend.yaml"
    meta.write_text(yaml.safe_dump(content))
    report = check(config(meta, tokenizer, deep=True))
    assert report.splits == ("train",)
    assert report.num_samples == 320
    assert {sample.key for sample in report.counts.bad} == set(lost)
    assert {sample.folder for sample in report.counts.bad} == {str(path)}


def test_splits_and_requests_that_cannot_be(good: Path, tokenizer: Any, tmp_path: Path) -> None:
    assert dataset_splits(good) == ["train"]
    with pytest.raises(ConfigError, match="lists no splits"):
        dataset_splits(tmp_path)
    for change, words in (({"workers": 0}, "workers=0"), ({"max_bad": 2.0}, "max_bad=2.0")):
        with pytest.raises(ConfigError, match=words):
            config(good, tokenizer, **change)
    with pytest.raises(ConfigError, match="does not exist"):
        config(good / "nowhere", tokenizer)


def test_a_missing_shard_and_more_slices_than_samples(tokenizer: Any, tmp_path: Path) -> None:
    path = convert_llava(tmp_path, 6, split={"train": 1.0}, max_samples_per_shard=3)
    shard = sorted(path.glob("train-*.tar"))[0]
    num_lost = json.loads((path / ".nv-meta" / ".info.json").read_text())["shard_counts"][shard.name]
    shard.unlink()
    report = check(config(path, tokenizer, workers=2))
    assert report.num_samples == 6
    assert report.faults == {"unreadable": num_lost}
    assert all("cannot be opened" in problem for _, problem in report.damaged_shards)


def test_the_page_is_whole_and_safe(bad: tuple[Path, dict[str, str]], tokenizer: Any) -> None:
    report = check(config(bad[0], tokenizer, counted_with="<b>words</b>"))
    page = check_html(report)
    assert page.startswith("<!doctype html>")
    assert page.rstrip().endswith("</html>")
    assert "http" not in page.replace("http-equiv", "")
    assert "<b>words</b>" not in page
    for reason in report.faults:
        assert reason in page
    assert page.count("<rect") >= len(histogram(report.counts.tokens, 40))


def test_histograms_hold_every_value() -> None:
    import random

    rng = random.Random(0)
    for _ in range(200):
        values = [rng.randrange(10 ** rng.randint(1, 6)) for _ in range(rng.randint(1, 50))]
        bins = histogram(values, rng.randint(1, 40))
        for first, last, count in bins:
            assert count == sum(first <= value <= last for value in values)
        assert sum(count for _, _, count in bins) == len(values)
    assert len(histogram([0, 10**6], 7)) <= 7
