"""Real samples of every model family, made the way the data modules make them: encoded, planned, decoded, collated."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import Any

from mmpack.batch import PackedBatch, PaddedBatch
from mmpack.collate import Collator, PaddedCollator
from mmpack.encode import LengthLimit, SampleEncoder
from mmpack.layout import Layout
from mmpack.model import ModelSpec, PackedModel, make_model_spec
from mmpack.sample import Conversation, EncodedSample, Picture, PictureSlot, Role, Turn
from mmpack.templates import make_template
from mmpack.tiling import TilingPolicy
from tests.conftest import png, words

CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
TILE = {"mean": CLIP_MEAN, "std": CLIP_STD}

# sizes of the family's vision tower, and options of its tiling
SIZES: dict[str, dict[str, Any]] = {
    "llava": {"image_size_px": 28},
    "llava_next": {"image_size_px": 28},
    "internvl": {"image_size_px": 56},
    "qwen2_vl": {"patch_size_px": 7},
    "qwen2_5_vl": {"patch_size_px": 7, "window_size_px": 28},
}
TILINGS: dict[str, dict[str, Any]] = {
    "internvl": {"max_tiles": 4},
    "qwen2_vl": {"min_pixels": 14 * 14 * 2, "max_pixels": 14 * 14 * 24},
    "qwen2_5_vl": {"min_pixels": 14 * 14 * 2, "max_pixels": 14 * 14 * 24},
}
FAMILIES = tuple(SIZES)

# (width, height) of each sample's pictures: none, one, three; wide, high, square, smaller than a tile
PICTURES = ([(90, 31)], [], [(40, 100), (28, 28), (75, 61)], [], [(19, 23)], [(64, 64), (120, 40)])


def spec(family: str, vocab_size: int, **changes: Any) -> ModelSpec:
    """A model small enough for a test, with grouped-query attention."""
    sizes = {"vocab_size": vocab_size, "text_hidden_size": 64, "text_intermediate_size": 64} | SIZES[family]
    return make_model_spec(family, **(sizes | changes))


@cache
def model(family: str, vocab_size: int, attention: str = "auto", mask: str = "varlen") -> PackedModel:
    """The model with the same random weights every time; not to be changed."""
    return spec(family, vocab_size).build(seed=7, attention=attention, mask=mask).eval()


def tiling(family: str) -> TilingPolicy:
    """The family's own policy, with the numbers of its vision tower."""
    return spec(family, 10).tiling(tile=TILE, **TILINGS.get(family, {}))


def conversations(pictures: Sequence[Sequence[tuple[int, int]]] = PICTURES, seed: int = 0) -> list[Conversation]:
    """A conversation for each entry: the first picture opens it, the others stand between words, answers vary."""
    rng = random.Random(seed)
    made = []
    for i, sizes in enumerate(pictures):
        parts: list[Any] = []
        for j in range(len(sizes)):
            parts += [PictureSlot(j), f"\n{words(rng, 1 + j)} "]
        turns = [
            Turn(role=Role.USER, parts=(*parts, words(rng, 1 + i % 3) + "?")),
            Turn(role=Role.ASSISTANT, parts=(words(rng, 1 + 2 * i) + ".",)),
        ]
        if i % 2:
            turns += [
                Turn(role=Role.USER, parts=(words(rng, 2),)),
                Turn(role=Role.ASSISTANT, parts=(words(rng, 3),)),
            ]
        data = [Picture(name=f"{i}_{j}.png", data=png(rng, *size)) for j, size in enumerate(sizes)]
        made.append(Conversation(key=f"s{i}", turns=tuple(turns), pictures=tuple(data), source="test"))
    return made


def encode(
    family: str, tokenizer: Any, pictures: Sequence[Sequence[tuple[int, int]]] = PICTURES, seed: int = 0
) -> list[EncodedSample]:
    """The samples as they are planned: no pixel is decoded yet."""
    encoder = SampleEncoder(
        tokenizer=tokenizer,
        template=make_template("v1", system=""),
        tiling=tiling(family),
        limit=LengthLimit(seq_length=4096),
    )
    return [encoder.encode(one) for one in conversations(pictures, seed)]


def pack(family: str, samples: Sequence[EncodedSample], **layout: Any) -> PackedBatch:
    """The samples as one row, checked."""
    collator = Collator(tiling=tiling(family), layout=Layout(**layout))
    batch, lost = collator.collate(samples, pack_index=0)
    assert not lost
    return batch.check()


def pad(family: str, samples: Sequence[Any], **options: Any) -> PaddedBatch:
    """The samples as rows, checked."""
    batch, _ = PaddedCollator(tiling=tiling(family), **options).collate(samples, pack_index=0)
    return batch.check()
