"""Pictures of the samples of a batch: decoded now, cut into the tiles that were counted when they were planned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mmpack.batch import PixelNorm
from mmpack.batch.memory import Allocate
from mmpack.errors import SampleError
from mmpack.images import decode_image
from mmpack.sample import EncodedSample, LostSample, PlannedPicture, PlannedSample
from mmpack.tiling import TilingPolicy
from mmpack.tiling.anyres import AnyresTiles


class Pixels:
    """The tiles of a batch, (N, 3, S, S) uint8, cut one behind the other into memory that is taken at once.

    Args:
        samples: of the batch, which say how many tiles there will be at most.
        tiling: cuts them.
        allocate: gives the memory.
    """

    def __init__(self, samples: Sequence[PlannedSample], tiling: TilingPolicy, allocate: Allocate) -> None:
        most = sum(
            planned.num_tiles for sample in samples if not isinstance(sample, LostSample) for planned in sample.pictures
        )
        size = tiling.spec.tile_size_px
        self._tiling = tiling
        self._tiles = allocate(most * 3 * size * size).reshape(most, 3, size, size)
        self._filled = 0

    @property
    def tiles(self) -> NDArray[np.uint8]:
        """What has been decoded."""
        return self._tiles[: self._filled]

    def decode(self, sample: PlannedSample) -> EncodedSample | LostSample:
        """Adds the pictures of `sample`, all or none. Gives it back, or what is left of it if one cannot be decoded."""
        if isinstance(sample, LostSample):
            return sample
        end = self._filled
        for planned in sample.pictures:
            try:
                rgb = decode_image(
                    planned.picture.data,
                    background=self._tiling.spec.background,
                    reduction=_reduction(planned, self._tiling),
                )
            except SampleError as error:
                named = SampleError(error.reason, f"{planned.picture.name}: {error.detail}", key=sample.key)
                return LostSample(key=sample.key, source=sample.source, num_tokens=sample.num_tokens, error=named)
            self._tiling.cut(rgb, planned.grid, out=self._tiles[end : end + planned.num_tiles])
            end += planned.num_tiles
        self._filled = end
        return sample


def _reduction(planned: PlannedPicture, tiling: TilingPolicy) -> int:
    if tiling.spec.decode == "exact":
        return 1
    return tiling.reduction(planned.grid, planned.width_px, planned.height_px)


def picture_fields(kept: Sequence[EncodedSample], pixels: Pixels, tiling: TilingPolicy) -> dict[str, Any]:
    """The fields of a batch that describe its samples and their pictures, in the order of `kept`."""
    pictures = [picture for sample in kept for picture in sample.pictures]
    return {
        "pixels": torch.from_numpy(pixels.tiles),
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
