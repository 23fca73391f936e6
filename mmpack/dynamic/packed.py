"""Packed micro batches for ranks: pack every global batch, make the packs a multiple of the ranks, deal them."""

from __future__ import annotations

from collections.abc import Sequence

from mmpack.dynamic.batches import MicroBatch, MicrobatchOrder, check_at_least_1, check_order, global_batches
from mmpack.errors import check_whole
from mmpack.packing import check_capacity, check_length, check_lengths, pack_lengths
from mmpack.packing.pack_count import with_pack_count


def packed_microbatches(
    lengths: Sequence[int],
    *,
    capacity: int,
    num_ranks: int = 1,
    algorithm: str = "modified_first_fit_decreasing",
    pad_multiple: int = 1,
    global_batch_size: int | None = None,
    microbatch_order: MicrobatchOrder = "packer",
    seed: int = 0,
) -> list[list[MicroBatch]]:
    """Packs for every rank, the same number on each: each global batch is packed by itself and dealt in turn.

    What NeMo-RL's sequence packing gives, number for number. A global batch of fewer samples than packs are needed,
    which it refuses, gets filler packs.

    Args:
        lengths: tokens of each sample.
        capacity: tokens of a micro batch (`train_mb_tokens`).
        num_ranks: data-parallel ranks.
        algorithm: a name in `mmpack.packing.ALGORITHMS`.
        pad_multiple: every sample's length is rounded up to it (`sequence_length_pad_multiple`).
        global_batch_size: samples of one optimizer step, over all ranks; None: all of them are one step.
        microbatch_order: ``"packer"``: as the algorithm gave them; ``"largest_first"``: each rank its fullest first.
        seed: for an algorithm that shuffles.

    Returns:
        For each rank its micro batches; `padded_length` is the tokens of the pack, every sample rounded up.

    Raises:
        ConfigError: a setting below 1, an unknown algorithm, or a sample that is above `capacity` once rounded up.

    >>> rank0, rank1 = packed_microbatches([2, 4, 7, 6, 3, 4, 1, 5], capacity=16, num_ranks=2)
    >>> rank0[0].indices, rank1[0].indices
    ((2, 3, 4), (7, 1, 5, 0, 6))
    """
    check_at_least_1(num_ranks=num_ranks, pad_multiple=pad_multiple)
    check_order(microbatch_order)
    capacity, lengths = check_capacity(capacity), check_lengths(lengths)
    rooms = [-(-length // pad_multiple) * pad_multiple for length in lengths]
    for i, room in enumerate(rooms):
        check_length(room, capacity, place=f"lengths[{i}], rounded up to a multiple of {pad_multiple},")
    ranks: list[list[MicroBatch]] = [[] for _ in range(num_ranks)]
    for number, members in enumerate(global_batches(len(lengths), global_batch_size)):
        packs = pack_lengths([rooms[i] for i in members], capacity, algorithm=algorithm, seed=seed)
        num_packs = min(len(members), -(-len(packs) // num_ranks) * num_ranks)
        packs = with_pack_count(packs, at_least=num_packs)
        batches = [_micro_batch([members[k] for k in pack], rooms, number) for pack in packs]
        batches += [_micro_batch([], rooms, number)] * (-len(batches) % num_ranks)
        for rank, mine in enumerate(ranks):
            dealt = batches[rank::num_ranks]
            if microbatch_order == "largest_first":
                dealt.sort(key=lambda batch: batch.padded_length, reverse=True)
            mine += dealt
    return ranks


def _micro_batch(indices: Sequence[int], rooms: Sequence[int], number: int) -> MicroBatch:
    return MicroBatch(
        indices=tuple(indices),
        padded_length=sum(rooms[i] for i in indices),
        num_fillers=int(not indices),
        global_batch=number,
    )


def deal_packs(
    num_packs: int, *, num_ranks: int = 1, packs_per_step: int = 1, drop_last: bool = False
) -> list[list[list[int | None]]]:
    """Shares packs out: for each rank its steps, for each step its packs. The same number of steps on every rank.

    Pack p goes to rank p mod `num_ranks`. The last step is filled up with fillers (None, weight 0) or, with
    `drop_last`, left out if it is not whole. A step always holds at least one pack.

    Raises:
        ConfigError: a setting below 1.

    >>> deal_packs(5, num_ranks=2, packs_per_step=2)
    [[[0, 2], [4, None]], [[1, 3], [None, None]]]
    >>> deal_packs(5, num_ranks=2, packs_per_step=2, drop_last=True)
    [[[0, 2]], [[1, 3]]]
    """
    check_whole("num_packs", num_packs, 0)
    check_at_least_1(num_ranks=num_ranks, packs_per_step=packs_per_step)
    step_packs = num_ranks * packs_per_step
    num_steps = num_packs // step_packs if drop_last else -(-num_packs // step_packs)
    places: list[int | None] = [p if p < num_packs else None for p in range(num_steps * step_packs)]
    return [
        [places[start + rank : start + step_packs : num_ranks] for start in range(0, len(places), step_packs)]
        for rank in range(num_ranks)
    ]
