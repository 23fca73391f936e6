"""Mock samples: real tokens and real little pictures that (seed, split, index) decide alone."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmpack.errors import ConfigError, whole_number
from mmpack.indexed.lengths import Lengths
from mmpack.indexed.mock_tiles import CELL_PX, CellTiles, cells_png
from mmpack.indexed.permutation import mix64
from mmpack.sample import IMAGE_TOKEN_INDEX, EncodedSample, Picture, PlannedPicture, TileGrid

Count = int | tuple[int, int]  # a number, or the least and the most


def count_range(name: str, count: Count, least: int) -> tuple[int, int]:
    """The least and the most of `count`. Raises ConfigError, naming the setting.

    >>> count_range("num_tiles_per_image", (1, 12), 1), count_range("num_tiles_per_image", 3, 1)
    ((1, 12), (3, 3))
    """
    pair = (count, count) if isinstance(count, int) and not isinstance(count, bool) else count
    if (
        not isinstance(pair, Sequence)
        or len(pair) != 2
        or not all(whole_number(number) is not None for number in pair)
        or not least <= pair[0] <= pair[1]
    ):
        raise ConfigError(f"{name}={count!r}; a number of at least {least}, or two: the least and the most")
    return int(pair[0]), int(pair[1])


def shortest_sample(tokens_per_tile: int, tiles: Count, images: Count) -> int:
    """Positions of a sample with the fewest pictures and tiles, and the least text that teaches something.

    >>> shortest_sample(576, 1, 1), shortest_sample(576, 1, 0)
    (577, 2)
    """
    num_tiles = count_range("num_tiles_per_image", tiles, 1)[0] * count_range("num_images_per_sample", images, 0)[0]
    return num_tiles * tokens_per_tile + 1 if num_tiles else 2


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MockSamples:
    """`num_samples` samples: pictures, then a question, then an answer, which is what is learned.

    Args:
        split: changes all samples, as `seed` does.
        lengths: of a whole sample. One that is too short for the pictures asked for has as many as fit.
        tiling: what the pictures are for.
        num_tiles_per_image, num_images_per_sample: numbers, or (least, most) to draw from.
        token_ids: the ids that texts are drawn from.
    """

    split: str
    num_samples: int
    lengths: Lengths
    tiling: CellTiles
    token_ids: NDArray[np.int64]
    num_tiles_per_image: Count = 1
    num_images_per_sample: Count = 1
    seed: int = 42

    def __post_init__(self) -> None:
        if self.num_samples < 0:
            raise ConfigError(f"num_{self.split}_samples={self.num_samples}; it must not be negative")
        count_range("num_tiles_per_image", self.num_tiles_per_image, 1)
        count_range("num_images_per_sample", self.num_images_per_sample, 0)

    @property
    def name(self) -> str:
        return f"mock-{self.split}"

    def __len__(self) -> int:
        return self.num_samples

    def key(self, index: int) -> str:
        return f"{self.split}-{index:08d}"

    def sample(self, index: int) -> EncodedSample:
        """Sample number `index`."""
        rng = np.random.Generator(np.random.Philox(key=[mix64(self.seed, zlib.crc32(self.split.encode())), index]))
        num_tokens = self.lengths.draw(index, rng.random(), rng.standard_normal())
        tiles_of = self._tiles(rng, num_tokens)
        pictures = tuple(self._picture(rng, index, number, tiles) for number, tiles in enumerate(tiles_of))
        num_text = num_tokens - sum(picture.num_tokens for picture in pictures)
        num_asked = num_text // 4 if pictures else max(1, num_text // 4)
        text = self.token_ids[rng.integers(len(self.token_ids), size=num_text)]
        marks = np.full(len(pictures), IMAGE_TOKEN_INDEX, dtype=np.int64)
        token_ids = np.concatenate([marks, text])
        return EncodedSample(
            key=self.key(index),
            source=self.name,
            token_ids_n=token_ids,
            trained_n=np.arange(len(token_ids)) >= len(pictures) + num_asked,
            pictures=pictures,
            num_tokens=num_tokens,
        )

    def _tiles(self, rng: np.random.Generator, num_tokens: int) -> list[int]:
        """Tiles of each picture: as asked for, as far as they fit before a last token of text."""
        fewest, most = count_range("num_tiles_per_image", self.num_tiles_per_image, 1)
        least, greatest = count_range("num_images_per_sample", self.num_images_per_sample, 0)
        num_images = int(rng.integers(least, greatest + 1))
        room = (num_tokens - 1) // self.tiling.spec.embeddings_per_tile
        tiles: list[int] = []
        for number in range(num_images):
            to_come = max(0, least - number - 1) * fewest  # tiles that the pictures still owed will take
            allowed = max(room - to_come, min(fewest, room))
            if allowed < fewest:
                break
            tiles.append(int(rng.integers(fewest, min(most, allowed) + 1)))
            room -= tiles[-1]
        return tiles

    def _picture(self, rng: np.random.Generator, index: int, number: int, num_tiles: int) -> PlannedPicture:
        data = cells_png(rng.bytes(3 * CELL_PX * CELL_PX * num_tiles), num_tiles)
        grid = TileGrid(columns=num_tiles, rows=1)
        return PlannedPicture(
            picture=Picture(name=f"{self.key(index)}.{number}.png", data=data),
            width_px=CELL_PX * num_tiles,
            height_px=CELL_PX,
            grid=grid,
            num_tokens=self.tiling.num_tokens(grid, CELL_PX * num_tiles, CELL_PX),
        )

    def describe(self) -> str:
        ids = zlib.crc32(self.token_ids.tobytes())
        counts = f"tiles {self.num_tiles_per_image} images {self.num_images_per_sample}"
        return f"mock {self.split} {self.num_samples} seed {self.seed} {self.lengths} {counts} ids {ids}"
