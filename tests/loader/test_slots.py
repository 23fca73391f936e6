"""Slots: what is written to shared memory is what is read, and a pack too large for a slot still travels."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from mmpack.loader.slots import SlotMemory
from tests.conftest import data_module, digest


@pytest.mark.parametrize("slot_bytes", [1 << 20, 100])
def test_a_pack_survives_its_slot(energon_dataset: Path, tokenizer: Any, slot_bytes: int) -> None:
    packs = iter(data_module(energon_dataset, tokenizer).train_dataloader())
    first, second = next(packs), next(packs)
    memory = SlotMemory(2, slot_bytes)
    headers = [memory.write(first, 0), memory.write(second, 1)]
    assert [h.slot for h in headers] == ([0, 1] if slot_bytes > 100 else [None, None])
    got = memory.read(headers[0])
    memory.write(second, 0)  # the slot is reused: what was read before must not change
    assert digest(got.check()) == digest(first)
    assert got.stream_state == first.stream_state
    assert digest(memory.read(headers[1])) == digest(second)


def test_a_pack_without_pictures_survives(energon_dataset: Path, tokenizer: Any) -> None:
    batch = next(iter(data_module(energon_dataset, tokenizer).train_dataloader()))
    empty = dataclasses.replace(batch, pixels=batch.pixels[:0], tiles_per_image=torch.zeros(0, dtype=torch.int32))
    memory = SlotMemory(1, 1 << 20)
    got = memory.read(memory.write(empty, 0))
    assert got.pixels.shape == (0, 3, 28, 28)
    assert got.tiles_per_image.dtype == torch.int32
