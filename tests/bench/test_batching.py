"""The comparison of ways to batch: what each step holds, that all learn the same, and its refusals."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import yaml

from mmpack.bench.batching import batches_of, plan, run
from mmpack.bench.batching_config import WAYS, BatchingConfig, config_from_mapping
from mmpack.bench.batching_text import draw_samples, read_texts, train_tokenizer
from mmpack.errors import ConfigError

SHIPPED = Path(__file__).parents[2] / "configs" / "bench" / "batching.yaml"
LENGTHS = [60, 3, 9, 33, 4, 64, 12, 7, 7, 21, 2, 40]


@pytest.fixture(scope="module")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "answers.jsonl"
    words = "the packs of a step hold the same samples whatever the way they are batched in".split()  # noqa: SIM905
    records = [
        {"input": f"question {n}", "output": " ".join(words[(n + i) % len(words)] for i in range(2 + (n * n) % 40))}
        for n in range(60)
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def small(text: Path, **settings: object) -> BatchingConfig:
    sizes = {"seq_length": 64, "tokens_per_microbatch": 128, "global_batch_size": 16, "vocab_size": 320}
    model = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "bucket_size": 4, "device": "cpu"}
    return BatchingConfig(**{"text": str(text), "repeats": 2, **sizes, **model, **settings})


@pytest.mark.parametrize("way", WAYS)
def test_each_way_plans_every_sample_once_and_within_the_budget(way: str) -> None:
    config = BatchingConfig(seq_length=64, tokens_per_microbatch=128, bucket_size=4, sequence_length_round=8)
    batches = plan(way, LENGTHS, config)
    assert sorted(i for batch in batches for i in batch) == list(range(len(LENGTHS)))
    for batch in batches:
        lengths = [LENGTHS[i] for i in batch]
        packed = WAYS[way].mask is not None
        width = 64 if way == "padding_to_limit" else max(lengths)
        assert (sum(lengths) if packed else width * len(lengths)) <= 128


def test_padding_keeps_the_order_and_opens_a_batch_only_when_the_next_sample_does_not_fit() -> None:
    batches = plan("padding", LENGTHS, BatchingConfig(seq_length=64, tokens_per_microbatch=128))
    assert [i for batch in batches for i in batch] == list(range(len(LENGTHS)))
    for batch, following in itertools.pairwise(batches):
        with_next = [*batch, following[0]]
        assert len(with_next) * max(LENGTHS[i] for i in with_next) > 128


def test_the_batches_of_a_way_hold_the_planned_tokens(text_file: Path) -> None:
    config = small(text_file)
    texts = read_texts(config.text)
    tokenizer = train_tokenizer(texts, config.vocab_size)
    samples, _ = draw_samples(texts, tokenizer, count=16, seq_length=64, seed=0)
    useful = sum(sample.num_tokens for sample in samples)
    weights = {way: sum(float(b.loss_weight.sum()) for b in batches_of(way, samples, config, 0)) for way in WAYS}
    assert len(set(weights.values())) == 1
    for way in WAYS:
        batches = batches_of(way, samples, config, 0)
        assert sum(batch.num_real_tokens for batch in batches) == useful
        assert sorted(key for batch in batches for key in batch.sample_keys) == sorted(s.key for s in samples)


def test_every_way_learns_the_same_and_has_a_record_and_a_picture(text_file: Path, tmp_path: Path) -> None:
    picture = tmp_path / "made" / "batching.png"
    records = {record.subject: record for record in run(small(text_file, picture=str(picture)))}
    assert set(records) == set(WAYS)
    measured = {name: record for name, record in records.items() if record.metrics}
    assert set(WAYS) - set(measured) == {"packing_flash"}
    assert "CUDA" in records["packing_flash"].config["skipped"]
    for name, record in measured.items():
        metrics = record.metrics
        assert metrics["useful_tokens"] == measured["padding"].metrics["useful_tokens"]
        assert metrics["padding_percent"] == pytest.approx(100 * (1 - metrics["useful_tokens"] / metrics["positions"]))
        assert (metrics["padding_percent"] == 0) == (WAYS[name].mask is not None)
        assert len(record.config["losses"]) == 3
        assert record.config["losses"][-1] < record.config["losses"][0]
        assert record.config["losses"] == pytest.approx(measured["padding"].config["losses"], abs=2e-3)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_shipped_file_is_valid_and_measures_every_way() -> None:
    settings = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))
    assert settings.pop("bench") == "batching"
    assert config_from_mapping(settings, where=str(SHIPPED)).measured == tuple(WAYS)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"ways": ["pading"]}, "did you mean 'padding'"),
        ({"ways": "padding"}, "give a list"),
        ({"seq_length": 4096}, "below seq_length=4096"),
        ({"repeats": 0}, "at least 1"),
        ({"repeats": True}, "repeats=True"),
        ({"hidden": 64}, "unknown setting 'hidden'"),
        ({"text": "nowhere.jsonl"}, "is no file"),
        ({"precision": "fp8"}, "precision='fp8'"),
        ({"hidden_size": 100, "num_heads": 3}, "multiple of num_heads=3"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_measured(settings: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        config_from_mapping(settings, where="b.yaml")


def test_a_set_with_too_few_records_is_refused(text_file: Path) -> None:
    with pytest.raises(ConfigError, match="only 60 records"):
        run(small(text_file, global_batch_size=100))
