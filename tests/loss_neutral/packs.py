"""Small samples and packs built by hand, with plain loops: the tests' own idea of what a pack must be.

Nothing here uses mmpack's layout or collator, so that a fault there cannot hide in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from mmpack.batch import IGNORE_INDEX, IMAGE_TOKEN_INDEX, PackedBatch, PixelNorm
from mmpack.model import LlavaSpec, PackedModel

TILE_PX, PATCH_PX = 28, 14
PER_TILE = 4  # (28 / 14) ** 2
VOCAB = 97
PAD = 0

Part = tuple[str, int]  # ("ask", n tokens), ("answer", n tokens) or ("picture", n tiles)


@dataclass(frozen=True)
class Sample:
    key: str
    tokens: list[int]  # placeholders expanded
    trained: list[bool]
    tiles_per_image: list[int]
    pixels: torch.Tensor  # (tiles, 3, H, W) uint8


def sample(key: str, *parts: Part, seed: int = 0) -> Sample:
    """A sample of the given parts with random tokens and pixels."""
    generator = torch.Generator().manual_seed(seed * 1000 + sum(map(ord, key)))
    tokens: list[int] = []
    trained: list[bool] = []
    tiles: list[int] = []
    for kind, count in parts:
        if kind == "picture":
            tiles.append(count)
            tokens += [IMAGE_TOKEN_INDEX] * (count * PER_TILE)
            trained += [False] * (count * PER_TILE)
        else:
            tokens += torch.randint(1, VOCAB, (count,), generator=generator).tolist()
            trained += [kind == "answer"] * count
    pixels = torch.randint(0, 256, (sum(tiles), 3, TILE_PX, TILE_PX), generator=generator, dtype=torch.uint8)
    return Sample(key, tokens, trained, tiles, pixels)


def mixed_samples() -> list[Sample]:
    """0, 1 and 3 pictures, several tiles per picture, seams of every kind."""
    return [
        sample("one-picture", ("ask", 3), ("picture", 1), ("ask", 4), ("answer", 6)),
        sample("text", ("ask", 2), ("answer", 5)),  # ends without pad ...
        sample("starts-with-picture", ("picture", 3), ("answer", 4)),  # ... before one that begins with a picture
        sample(
            "three-pictures", ("ask", 1), ("picture", 2), ("picture", 1), ("answer", 3), ("picture", 2), ("answer", 2)
        ),
        sample("two-turns", ("ask", 3), ("answer", 2), ("ask", 3), ("answer", 9)),
        sample("all-trained", ("answer", 3)),  # its first token has nothing before it: not a target
    ]


def pack(
    samples: Sequence[Sample],
    *,
    multiple: int = 1,
    total: int | None = None,
    weight: str = "token",
    offsets: int | None = None,
) -> PackedBatch:
    """`samples` in one row, each padded to `multiple`, the row to `total` by a tail segment of its own.

    With `offsets` there are that many: the end is repeated, and the longest segment is given as the row's length.
    """
    tokens: list[int] = []
    labels: list[int] = []
    weights: list[float] = []
    positions: list[int] = []
    padding: list[bool] = []
    cu, cu_padded = [0], [0]
    for one in samples:
        length = len(one.tokens)
        room = -(-length // multiple) * multiple
        own = [one.tokens[i + 1] if one.trained[i + 1] else IGNORE_INDEX for i in range(length - 1)]
        own += [IGNORE_INDEX] * (room - length + 1)
        count = sum(label != IGNORE_INDEX for label in own)
        value = {"token": 1.0, "sample": 1.0 / max(count, 1), "sqrt": max(count, 1) ** -0.5}[weight]
        tokens += one.tokens + [PAD] * (room - length)
        labels += own
        weights += [value if label != IGNORE_INDEX else 0.0 for label in own]
        positions += list(range(room))
        padding += [False] * length + [True] * (room - length)
        cu.append(cu[-1] + length)
        cu_padded.append(cu_padded[-1] + room)
    if total is not None and total > len(tokens):
        tail = total - len(tokens)
        tokens += [PAD] * tail
        labels += [IGNORE_INDEX] * tail
        weights += [0.0] * tail
        positions += list(range(tail))
        padding += [True] * tail
        cu.append(cu[-1])
        cu_padded.append(total)
    longest = max(b - a for a, b in pairwise(cu_padded))
    if offsets is not None:
        longest = len(tokens)
        cu += cu[-1:] * (offsets - len(cu))
        cu_padded += cu_padded[-1:] * (offsets - len(cu_padded))
    return PackedBatch(
        tokens=torch.tensor([tokens]),
        labels=torch.tensor([labels]),
        loss_weight=torch.tensor([weights]),
        position_ids=torch.tensor([positions]),
        cu_seqlens=torch.tensor(cu, dtype=torch.int32),
        cu_seqlens_padded=torch.tensor(cu_padded, dtype=torch.int32),
        max_seqlen=longest,
        padding_mask=torch.tensor([padding]),
        pixels=torch.cat([one.pixels for one in samples]),
        pixel_norm=PixelNorm(mean=(0.48, 0.46, 0.41), std=(0.27, 0.26, 0.28)),
        tiles_per_image=torch.tensor([n for one in samples for n in one.tiles_per_image], dtype=torch.int32),
        tokens_per_image=torch.tensor(
            [n * PER_TILE for one in samples for n in one.tiles_per_image], dtype=torch.int32
        ),
        image_sizes=torch.tensor(
            [[TILE_PX, n * TILE_PX] for one in samples for n in one.tiles_per_image], dtype=torch.int32
        ).reshape(-1, 2),
        image_grids=torch.tensor([[1, n] for one in samples for n in one.tiles_per_image], dtype=torch.int32).reshape(
            -1, 2
        ),
        images_per_sample=torch.tensor([len(one.tiles_per_image) for one in samples], dtype=torch.int32),
        sample_keys=tuple(one.key for one in samples),
        sources=("test",) * len(samples),
        num_loss_tokens=sum(label != IGNORE_INDEX for label in labels),
        num_samples=len(samples),
        pack_index=0,
    )


def spec(**changes: object) -> LlavaSpec:
    """A model small enough for a test, with grouped-query attention."""
    sizes: dict[str, object] = {
        "vocab_size": VOCAB,
        "image_size_px": TILE_PX,
        "patch_size_px": PATCH_PX,
        "text_heads": 4,
    }
    return LlavaSpec(**{**sizes, **changes})  # type: ignore[arg-type]


def model(*, attention: str = "auto", mask: str = "varlen", **changes: object) -> PackedModel:
    """The model with the same random weights every time, without dropout."""
    built = spec(**changes).build(seed=7, attention=attention, mask=mask)
    return built.eval()
