"""Pictures of a batch: how uint8 pixels become a vision tower's floats, and what their counts promise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mmpack.batch.mrope import check_mrope
from mmpack.sample import IMAGE_TOKEN_INDEX, PixelKind


@dataclass(frozen=True, slots=True)
class PixelNorm:
    """How uint8 pixels become the floats a vision tower wants: ``(pixel / 255 - mean) / std`` per channel.

    `frames_per_patch` is how often a patch is repeated over time by towers that see videos as well (Qwen2-VL: 2).
    """

    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    frames_per_patch: int = 1

    def __call__(self, pixels: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """`pixels` (N, 3, H, W) uint8 -> the same shape in `dtype`, on the same device."""
        mean = torch.tensor(self.mean, dtype=torch.float32, device=pixels.device).view(1, 3, 1, 1)
        std = torch.tensor(self.std, dtype=torch.float32, device=pixels.device).view(1, 3, 1, 1)
        return ((pixels.to(torch.float32) / 255.0 - mean) / std).to(dtype)


class WithPictures(Protocol):
    """The picture fields that `PackedBatch` and `PaddedBatch` share."""

    @property
    def tokens(self) -> Tensor: ...
    @property
    def position_ids(self) -> Tensor: ...
    @property
    def pixels(self) -> Tensor: ...
    @property
    def pixel_kind(self) -> PixelKind: ...
    @property
    def tiles_per_image(self) -> Tensor: ...
    @property
    def tokens_per_image(self) -> Tensor: ...
    @property
    def image_sizes(self) -> Tensor: ...
    @property
    def image_grids(self) -> Tensor: ...
    @property
    def images_per_sample(self) -> Tensor: ...
    @property
    def sample_keys(self) -> tuple[str, ...]: ...
    @property
    def sources(self) -> tuple[str, ...]: ...


def check_pictures(batch: WithPictures) -> None:
    """Raises AssertionError if the counts of pictures, tiles and placeholders contradict each other."""
    pixels, num_images = batch.pixels, len(batch.tiles_per_image)
    assert pixels.dtype == torch.uint8, f"pixels are {pixels.dtype}, expected uint8"
    assert pixels.ndim == 4, f"pixels have shape {tuple(pixels.shape)}, expected (N, 3, H, W)"
    num_tiles = int(batch.tiles_per_image.sum())
    assert num_tiles == pixels.shape[0], f"{num_tiles} tiles announced, {pixels.shape[0]} given"
    assert int(batch.images_per_sample.sum()) == num_images, "images_per_sample does not add up to tiles_per_image"
    assert len(batch.images_per_sample) == len(batch.sample_keys) == len(batch.sources), "one entry per sample"
    for name in ("image_sizes", "image_grids"):
        shape = tuple(getattr(batch, name).shape)
        assert shape == (num_images, 2), f"{name} has shape {shape}, expected {(num_images, 2)}"
    assert len(batch.tokens_per_image) == num_images, "tokens_per_image needs one entry per picture"
    placeholders = int((batch.tokens == IMAGE_TOKEN_INDEX).sum())
    announced = int(batch.tokens_per_image.sum())
    assert placeholders == announced, f"{placeholders} image positions, tokens_per_image announces {announced}"
    grids = batch.image_grids[:, 0] * batch.image_grids[:, 1]
    overview = batch.tiles_per_image - grids
    assert bool(((overview == 0) | (overview == 1)).all()), "image_grids does not fit tiles_per_image"
    check_mrope(batch)


def tower_inputs(batch: WithPictures, norm: PixelNorm, dtype: torch.dtype) -> dict[str, Tensor]:
    """What a transformers model of the batch's family takes for its pictures; empty without pictures.

    * ``tiles`` (LLaVA, InternVL): ``pixel_values`` (N, 3, S, S);
    * ``anyres`` (LLaVA-NeXT): ``pixel_values`` (pictures, most tiles, 3, S, S), zeros behind a picture's own tiles, and
      ``image_sizes`` (pictures, 2) height, width;
    * ``patches`` (Qwen2-VL): ``pixel_values`` (N, 3 * frames * P * P) and ``image_grid_thw`` (pictures, 3).
    """
    if batch.pixels.shape[0] == 0:
        return {}
    if batch.pixel_kind == "tiles":
        return {"pixel_values": norm(batch.pixels, dtype)}
    if batch.pixel_kind == "anyres":
        of_each = norm(batch.pixels, dtype).split_with_sizes(batch.tiles_per_image.tolist())
        return {
            "pixel_values": torch.nn.utils.rnn.pad_sequence(list(of_each), batch_first=True),
            "image_sizes": batch.image_sizes.long(),
        }
    flat, grids = flat_patches(batch, norm, dtype)
    return {"pixel_values": flat, "image_grid_thw": grids}


def flat_patches(batch: WithPictures, norm: PixelNorm, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(N, 3 * frames * P * P) patches, and (pictures, 3) frames, rows and columns of each picture."""
    patches = norm(batch.pixels, dtype).unsqueeze(2).expand(-1, -1, norm.frames_per_patch, -1, -1)
    one = torch.ones(len(batch.image_grids), 1, dtype=torch.long, device=batch.image_grids.device)
    return patches.flatten(1), torch.cat([one, batch.image_grids.long()], dim=1)
