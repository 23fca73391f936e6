"""Oversize policies: what becomes of a sample that is too long, by dataset."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mmpack.encode import OVERSIZE_POLICIES, LengthLimit, SampleEncoder
from mmpack.encode.limit import truncated
from mmpack.errors import ConfigError, Reason, SampleError
from mmpack.sample import (
    IMAGE_TOKEN_INDEX,
    Conversation,
    EncodedSample,
    Picture,
    PictureSlot,
    PlannedPicture,
    Role,
    TileGrid,
    Turn,
)
from mmpack.templates import TEMPLATES
from mmpack.tiling import TileSpec, TilingPolicy, make_tiling

SPEC = TileSpec(tile_size_px=28, embeddings_per_tile=16)
ANSWER = "the answer is a long one, of many words, all of which would be learned " * 3


def png(width_px: int, height_px: int) -> Picture:
    out = io.BytesIO()
    Image.new("RGB", (width_px, height_px)).save(out, "PNG")
    return Picture(name="p.png", data=out.getvalue())


def conversation(*sizes: tuple[int, int], answer: str = ANSWER, source: str = "test") -> Conversation:
    slots = tuple(PictureSlot(i) for i in range(len(sizes)))
    turns = (
        Turn(role=Role.USER, parts=(*slots, "what?")),
        Turn(role=Role.ASSISTANT, parts=(answer,)),
    )
    return Conversation(key="k", turns=turns, pictures=tuple(png(*size) for size in sizes), source=source)


def encoder(tokenizer: Any, seq_length: int, oversize: Any, tiling: TilingPolicy | None = None) -> SampleEncoder:
    return SampleEncoder(
        tokenizer=tokenizer,
        template=TEMPLATES.get("v1")(system=""),
        tiling=tiling or make_tiling("dynamic", SPEC, max_tiles=6),
        limit=LengthLimit(seq_length=seq_length, oversize=oversize),
    )


def whole(tokenizer: Any, sample: Conversation, tiling: TilingPolicy | None = None) -> EncodedSample:
    return encoder(tokenizer, 10**6, "raise", tiling).encode(sample)


def test_truncate_keeps_the_beginning_and_says_so(tokenizer: Any) -> None:
    sample = conversation((100, 50), answer=ANSWER)
    full = whole(tokenizer, sample)
    cut = encoder(tokenizer, full.num_tokens - 5, "truncate").encode(sample)
    assert cut.changed is Reason.TRUNCATED
    assert cut.num_tokens == full.num_tokens - 5
    assert cut.token_ids_n.tolist() == full.token_ids_n[:-5].tolist()
    assert cut.pictures == full.pictures


def test_truncate_leaves_no_sample_that_teaches_nothing(tokenizer: Any) -> None:
    sample = conversation((100, 50))
    prompt = int(np.argmax(whole(tokenizer, sample).trained_n))
    pictures = sum(p.num_tokens for p in whole(tokenizer, sample).pictures)
    with pytest.raises(SampleError, match="teaches nothing") as error:
        encoder(tokenizer, prompt - 1 + pictures, "truncate").encode(sample)
    assert error.value.reason is Reason.OVERSIZE


@pytest.mark.parametrize(
    ("text", "tiles", "kept"),
    [(300, 5, None), (100, 5, None), (400, 3, 1024), (256, 3, 1024), (100, 3, 868)],
)
def test_packs_of_1024_with_256_a_tile(text: int, tiles: int, kept: int | None) -> None:
    """Megatron's example cuts the first to 1,324 tokens and dies of the second; nothing is left of them to learn."""
    picture = PlannedPicture(
        picture=Picture(name="p", data=b""),
        width_px=1, height_px=1, grid=TileGrid(columns=tiles, rows=1), num_tokens=256 * tiles,
    )  # fmt: skip
    ids = np.array([IMAGE_TOKEN_INDEX, *[7] * text])
    sample = EncodedSample(
        key="k", source="s", token_ids_n=ids, trained_n=ids == 7, pictures=(picture,), num_tokens=text + 256 * tiles
    )
    limit = LengthLimit(seq_length=1024, oversize="truncate")
    if kept is None:
        with pytest.raises(SampleError) as error:
            limit.apply(sample, make_tiling("dynamic", SPEC, max_tiles=6))
        assert error.value.reason is Reason.OVERSIZE
    else:
        cut = limit.apply(sample, make_tiling("dynamic", SPEC, max_tiles=6))
        assert cut.num_tokens == kept
        assert (cut.changed is Reason.TRUNCATED) == (kept < sample.num_tokens)


