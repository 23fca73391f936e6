"""Slots: what a worker puts into shared memory is what the trainer reads, and memory in use is not written again."""

from __future__ import annotations

import dataclasses
import gc
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from mmpack.loader.slots import LENT, SlotMemory, SlotReader, SlotWriter
from tests.conftest import data_module, digest


@pytest.fixture(scope="module")
def batches(energon_dataset: Path, tokenizer: Any) -> list[Any]:
    packs = iter(data_module(energon_dataset, tokenizer).train_dataloader())
    return [next(packs) for _ in range(6)]


def put(writer: SlotWriter, slot: int, batch: Any) -> Any:
    """Writes `batch` as a worker does, with its pixels in the slot from the start where they fit."""
    writer.begin(slot)
    place = writer.allocate(batch.pixels.nbytes).reshape(batch.pixels.shape)
    place[:] = batch.pixels.numpy()
    return writer.finish(dataclasses.replace(batch, pixels=torch.from_numpy(place)))


@pytest.mark.parametrize("slot_bytes", [1 << 20, 100])
def test_a_pack_survives_its_slot(batches: list[Any], slot_bytes: int) -> None:
    memory = SlotMemory(2, slot_bytes)
    writer, reader = SlotWriter(memory), SlotReader(memory)
    headers = [put(writer, slot, batch) for slot, batch in enumerate(batches[:2])]
    assert [h.slot for h in headers] == ([0, 1] if slot_bytes > 100 else [None, None])
    for header, batch in zip(headers, batches, strict=False):
        got = reader.read(header)
        assert digest(got.check()) == digest(batch)
        assert got.stream_state == batch.stream_state


def test_pixels_made_in_the_slot_are_not_copied(batches: list[Any]) -> None:
    memory = SlotMemory(1, 1 << 20)
    writer, reader = SlotWriter(memory), SlotReader(memory)
    got = reader.read(put(writer, 0, batches[0]))
    assert got.pixels.data_ptr() == memory.bytes_of(0).ctypes.data
    assert digest(got) == digest(batches[0])


def test_pixels_made_elsewhere_and_parts_of_others_are_copied_into_the_slot(batches: list[Any]) -> None:
    memory = SlotMemory(1, 1 << 20)
    writer, reader = SlotWriter(memory), SlotReader(memory)
    writer.begin(0)
    room = writer.allocate(batches[0].pixels.nbytes)
    assert writer.allocate(10).ctypes.data != room.ctypes.data  # given once
    strange = torch.from_numpy(room)[: 2 * 50].view(50, 2).t()  # in the slot, but not in one piece
    room[:100] = range(100)
    header = writer.finish(dataclasses.replace(batches[0], tokens=strange))
    got = reader.read(header)
    assert torch.equal(got.tokens, torch.arange(100, dtype=torch.uint8).view(50, 2).t())
    assert torch.equal(got.pixels, batches[0].pixels)


def test_a_pack_that_loses_its_last_picture_uses_less_of_its_slot(batches: list[Any]) -> None:
    memory = SlotMemory(1, 1 << 20)
    writer, reader = SlotWriter(memory), SlotReader(memory)
    writer.begin(0)
    whole = batches[0].pixels
    place = writer.allocate(whole.nbytes).reshape(whole.shape)
    place[:] = whole.numpy()
    got = reader.read(writer.finish(dataclasses.replace(batches[0], pixels=torch.from_numpy(place[:-1]))))
    assert torch.equal(got.pixels, whole[:-1])
    assert torch.equal(got.tokens, batches[0].tokens)


def test_a_pack_without_pictures_survives(batches: list[Any]) -> None:
    empty = dataclasses.replace(
        batches[0], pixels=batches[0].pixels[:0], tiles_per_image=torch.zeros(0, dtype=torch.int32)
    )
    memory = SlotMemory(1, 1 << 20)
    got = SlotReader(memory).read(put(SlotWriter(memory), 0, empty))
    assert got.pixels.shape == (0, 3, 28, 28)
    assert got.tiles_per_image.dtype == torch.int32


def test_a_slot_is_free_when_the_last_tensor_of_its_pack_is_gone(batches: list[Any]) -> None:
    memory = SlotMemory(2, 1 << 20)
    writer, reader = SlotWriter(memory), SlotReader(memory)
    got = reader.read(put(writer, 1, batches[0]))
    row = got.labels[0, 3:].view(1, -1)
    del got
    gc.collect()
    assert reader.take_returned() == []
    thread = threading.Thread(target=lambda tensors: tensors.clear(), args=([row],))
    del row
    thread.start()
    thread.join()
    del thread
    gc.collect()
    assert reader.take_returned() == [1]
    assert reader.take_returned() == []


def test_a_trainer_that_keeps_all_packs_gets_copies_and_every_slot_returns(batches: list[Any]) -> None:
    memory = SlotMemory(LENT + 1, 1 << 20)
    writer, reader = SlotWriter(memory), SlotReader(memory)
    free, kept = list(range(memory.num_slots)), []
    for batch in batches:
        kept.append(reader.read(put(writer, free.pop(0), batch)))
        free += reader.take_returned()
    assert len(free) == 1
    assert [digest(batch) for batch in kept] == [digest(batch) for batch in batches]
    in_memory = [
        any(memory.bytes_of(slot).ctypes.data == batch.pixels.data_ptr() for slot in range(memory.num_slots))
        for batch in kept
    ]
    assert in_memory == [True] * LENT + [False] * (len(batches) - LENT)
    kept.clear()
    gc.collect()
    assert sorted(free + reader.take_returned()) == list(range(memory.num_slots))


def test_a_pack_outlives_the_memory_it_came_from(batches: list[Any]) -> None:
    memory = SlotMemory(1, 1 << 20)
    reader = SlotReader(memory)
    got = reader.read(put(SlotWriter(memory), 0, batches[0]))
    del memory, reader
    gc.collect()
    assert digest(got) == digest(batches[0])


def test_saving_one_tensor_of_a_pack_saves_no_more_than_that(batches: list[Any], tmp_path: Path) -> None:
    memory = SlotMemory(1, 1 << 22)
    got = SlotReader(memory).read(put(SlotWriter(memory), 0, batches[0]))
    torch.save(got.tokens, tmp_path / "tokens")
    assert (tmp_path / "tokens").stat().st_size < got.tokens.nbytes + 4096
