"""A blank picture through a model's vision tower, for batches that have none."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mmpack.errors import ConfigError
from mmpack.model.pictures import PictureRules


def blank_picture_loss(hf: Any, rules: PictureRules, device: torch.device, dtype: torch.dtype) -> Tensor:
    """() zero, whose gradient is zero for every parameter that a picture's embeddings depend on.

    The value is zero whatever the tower makes of a blank picture, be it infinite; the gradients are as long as the
    tower's activations are finite.

    Args:
        hf: the transformers model.
        rules: the form of the tower's pictures.

    Raises:
        ConfigError: the model has a vision tower and no ``get_image_features``.
    """
    features = getattr(hf.model, "get_image_features", None)
    if features is None:
        raise ConfigError(f"{type(hf).__name__} has a vision tower and no get_image_features; pass text models only")
    side_px = rules.tile_size_px
    inputs: dict[str, Tensor] = {}
    pixels: tuple[int, ...]
    if rules.kind == "tiles":
        pixels = (1, 3, side_px, side_px)
    elif rules.kind == "anyres":
        pixels = (1, _num_tiles(hf.config, side_px), 3, side_px, side_px)
        inputs["image_sizes"] = torch.tensor([[side_px, side_px]], device=device)
    else:
        merge = rules.merge_size or 1
        pixels = (merge * merge, 3 * rules.frames_per_patch * side_px * side_px)
        inputs["image_grid_thw"] = torch.tensor([[1, merge, merge]], device=device)
    blank = torch.zeros(pixels, dtype=dtype, device=device)
    output = features(pixel_values=blank, return_dict=True, **inputs).pooler_output
    zero: Tensor = _WeightZero.apply(*([output] if isinstance(output, Tensor) else output))  # type: ignore[no-untyped-call]
    return zero


class _WeightZero(torch.autograd.Function):
    """Any tensors -> zero, with gradients of zero. A product with 0 would be NaN where they are infinite."""

    @staticmethod
    def forward(ctx: Any, *parts: Tensor) -> Tensor:
        ctx.forms = [(part.shape, part.dtype, part.device) for part in parts]
        return torch.zeros((), device=parts[0].device)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in ctx.forms)


def _num_tiles(config: Any, side_px: int) -> int:
    """Tiles of a square picture of one tile's side, overview included, as transformers counts them."""
    from transformers.models.llava_next.modeling_llava_next import image_size_to_num_patches

    return int(image_size_to_num_patches((side_px, side_px), config.image_grid_pinpoints, side_px))
