"""The packed step of every family against transformers alone: its image processor, its positions, its own loss.

One sample at a time goes the way a user of transformers would send it. From mmpack this side has nothing but the token
ids of the text and which of them are trained; pictures, the order of their features, newline embeddings, M-RoPE
positions, labels and loss are transformers' or written out here.
"""

from __future__ import annotations

import io
import random
from typing import Any

import pytest
import torch
from PIL import Image

from mmpack.model import per_sample_loss
from mmpack.sample import IMAGE_TOKEN_INDEX, EncodedSample, Picture

from .families import CLIP_MEAN, CLIP_STD, FAMILIES, SIZES, TILINGS, encode, model, pack, spec


def processor(family: str) -> Any:
    """transformers' image processor, set to the numbers of the tower."""
    import transformers

    norm = {"image_mean": list(CLIP_MEAN), "image_std": list(CLIP_STD)}
    if family in ("qwen2_vl", "qwen2_5_vl"):
        bounds = TILINGS[family]
        return transformers.Qwen2VLImageProcessorPil(
            patch_size=SIZES[family]["patch_size_px"],
            merge_size=2,
            temporal_patch_size=2,
            size={"shortest_edge": bounds["min_pixels"], "longest_edge": bounds["max_pixels"]},
            **norm,
        )
    size = SIZES[family]["image_size_px"]
    square = {"height": size, "width": size}
    if family == "llava_next":
        canvases = [[size, 2 * size], [2 * size, size], [2 * size, 2 * size], [3 * size, size], [size, 3 * size]]
        return transformers.LlavaNextImageProcessorPil(
            size={"shortest_edge": size}, crop_size=square, image_grid_pinpoints=canvases, **norm
        )
    if family == "internvl":
        return transformers.GotOcr2ImageProcessorPil(
            size=square, crop_to_patches=True, max_patches=TILINGS[family]["max_tiles"], **norm
        )
    return transformers.LlavaImageProcessorPil(size={"shortest_edge": size}, crop_size=square, do_pad=True, **norm)


def processed(family: str, pictures: list[Picture]) -> dict[str, torch.Tensor]:
    """The pictures of one sample as arguments of the model."""
    if not pictures:
        return {}
    images = [Image.open(io.BytesIO(picture.data)) for picture in pictures]
    wanted = {"image_grid_thw", "image_sizes", "pixel_values"}
    return {k: v for k, v in processor(family)(images, return_tensors="pt").items() if k in wanted}


def alone(family: str, hf: Any, sample: EncodedSample) -> float:
    """transformers' own mean loss of one sample."""
    image_id = hf.config.image_token_id
    inputs = processed(family, [p.picture for p in sample.pictures])
    counts: list[int] = []
    if inputs:
        if "image_grid_thw" in inputs:
            counts = [int(grid.prod()) // 4 for grid in inputs["image_grid_thw"]]
        elif family == "llava_next":
            counts = [len(part) for part in hf.model.get_image_features(**inputs, return_dict=True).pooler_output]
        else:
            features = hf.model.get_image_features(**inputs, return_dict=True).pooler_output
            per_tile = len(features[0])
            counts = [p.num_tiles * per_tile for p in sample.pictures]
            assert sum(p.num_tiles for p in sample.pictures) == len(features)
    ids: list[int] = []
    labels: list[int] = []
    remaining = iter(counts)
    for token, trained in zip(sample.token_ids_n.tolist(), sample.trained_n.tolist(), strict=True):
        count = next(remaining) if token == IMAGE_TOKEN_INDEX else 1
        ids += [image_id if token == IMAGE_TOKEN_INDEX else token] * count
        labels += [token if trained else -100] * count
    input_ids = torch.tensor([ids])
    if "image_grid_thw" in inputs:
        is_image = (input_ids == image_id).int()
        positions, _ = hf.model.get_rope_index(
            input_ids, mm_token_type_ids=is_image, image_grid_thw=inputs["image_grid_thw"]
        )
        inputs["position_ids"] = positions
    return float(hf(input_ids=input_ids, labels=torch.tensor([labels]), use_cache=False, **inputs).loss)


def assert_equal_losses(family: str, samples: list[EncodedSample], num_ids: int) -> None:
    batch = pack(family, samples, sequence_multiple=4, fixed_total=1024)
    plain = spec(family, num_ids)
    net = model(family, num_ids)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(7)
        hf = plain.transformers_class()._from_config(plain.transformers_config(), attn_implementation="sdpa").eval()
        expected = [alone(family, hf, sample) for sample in samples]
        packed = per_sample_loss(batch, net(batch)).tolist()
    assert packed == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_losses_equal_those_of_transformers(family: str, tokenizer: Any) -> None:
    sizes = [[(90, 31)], [], [(40, 100), (28, 28), (75, 61)], [(19, 23)], [(64, 64), (120, 40)], [(31, 97)]]
    assert_equal_losses(family, encode(family, tokenizer, sizes), len(tokenizer))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("family", FAMILIES)
def test_losses_of_pictures_of_any_size(family: str, seed: int, tokenizer: Any) -> None:
    rng = random.Random(seed)
    sides = [1, 7, 13, 14, 28, 29, 56, 97, 113, 150]
    sizes = [[(rng.choice(sides), rng.choice(sides)) for _ in range(rng.randint(0, 3))] for _ in range(6)]
    assert_equal_losses(family, encode(family, tokenizer, sizes, seed), len(tokenizer))


@pytest.mark.parametrize("family", FAMILIES)
def test_pictures_are_those_of_transformers(family: str, tokenizer: Any) -> None:
    """Beside the loss, which a picture moves only a little: the arguments of the vision tower."""
    samples = [s for s in encode(family, tokenizer) if s.pictures]
    for sample in samples:
        ours = pack(family, [sample]).to_transformers(image_token_id=len(tokenizer))
        for name, theirs in processed(family, [p.picture for p in sample.pictures]).items():
            assert ours[name].shape == theirs.shape, name
            # one grey level is 0.0146 after the normalisation
            torch.testing.assert_close(ours[name], theirs.to(ours[name].dtype), atol=1e-5, rtol=0)
