"""What positions in time, height and width (M-RoPE) promise, checked without computing them a second time."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from mmpack.sample import IMAGE_TOKEN_INDEX, PixelKind


class WithPositions(Protocol):
    """The fields that `check_mrope` reads."""

    @property
    def tokens(self) -> Tensor: ...
    @property
    def position_ids(self) -> Tensor: ...
    @property
    def pixel_kind(self) -> PixelKind: ...
    @property
    def tokens_per_image(self) -> Tensor: ...
    @property
    def image_grids(self) -> Tensor: ...


def check_mrope(batch: WithPositions) -> None:
    """Raises AssertionError if patches lack M-RoPE positions, or if these contradict the pictures' grids.

    Every segment (where the text row is 0) starts at 0 in all rows; text goes on by one from text; the corners of a
    picture lie as its grid says, and what follows it goes on behind its larger side.
    """
    positions = batch.position_ids.cpu()
    if positions.ndim != 3:
        assert batch.pixel_kind != "patches" or not len(batch.image_grids), "patches need M-RoPE position_ids (4, ...)"
        return
    shape = (4, *batch.tokens.shape)
    assert tuple(positions.shape) == shape, f"position_ids has shape {tuple(positions.shape)}, expected {shape}"
    segment_t, axes_3t = positions[0].flatten(), positions[1:].flatten(1)
    is_image_t = (batch.tokens == IMAGE_TOKEN_INDEX).cpu().flatten()
    starts_t = segment_t == 0
    assert bool((axes_3t[:, starts_t] == 0).all()), "M-RoPE position_ids must start at 0 in every segment"
    text_t = ~is_image_t
    assert bool((axes_3t[:, text_t] == axes_3t[0, text_t]).all()), "a text token has M-RoPE position_ids that differ"
    after_text = text_t[1:] & text_t[:-1] & ~starts_t[1:]
    steps = axes_3t.diff(dim=1)
    assert bool((steps[:, after_text] == 1).all()), "M-RoPE position_ids of text must go on by one"
    _check_corners(batch, axes_3t, starts_t, torch.nonzero(is_image_t).flatten())


def _check_corners(batch: WithPositions, axes_3t: Tensor, starts_t: Tensor, image_at: Tensor) -> None:
    tokens_n, grids_n2 = batch.tokens_per_image.cpu().long(), batch.image_grids.cpu().long()
    if not len(tokens_n):
        return
    ends = tokens_n.cumsum(0)
    first, last = image_at[ends - tokens_n], image_at[ends - 1]
    merge_n = (grids_n2.prod(dim=1) / tokens_n).sqrt().round().long()  # patches a side that are one embedding
    sides_n2 = grids_n2 // merge_n[:, None]
    assert torch.equal(sides_n2.prod(dim=1), tokens_n), "image_grids does not fit tokens_per_image"
    corner = axes_3t[:, first]
    assert bool((corner == corner[0]).all()), "a picture's first M-RoPE position differs between the rows"
    expected = corner + torch.stack([torch.zeros_like(tokens_n), sides_n2[:, 0] - 1, sides_n2[:, 1] - 1])
    assert torch.equal(axes_3t[:, last], expected), "a picture's last M-RoPE position does not fit image_grids"
    continues = last + 1 < axes_3t.shape[1]
    continues &= ~starts_t[(last + 1).clamp(max=axes_3t.shape[1] - 1)]
    following = axes_3t[:, last[continues] + 1]
    behind = (corner[0] + sides_n2.max(dim=1).values)[continues]
    assert bool((following == behind).all()), "M-RoPE position_ids do not go on behind a picture's larger side"
