"""Laying out all samples of a pack at once gives what laying out each by itself, token by token, gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmpack.collate.rows import Laid, RowStyle, lay_out
from mmpack.layout import mrope_positions
from mmpack.sample import IGNORE_INDEX, IMAGE_TOKEN_INDEX, EncodedSample, Picture, PlannedPicture, TileGrid

PAD = 77
Part = tuple[EncodedSample | None, int]


def picture(columns: int, rows: int) -> PlannedPicture:
    return PlannedPicture(
        picture=Picture(name="a.jpg", data=b""),
        width_px=10,
        height_px=10,
        grid=TileGrid(columns=2 * columns, rows=2 * rows),
        num_tokens=columns * rows,
    )


def sample(ids: list[tuple[int, bool]], pictures: list[tuple[int, int]]) -> EncodedSample:
    """Text ids with whether each is trained; the pictures stand behind the first ids, one after each."""
    token_ids, trained = [], []
    for number, (token, learned) in enumerate(ids):
        token_ids.append(token)
        trained.append(learned)
        if number < len(pictures):
            token_ids.append(IMAGE_TOKEN_INDEX)
            trained.append(False)
    planned = tuple(picture(*size) for size in pictures[: len(ids)])
    return EncodedSample(
        key="k",
        source="s",
        token_ids_n=np.array(token_ids, dtype=np.int64),
        trained_n=np.array(trained, dtype=np.bool_),
        pictures=planned,
        num_tokens=len(ids) + sum(p.num_tokens for p in planned),
    )


IDS = st.lists(st.tuples(st.integers(0, 50), st.booleans()), min_size=1, max_size=8)
SIZES = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), max_size=3)


@st.composite
def parts_of(draw: Any) -> list[Part]:
    parts: list[Part] = []
    for _ in range(draw(st.integers(1, 5))):
        if draw(st.booleans()):
            made = sample(draw(IDS), draw(SIZES))
            parts.append((made, made.num_tokens + draw(st.integers(0, 3))))
        else:
            parts.append((None, draw(st.integers(1, 4))))
    return parts


def one_by_one(parts: list[Part], style: RowStyle) -> dict[str, list[Any]]:
    """The oracle."""
    found: dict[str, list[Any]] = {"tokens": [], "labels": [], "weight": [], "positions": []}
    for made, room in parts:
        tokens: list[int] = []
        trained: list[bool] = []
        if made is not None:
            pictures = iter(made.pictures)
            for token, learned in zip(made.token_ids_n.tolist(), made.trained_n.tolist(), strict=True):
                times = next(pictures).num_tokens if token == IMAGE_TOKEN_INDEX else 1
                tokens += [token] * times
                trained += [learned] * times
        num_targets = max(1, sum(trained[1:]))
        each = {"token": 1.0, "sample": 1 / num_targets, "sqrt": num_targets**-0.5}[style.loss_weight]
        for t in range(room):
            learned = t + 1 < len(tokens) and trained[t + 1]
            found["tokens"].append(tokens[t] if t < len(tokens) else style.pad_token_id)
            found["labels"].append(tokens[t + 1] if learned else IGNORE_INDEX)
            found["weight"].append(np.float32(each if learned else 0.0))
        positions = np.tile(np.arange(room), (1 if style.merge_size is None else 4, 1))
        if style.merge_size is not None and made is not None and made.pictures:
            grids = [(p.grid.rows // 2, p.grid.columns // 2) for p in made.pictures]
            positions[1:] = mrope_positions(made.token_ids_n == IMAGE_TOKEN_INDEX, grids, room)
        found["positions"].append(positions)
    return found


@settings(deadline=None)
@given(parts_of(), st.sampled_from(["token", "sample", "sqrt"]), st.sampled_from([None, 2]))
def test_all_at_once_is_one_by_one(parts: list[Part], loss_weight: str, merge_size: int | None) -> None:
    style = RowStyle(pad_token_id=PAD, loss_weight=loss_weight, merge_size=merge_size)
    laid: Laid = lay_out(parts, style)
    wanted = one_by_one(parts, style)
    assert laid.num_tokens_of == [0 if made is None else made.num_tokens for made, _ in parts]
    assert laid.tokens_t.tolist() == wanted["tokens"]
    assert laid.labels_t.tolist() == wanted["labels"]
    assert laid.weight_t.tolist() == wanted["weight"]
    assert np.array_equal(laid.positions_at, np.concatenate(wanted["positions"], axis=1))
    assert (laid.tokens_t.dtype, laid.labels_t.dtype, laid.weight_t.dtype) == (np.int64, np.int64, np.float32)


def test_a_length_that_was_planned_wrongly_is_named() -> None:
    right = sample([(1, True), (2, True)], [(2, 2)])
    wrong = EncodedSample(
        key="bad",
        source="s",
        token_ids_n=right.token_ids_n,
        trained_n=right.trained_n,
        pictures=right.pictures,
        num_tokens=right.num_tokens + 1,
    )
    style = RowStyle(pad_token_id=PAD, loss_weight="token")
    with pytest.raises(AssertionError, match="bad: 6 positions in a room of 7"):
        lay_out([(right, 6), (wrong, 7)], style)
