"""Which samples each rank works on in each step of an epoch, from lengths and numbers alone.

Every plan gives all ranks the same number of steps, and of micro batches in each; what does not divide is filled up
with micro batches without samples, of weight zero. All of an epoch's samples are in it once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from mmpack.dynamic import MicroBatch, bucket_batches, deal_packs, dynamic_batches, packed_microbatches
from mmpack.errors import ConfigError, nearest
from mmpack.indexed import Permutation
from mmpack.indexed.permutation import mix64

BATCHINGS = ("padding", "dynamic", "buckets", "packing", "global_packing")
Step = tuple[MicroBatch, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepPlanner:
    """How the samples of an epoch become steps.

    * ``padding``: `micro_batch_size` samples as they come;
    * ``dynamic``: each global batch sorted by length and cut by `tokens_per_microbatch`;
    * ``buckets``: micro batches from `bucket_size` samples next in length, in a random order;
    * ``packing``: whole packs that were made before, `lengths` are theirs;
    * ``global_packing``: each global batch packed by itself.

    Args:
        batching: one of these.
        micro_batch_size: samples (or packs) of a micro batch, where their number is fixed.
        global_batch_size: samples (or packs) of an optimizer step over all ranks.
        world_size: data-parallel ranks.
        seq_length: longest sample.
        capacity: tokens of a pack, for ``global_packing``.
        tokens_per_microbatch, sequence_length_round: budget and rounding of ``dynamic``.
        bucket_size: of ``buckets``.
        pad_multiple: of the room of a sequence in a pack.
        seed: of the order.
        shuffle: another order in every epoch; False keeps that of the file.
        drop_last: leave out a last step that is not whole.

    Raises:
        ConfigError: an unknown `batching`.
    """

    batching: str
    micro_batch_size: int
    global_batch_size: int
    world_size: int = 1
    seq_length: int = 2048
    capacity: int = 2048
    tokens_per_microbatch: int = 2048
    sequence_length_round: int = 1
    bucket_size: int = 64
    pad_multiple: int = 1
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = False

    def __post_init__(self) -> None:
        if self.batching not in BATCHINGS:
            raise ConfigError(f"batching={self.batching!r} is unknown; {nearest(self.batching, BATCHINGS)}")

    def plan(self, lengths: Sequence[int], epoch: int) -> list[list[Step]]:
        """For each rank its steps, each a tuple of micro batches; their indices are places in `lengths`.

        >>> planner = StepPlanner(batching="padding", micro_batch_size=2, global_batch_size=4, shuffle=False)
        >>> [[batch.indices for batch in step] for step in planner.plan([3, 1, 2, 5, 4], epoch=0)[0]]
        [[(0, 1), (2, 3)], [(4,), ()]]
        """
        order = list(range(len(lengths)))
        if self.shuffle and order:
            shuffled = Permutation(len(order), self.seed, epoch)
            order = [shuffled(i) for i in order]
        in_order = [int(lengths[i]) for i in order]
        if self.batching in ("dynamic", "global_packing"):
            return self._by_global_batch(in_order, order)
        return self._dealt(self._micro_batches(in_order, epoch), order)

    def _micro_batches(self, in_order: Sequence[int], epoch: int) -> list[MicroBatch]:
        if self.batching == "buckets":
            return bucket_batches(
                in_order,
                bucket_size=self.bucket_size,
                batch_size=self.micro_batch_size,
                sequence_length_round=self.sequence_length_round,
                seed=mix64(self.seed, epoch),
            )
        size = 1 if self.batching == "packing" else self.micro_batch_size
        groups = [range(start, min(start + size, len(in_order))) for start in range(0, len(in_order), size)]
        return [MicroBatch(indices=tuple(g), padded_length=max(in_order[i] for i in g)) for g in groups]

    def _dealt(self, batches: Sequence[MicroBatch], order: Sequence[int]) -> list[list[Step]]:
        """A fixed number of micro batches for each rank and step."""
        size = 1 if self.batching == "packing" else self.micro_batch_size
        per_step = self.global_batch_size // (size * self.world_size)
        ranks = deal_packs(len(batches), num_ranks=self.world_size, packs_per_step=per_step, drop_last=self.drop_last)
        empty = MicroBatch(indices=(), padded_length=1)
        return [
            [tuple(_mapped(empty if p is None else batches[p], order) for p in step) for step in steps]
            for steps in ranks
        ]

    def _by_global_batch(self, in_order: Sequence[int], order: Sequence[int]) -> list[list[Step]]:
        """As many micro batches as each global batch needs."""
        if self.drop_last:
            in_order = in_order[: len(in_order) // self.global_batch_size * self.global_batch_size]
        common: dict[str, Any] = {"num_ranks": self.world_size, "global_batch_size": self.global_batch_size}
        if self.batching == "dynamic":
            ranks = dynamic_batches(
                in_order,
                tokens_per_microbatch=self.tokens_per_microbatch,
                sequence_length_round=self.sequence_length_round,
                max_length=self.seq_length,
                **common,
            )
        else:
            ranks = packed_microbatches(
                in_order, capacity=self.capacity, pad_multiple=self.pad_multiple, seed=self.seed, **common
            )
        num_steps = -(-len(in_order) // self.global_batch_size)
        planned: list[list[Step]] = []
        for batches in ranks:
            steps: list[list[MicroBatch]] = [[] for _ in range(num_steps)]
            for batch in batches:
                steps[batch.global_batch].append(_mapped(batch, order))
            planned.append([tuple(step) for step in steps])
        return planned


def _mapped(batch: MicroBatch, order: Sequence[int]) -> MicroBatch:
    return replace(batch, indices=tuple(order[i] for i in batch.indices))
