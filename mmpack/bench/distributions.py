"""Lengths of samples as real and hard mixes have them, for measurements and tests.

Seeded; none exceeds its capacity.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from mmpack.errors import ConfigError, nearest


@dataclass(frozen=True, kw_only=True, slots=True)
class Distribution:
    """A mix of samples and the pack size it is meant for."""

    capacity: int  # tokens a pack holds
    description: str
    draw: Callable[[random.Random], int]  # one length in tokens; above `capacity` means: draw again
    realistic: bool = True
    in_tokens: bool = False  # lengths so far apart that a window is better sized in tokens than in samples

    def lengths(self, num_samples: int, seed: int = 0) -> list[int]:
        """`num_samples` lengths from 1 to `capacity`, the same for the same seed."""
        generator = random.Random(seed)
        lengths: list[int] = []
        while len(lengths) < num_samples:
            length = self.draw(generator)
            if length <= self.capacity:  # drawn again rather than cut: samples of exactly a pack would flatter the fill
                lengths.append(length)
        return lengths


def _lognormal(generator: random.Random, median: float, sigma: float) -> int:
    return max(1, int(generator.lognormvariate(math.log(median), sigma)))


def _caption(generator: random.Random) -> int:
    image_tokens = 576 if generator.random() < 0.94 else 0  # 24 x 24 patches of a 336-pixel picture
    return image_tokens + _lognormal(generator, 120, 1.0)


def _tiled(generator: random.Random) -> int:
    num_tiles = generator.randint(1, 12)
    num_thumbnails = int(num_tiles > 1)
    return (num_tiles + num_thumbnails) * 256 + _lognormal(generator, 120, 1.0)


def _uniform(generator: random.Random, longest: int) -> int:
    return generator.randint(1, longest)


def _zipf(generator: random.Random, shortest: int) -> int:
    return int(shortest / (1.0 - generator.random()))  # the chance to be longer than n falls as 1 / n


DISTRIBUTIONS: dict[str, Distribution] = {
    "caption_4k": Distribution(
        capacity=4096, draw=_caption, description="576 image tokens on 94 % + lognormal text (median 120, sigma 1)"
    ),
    "caption_8k": Distribution(capacity=8192, draw=_caption, description="the same in packs of 8,192"),
    "tiled_16k": Distribution(
        capacity=16384, draw=_tiled, description="1 to 12 tiles, and a thumbnail from 2 on, x 256 + that text"
    ),
    "text_2k": Distribution(
        capacity=2048,
        draw=partial(_lognormal, median=130, sigma=1.0),
        description="instruction text, lognormal (median 130, sigma 1)",
    ),
    "uniform_8k": Distribution(
        capacity=8192,
        draw=partial(_uniform, longest=8192),
        description="uniform from 1 to the capacity: few short samples",
        realistic=False,
    ),
    "chat_32k": Distribution(
        capacity=32768,
        draw=partial(_zipf, shortest=64),
        description="chats, Zipf from 64 tokens to the capacity: many short, a few very long",
        in_tokens=True,
    ),
}


def distribution(name: str) -> Distribution:
    """The entry `name` of `DISTRIBUTIONS`. Raises ConfigError with the nearest name if there is none."""
    if name not in DISTRIBUTIONS:
        raise ConfigError(f"unknown length distribution {name!r}; {nearest(name, DISTRIBUTIONS)}")
    return DISTRIBUTIONS[name]
