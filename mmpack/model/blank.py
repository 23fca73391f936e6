"""A blank picture through a model's vision tower, for batches that have none."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mmpack.batch import Batch
from mmpack.errors import ConfigError


def blank_picture_sum(hf: Any, batch: Batch, dtype: torch.dtype) -> Tensor:
    """() sum of the embeddings of a blank picture: times zero, a loss that touches every parameter of the tower.

    The shape of a tile, or of a patch, is the batch's.

    Raises:
        ConfigError: the model has a vision tower and no ``get_image_features``.
    """
    features = getattr(hf.model, "get_image_features", None)
    if features is None:
        raise ConfigError(f"{type(hf).__name__} has a vision tower and no get_image_features; pass text models only")
    side_px = batch.pixels.shape[-1]
    inputs: dict[str, Tensor] = {}
    pixels: tuple[int, ...]
    if batch.pixel_kind == "tiles":
        pixels = (1, 3, side_px, side_px)
    elif batch.pixel_kind == "anyres":
        pixels = (1, 1 + _least_tiles(hf.config, side_px), 3, side_px, side_px)
        inputs["image_sizes"] = torch.tensor([[side_px, side_px]], device=batch.pixels.device)
    else:
        merge = hf.config.vision_config.spatial_merge_size
        pixels = (merge * merge, 3 * batch.pixel_norm.frames_per_patch * side_px * side_px)
        inputs["image_grid_thw"] = torch.tensor([[1, merge, merge]], device=batch.pixels.device)
    blank = torch.zeros(pixels, dtype=dtype, device=batch.pixels.device)
    output = features(pixel_values=blank, return_dict=True, **inputs).pooler_output
    parts = [output] if isinstance(output, Tensor) else list(output)
    return torch.stack([part.float().sum() for part in parts]).sum()


def _least_tiles(config: Any, side_px: int) -> int:
    """Tiles of a square picture of one tile's side, overview not counted, as transformers chooses them."""
    from transformers.models.llava_next.modeling_llava_next import image_size_to_num_patches

    size = (side_px, side_px)
    return int(image_size_to_num_patches(size, config.image_grid_pinpoints, side_px)) - 1
