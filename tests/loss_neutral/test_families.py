"""Every model family on real pictures: a packed step teaches the same as the samples one by one."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any

import pytest
import torch

from mmpack.batch import IGNORE_INDEX, IMAGE_TOKEN_INDEX, PackedBatch
from mmpack.collate import Collator
from mmpack.errors import ConfigError, Reason, SampleError
from mmpack.layout import Layout
from mmpack.model import PackedModel, assert_loss_neutral, compare, per_sample_loss, unpack
from mmpack.sample import EncodedSample, LostSample
from mmpack.tiling import TileSpec, make_tiling

from .families import FAMILIES, PICTURES, encode, model, pack, pad, spec, tiling

CPU_BACKENDS = ("reference", "sdpa_loop")


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def tailed(family: str, samples: list[EncodedSample]) -> PackedBatch:
    """A row with padding inside the segments and a tail."""
    total = sum(-(-s.num_tokens // 4) * 4 for s in samples) + 13
    return pack(family, samples, sequence_multiple=4, fixed_total=total)


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_losses_and_gradients_equal_the_unpacked_ones(family: str, backend: str, tokenizer: Any) -> None:
    samples, net = encode(family, tokenizer), model(family, len(tokenizer), backend)
    assert sorted({len(s.pictures) for s in samples}) == [0, 1, 2, 3]
    singles = [pack(family, [s]) for s in samples]
    for batch in (pack(family, samples), tailed(family, samples)):
        comparison = assert_loss_neutral(net, batch, singles)
        assert comparison.worst_loss_difference <= 1e-5
        assert comparison.worst_gradient_ratio <= 1.0
        assert all(loss > 1.0 for loss in comparison.packed_losses), "about the logarithm of the vocabulary"
    parts = {".".join(name.split(".")[2:4]) for name in comparison.gradient_differences}
    assert any(part.startswith(("vision_tower", "visual")) for part in parts)
    assert any(part.startswith(("multi_modal_projector", "visual.merger")) for part in parts)
    assert (family == "llava_next") == any(part.startswith("image_newline") for part in parts)


def test_the_dense_mask_is_neutral_too(family: str, tokenizer: Any) -> None:
    samples, net = encode(family, tokenizer), model(family, len(tokenizer), mask="block_diagonal")
    assert_loss_neutral(net, tailed(family, samples), [pack(family, [s]) for s in samples])


def test_unpack_gives_the_samples_back(family: str, tokenizer: Any) -> None:
    samples = encode(family, tokenizer)
    for sample, theirs in zip(samples, unpack(tailed(family, samples)), strict=True):
        mine = pack(family, [sample])
        theirs.check()
        for field in dataclasses.fields(PackedBatch):
            a, b = getattr(mine, field.name), getattr(theirs, field.name)
            assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b, field.name


def test_a_changed_token_moves_the_other_segments_by_exactly_nothing(family: str, tokenizer: Any) -> None:
    net, batch = model(family, len(tokenizer)), tailed(family, encode(family, tokenizer))
    with torch.no_grad():
        before = net.logits(batch)
        for start, end in pairwise(batch.cu_seqlens_padded.tolist()):
            text = [t for t in range(start, end) if batch.tokens[0, t] >= 0]
            tokens = batch.tokens.clone()
            tokens[0, text[0]] = (tokens[0, text[0]] + 1) % 90
            moved = (net.logits(dataclasses.replace(batch, tokens=tokens)) - before).abs().amax(dim=-1)
            assert moved[start:end].max() > 0
            assert moved[:start].sum() == 0
            assert moved[end:].sum() == 0


def test_a_changed_picture_moves_the_other_segments_by_exactly_nothing(family: str, tokenizer: Any) -> None:
    net, batch = model(family, len(tokenizer)), pack(family, encode(family, tokenizer))
    own = batch.tiles_per_image[1:4].sum()  # the three pictures of sample 2
    first = int(batch.tiles_per_image[0])
    pixels = batch.pixels.clone()
    pixels[first : first + own] = 255 - pixels[first : first + own]
    start, end = batch.cu_seqlens_padded[2:4].tolist()
    with torch.no_grad():
        moved = (net.logits(dataclasses.replace(batch, pixels=pixels)) - net.logits(batch)).abs().amax(dim=-1)
    assert moved[start:end].max() > 0
    assert moved[:start].sum() == 0
    assert moved[end:].sum() == 0


def test_a_planted_leak_fails_the_proof(family: str, tokenizer: Any) -> None:
    """The second seam one token late."""
    samples, net = encode(family, tokenizer), spec(family, len(tokenizer)).build(seed=7).eval()
    batch, singles = pack(family, samples), [pack(family, [s]) for s in samples]
    right = net._inputs

    def leaking(batch: PackedBatch) -> dict[str, Any]:
        inputs = right(batch)
        if batch.num_samples == 1:
            return inputs
        cu = inputs["cu_seq_lens_q"].clone()
        cu[2] += 1
        longest = int(cu.diff().max())
        return inputs | {"cu_seq_lens_q": cu, "cu_seq_lens_k": cu, "max_length_q": longest, "max_length_k": longest}

    net._inputs = leaking  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="the packed step differs"):
        assert_loss_neutral(net, batch, singles)


def test_planted_faults_in_the_pictures_fail_the_proof(family: str, tokenizer: Any) -> None:
    samples, net = encode(family, tokenizer), model(family, len(tokenizer))
    batch, singles = pack(family, samples), [pack(family, [s]) for s in samples]
    swapped = batch.pixels.clone()
    swapped[[0, -1]] = swapped[[-1, 0]]
    faulty = [dataclasses.replace(batch, pixels=swapped)]
    if batch.position_ids.ndim == 3:
        plain = batch.position_ids[:1].expand(4, -1, -1)
        faulty.append(dataclasses.replace(batch, position_ids=plain))
    for one in faulty:
        assert compare(net, one, singles).faults()


# --- padded batches ----------------------------------------------------------------------------------------------


def test_a_padded_batch_teaches_the_same_as_its_samples(family: str, tokenizer: Any) -> None:
    samples, net = encode(family, tokenizer), model(family, len(tokenizer), mask="block_diagonal")
    padded = pad(family, samples, width_multiple=16)
    assert padded.tokens.shape[0] == len(samples)
    assert bool(padded.padding_mask.any())
    net.zero_grad(set_to_none=True)
    out = net(padded)
    out.loss_sum.backward()
    grads = {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}
    net.zero_grad(set_to_none=True)
    alone = []
    for sample in samples:
        one = pack(family, [sample])
        single = net(one)
        single.loss_sum.backward()
        alone += per_sample_loss(one, single).tolist()
    assert per_sample_loss(padded, out).tolist() == pytest.approx(alone, abs=1e-5)
    everything = sum(float(p.grad.norm()) ** 2 for p in net.parameters() if p.grad is not None) ** 0.5
    for name, parameter in net.named_parameters():
        assert (parameter.grad is None) == (name not in grads)
        if parameter.grad is not None:
            allowed = 1e-5 * float(parameter.grad.norm()) + 1e-8 * everything
            assert float((grads[name] - parameter.grad).norm()) <= allowed, name
    net.zero_grad(set_to_none=True)


def test_a_row_of_padding_only_disturbs_nothing(family: str, tokenizer: Any) -> None:
    """The place of a sample whose picture could not be decoded."""
    samples, net = encode(family, tokenizer), model(family, len(tokenizer), mask="block_diagonal")
    error = SampleError(Reason.IMAGE_TRUNCATED, "gone")
    lost = LostSample(key="lost", source="test", num_tokens=samples[0].num_tokens, error=error)
    padded = pad(family, [lost, *samples[1:]])
    out = net(padded)
    out.loss_sum.backward()
    assert all(bool(p.grad.isfinite().all()) for p in net.parameters() if p.grad is not None)
    net.zero_grad(set_to_none=True)
    whole = pad(family, samples)
    assert per_sample_loss(padded, out).tolist() == pytest.approx(per_sample_loss(whole, net(whole)).tolist()[1:])


def test_varlen_models_refuse_padded_batches(family: str, tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match="needs a model with mask='block_diagonal'"):
        model(family, len(tokenizer))(pad(family, encode(family, tokenizer)))


# --- text only ---------------------------------------------------------------------------------------------------


def texts(family: str, tokenizer: Any) -> list[EncodedSample]:
    return [s for s in encode(family, tokenizer) if not s.pictures]


def gradients(net: PackedModel, batch: PackedBatch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    net.zero_grad(set_to_none=True)
    loss = net(batch).loss_sum
    loss.backward()
    grads = {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}
    net.zero_grad(set_to_none=True)
    return loss.detach(), grads


def test_text_only_packs_give_the_same_parameters_gradients_of_zero(
    family: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, batch = model(family, len(tokenizer)), pack(family, texts(family, tokenizer))
    _, with_pictures = gradients(net, pack(family, encode(family, tokenizer)))
    loss, grads = gradients(net, batch)
    assert grads.keys() == with_pictures.keys(), "or ranks would wait for each other's gradients"
    monkeypatch.setattr("mmpack.model.packed.blank_picture_loss", lambda *given: torch.zeros(()))
    plain_loss, plain = gradients(net, batch)
    assert torch.equal(loss, plain_loss), "not one bit of the loss changes"
    assert all(torch.equal(grads[name], plain[name]) for name in plain)
    blank = grads.keys() - plain.keys()
    assert any("projector" in name or "merger" in name for name in blank)
    assert all(int(grads[name].count_nonzero()) == 0 for name in blank)


def test_an_infinite_blank_picture_changes_nothing(family: str, tokenizer: Any) -> None:
    net, batch = spec(family, len(tokenizer)).build(seed=7).eval(), pack(family, texts(family, tokenizer))
    before, grads = gradients(net, batch)
    bias = [p for name, p in net.named_parameters() if name.endswith(("linear_2.bias", "merger.mlp.2.bias"))]
    with torch.no_grad():
        bias[0].fill_(float("inf"))
    after, with_infinity = gradients(net, batch)
    assert torch.equal(before, after)
    assert all(torch.equal(grads[name], with_infinity[name]) for name in grads)


def test_text_of_another_data_module_trains_every_family(family: str, tokenizer: Any) -> None:
    """Text has no pictures, so a pack of it has plain positions whatever the model's are."""
    samples = texts(family, tokenizer)
    other = make_tiling("single", TileSpec(tile_size_px=8, embeddings_per_tile=1))
    batch, _ = Collator(tiling=other, layout=Layout()).collate(samples, pack_index=0)
    net = model(family, len(tokenizer))
    own = pack(family, samples)
    assert torch.equal(gradients(net, batch)[0], gradients(net, own)[0])


