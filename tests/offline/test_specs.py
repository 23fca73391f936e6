"""What is asked for: the specs, and the micro batch size."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from mmpack.errors import ConfigError
from mmpack.offline import PackConfig, PackedSequenceSpecs, check_micro_batch_size


def test_defaults_and_order() -> None:
    specs = PackedSequenceSpecs()
    names = [field.name for field in dataclasses.fields(specs)]
    assert dict(zip(names, dataclasses.astuple(specs), strict=True)) == {
        "packed_sequence_size": -1,
        "tokenizer_model_name": None,
        "packed_train_data_path": None,
        "packed_val_data_path": None,
        "packed_metadata_path": None,
        "pad_cu_seqlens": False,
    }
    assert [PackedSequenceSpecs(size).enabled for size in (-1, 0, 1, 2048)] == [False, False, True, True]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"packed_sequence_size": 20.5}, "packed_sequence_size=20.5"),
        ({"packed_sequence_size": True}, "packed_sequence_size=True"),
        ({"packed_train_data_path": "no/such.npy"}, "packed_train_data_path='no/such.npy' does not exist"),
        ({"packed_val_data_path": 3}, "packed_val_data_path=3"),
        ({"packed_metadata_path": 3}, "packed_metadata_path=3"),
        ({"pad_cu_seqlens": "yes"}, "pad_cu_seqlens='yes'"),
    ],
)
def test_bad_specs(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PackedSequenceSpecs(**options)


def test_paths(tmp_path: Path) -> None:
    specs = PackedSequenceSpecs(2048, "model", packed_train_data_path=tmp_path)
    assert specs.packed_train_data_path == tmp_path


def test_micro_batch_size() -> None:
    check_micro_batch_size(1, 2048)
    check_micro_batch_size(4, -1)
    with pytest.raises(ConfigError, match=r"packed_sequence_size=8192, global_batch_size=8$"):
        check_micro_batch_size(4, 2048, 32)
    with pytest.raises(ConfigError, match="global_batch_size divided by 2"):
        check_micro_batch_size(2, 2048)
    with pytest.raises(ConfigError, match="must be 1"):
        check_micro_batch_size(0, 2048)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workers": 1.5}, "workers=1.5; give a whole number"),
        ({"workers": "2"}, "workers='2'"),
        ({"sequence_multiple": float("nan")}, "sequence_multiple=nan"),
        ({"max_tokens_per_shard": "x"}, "max_tokens_per_shard='x'"),
        ({"seq_length": "5"}, "seq_length='5'"),
        ({"seq_length": float("nan")}, "seq_length=nan"),
        ({"seed": -1}, "seed=-1"),
        ({"oversize": None}, "oversize=None is unknown"),
        ({"record_format": 5}, "record format 5 is unknown"),
        ({"input_path": None}, "input_path=None; give a pathlib.Path"),
    ],
)
def test_wrong_kinds_of_settings_of_a_pack_are_named(changes: dict[str, Any], message: str) -> None:
    settings: dict[str, Any] = {"input_path": Path("a"), "output_path": Path("b"), "packed_sequence_size": 64}
    with pytest.raises(ConfigError, match=message):
        PackConfig(**settings | changes)
