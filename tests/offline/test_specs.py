"""What is asked for: the specs, and the micro batch size."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from mmpack.errors import ConfigError
from mmpack.offline import PackedSequenceSpecs, check_micro_batch_size


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
