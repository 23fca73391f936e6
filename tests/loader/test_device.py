"""Batches on a device: the same ones, one sent ahead on a GPU, and a state that knows nothing of the one ahead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mmpack.errors import ConfigError
from mmpack.loader import DeviceLoader, ahead_on
from tests.conftest import data_module, digest


def take(loader: Any, count: int) -> list[Any]:
    return [batch for _, batch in zip(range(count), loader, strict=False)]


def check_resume(path: Path, tokenizer: Any, device: str) -> None:
    straight = [digest(batch) for batch in take(data_module(path, tokenizer).train_dataloader(), 8)]
    first = DeviceLoader(data_module(path, tokenizer).train_dataloader(), device)
    got = [digest(batch.to("cpu")) for batch in take(first, 3)]
    state = first.state_dict()
    second = DeviceLoader(data_module(path, tokenizer, num_workers=2).train_dataloader(), device)
    second.load_state_dict(state)
    got += [digest(batch.to("cpu")) for batch in take(second, 5)]
    assert got == straight


def test_batches_and_state_are_the_loader_s_own(energon_dataset: Path, tokenizer: Any) -> None:
    check_resume(energon_dataset, tokenizer, "cpu")


def test_nothing_is_taken_ahead_where_there_is_nothing_to_overlap(energon_dataset: Path, tokenizer: Any) -> None:
    taken = []

    def batches() -> Any:
        for batch in data_module(energon_dataset, tokenizer).train_dataloader():
            taken.append(batch.pack_index)
            yield batch

    ahead = ahead_on(batches(), "cpu")
    first = next(ahead)
    assert taken == [first.pack_index]


def test_a_batch_names_all_its_tensors(energon_dataset: Path, tokenizer: Any) -> None:
    (batch,) = take(data_module(energon_dataset, tokenizer).train_dataloader(), 1)
    places = {tensor.data_ptr() for tensor in batch.tensors()}
    assert {batch.tokens.data_ptr(), batch.pixels.data_ptr(), batch.cu_seqlens.data_ptr()} <= places
    assert all(tensor.device.type == "meta" for tensor in batch.to("meta").tensors())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_one_batch_is_sent_ahead(energon_dataset: Path, tokenizer: Any) -> None:
    check_resume(energon_dataset, tokenizer, "cuda")
    taken = []

    def batches() -> Any:
        for batch in data_module(energon_dataset, tokenizer).train_dataloader():
            taken.append(digest(batch))
            yield batch

    for number, batch in zip(range(4), ahead_on(batches(), "cuda"), strict=False):
        assert batch.pixels.is_cuda
        assert len(taken) == number + 2
        assert digest(batch.to("cpu")) == taken[number]


@pytest.mark.parametrize("device", ["foo", None, "cuda:99"])
def test_a_device_that_is_none_here_is_named(device: Any) -> None:
    with pytest.raises(ConfigError, match=f"device='?{device}"):
        next(ahead_on([], device))


def test_what_is_no_loader_is_named() -> None:
    with pytest.raises(ConfigError, match="loader is of kind list"):
        DeviceLoader([], "cpu")
