"""A packed step teaches the same as the samples one by one: losses, gradients, and no leak at all."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from mmpack.batch import IGNORE_INDEX, IMAGE_TOKEN_INDEX, PackedBatch
from mmpack.batch.context_parallel import context_parallel_slice
from mmpack.model import PackedModel, assert_loss_neutral, compare, unpack

from .packs import PER_TILE, mixed_samples, model, pack, sample

CPU_BACKENDS = ("reference", "sdpa_loop")
SAMPLES = mixed_samples()
FILLED = sum(len(s.tokens) for s in SAMPLES)
LAYOUTS = {
    "filled to the last token": {},
    "filled, length announced": {"total": FILLED},
    "tail": {"total": FILLED + 13},
    "tail of one": {"total": FILLED + 1},
    "per-sequence multiple": {"multiple": 8},
    "multiple and tail": {"multiple": 4, "total": FILLED + 40},
    "offsets of constant number": {"total": FILLED + 13, "offsets": 20},
    "offsets of constant number, no tail": {"multiple": 8, "offsets": 20},
}


@pytest.fixture(scope="module", params=CPU_BACKENDS)
def packed_model(request: pytest.FixtureRequest) -> PackedModel:
    return model(attention=request.param)


def singles() -> list[PackedBatch]:
    return [pack([one]).check() for one in SAMPLES]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_losses_and_gradients_equal_the_unpacked_ones(packed_model: PackedModel, layout: str) -> None:
    batch = pack(SAMPLES, **LAYOUTS[layout]).check()
    comparison = assert_loss_neutral(packed_model, batch, singles())
    assert len(comparison.packed_losses) == len(SAMPLES)
    assert comparison.worst_loss_difference <= 1e-5
    assert comparison.worst_gradient_ratio <= 1.0
    assert all(loss > 1.0 for loss in comparison.packed_losses), "a loss of about log(vocabulary) is expected"
    towers = {name.split(".")[2] for name in comparison.gradient_differences}
    assert {"vision_tower", "multi_modal_projector", "language_model"} <= towers


@pytest.mark.parametrize("weight", ["token", "sample", "sqrt"])
def test_every_loss_weight_is_neutral(weight: str) -> None:
    batch = pack(SAMPLES, weight=weight, total=FILLED + 5).check()
    assert_loss_neutral(model(), batch, [pack([one], weight=weight) for one in SAMPLES])


@pytest.mark.parametrize("order", [[2, 1, 0, 3, 4, 5], [5, 4, 3, 2, 1, 0], [3, 2, 2, 3]])
def test_any_order_of_samples(order: list[int]) -> None:
    chosen = [SAMPLES[i] for i in order]
    assert_loss_neutral(model(), pack(chosen).check(), [pack([one]) for one in chosen])


def test_siglip_tower() -> None:
    assert_loss_neutral(model(vision="siglip"), pack(SAMPLES).check(), singles())


@pytest.mark.parametrize("offsets", [None, 20])
def test_block_diagonal_mask(offsets: int | None) -> None:
    batch = pack(SAMPLES, multiple=4, total=FILLED + 40, offsets=offsets).check()
    assert_loss_neutral(model(mask="block_diagonal"), batch, singles())


def test_more_offsets_change_no_bit(packed_model: PackedModel) -> None:
    few, many = (pack(SAMPLES, total=FILLED + 13, offsets=offsets).check() for offsets in (None, 20))
    with torch.no_grad():
        assert torch.equal(packed_model.logits(few), packed_model.logits(many))
    cut = [context_parallel_slice(pack(SAMPLES, multiple=4, offsets=n), rank=1, size=2) for n in (None, 20)]
    assert torch.equal(cut[0].indices, cut[1].indices)


def test_text_only_pack_gives_the_vision_tower_gradients_of_zero() -> None:
    texts = [one for one in SAMPLES if not one.tiles_per_image]
    comparison = assert_loss_neutral(model(), pack(texts).check(), [pack([one]) for one in texts])
    tower = {name: norm for name, norm in comparison.gradient_norms.items() if "vision" in name or "projector" in name}
    with_pictures = assert_loss_neutral(model(), pack(SAMPLES), singles())
    assert set(comparison.gradient_norms) == set(with_pictures.gradient_norms)  # the same parameters on every rank
    assert tower
    assert set(tower.values()) == {0.0}


def test_unpack_gives_the_samples_back() -> None:
    batch = pack(SAMPLES, multiple=8, total=FILLED + 60, offsets=30).check()
    for mine, theirs in zip(singles(), unpack(batch), strict=True):
        theirs.check()
        for field in dataclasses.fields(PackedBatch):
            a, b = getattr(mine, field.name), getattr(theirs, field.name)
            assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b, field.name


# --- the seam and the pictures -----------------------------------------------------------------------------------


def test_the_seam_loses_no_label_and_leaks_none() -> None:
    batch = pack(SAMPLES).check()
    targets = [int(t) for t in batch.labels[0] if t != IGNORE_INDEX]
    assert targets == [t for s in SAMPLES for t, on in list(zip(s.tokens, s.trained, strict=True))[1:] if on]
    ends = batch.cu_seqlens_padded[1:].long() - 1
    assert (batch.labels[0, ends] == IGNORE_INDEX).all()


def test_the_first_text_token_after_a_picture_is_trained() -> None:
    one = sample("p", ("ask", 2), ("picture", 2), ("answer", 3))
    batch = pack([SAMPLES[1], one]).check()
    last_of_picture = len(SAMPLES[1].tokens) + 2 + 2 * PER_TILE - 1
    assert batch.tokens[0, last_of_picture] == IMAGE_TOKEN_INDEX
    assert batch.labels[0, last_of_picture] == one.tokens[2 + 2 * PER_TILE]
    net = model()
    before = net(batch).per_token_loss[0, last_of_picture]
    assert before > 0
    pixels = batch.pixels.clone()
    pixels[-1] = 255 - pixels[-1]
    after = net(dataclasses.replace(batch, pixels=pixels)).per_token_loss[0, last_of_picture]
    assert before != after, "it is predicted from the picture"


# --- leaks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", ["varlen", "block_diagonal"])
def test_a_changed_token_moves_the_other_segments_by_exactly_nothing(mask: str) -> None:
    net = model(mask=mask)
    batch = pack(SAMPLES, multiple=2, total=FILLED + 20).check()
    offsets = batch.cu_seqlens_padded.tolist()
    with torch.no_grad():
        before = net.logits(batch)
        for start, end in pairwise(offsets):
            text = [t for t in range(start, end) if batch.tokens[0, t] >= 0]
            tokens = batch.tokens.clone()
            tokens[0, text[0]] = (tokens[0, text[0]] + 1) % 90
            moved = (net.logits(dataclasses.replace(batch, tokens=tokens)) - before).abs().amax(dim=-1)
            assert moved[start:end].max() > 0
            assert moved[:start].sum() == 0
            assert moved[end:].sum() == 0


def test_a_changed_picture_moves_the_other_segments_by_exactly_nothing() -> None:
    net = model()
    batch = pack(SAMPLES).check()
    pixels = batch.pixels.clone()
    pixels[1:4] = 255 - pixels[1:4]  # the three tiles of sample 2
    start, end = batch.cu_seqlens_padded[2:4].tolist()
    with torch.no_grad():
        moved = (net.logits(dataclasses.replace(batch, pixels=pixels)) - net.logits(batch)).abs().amax(dim=-1)
    assert moved[start:end].min() > 0
    assert moved[:start].sum() == 0
    assert moved[end:].sum() == 0


def seam_late(cu: Tensor) -> Tensor:
    """The second seam one token late: the first token of sample 2 joins sample 1."""
    return cu + torch.tensor([0, 0, 1, 0, 0, 0, 0], dtype=torch.int32)


def seam_early(cu: Tensor) -> Tensor:
    """The second seam one token early: sample 2 sees the last token of sample 1."""
    return cu - torch.tensor([0, 0, 1, 0, 0, 0, 0], dtype=torch.int32)


def no_seam(cu: Tensor) -> Tensor:
    """Samples 0 and 1 are one segment."""
    return torch.cat([cu[:1], cu[2:]])


def leaking(net: PackedModel, offsets: Callable[[Tensor], Tensor]) -> PackedModel:
    """The model with other offsets in its attention; labels, positions and all else stay right."""
    right = net._inputs

    def wrong(batch: PackedBatch) -> dict[str, Any]:
        inputs = right(batch)
        if batch.num_samples == 1:
            return inputs
        cu = offsets(inputs["cu_seq_lens_q"])
        longest = int(cu.diff().max())
        return inputs | {"cu_seq_lens_q": cu, "cu_seq_lens_k": cu, "max_length_q": longest, "max_length_k": longest}

    net._inputs = wrong  # type: ignore[method-assign]
    return net


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize("offsets", [seam_late, seam_early, no_seam])
def test_a_planted_leak_fails_the_proof(backend: str, offsets: Callable[[Tensor], Tensor]) -> None:
    batch = pack(SAMPLES).check()
    net = model(attention=backend)
    assert_loss_neutral(net, batch, singles())
    faults = compare(leaking(net, offsets), batch, singles()).faults()
    assert any(": loss " in fault for fault in faults)
    assert any("gradients differ" in fault for fault in faults)
    with pytest.raises(AssertionError, match="the packed step differs"):
        assert_loss_neutral(net, batch, singles())


def label_across_the_seam(batch: PackedBatch) -> PackedBatch:
    labels, weight = batch.labels.clone(), batch.loss_weight.clone()
    end = int(batch.cu_seqlens_padded[1]) - 1
    labels[0, end], weight[0, end] = batch.tokens[0, end + 1], 1.0
    return dataclasses.replace(batch, labels=labels, loss_weight=weight, num_loss_tokens=batch.num_loss_tokens + 1)


def lose_the_last_label(batch: PackedBatch) -> PackedBatch:
    labels, weight = batch.labels.clone(), batch.loss_weight.clone()
    end = int(batch.cu_seqlens_padded[1]) - 2
    labels[0, end], weight[0, end] = IGNORE_INDEX, 0.0
    return dataclasses.replace(batch, labels=labels, loss_weight=weight, num_loss_tokens=batch.num_loss_tokens - 1)


def swap_two_tiles(batch: PackedBatch) -> PackedBatch:
    pixels = batch.pixels.clone()
    pixels[[0, 1]] = pixels[[1, 0]]
    return dataclasses.replace(batch, pixels=pixels)


@pytest.mark.parametrize("plant", [label_across_the_seam, lose_the_last_label, swap_two_tiles])
def test_a_planted_fault_in_the_batch_fails_the_proof(
    packed_model: PackedModel, plant: Callable[[PackedBatch], PackedBatch]
) -> None:
    batch = pack(SAMPLES).check()
    assert_loss_neutral(packed_model, batch, singles())
    with pytest.raises(AssertionError, match="the packed step differs"):
        assert_loss_neutral(packed_model, plant(batch), singles())


def test_a_gradient_on_one_side_only_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmpack.model.packed.blank_picture_loss", lambda *given: 0.0)
    texts, pictures = [SAMPLES[1]], [SAMPLES[0]]
    renamed = dataclasses.replace(pack(texts), sample_keys=(SAMPLES[0].key,))
    faults = compare(model(), renamed, [pack(pictures)]).faults()
    assert any("vision_tower" in fault and fault.endswith("no gradient in the pack") for fault in faults)


def test_compare_refuses_other_samples() -> None:
    with pytest.raises(ValueError, match="unpacked batches"):
        compare(model(), pack(SAMPLES), singles()[1:])


def test_positions_that_run_on_are_caught_by_the_batch_check() -> None:
    """Rotary attention sees differences of positions only, so losses cannot tell; `check` has to."""
    batch = pack(SAMPLES)
    positions = batch.position_ids.clone()
    start, end = batch.cu_seqlens_padded[1:3].tolist()
    positions[0, start:end] += start
    moved = dataclasses.replace(batch, position_ids=positions)
    assert compare(model(), moved, singles()).worst_loss_difference < 1e-4
    with pytest.raises(AssertionError, match="position_ids"):
        moved.check()
