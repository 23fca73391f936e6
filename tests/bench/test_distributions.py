"""The known mixes of lengths."""

from __future__ import annotations

import pytest

from mmpack.bench.distributions import DISTRIBUTIONS, distribution
from mmpack.errors import ConfigError


@pytest.mark.parametrize("name", list(DISTRIBUTIONS))
def test_lengths_are_seeded_and_fit(name):
    mix = DISTRIBUTIONS[name]
    lengths = mix.lengths(3000, seed=1)
    assert len(lengths) == 3000
    assert min(lengths) >= 1
    assert max(lengths) <= mix.capacity
    assert lengths == mix.lengths(3000, seed=1)
    assert lengths != mix.lengths(3000, seed=2)


def test_mixes_are_what_they_say():
    captions = DISTRIBUTIONS["caption_4k"].lengths(5000)
    assert 0.90 < sum(length > 576 for length in captions) / 5000 < 0.96
    tiled = DISTRIBUTIONS["tiled_16k"].lengths(5000)
    assert 1900 < sum(tiled) / 5000 < 2300  # (6.5 tiles + 11/12 thumbnails) x 256 + about 198 of text
    uniform = DISTRIBUTIONS["uniform_8k"].lengths(5000)
    assert 3900 < sum(uniform) / 5000 < 4300


def test_chats_fall_off_as_one_over_their_length():
    chats = DISTRIBUTIONS["chat_32k"].lengths(20_000)
    assert min(chats) == 64
    for longer in (128, 512, 4096):
        assert sum(length > longer for length in chats) / 20_000 == pytest.approx(64 / longer, rel=0.2)


def test_unknown_distribution_names_the_nearest():
    with pytest.raises(ConfigError, match="unknown length distribution 'text_2'; did you mean 'text_2k'"):
        distribution("text_2")
