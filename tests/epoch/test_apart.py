"""No sample twice in a pack of a blend, and nothing else changes: capacity, limits, every item once."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from mmpack.epoch.apart import apart
from mmpack.epoch.plan import PlanConfig, plan_epoch
from mmpack.packing import pack_lengths
from tests.epoch.test_plan import index_of, packs_of

ROOMS, TILES = st.integers(1, 20), st.integers(0, 3)


@example([(1, 0, 2), (10, 0, 3)], None)
@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(ROOMS, TILES, st.integers(1, 4)), min_size=1, max_size=40), st.sampled_from([None, 3]))
def test_items_are_kept_and_samples_apart(kinds: list[tuple[int, int, int]], max_samples: int | None) -> None:
    samples = [number for number, (_, _, count) in enumerate(kinds) for _ in range(count)]
    rooms, tiles = [kinds[s][0] for s in samples], [kinds[s][1] for s in samples]
    packs = pack_lengths(rooms, 20, limits={"tiles": (tiles, 5)}, max_samples=max_samples)
    changed = apart(packs, samples, [(rooms, 20), (tiles, 5)], max_samples)
    assert sorted(item for pack in changed for item in pack) == list(range(len(samples)))
    assert all(changed)
    for pack in changed:
        assert sum(rooms[item] for item in pack) <= 20
        assert sum(tiles[item] for item in pack) <= 5
        assert max_samples is None or len(pack) <= max_samples
    for pack in changed:
        for item in pack:
            if sum(samples[other] == samples[item] for other in pack) > 1:
                assert all(any(samples[other] == samples[item] for other in each) for each in changed)


def test_a_blend_that_repeats_samples_stays_full() -> None:
    lengths = [20 + i * 37 % 200 for i in range(300)]
    for epoch in range(3):
        plan = plan_epoch(index_of(lengths, lengths), [900, 250], PlanConfig(capacity=1024), epoch)
        packs = packs_of(plan)
        assert all(len(set(pack)) == len(pack) for pack in packs)
        total = sum((lengths + lengths)[i] for pack in packs for i in pack)
        assert len(packs) <= total / 1024 + 2
