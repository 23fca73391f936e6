"""The specs of all model families, and what they say about the pictures that go with them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mmpack.errors import ConfigError
from mmpack.model import MODELS, LlavaNextSpec, ModelSpec, PictureRules, Qwen2VLSpec, make_model_spec
from mmpack.tiling import TileSpec, make_tiling, tiling_from_processor
from tests.loss_neutral.families import FAMILIES, encode, model, pack, spec


def test_the_table_has_every_family() -> None:
    assert set(MODELS) == set(FAMILIES)
    for name in MODELS:
        assert issubclass(MODELS.get(name), ModelSpec)
        assert MODELS.get(name).family == name
        assert type(make_model_spec(name, vocab_size=10)) is MODELS.get(name)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_spec_says_what_its_transformers_config_says(family: str) -> None:
    one = spec(family, 50)
    assert PictureRules.of(one.transformers_config()) == one.pictures
    net = one.build()
    assert net.pictures == one.pictures
    assert net.image_token_id == one.placeholder_id == 50
    assert net.hf.get_input_embeddings().num_embeddings == 51
    assert net.hf.config.get_text_config().bos_token_id is None
    assert make_model_spec(family, vocab_size=50, image_token_id=7).transformers_config().image_token_id == 7
    one.check_tiling(one.tiling())
    net.check_tiling(one.tiling())


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_depend_on_the_seed_alone(family: str) -> None:
    before = torch.get_rng_state()
    a, b, c = (spec(family, 20).build(seed=s).state_dict() for s in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert not all(torch.equal(a[k], c[k]) for k in a)


@pytest.mark.parametrize("family", FAMILIES)
def test_only_the_text_tower_gets_packed_attention(family: str, tokenizer: Any) -> None:
    net = model(family, len(tokenizer), "reference")
    assert net.hf.config.text_config._attn_implementation == "mmpack_reference"
    assert net.hf.config.vision_config._attn_implementation == "sdpa"
    layers = [m for m in net.hf.modules() if hasattr(m, "config") and type(m).__name__.endswith("Attention")]
    used = {(type(m).__name__, m.config._attn_implementation) for m in layers}
    assert len(used) == 2, used
    assert {name for _, name in used} == {"mmpack_reference", "sdpa"}


# --- numbers of real models ------------------------------------------------------------------------------------


def test_rules_of_models_as_they_are_published() -> None:
    import transformers as hf

    clip = {"model_type": "clip_vision_model", "image_size": 336, "patch_size": 14}
    siglip = {"model_type": "siglip_vision_model", "image_size": 384, "patch_size": 14}
    llava = hf.LlavaConfig(vision_config=clip)
    assert PictureRules.of(llava) == PictureRules(kind="tiles", tile_size_px=336, embeddings_per_tile=576)
    full = hf.LlavaConfig(vision_config=clip, vision_feature_select_strategy="full")
    assert PictureRules.of(full).embeddings_per_tile == 577  # type: ignore[union-attr]
    full = hf.LlavaConfig(vision_config=siglip, vision_feature_select_strategy="full")
    assert PictureRules.of(full).embeddings_per_tile == 729  # type: ignore[union-attr]
    following = PictureRules.of(hf.LlavaNextConfig(vision_config=clip))
    assert following is not None
    assert following.pinpoints == ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))
    assert PictureRules.of(hf.InternVLConfig()) == PictureRules(kind="tiles", tile_size_px=448, embeddings_per_tile=256)
    for qwen in (hf.Qwen2VLConfig(), hf.Qwen2_5_VLConfig()):
        assert PictureRules.of(qwen) == PictureRules(kind="patches", tile_size_px=14, merge_size=2, frames_per_patch=2)


def test_unknown_families_go_unchecked() -> None:
    import transformers as hf

    assert PictureRules.of(hf.LlamaConfig()) is None
    assert PictureRules.of(hf.LlavaOnevisionConfig()) is None


@pytest.mark.parametrize("family", ["llava_next", "qwen2_vl", "qwen2_5_vl"])
def test_the_tiling_of_transformers_own_processor_fits(family: str) -> None:
    """With the numbers of the published models."""
    import transformers as hf

    square = {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}}
    processors = {"llava_next": hf.LlavaNextImageProcessorPil(**square)}
    processor = processors.get(family) or hf.Qwen2VLImageProcessorPil()
    policy = tiling_from_processor(processor, embeddings_per_tile=576)
    sizes = {"image_size_px": 336} if family == "llava_next" else {}
    make_model_spec(family, vocab_size=10, **sizes).check_tiling(policy)


@pytest.mark.parametrize("sections", [None, (2, 3, 3)])
def test_mrope_sections_fill_half_a_head(sections: tuple[int, int, int] | None) -> None:
    one = Qwen2VLSpec(vocab_size=10, text_hidden_size=64, text_heads=4, mrope_section=sections)
    assert one.sections == (2, 3, 3)
    rope = one.transformers_config().text_config.rope_parameters
    assert rope["mrope_section"] == [2, 3, 3]
    published = Qwen2VLSpec(vocab_size=10, text_hidden_size=3584, text_heads=28)
    assert published.sections == (16, 24, 24)


# --- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "sizes", "message"),
    [
        ("llava_nxt", {}, "unknown model family 'llava_nxt'; did you mean 'llava_next'"),
        ("llava", {"image_size": 28}, "has no size 'image_size'; did you mean 'image_size_px'"),
        ("qwen2_vl", {"image_size_px": 28}, "'qwen2_vl' has no size 'image_size_px'"),
        ("llava", {"vision": "clipp"}, "did you mean 'clip'"),
        ("llava_next", {"image_size_px": 30}, "image_size_px=30 must be a multiple of patch_size_px=14"),
        ("llava_next", {"image_grid_pinpoints": ((56, 50),)}, r"has \(56, 50\).*multiples of image_size_px=56"),
        ("llava_next", {"image_grid_pinpoints": ()}, "image_grid_pinpoints is empty"),
        ("internvl", {"image_size_px": 42}, "is odd; 2 x 2 patches"),
        ("qwen2_vl", {"mrope_section": (2, 2, 2)}, r"mrope_section=\(2, 2, 2\).* with the sum 8"),
        ("qwen2_vl", {"text_hidden_size": 16}, "mrope_section"),
        ("qwen2_vl", {"vision_hidden_size": 12}, "must be a multiple of 4"),
        ("qwen2_vl", {"merge_size": 0}, "merge_size=0"),
        ("qwen2_5_vl", {"window_size_px": 40}, "window_size_px=40 must be a multiple of .* = 28"),
        ("qwen2_5_vl", {"full_attention_layers": (2,)}, "layers count from 0 to 1"),
        ("qwen2_5_vl", {"text_kv_heads": 3}, "text_heads=4 must be a multiple of text_kv_heads=3"),
    ],
)
def test_a_spec_that_cannot_work_is_refused(family: str, sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_model_spec(family, vocab_size=10, **sizes)


SQUARE = {"tile_size_px": 28, "embeddings_per_tile": 4}


@pytest.mark.parametrize(
    ("family", "tiling", "tile", "options", "message"),
    [
        ("llava", "native", SQUARE, {}, r"come as 'patches', this model takes 'tiles'; use tiling 'single'"),
        ("llava", "anyres", SQUARE, {"image_grid_pinpoints": [[28, 56]]}, "come as 'anyres'"),
        ("llava_next", "single", SQUARE, {}, "use tiling 'anyres'"),
        ("qwen2_5_vl", "dynamic", SQUARE, {}, "use tiling 'native'"),
        ("llava", "single", SQUARE | {"tile_size_px": 56}, {}, "tiles of 56 px, the vision tower wants 28"),
        ("llava", "single", SQUARE | {"embeddings_per_tile": 9}, {}, "=9, but the vision tower gives 4"),
        ("internvl", "dynamic", {"tile_size_px": 56, "embeddings_per_tile": 16}, {}, "=16, but .* gives 4"),
        ("llava_next", "anyres", SQUARE, {"image_grid_pinpoints": [[28, 56]]}, "the same in the same order"),
        ("qwen2_vl", "native", SQUARE, {}, "patches of 28 px, the vision tower wants 7"),
        ("qwen2_vl", "native", SQUARE | {"tile_size_px": 7}, {"merge_size": 3}, "merge_size=3, .* wants 2"),
        ("qwen2_vl", "native", SQUARE | {"tile_size_px": 7}, {"temporal_patch_size": 1}, "temporal_patch_size=1"),
    ],
)
def test_a_tiling_that_does_not_fit_is_named(
    family: str, tiling: str, tile: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        spec(family, 10).check_tiling(make_tiling(tiling, TileSpec(**tile), **options))


@pytest.mark.parametrize(
    ("family", "other", "message"),
    [
        ("llava", "qwen2_vl", "this model takes 'tiles'"),
        ("llava_next", "llava", "this model takes 'anyres'"),
        ("qwen2_5_vl", "llava_next", "this model takes 'patches'"),
        ("internvl", "llava", "tiles of 28 px, the vision tower wants 56"),
    ],
)
def test_a_batch_of_another_family_is_refused(family: str, other: str, message: str, tokenizer: Any) -> None:
    batch = pack(other, encode(other, tokenizer))
    with pytest.raises(ConfigError, match=message):
        model(family, len(tokenizer))(batch)


def test_a_batch_with_other_merges_or_frames_is_refused(tokenizer: Any) -> None:
    batch = pack("qwen2_vl", encode("qwen2_vl", tokenizer))
    for sizes, message in (
        ({"temporal_patch_size": 1}, "temporal_patch_size=2, the vision tower wants 1"),
        ({"merge_size": 1}, "the vision tower merges 1 x 1"),
    ):
        with pytest.raises(ConfigError, match=message):
            spec("qwen2_vl", len(tokenizer), **sizes).build()(batch)


def test_pinpoints_may_be_lists_as_config_files_write_them() -> None:
    one = LlavaNextSpec(vocab_size=10, image_size_px=28, image_grid_pinpoints=[[28, 56], [56, 28]])  # type: ignore[arg-type]
    assert one.pinpoints == ((28, 56), (56, 28))
    assert hash(one)


# --- the vision tower of Qwen2.5-VL ------------------------------------------------------------------------------


def test_windows_of_the_vision_tower_are_its_own(tokenizer: Any) -> None:
    """It gets offsets of patches, by window or by picture, and never those of the text."""
    samples = encode("qwen2_5_vl", tokenizer)
    net, batch = model("qwen2_5_vl", len(tokenizer)), pack("qwen2_5_vl", samples)
    seen: list[list[int]] = []
    hooks = [
        block.attn.register_forward_pre_hook(
            lambda module, args, kwargs: seen.append(kwargs["cu_seqlens"].tolist()), with_kwargs=True
        )
        for block in net.hf.model.visual.blocks
    ]
    with torch.no_grad():
        net(batch)
    for hook in hooks:
        hook.remove()
    by_picture = [0, *batch.tiles_per_image.cumsum(0).tolist()]
    windows: list[int] = [0]  # squares of 28 px = 4 x 4 patches, smaller at the right and at the bottom
    for rows, columns in batch.image_grids.tolist():
        for top in range(0, rows, 4):
            for left in range(0, columns, 4):
                windows.append(windows[-1] + min(4, rows - top) * min(4, columns - left))
    assert seen == [windows, by_picture]