def test_a_pack_of_lost_samples_only_gives_gradients_of_zero(family: str, tokenizer: Any) -> None:
    """What a rank without data of its own trains on, so that the others need not wait."""
    error = SampleError(Reason.IMAGE_TRUNCATED, "gone")
    lost = LostSample(key="lost", source="test", num_tokens=24, error=error)
    batch, _ = Collator(tiling=tiling(family), layout=Layout()).collate([lost], pack_index=0)
    net = model(family, len(tokenizer))
    loss, grads = gradients(net, batch.check())
    assert float(loss) == 0.0
    assert grads.keys() == gradients(net, pack(family, encode(family, tokenizer)))[1].keys()
    assert all(int(grad.count_nonzero()) == 0 for grad in grads.values())


def test_a_frozen_vision_tower_stays_without_gradients(family: str, tokenizer: Any) -> None:
    net = spec(family, len(tokenizer)).build(seed=7).eval()
    frozen = {name for name, _ in net.named_parameters() if "vis" in name or "projector" in name or "newline" in name}
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(name not in frozen)
    for samples in (texts(family, tokenizer), encode(family, tokenizer)):
        _, grads = gradients(net, pack(family, samples))
        assert grads
        assert not grads.keys() & frozen


def test_gradient_checkpointing_gives_the_same_gradients(family: str, tokenizer: Any) -> None:
    batch = pack(family, encode(family, tokenizer))
    loss, grads = gradients(model(family, len(tokenizer)), batch)
    net = spec(family, len(tokenizer)).build(seed=7).train()
    # the method has a new name in later releases of transformers
    getattr(net.hf, "activation_checkpointing_enable", net.hf.gradient_checkpointing_enable)()
    again, recomputed = gradients(net, batch)
    torch.testing.assert_close(again, loss)
    assert recomputed.keys() == grads.keys()
    for name, grad in grads.items():
        torch.testing.assert_close(recomputed[name], grad, msg=name)


