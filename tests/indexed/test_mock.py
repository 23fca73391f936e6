"""Mock samples: functions of (seed, split, index), of exactly the lengths and tiles that were asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmpack.errors import ConfigError
from mmpack.images import decode_image, image_size
from mmpack.indexed import CellTiles, MockSamples, make_lengths, shortest_sample
from mmpack.indexed.mock_tiles import CELL_PX
from mmpack.sample import IMAGE_TOKEN_INDEX
from tests.conftest import tile_spec

TILING = CellTiles(tile_spec())  # 4 embeddings a tile
IDS = np.arange(10, 500, dtype=np.int64)


def samples(lengths: Any = None, *, seq_length: int = 100, **changes: Any) -> MockSamples:
    options: dict[str, Any] = {
        "split": "train", "num_samples": 1000, "tiling": TILING, "token_ids": IDS,
        "lengths": lengths or make_lengths("constant", shortest=2, longest=seq_length),
    }  # fmt: skip
    return MockSamples(**(options | changes))


def content(sample: Any) -> Any:
    return sample.token_ids_n.tolist(), sample.trained_n.tolist(), [p.picture.data for p in sample.pictures]


def test_a_sample_is_a_function_of_seed_split_and_index() -> None:
    first, again = samples(), samples()
    assert [content(first.sample(i)) for i in (5, 0, 5)] == [content(again.sample(i)) for i in (5, 0, 5)]
    variants = [samples(), samples(split="val"), samples(split="test"), samples(seed=43)]
    contents = [str(content(variant.sample(i))) for variant in variants for i in range(20)]
    assert len(set(contents)) == len(contents)


@settings(max_examples=60, deadline=None)
@given(
    tiles=st.tuples(st.integers(1, 4), st.integers(0, 4)).map(lambda t: (t[0], t[0] + t[1])),
    images=st.tuples(st.integers(0, 3), st.integers(0, 2)).map(lambda t: (t[0], t[0] + t[1])),
    more=st.integers(0, 60),
    kind=st.sampled_from(["constant", "lognormal", "zipf"]),
)
def test_lengths_and_tiles_are_what_was_asked_for(
    tiles: tuple[int, int], images: tuple[int, int], more: int, kind: str
) -> None:
    shortest = shortest_sample(4, tiles, images)
    lengths = make_lengths(kind, shortest=shortest, longest=shortest + more)
    mock = samples(lengths, num_tiles_per_image=tiles, num_images_per_sample=images)
    for index in range(20):
        sample = mock.sample(index)
        assert shortest <= sample.num_tokens <= shortest + more
        assert images[0] <= len(sample.pictures) <= images[1]
        assert all(tiles[0] <= p.num_tiles <= tiles[1] for p in sample.pictures)
        num_text = int((sample.token_ids_n != IMAGE_TOKEN_INDEX).sum())
        assert sample.num_tokens == num_text + sum(4 * p.num_tiles for p in sample.pictures)
        assert sample.num_trained >= 1
        assert not sample.trained_n[sample.token_ids_n == IMAGE_TOKEN_INDEX].any()
        text = sample.token_ids_n[sample.token_ids_n != IMAGE_TOKEN_INDEX]
        assert text.min() >= 10
        assert text.max() < 500


def test_pictures_go_through_the_real_header_decoder_and_tiling() -> None:
    for picture in samples(num_tiles_per_image=3).sample(0).pictures:
        width_px, height_px = image_size(picture.picture.data)
        grid = TILING.grid(width_px, height_px)
        assert (width_px, height_px, grid) == (picture.width_px, picture.height_px, picture.grid)
        rgb = decode_image(picture.picture.data)
        assert rgb.shape == (CELL_PX, 3 * CELL_PX, 3)
        tiles = TILING.cut(rgb, grid)
        assert tiles.shape == (3, 3, 28, 28)
        for number in range(3):  # each tile is its own cell, enlarged
            cell = rgb[:, number * CELL_PX : (number + 1) * CELL_PX].transpose(2, 0, 1)
            assert abs(tiles[number].mean(axis=(1, 2)) - cell.mean(axis=(1, 2))).max() < 12
        assert TILING.num_tokens(grid, width_px, height_px) == picture.num_tokens


def test_the_distributions_have_their_shapes() -> None:
    rng = np.random.default_rng(0)
    draws = [
        (i, float(u), float(n))
        for i, (u, n) in enumerate(zip(rng.random(20_000), rng.normal(size=20_000), strict=True))
    ]
    lognormal = make_lengths({"kind": "lognormal", "median": 200, "sigma": 0.5}, shortest=2, longest=5000)
    lengths = np.array([lognormal.draw(*draw) for draw in draws])
    assert abs(np.median(lengths) - 200) < 5
    assert abs(np.log(lengths).std() - 0.5) < 0.02
    zipf = make_lengths({"kind": "zipf", "exponent": 1.5}, shortest=10, longest=60)
    lengths = np.array([zipf.draw(*draw) for draw in draws])
    expected = np.arange(1, 52) ** -1.5
    expected /= expected.sum()
    shares = np.bincount(lengths - 10, minlength=51) / len(lengths)
    assert abs(shares - expected).max() < 0.02
    assert lengths.max() <= 60


def test_lengths_of_a_file_in_its_order(tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text("17\n3\n90\n\n4\n")
    for spec in (path, str(path), {"kind": "file", "path": path}):
        mock = samples(make_lengths(spec, shortest=5, longest=100), num_images_per_sample=2)
        got = [mock.sample(i) for i in range(8)]
        assert [sample.num_tokens for sample in got] == [17, 3, 90, 4] * 2
        # 4 embeddings a picture: 3 and 4 tokens have no room for one
        assert [len(sample.pictures) for sample in got[:4]] == [2, 0, 2, 0]
        assert all(sample.num_trained for sample in got)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("lognorml", "length_distribution='lognorml' is no file; did you mean 'lognormal'"),
        ({"kind": "zip"}, "kind='zip'; did you mean 'zipf'"),
        ({"kind": "zipf", "exponnt": 2}, "'zipf' has no option 'exponnt'; did you mean 'exponent'"),
        ({"kind": "zipf", "exponent": 0}, "exponent=0; a number above 0"),
        ({"kind": "constant", "length": 200}, "length=200 is not within 5 to 100"),
        ({"kind": "file"}, "needs a path"),
    ],
)
def test_a_distribution_that_cannot_work(spec: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_lengths(spec, shortest=5, longest=100)


@pytest.mark.parametrize("content", ["", "3\nx\n", "3\n200\n", "1\n"])
def test_a_file_of_lengths_that_cannot_work(tmp_path: Path, content: str) -> None:
    (tmp_path / "l").write_text(content)
    with pytest.raises(ConfigError, match=r"length_distribution: .*/l"):
        make_lengths(tmp_path / "l", shortest=5, longest=100)


def test_counts_that_cannot_work() -> None:
    for changes in ({"num_tiles_per_image": 0}, {"num_images_per_sample": (2, 1)}, {"num_tiles_per_image": (1, 2, 3)}):
        with pytest.raises(ConfigError, match=next(iter(changes))):
            samples(**changes)
