"""Packs of a planned epoch: the samples are read by number, encoded again, checked against the plan, and laid out."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from mmpack.batch import B
from mmpack.batch.memory import Allocate, on_heap
from mmpack.epoch.lengths import LengthIndex
from mmpack.epoch.plan import EpochPlan, PlanConfig, plan_epoch, too_large
from mmpack.errors import DataError, Reason, SampleError
from mmpack.indexed.contract import IndexedDataset
from mmpack.ledger import DropLedger
from mmpack.sample import EncodedSample, LostSample, PlannedSample
from mmpack.stream.packs import Encoder, FillingCollator


@dataclass(frozen=True, kw_only=True)
class GlobalPlan(Generic[B]):
    """Everything that a `mmpack.epoch.GlobalPlanLoader` needs.

    Args:
        datasets: what the index is of; opened, and inherited by worker processes.
        per_epoch: samples that an epoch draws of each.
        index: their lengths.
        config: how epochs are packed and ordered.
        encoder, collator: as the index was built with, and as for a stream.
        settings: all that shapes the packs, as plain values; compared at resume.
        versions: of what reads the data.
        max_batch_bytes: most bytes that the tensors of a pack usually take.
    """

    datasets: Sequence[IndexedDataset]
    per_epoch: Sequence[int]
    index: LengthIndex
    config: PlanConfig
    encoder: Encoder
    collator: FillingCollator[B]
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    max_batch_bytes: int

    def plan(self, epoch: int) -> EpochPlan:
        """The plan of an epoch: a second or two for a million samples."""
        return plan_epoch(self.index, self.per_epoch, self.config, epoch, sequence_multiple=self._multiple)

    @property
    def _multiple(self) -> int:
        return self.collator.room(1)  # the smallest sample's room is what rooms are multiples of

    def left_out(self) -> DropLedger:
        """What no epoch has: samples that the length index leaves out, and those that no pack can hold."""
        ledger = DropLedger.from_dict(self.index.drops.to_dict())
        for number in too_large(self.index, self.config, self._multiple):
            dataset, place = self._find(number)
            detail = f"capacity {self.config.capacity}, limits {self.config.limits}"
            ledger.count(dataset.name, Reason.OVERSIZE, dataset.key(place), detail=detail)
        return ledger

    def _find(self, number: int) -> tuple[IndexedDataset, int]:
        which = bisect_right(self.index.starts, number) - 1
        return self.datasets[which], number - self.index.starts[which]

    def read(self, number: int) -> PlannedSample:
        """Sample `number`, encoded; what cannot be read any more keeps its place.

        Raises:
            DataError: it has another length than the index says.
        """
        dataset, place = self._find(number)
        planned = abs(int(self.index.num_tokens[number]))
        try:
            sample = dataset.sample(place)
            encoded = sample if isinstance(sample, EncodedSample) else self.encoder.encode(sample)
        except SampleError as error:
            key = error.key or dataset.key(place)
            return LostSample(key=key, source=dataset.name, num_tokens=planned, error=error)
        if encoded.num_tokens != planned:
            raise DataError(
                f"sample {encoded.key!r} ({dataset.key(place)} of {dataset.name!r}) takes {encoded.num_tokens} tokens, "
                f"in the length index it took {planned}: data, tokenizer, template or tiling changed behind it. Build "
                f"the index again (rebuild=True, or delete {self.index.folder}) and start the epoch anew"
            )
        return encoded


@dataclass(frozen=True, kw_only=True, eq=False)
class Lanes(Generic[B]):
    """A `mmpack.loader.StreamFactory`: stream l of L gives every L-th pack of a planned epoch, from pack `first` on.

    Packs up to `end`, which is a multiple of the ranks behind `first`, are there: those that the plan does not have are
    fillers.
    """

    whole: GlobalPlan[B]
    num_streams: int
    plan: EpochPlan | None = None
    first: int = 0
    end: int = 0
    endless: bool = False

    @property
    def settings(self) -> Mapping[str, Any]:
        return self.whole.settings

    @property
    def versions(self) -> Mapping[str, str]:
        return self.whole.versions

    @property
    def max_batch_bytes(self) -> int:
        return self.whole.max_batch_bytes

    def filler(self, pack_index: int) -> B:
        """A batch of weight zero."""
        return self.whole.collator.filler(pack_index=pack_index)

    def __call__(self, stream: int) -> Lane[B]:
        return Lane(self, stream)


class Lane(Generic[B]):
    """Every L-th pack of an epoch."""

    def __init__(self, lanes: Lanes[B], stream: int) -> None:
        self._lanes, self._stream = lanes, stream
        self._epoch = 0
        self._drops = DropLedger()

    def begin(self, epoch: int) -> None:
        """Notes the epoch; the plan is its plan already."""
        self._epoch = epoch

    def packs(self, allocate: Allocate = on_heap) -> Iterator[B]:
        """The packs, with their pixels in memory that `allocate` gives."""
        lanes = self._lanes
        assert lanes.plan is not None, "an epoch must be planned first"
        start = lanes.first + (self._stream - lanes.first) % lanes.num_streams
        for number in range(start, lanes.end, lanes.num_streams):
            there = number < lanes.plan.num_packs
            batch = self._pack(lanes.plan, number, allocate) if there else lanes.filler(number)
            yield dataclasses.replace(batch, stream_state=self.state())

    def _pack(self, plan: EpochPlan, number: int, allocate: Allocate) -> B:
        samples = [self._lanes.whole.read(member) for member in plan.pack(number)]
        batch, lost = self._lanes.whole.collator.collate(samples, pack_index=number, allocate=allocate)
        for sample in samples:
            if isinstance(sample, EncodedSample) and sample.changed is not None:
                self._drops.count(sample.source, sample.changed, sample.key)
        for gone in lost:
            reason = gone.error.reason
            self._drops.count(gone.source, reason, gone.key, detail=gone.error.detail)
        return batch

    def state(self) -> dict[str, Any]:
        """What was counted; where it stands follows from the number of packs handed out."""
        return {"stream": self._stream, "epoch": self._epoch, "drops": self._drops.to_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """Counts on from `state`."""
        self._drops = DropLedger.from_dict(state["drops"])
