"""Loss weights: the numbers of known rules, and sums that do not depend on the packing."""

from __future__ import annotations

import numpy as np
import pytest

from mmpack.collate import Collator, PaddedCollator
from mmpack.layout import Layout
from mmpack.sample import EncodedSample
from mmpack.tiling import make_tiling
from tests.conftest import tile_spec

LOSSES = {2: [1.0, 1.0], 4: [2.0, 2.0, 2.0, 2.0], 1: [3.0]}  # number of targets -> losses of an answer


def answer(num_targets: int, num_asked: int = 3) -> EncodedSample:
    length = num_asked + num_targets
    return EncodedSample(
        key=str(num_targets),
        source="test",
        token_ids_n=np.arange(1, length + 1),
        trained_n=np.arange(length) >= num_asked,
        pictures=(),
        num_tokens=length,
    )


@pytest.mark.parametrize(("weight", "mean"), [("token", 13 / 7), ("sample", 2.0), ("sqrt", 1.906164)])
@pytest.mark.parametrize("packed", [True, False])
def test_weighted_means_of_three_answers(weight: str, mean: float, packed: bool) -> None:
    tiling = make_tiling("single", tile_spec())
    collator = (
        Collator(tiling=tiling, layout=Layout(sequence_multiple=4), loss_weight=weight)
        if packed
        else PaddedCollator(tiling=tiling, loss_weight=weight)
    )
    batch, _ = collator.collate([answer(n) for n in LOSSES], pack_index=0)
    weights = batch.check().loss_weight.flatten()
    losses = [loss for of_answer in LOSSES.values() for loss in of_answer]
    total = sum(w * loss for w, loss in zip(weights[weights > 0].tolist(), losses, strict=True))
    assert total / float(weights.sum()) == pytest.approx(mean, abs=1e-6)
    if weight == "sqrt":  # the share of each label in the mean
        shares = (weights[weights > 0] / weights.sum()).tolist()
        assert shares == pytest.approx([0.160189] * 2 + [0.113270] * 4 + [0.226541], abs=1e-6)


@pytest.mark.parametrize(
    ("weight", "expected"),
    [("token", [0, 1, 1, 1]), ("sample", [0, 1, 0.25, 0.01]), ("sqrt", [0, 1, 0.5, 0.1])],
)
def test_weight_of_a_label_by_the_number_of_labels(weight: str, expected: list[float]) -> None:
    collator = Collator(tiling=make_tiling("single", tile_spec()), layout=Layout(), loss_weight=weight)
    for num_targets, value in zip((0, 1, 4, 100), expected, strict=True):
        batch, _ = collator.collate([answer(num_targets)], pack_index=0)
        assert float(batch.check().loss_weight.max()) == pytest.approx(value)


@pytest.mark.parametrize("weight", ["token", "sample", "sqrt"])
def test_sums_do_not_depend_on_the_packing(weight: str) -> None:
    collator = Collator(tiling=make_tiling("single", tile_spec()), layout=Layout(), loss_weight=weight)
    samples = [answer(n) for n in (5, 1, 9, 2, 7)]
    one = [collator.collate(samples, pack_index=0)[0]]
    many = [collator.collate([sample], pack_index=0)[0] for sample in samples]
    for packs in (one, many):
        assert sum(batch.num_loss_tokens for batch in packs) == 24
        assert sum(batch.num_samples for batch in packs) == 5
    together = [sum(float(batch.loss_weight.sum()) for batch in packs) for packs in (one, many)]
    assert together[0] == pytest.approx(together[1])
