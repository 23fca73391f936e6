"""Sizes and pictures on which our tiles are compared with those of transformers' processors."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from PIL import Image

PRIMES = (2, 3, 5, 7, 13, 31, 97, 101, 211, 307, 397)
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)


def sizes(seed: int, *, tile: int, longest: int, number: int = 500) -> list[tuple[int, int]]:
    """(width, height): any, lines of one pixel, whole tiles and the neighbours of them, primes."""
    rng = random.Random(seed)
    most = max(1, longest // tile)
    found = [(1, 1), (1, longest), (longest, 1), (1, 2), (3, 1)]
    found += [(1, rng.randint(1, longest)) for _ in range(number // 25)]
    found += [(rng.randint(1, longest), 1) for _ in range(number // 25)]
    for _ in range(number // 10):
        found.append((tile * rng.randint(1, most), tile * rng.randint(1, most)))
        found.append((tile * rng.randint(1, most) + rng.choice((-1, 1)), tile * rng.randint(1, most)))
        found.append((rng.choice(PRIMES), rng.choice(PRIMES)))
    while len(found) < number:
        found.append((rng.randint(1, longest), rng.randint(1, longest)))
    return found


def smooth(width_px: int, height_px: int) -> np.ndarray:
    """A picture with structure at several scales, noise included."""
    rng = np.random.default_rng(width_px * 10007 + height_px)
    coarse = Image.fromarray(rng.integers(0, 256, (7, 9, 3), dtype=np.uint8)).resize((width_px, height_px))
    noise = rng.integers(-30, 30, (height_px, width_px, 3), dtype=np.int16)
    return (np.asarray(coarse) + noise).clip(0, 255).astype(np.uint8)


def levels(processor: Any, rgb_HWC: np.ndarray) -> np.ndarray:
    """The processor's pixels of the only picture, before normalisation: grey levels."""
    values = processor(Image.fromarray(rgb_HWC), do_rescale=False, do_normalize=False, return_tensors="np")
    return np.asarray(values["pixel_values"], dtype=int)


def distance(tiles: np.ndarray, levels: np.ndarray) -> int:
    """The largest difference in grey levels. Both of one shape."""
    assert tiles.shape == levels.shape
    return int(np.abs(tiles - levels).max())
