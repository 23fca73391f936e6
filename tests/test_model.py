"""`LlavaSpec`, `PackedModel` and the attention it registers with transformers."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from mmpack.batch import IGNORE_INDEX
from mmpack.errors import ConfigError
from mmpack.model import PackedModel, embeddings_per_tile, per_sample_loss, register_attention

from .loss_neutral.packs import PER_TILE, VOCAB, mixed_samples, model, pack, sample, spec

SAMPLES = mixed_samples()


# --- the spec ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vision", ["clip", "siglip"])
@pytest.mark.parametrize(("image_px", "patch_px"), [(28, 14), (56, 14), (64, 16)])
def test_embeddings_per_tile_is_what_the_tower_gives(vision: str, image_px: int, patch_px: int) -> None:
    one = spec(vision=vision, image_size_px=image_px, patch_size_px=patch_px)
    net = one.build()
    with torch.no_grad():
        features = net.hf.get_image_features(
            torch.zeros(2, 3, image_px, image_px),
            vision_feature_layer=-2,
            vision_feature_select_strategy=net.hf.config.vision_feature_select_strategy,
        )
    assert [len(f) for f in features.pooler_output] == [one.embeddings_per_tile] * 2
    assert net.embeddings_per_tile == one.embeddings_per_tile == embeddings_per_tile(image_px, patch_px)


def test_wrong_number_of_embeddings_names_the_remedy() -> None:
    spec().check_embeddings_per_tile(PER_TILE)
    with pytest.raises(ConfigError, match=f"=576.*set num_image_embeddings_per_tile={PER_TILE}"):
        spec().check_embeddings_per_tile(576)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vision": "clipp"}, "did you mean 'clip'"),
        ({"image_size_px": 30}, "image_size_px=30 must be a multiple of patch_size_px=14"),
        ({"text_kv_heads": 3}, "text_heads=4 must be a multiple of text_kv_heads=3"),
        ({"text_hidden_size": 66}, "text_hidden_size=66"),
        ({"text_hidden_size": 12}, "odd"),
        ({"vision_layers": 1}, "vision_layers=1"),
        ({"text_layers": 0}, "text_layers=0"),
        ({"image_token_id": -200}, "image_token_id=-200"),
    ],
)
def test_a_spec_that_cannot_work_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        spec(**changes)


def test_image_token_gets_a_row_of_its_own() -> None:
    assert spec().placeholder_id == VOCAB
    assert spec().build().hf.get_input_embeddings().num_embeddings == VOCAB + 1
    assert spec(image_token_id=5).build().hf.get_input_embeddings().num_embeddings == VOCAB


def test_weights_depend_on_the_seed_alone() -> None:
    before = torch.get_rng_state()
    a, b, c = (spec().build(seed=s).state_dict() for s in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert not all(torch.equal(a[k], c[k]) for k in a)


# --- the forward -------------------------------------------------------------------------------------------------


def test_output_is_the_weighted_sum_over_the_labels() -> None:
    batch, net = pack(SAMPLES, total=200, weight="sqrt").check(), model()
    out = net(batch)
    logits = net.logits(batch).detach()
    losses = [
        float(weight) * float(torch.nn.functional.cross_entropy(row[None], label[None]))
        for row, label, weight in zip(logits, batch.labels[0], batch.loss_weight[0], strict=True)
        if label != IGNORE_INDEX
    ]
    assert out.loss_sum.item() == pytest.approx(sum(losses), rel=1e-5)
    assert out.weight_sum.item() == pytest.approx(float(batch.loss_weight.sum()))
    assert out.num_loss_tokens == len(losses) == batch.num_loss_tokens
    assert out.per_token_loss.shape == (1, 200)
    assert torch.equal(out.per_token_loss > 0, batch.labels != IGNORE_INDEX)
    assert not out.per_token_loss.requires_grad


def test_logits_are_computed_at_labels_only() -> None:
    batch, net = pack(SAMPLES, total=200), model()
    seen = []
    net.hf.lm_head.register_forward_hook(lambda module, args, out: seen.append(out.shape))
    net(batch)
    assert seen == [(1, batch.num_loss_tokens, VOCAB + 1)]


def test_per_sample_loss_is_the_mean_over_each_samples_labels() -> None:
    silent = sample("silent", ("ask", 5))
    batch = pack([SAMPLES[0], silent, SAMPLES[1]], multiple=8, total=100).check()
    out = model()(batch)
    means = per_sample_loss(batch, out).tolist()
    spans = [(0, 24), (24, 32), (32, 40)]
    for mean, (start, end) in zip(means, spans, strict=True):
        own = out.per_token_loss[0, start:end]
        assert mean == pytest.approx(float(own.sum()) / max(int((own > 0).sum()), 1))
    assert means[1] == 0.0


def test_a_lost_sample_in_the_middle_is_padding() -> None:
    """Its place has no real token, so the samples around it are still told apart."""
    batch = pack([SAMPLES[0], SAMPLES[1], SAMPLES[4]])
    start, end = batch.cu_seqlens_padded[1:3].tolist()
    fields: dict[str, Any] = {
        name: getattr(batch, name).clone() for name in ("tokens", "labels", "loss_weight", "padding_mask")
    }
    for name, value in {"tokens": 0, "labels": IGNORE_INDEX, "loss_weight": 0.0, "padding_mask": True}.items():
        fields[name][0, start:end] = value
    cu = batch.cu_seqlens.tolist()
    lost = dataclasses.replace(
        batch,
        **fields,
        cu_seqlens=torch.tensor([0, cu[1], cu[1], cu[3] - (cu[2] - cu[1])], dtype=torch.int32),
        images_per_sample=batch.images_per_sample[[0, 2]],
        sample_keys=(batch.sample_keys[0], batch.sample_keys[2]),
        sources=batch.sources[:2],
        num_loss_tokens=int((fields["labels"] != IGNORE_INDEX).sum()),
        num_samples=2,
    ).check()
    net = model()
    alone = [per_sample_loss(one, net(one)).item() for one in (pack([SAMPLES[0]]), pack([SAMPLES[4]]))]
    assert per_sample_loss(lost, net(lost)).tolist() == pytest.approx(alone, abs=1e-5)


def test_a_pack_without_pictures_and_one_without_labels_run() -> None:
    net = model()
    for one in (SAMPLES[1], sample("q", ("ask", 4)), sample("qp", ("ask", 4), ("picture", 1), ("ask", 2))):
        out = net(pack([one]).check())
        assert torch.isfinite(out.loss_sum)
        out.loss_sum.backward()
    assert net(pack([sample("q", ("ask", 4))])).loss_sum.item() == 0.0


def test_tiles_that_contradict_the_tower_are_refused() -> None:
    batch = pack(SAMPLES)
    with pytest.raises(ConfigError, match=f"={PER_TILE}, but the vision tower gives 16"):
        model(patch_size_px=7)(batch)
    with pytest.raises(ConfigError, match=r"tiles of 28 px, the vision tower wants 56; .* set tile_size_px=56"):
        model(image_size_px=56)(batch)


def test_gradient_checkpointing_gives_the_same_gradients() -> None:
    batch = pack(SAMPLES, total=200)
    grads = []
    for checkpointing in (False, True):
        net = model()
        if checkpointing:
            net.train()
            # the method has a new name in later releases of transformers
            enable = getattr(net.hf, "activation_checkpointing_enable", net.hf.gradient_checkpointing_enable)
            enable()
        net(batch).loss_sum.backward()
        grads.append(net.hf.lm_head.weight.grad)
    torch.testing.assert_close(*grads)


def test_bfloat16_runs() -> None:
    net = spec().build(dtype=torch.bfloat16).eval()
    out = net(pack(SAMPLES))
    assert out.loss_sum.dtype == torch.float32
    assert (out.loss_sum / out.weight_sum).item() == pytest.approx(torch.tensor(VOCAB + 1.0).log().item(), rel=0.1)


def test_a_plain_language_model_runs_too() -> None:
    from transformers import LlamaForCausalLM

    net = PackedModel(LlamaForCausalLM(spec().transformers_config().text_config).eval())
    texts = [one for one in SAMPLES if not one.tiles_per_image]
    batch = pack(texts).check()
    alone = [per_sample_loss(one, net(one)).item() for one in (pack([s]) for s in texts)]
    assert per_sample_loss(batch, net(batch)).tolist() == pytest.approx(alone, abs=1e-5)
    with pytest.raises(ConfigError, match="no image token"):
        net(pack(SAMPLES))


# --- attention in transformers ------------------------------------------------------------------------------------


def test_options_are_checked_at_construction() -> None:
    with pytest.raises(ConfigError, match="did you mean 'varlen'"):
        spec().build(mask="varlem")
    with pytest.raises(ConfigError, match="did you mean 'reference'"):
        spec().build(attention="referense")
    with pytest.raises(ConfigError, match="CUDA"):
        spec().build(attention="flash_attn")
    with pytest.raises(ConfigError, match="no effect"):
        spec().build(attention="reference", mask="block_diagonal")


def test_registered_names() -> None:
    assert register_attention() == "mmpack_varlen"
    assert register_attention("sdpa_loop") == "mmpack_sdpa_loop"
    with pytest.raises(ConfigError, match="unknown attention backend"):
        register_attention("nope")


def test_only_the_text_tower_gets_packed_attention() -> None:
    config = model(attention="reference").hf.config
    assert config.text_config._attn_implementation == "mmpack_reference"
    assert config.vision_config._attn_implementation == "sdpa"


def call(**changes: Any) -> Any:
    batch = pack([SAMPLES[1], SAMPLES[4]])
    inputs = batch.to_transformers(image_token_id=VOCAB)
    return model().hf(**inputs | changes)


def test_the_plain_call_works() -> None:
    assert torch.isfinite(call().loss)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cu_seq_lens_q": None}, "without cu_seq_lens_q.*attn_implementation='sdpa'"),
        ({"max_length_k": None}, "without cu_seq_lens_q"),
        ({"sliding_window": 8}, "sliding window"),
        ({"softcap": 30.0}, "softcap"),
        ({"cu_seq_lens_q": torch.tensor([0, 7], dtype=torch.int32)}, "ends at 7"),
    ],
)
def test_calls_that_the_backends_cannot_honour_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call(**changes)


def test_two_rows_are_refused() -> None:
    batch = pack([SAMPLES[1]])
    inputs = batch.to_transformers(image_token_id=VOCAB)
    twice = {name: inputs[name].repeat(2, 1) for name in ("input_ids", "position_ids", "labels", "shift_labels")}
    with pytest.raises(ConfigError, match="got 2 rows"):
        model().hf(**inputs | twice)


def test_generation_is_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match="To generate"):
        model().hf.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=2)


def test_attention_dropout_is_refused() -> None:
    net = model()
    net.train()
    for layer in net.hf.model.language_model.layers:
        layer.self_attn.attention_dropout = 0.1
    with pytest.raises(ConfigError, match="attention_dropout"):
        net(pack([SAMPLES[1]]))