@given(st.data())
def test_a_cut_never_falls_into_a_picture(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(["ask", "answer", "picture"]), min_size=2, max_size=12))
    costs = [data.draw(st.integers(1, 30)) if kind == "picture" else 1 for kind in kinds]
    picture = Picture(name="p", data=b"")
    sample = EncodedSample(
        key="k",
        source="s",
        token_ids_n=np.array([IMAGE_TOKEN_INDEX if kind == "picture" else 7 for kind in kinds]),
        trained_n=np.array([kind == "answer" for kind in kinds]),
        pictures=tuple(
            PlannedPicture(picture=picture, width_px=1, height_px=1, grid=TileGrid(columns=1, rows=1), num_tokens=cost)
            for kind, cost in zip(kinds, costs, strict=True)
            if kind == "picture"
        ),
        num_tokens=sum(costs),
    )
    limit = data.draw(st.integers(1, sum(costs)))
    cut = truncated(sample, limit)
    lengths = [sum(costs[:n]) for n in range(len(costs) + 1)]  # of every beginning that ends between tokens
    num_kept = max(n for n, length in enumerate(lengths) if length <= limit)
    if not any(kind == "answer" for kind in kinds[1:num_kept]):
        assert cut is None
        return
    assert cut is not None
    assert len(cut.token_ids_n) == len(cut.trained_n) == num_kept
    assert cut.num_tokens == lengths[num_kept]
    assert len(cut.pictures) == kinds[:num_kept].count("picture")


@pytest.mark.parametrize("name", ["dynamic", "anyres", "native"])
def test_fewer_tiles_keeps_every_word(tokenizer: Any, name: str) -> None:
    tiling = {
        "dynamic": lambda: make_tiling("dynamic", SPEC, max_tiles=6),
        "anyres": lambda: make_tiling("anyres", SPEC, image_grid_pinpoints=[(28, 56), (56, 28), (56, 56), (28, 84)]),
        "native": lambda: make_tiling("native", TileSpec(tile_size_px=14, embeddings_per_tile=1), min_pixels=784),
    }[name]()
    sample = conversation((300, 200), (90, 60))
    full = whole(tokenizer, sample, tiling)
    smaller = encoder(tokenizer, full.num_tokens - 8, "fewer_tiles", tiling).encode(sample)
    assert smaller.changed is Reason.FEWER_TILES
    assert smaller.num_tokens <= full.num_tokens - 8
    assert smaller.token_ids_n.tolist() == full.token_ids_n.tolist()
    assert smaller.pictures[0].num_tokens < full.pictures[0].num_tokens  # the larger one pays
    for planned in smaller.pictures:
        assert tiling.num_tokens(planned.grid, planned.width_px, planned.height_px) == planned.num_tokens


def test_fewer_tiles_that_are_not_enough_leave_the_sample_out(tokenizer: Any) -> None:
    with pytest.raises(SampleError, match="even with the fewest tiles"):
        encoder(tokenizer, 30, "fewer_tiles").encode(conversation((300, 200)))


def test_own_pack_changes_nothing_but_the_mark(tokenizer: Any) -> None:
    sample = encoder(tokenizer, 30, "own_pack").encode(conversation((300, 200)))
    assert sample.own_pack
    assert sample.changed is None
    assert sample.num_tokens > 30


def test_each_dataset_has_its_policy(tokenizer: Any) -> None:
    by_source = {"books": "truncate", "*": "drop"}
    long = encoder(tokenizer, 40, by_source)
    assert long.encode(conversation(source="books")).changed is Reason.TRUNCATED
    with pytest.raises(SampleError, match="oversize"):
        long.encode(conversation(source="chats"))
    with pytest.raises(ConfigError, match="raise seq_length"):
        encoder(tokenizer, 40, {"books": "truncate"}).encode(conversation(source="chats"))


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(ConfigError, match="did you mean 'truncate'"):
        LengthLimit(seq_length=4, oversize={"a": "truncat"})
    assert set(OVERSIZE_POLICIES) == {"raise", "drop", "truncate", "fewer_tiles", "own_pack"}
