"""The mock benchmark: the same samples in every way, the same losses, an honest baseline, and its refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from mmpack.bench.mock import MockConfig, batches_of, config_from_mapping, draw_samples, run
from mmpack.errors import ConfigError

SHIPPED = Path(__file__).parents[2] / "configs" / "bench" / "mock.yaml"
SMALL = {
    "seq_length": 1024,
    "tokens_per_microbatch": 2048,
    "global_batch_size": 6,
    "image_size_px": 336,
    "vocab_size": 64,
    "hidden_size": 16,
    "num_layers": 1,
    "num_heads": 4,
    "vision_hidden_size": 8,
    "repeats": 1,
    "warmups": 1,
    "device": "cpu",
}


def test_every_way_has_the_same_samples_within_the_same_budget() -> None:
    config = MockConfig(**SMALL)  # type: ignore[arg-type]
    samples, tiling = draw_samples(config)
    useful = sum(sample.num_tokens for sample in samples)
    assert sum(len(sample.pictures) for sample in samples) >= 4
    for way in ("padding", "buckets", "dynamic", "packing_varlen"):
        batches = batches_of(way, samples, config, tiling)
        assert sum(batch.num_real_tokens for batch in batches) == useful
        assert all(batch.num_tokens <= 2048 for batch in batches)
        assert sorted(key for batch in batches for key in batch.sample_keys) == sorted(s.key for s in samples)


def test_records_compare_with_padding_and_losses_agree(tmp_path: Path) -> None:
    config = MockConfig(**SMALL, ways=("packing_varlen", "packing_flash"), picture=str(tmp_path / "mock.png"))  # type: ignore[arg-type]
    records = {record.subject: record for record in run(config)}
    assert set(records) == {"padding", "packing_varlen", "packing_flash"}
    padding, packing = records["padding"].metrics, records["packing_varlen"].metrics
    assert padding["useful_tokens"] == packing["useful_tokens"]
    assert packing["padding_percent"] == 0 < padding["padding_percent"]
    assert padding["loss_first"] == pytest.approx(packing["loss_first"], abs=1e-4)
    assert packing["target_times"] == 1.5
    assert "CUDA" in str(records["packing_flash"].config["skipped"])
    assert (tmp_path / "mock.png").stat().st_size > 1000


def test_the_shipped_file_is_valid() -> None:
    settings = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))
    assert settings.pop("bench") == "mock"
    assert config_from_mapping(settings, where=str(SHIPPED)).global_batch_size == 48


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"lengths": "caption_4"}, "caption_4k"),
        ({"ways": ["pack"]}, "unknown way 'pack'"),
        ({"ways": "padding"}, "ways='padding'"),
        ({"image_size_px": 100}, "no multiple of patch_size_px"),
        ({"tokens_per_microbatch": 100}, "below seq_length"),
        ({"hiden_size": 8}, "did you mean 'hidden_size'"),
        ({"repeats": True}, "repeats=True"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        config_from_mapping(settings, where="m.yaml")