def test_bfloat16_runs(family: str, tokenizer: Any) -> None:
    net = spec(family, len(tokenizer)).build(seed=7, dtype=torch.bfloat16).eval()
    for samples in (texts(family, tokenizer), encode(family, tokenizer)):
        batch = pack(family, samples)
        loss, grads = gradients(net, batch)
        assert loss.dtype == torch.float32
        mean = float(loss) / batch.num_loss_tokens
        assert mean == pytest.approx(torch.tensor(len(tokenizer) + 1.0).log().item(), rel=0.1)
        assert all(bool(grad.isfinite().all()) for grad in grads.values())


# --- pictures with fewer tiles -----------------------------------------------------------------------------------


def test_pictures_with_fewer_tiles_than_usual(family: str, tokenizer: Any) -> None:
    """An oversize policy may plan a smaller grid; the model must find the same one from the sizes it is told."""
    policy, smaller = tiling(family), []
    for sample in encode(family, tokenizer):
        pictures = []
        for planned in sample.pictures:
            size = planned.width_px, planned.height_px
            grid = policy.smaller(*size, max(4, planned.num_tokens - 1)) or planned.grid
            tokens = policy.num_tokens(grid, *size)
            pictures.append(dataclasses.replace(planned, grid=grid, num_tokens=tokens))
        saved = sum(p.num_tokens for p in sample.pictures) - sum(p.num_tokens for p in pictures)
        smaller.append(dataclasses.replace(sample, pictures=tuple(pictures), num_tokens=sample.num_tokens - saved))
    saved = sum(s.num_tokens for s in encode(family, tokenizer)) - sum(s.num_tokens for s in smaller)
    assert (saved > 0) == (family != "llava")
    assert_loss_neutral(model(family, len(tokenizer)), pack(family, smaller), [pack(family, [s]) for s in smaller])


# --- other ------------------------------------------------------------------------------------------------------


def test_positions_count_what_the_pictures_take(family: str, tokenizer: Any) -> None:
    samples = encode(family, tokenizer)
    batch = pack(family, samples)
    assert len(PICTURES) == len(samples)
    planned = [p.num_tokens for s in samples for p in s.pictures]
    assert batch.tokens_per_image.tolist() == planned
    assert int((batch.tokens == IMAGE_TOKEN_INDEX).sum()) == sum(planned)
    assert int((batch.labels != IGNORE_INDEX).sum()) == batch.num_loss_tokens


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu(family: str, tokenizer: Any) -> None:
    samples = encode(family, tokenizer)
    net = spec(family, len(tokenizer)).build(seed=7, attention="sdpa_loop").eval().to("cuda")
    singles = [pack(family, [s]).to("cuda") for s in samples]
    comparison = compare(net, tailed(family, samples).to("cuda"), singles)
    assert comparison.faults(loss_atol=1e-4, grad_rtol=1e-3, grad_atol=1e-6) == []
    text_only = gradients(net, pack(family, texts(family, tokenizer)).to("cuda"))
    assert bool(text_only[0].isfinite())
