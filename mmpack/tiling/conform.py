"""Whether a policy that was read from an image processor's attributes really does what the processor does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mmpack.errors import ConfigError, SampleError

if TYPE_CHECKING:
    from mmpack.tiling import TilingPolicy

_SIZES = ((97, 31), (31, 97), (4, 150))  # wide, high, thin; smaller than most tiles, so that a probe is cheap
_SQUARE = ((61, 61),)
_MOST_DIFFERENCE = 8  # grey levels of 255; backends that resize otherwise differ by 2 in a smooth picture


def check_follows(image_processor: Any, policy: TilingPolicy, *, square_only: bool = False) -> None:
    """Compares both on a few small pictures. A processor that cannot be called, or fails on them, is not compared.

    Args:
        image_processor: of transformers.
        policy: what was read from its attributes.
        square_only: compare on a square picture alone, for a tile that is padded whatever the processor does.

    Raises:
        ConfigError: other tiles, or other pixels in them.
    """
    for width_px, height_px in _SQUARE if square_only else _SIZES:
        rgb_HWC = _smooth(width_px, height_px)
        theirs = _processed(image_processor, rgb_HWC)
        if theirs is None:
            return
        try:
            ours = policy.cut(rgb_HWC, policy.grid(width_px, height_px))
        except SampleError:
            continue
        met = _difference(theirs, ours, policy)
        if met is not None:
            raise ConfigError(
                f"{type(image_processor).__name__} would be followed with tiling {type(policy).__name__}, but treats a "
                f"picture of {width_px}x{height_px} px otherwise: {met}; choose a tiling by name (`tiling: single`) if "
                "the model was trained with that, change the processor's settings, or pass an mmpack.tiling.TileSpec"
            )


def _smooth(width_px: int, height_px: int) -> NDArray[np.uint8]:
    """A picture (height_px, width_px, 3) whose colours change from side to side and from top to bottom."""
    across = np.linspace(0, 255, width_px)[np.newaxis, :]
    down = np.linspace(0, 255, height_px)[:, np.newaxis]
    channels = [across + 0 * down, down + 0 * across, (across + down) / 2]
    return np.ascontiguousarray(np.stack(channels, axis=-1).astype(np.uint8))


def _processed(image_processor: Any, rgb_HWC: NDArray[np.uint8]) -> NDArray[np.float64] | None:
    from PIL import Image

    if not callable(image_processor):
        return None
    for tensors in ("np", "pt"):  # some backends give one of the two only
        try:
            output = image_processor(images=Image.fromarray(rgb_HWC), return_tensors=tensors)
            return np.asarray(output["pixel_values"], dtype=np.float64)
        except Exception:  # whatever it says, it says so to whoever uses it
            continue
    return None


def _difference(theirs: NDArray[np.float64], tiles_T3SS: NDArray[np.uint8], policy: TilingPolicy) -> str | None:
    """What differs, in words; None if nothing does."""
    frames = getattr(policy, "temporal_patch_size", 1)
    mean, std = (np.asarray(values)[:, np.newaxis, np.newaxis] for values in (policy.spec.mean, policy.spec.std))
    ours = np.repeat(((tiles_T3SS / 255 - mean) / std)[:, :, np.newaxis], frames, axis=2)
    if theirs.size != ours.size:
        return f"it makes an array of shape {theirs.shape}, the tiling {len(tiles_T3SS)} of {tiles_T3SS.shape[1:]}"
    levels = np.abs(theirs.reshape(ours.shape) - ours) * std[:, np.newaxis] * 255
    if (most := float(levels.max())) > _MOST_DIFFERENCE:
        return f"its pixels differ by up to {most:.0f} of 255 grey levels"
    return None
