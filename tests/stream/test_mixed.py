"""Blends: shares that are exact at every moment, in samples and in tokens, and that can be resumed."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmpack.errors import ConfigError
from mmpack.sample import EncodedSample
from mmpack.stream.mixed import MixedSource, OpenMix
from tests.stream.test_packs import NoText, Ready


def ignore(error: Exception, name: str) -> None:
    raise AssertionError(f"{name}: {error}")


def mix(lengths: list[list[int]], weights: list[float], unit: str) -> MixedSource:
    opened = [Ready(one, stream=0, num_streams=1, on_fault=ignore) for one in lengths]
    return MixedSource(opened, weights, unit, NoText())


LENGTHS = st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=40), min_size=1, max_size=4)


@given(lengths=LENGTHS, unit=st.sampled_from(["samples", "tokens"]), data=st.data())
def test_shares_are_within_one_sample_while_all_sources_run(lengths: Any, unit: str, data: st.DataObject) -> None:
    weights = [data.draw(st.floats(0.1, 10)) for _ in lengths]
    spent, left = [0.0] * len(lengths), [len(one) for one in lengths]
    seen = []
    for drawn in mix(lengths, weights, unit):
        number, index = drawn.place
        seen.append((number, index))
        left[number] -= 1
        if isinstance(drawn.sample, EncodedSample):
            spent[number] += drawn.sample.num_tokens if unit == "tokens" else 1
        if all(left):
            largest = 30 if unit == "tokens" else 1
            for i in range(len(lengths)):
                for j in range(len(lengths)):
                    # a source is drawn from only while it is not ahead, so it is ahead by one sample at most
                    assert spent[i] / weights[i] <= spent[j] / weights[j] + largest / weights[i] + 1e-9
    assert sorted(seen) == [(i, j) for i, one in enumerate(lengths) for j in range(len(one))]  # each once, none lost


def test_resume_behind_every_draw() -> None:
    lengths, weights = [[5, 0, 9, 2, 8], [1, 1, 1, 1], [20, 3]], [1.0, 2.0, 0.5]
    whole = mix(lengths, weights, "tokens")
    places, states = [], []
    for drawn in whole:
        places.append(drawn.place)
        states.append(pickle.dumps(whole.state()))
    for cut, state in enumerate(states):
        resumed = mix(lengths, weights, "tokens")
        resumed.restore(pickle.loads(state))
        assert [drawn.place for drawn in resumed] == places[cut + 1 :]


@pytest.mark.parametrize(
    ("weights", "unit", "message"),
    [
        ([1.0], "tokens", "1 weights for 2 datasets"),
        ([1.0, 0.0], "tokens", "above 0"),
        ([1.0, 1.0], "token", "did you mean 'tokens'"),
    ],
)
def test_what_cannot_be_blended(weights: list[float], unit: str, message: str) -> None:
    def opened(**given: Any) -> Ready:
        return Ready([1], **given)

    with pytest.raises(ConfigError, match=message):
        OpenMix(sources=[opened, opened], weights=weights, unit=unit, encoder=NoText())
