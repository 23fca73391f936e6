"""Pictures of the samples of a batch: decoded now, cut into the tiles that were counted when they were planned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mmpack.batch import PixelNorm
from mmpack.errors import SampleError
from mmpack.images import decode_image
from mmpack.sample import EncodedSample, LostSample, PlannedPicture, PlannedSample
from mmpack.tiling import TilingPolicy
from mmpack.tiling.anyres import AnyresTiles

Tiles = list[NDArray[np.uint8]]


def decode(sample: PlannedSample, tiling: TilingPolicy) -> tuple[EncodedSample, Tiles] | LostSample:
    """The sample and one array (n, 3, S, S) per picture, or what is left of it if one cannot be decoded."""
    if isinstance(sample, LostSample):
        return sample
    tiles = []
    for planned in sample.pictures:
        try:
            rgb = decode_image(
                planned.picture.data, background=tiling.spec.background, reduction=_reduction(planned, tiling)
            )
        except SampleError as error:
            named = SampleError(error.reason, f"{planned.picture.name}: {error.detail}", key=sample.key)
            return LostSample(key=sample.key, source=sample.source, num_tokens=sample.num_tokens, error=named)
        tiles.append(tiling.cut(rgb, planned.grid))
    return sample, tiles


def _reduction(planned: PlannedPicture, tiling: TilingPolicy) -> int:
    if tiling.spec.decode == "exact":
        return 1
    return tiling.reduction(planned.grid, planned.width_px, planned.height_px)


def picture_fields(kept: Sequence[EncodedSample], tiles: Tiles, tiling: TilingPolicy) -> dict[str, Any]:
    """The fields of a batch that describe its samples and their pictures, in the order of `kept`."""
    size = tiling.spec.tile_size_px
    pixels = np.concatenate(tiles) if tiles else np.zeros((0, 3, size, size), dtype=np.uint8)
    pictures = [picture for sample in kept for picture in sample.pictures]
    return {
        "pixels": torch.from_numpy(pixels),
        "pixel_norm": PixelNorm(tiling.spec.mean, tiling.spec.std, getattr(tiling, "temporal_patch_size", 1)),
        "pixel_kind": tiling.kind,
        "tiles_per_image": torch.tensor([p.num_tiles for p in pictures], dtype=torch.int32),
        "tokens_per_image": torch.tensor([p.num_tokens for p in pictures], dtype=torch.int32),
        "image_sizes": _pairs([_size(p, tiling) for p in pictures]),
        "image_grids": _pairs([(p.grid.rows, p.grid.columns) for p in pictures]),
        "images_per_sample": torch.tensor([len(sample.pictures) for sample in kept], dtype=torch.int32),
        "sample_keys": tuple(sample.key for sample in kept),
        "sources": tuple(sample.source for sample in kept),
        "num_samples": len(kept),
    }


def _size(picture: PlannedPicture, tiling: TilingPolicy) -> tuple[int, int]:
    """Height and width from which the model will find the picture's grid again."""
    if isinstance(tiling, AnyresTiles):
        width_px, height_px = tiling.model_size(picture.grid, picture.width_px, picture.height_px)
        return height_px, width_px
    return picture.height_px, picture.width_px


def _pairs(pairs: list[tuple[int, int]]) -> torch.Tensor:
    return torch.tensor(pairs, dtype=torch.int32).reshape(len(pairs), 2)
