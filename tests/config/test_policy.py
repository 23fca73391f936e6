"""NeMo-RL's keys: what `policy` says of batches reaches the data module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from mmpack.batch import PackedBatch, PaddedBatch
from mmpack.batch.context_parallel import context_parallel_slice
from mmpack.config import read_config
from mmpack.errors import ConfigError


@pytest.fixture
def write(energon_dataset: Path, tokenizer: Any, tmp_path: Path) -> Any:
    tokenizer.save_pretrained(tmp_path / "tokenizer")

    def written(policy: dict[str, Any], **data: Any) -> Path:
        values = {
            "data": {
                "path": str(energon_dataset),
                "tokenizer": str(tmp_path / "tokenizer"),
                "tile": {"tile_size_px": 28},
                "num_image_embeddings_per_tile": 4,
                "oversize": "drop",
                "seq_length": 512,
                "num_workers": 0,
                **data,
            },
            "policy": policy,
        }
        path = tmp_path / "rl.yaml"
        path.write_text(yaml.safe_dump(values), encoding="utf-8")
        return path

    return written


PACKING = {
    "sequence_packing": {
        "enabled": True,
        "train_mb_tokens": 1024,
        "logprob_mb_tokens": 2048,
        "algorithm": "modified_first_fit_decreasing",
        "microbatch_order": "packer",
        "sequence_length_round": 8,
    },
    "dynamic_batching": {"enabled": False},
}
DYNAMIC = {
    "dynamic_batching": {
        "enabled": True,
        "train_mb_tokens": 2048,
        "logprob_mb_tokens": 2048,
        "sequence_length_round": 64,
    },
    "sequence_packing": {"enabled": False},
    "train_global_batch_size": 32,
}


def test_sequence_packing(write: Any) -> None:
    module: Any = read_config(write(PACKING)).data_module()
    batch = next(iter(module.train_dataloader())).check()
    assert isinstance(batch, PackedBatch)
    assert batch.num_tokens <= 1024
    assert all(length % 8 == 0 for length in batch.cu_seqlens_padded.diff().tolist())


def test_dynamic_batching(write: Any) -> None:
    module: Any = read_config(write(DYNAMIC)).data_module()
    assert module.batching.packing_buffer_size == 32
    batch = next(iter(module.train_dataloader())).check()
    assert isinstance(batch, PaddedBatch)
    assert batch.num_tokens <= 2048
    assert batch.tokens.shape[1] % 64 == 0


MEGATRON = {
    "tensor_model_parallel_size": 2,
    "context_parallel_size": 2,
    "sequence_parallel": True,
    "fp8_cfg": {"enabled": True, "fp8": "e4m3", "fp8_recipe": "mxfp8", "fp8_param": False},
}


def test_parallel_sizes_and_fp8_decide_the_multiples(write: Any) -> None:
    policy = PACKING | {"megatron_cfg": MEGATRON, "make_sequence_length_divisible_by": 12}
    module: Any = read_config(write(policy)).data_module()
    layout = module.task_encoder.layout
    assert (layout.sequence_multiple, layout.total_multiple, layout.fixed_total) == (24, 128, None)
    batch = next(iter(module.train_dataloader())).check()
    assert all(length % 24 == 0 for length in batch.cu_seqlens_padded.diff().tolist()[: len(batch.sample_keys)])
    assert batch.num_tokens % 128 == 0
    for rank in range(2):
        assert context_parallel_slice(batch, rank=rank, size=2).tokens.shape[1] % (2 * 32) == 0
    pipeline = MEGATRON | {"pipeline_model_parallel_size": 2}
    module = read_config(write(PACKING | {"megatron_cfg": pipeline})).data_module()
    assert {batch.num_tokens for batch, _ in zip(module.train_dataloader(), range(3), strict=False)} == {1024}
    module = read_config(write(PACKING | {"megatron_cfg": pipeline | {"enabled": False}})).data_module()
    assert module.task_encoder.layout.sequence_multiple == 8
    assert module.task_encoder.layout.total_multiple == 1


def test_padded_rows_suit_fp8_too(write: Any) -> None:
    policy = DYNAMIC | {"megatron_cfg": MEGATRON, "max_total_sequence_length": 512}
    batch = next(iter(read_config(write(policy)).data_module().train_dataloader())).check()
    assert batch.tokens.shape[1] % 128 == 0


def test_neither_is_padding(write: Any) -> None:
    policy = {"train_micro_batch_size": 4, "make_sequence_length_divisible_by": 16}
    batch = next(iter(read_config(write(policy)).data_module().train_dataloader())).check()
    assert isinstance(batch, PaddedBatch)
    assert batch.tokens.shape[0] == 4
    assert batch.tokens.shape[1] % 16 == 0


def test_what_the_data_section_says_stays(write: Any) -> None:
    module: Any = read_config(write(PACKING, packed_sequence_size=768)).data_module()
    assert module.task_encoder.packed_sequence_size == 768


@pytest.mark.parametrize("value", [0, -1])
def test_no_number_of_a_policy_is_below_1(write: Any, value: int) -> None:
    for part in ("sequence_packing", "dynamic_batching"):
        for name in ("train_mb_tokens", "logprob_mb_tokens", "sequence_length_round"):
            with pytest.raises(
                ConfigError, match=f"policy.{part}.{name}={value}: should be greater than or equal to 1"
            ):
                read_config(write({part: {name: value}}))
    for name in (
        "max_tokens_per_microbatch",
        "sequence_length_pad_multiple",
        "make_sequence_length_divisible_by",
        "train_global_batch_size",
        "train_micro_batch_size",
        "max_total_sequence_length",
    ):
        with pytest.raises(ConfigError, match=f"policy.{name}={value}: should be greater than or equal to 1"):
            read_config(write(PACKING | {name: value}))


@pytest.mark.parametrize(
    ("policy", "data", "message"),
    [
        (
            {"sequence_packing": {"enabled": True, "train_mb_tokens": 9}, "dynamic_batching": {"enabled": True}},
            {},
            "they exclude each other",
        ),
        ({"sequence_packing": {"enabled": True}}, {}, "policy.sequence_packing.train_mb_tokens"),
        ({"sequence_packing": {"enabeld": True}}, {}, "did you mean 'enabled'"),
        ({"sequence_packing": {"algorithm": "exact_fil"}}, {}, "did you mean 'exact_fill'"),
        ({"dynamic_batching": {"microbatch_order": "x"}}, {}, "microbatch_order"),
        (DYNAMIC, {"layout": {"fixed_total": 512}}, "pipeline parallelism"),
        (DYNAMIC | {"megatron_cfg": MEGATRON, "max_total_sequence_length": 500}, {}, "500 is no multiple of 128"),
        (
            PACKING | {"megatron_cfg": {"fp8_cfg": {"fp8_recipe": "mxpf8"}}},
            {},
            "fp8_recipe='mxpf8'; did you mean 'mxfp8'",
        ),
        (PACKING | {"megatron_cfg": {"tensor_parallel": 2}}, {}, "policy.megatron_cfg.*tensor_parallel"),
    ],
)
def test_a_wrong_policy_is_named(write: Any, policy: Any, data: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_config(write(policy, **data))
