"""A loader of samples with random access: batches by plan, whole steps at a time, and a state of two numbers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic

from mmpack import state as states
from mmpack.batch import B, Batch
from mmpack.datamodules.step_plan import Step, StepPlanner
from mmpack.dynamic import MicroBatch
from mmpack.errors import StateError
from mmpack.ledger import DropLedger
from mmpack.packing import PackingMeter, PackingMetrics

STATE_VERSION = 1


class StepLoader(Generic[B]):
    """Iterates over the batches of one rank; `steps` gives them grouped by optimizer step.

    ``iter()`` goes on where the last iteration stopped, to the end of the epoch; the next one after that is the next
    epoch. With ``restart=True`` (validation) every ``iter()`` gives everything from its beginning.

    Args:
        planner: what becomes of an epoch's samples; for the number of ranks there are now.
        lengths: tokens of each sample or pack.
        make_batch: the samples of a micro batch -> a batch, with its number in the epoch.
        rank: data-parallel place.
        settings: all that shapes the data, compared at resume.
        drops: what was left out when the data was prepared.
        restart: begin anew at every ``iter()``.
    """

    def __init__(
        self,
        planner: StepPlanner,
        lengths: Sequence[int],
        make_batch: Callable[[MicroBatch, int], B],
        *,
        rank: int,
        settings: Mapping[str, Any],
        drops: DropLedger,
        restart: bool = False,
    ) -> None:
        self.planner, self.rank, self.restart, self.drops = planner, rank, restart, drops
        self._lengths, self._make_batch, self.settings = lengths, make_batch, dict(settings)
        self.epoch = 0
        self.confirming = False
        self._step = 0  # whole steps behind in this epoch
        self._within = 0  # micro batches behind in the step after those
        self._handed: deque[tuple[int, dict[str, Any]]] = deque()  # numbers of batches not confirmed yet, with states
        self._confirmed: dict[str, Any] | None = None
        self._plan: tuple[int, list[Step]] | None = None
        self._meter = PackingMeter()

    def plan(self, epoch: int) -> list[Step]:
        """The steps of this rank in `epoch`."""
        if self._plan is None or self._plan[0] != epoch:
            self._plan = (epoch, self.planner.plan(self._lengths, epoch)[self.rank])
        return self._plan[1]

    @property
    def num_steps(self) -> int:
        """Steps of the current epoch."""
        return len(self.plan(self.epoch))

    def __iter__(self) -> Iterator[B]:
        for step in self.steps():
            yield from step

    def steps(self) -> Iterator[Iterator[B]]:
        """The batches of each step, made as they are asked for; a step that had begun gives what is left of it."""
        if self.restart:
            self.epoch = self._step = self._within = 0
        self._handed.clear()
        self._confirmed = self._state() if self.confirming else None
        plan = self.plan(self.epoch)
        if self._step == self._within == 0:
            self._meter = PackingMeter()
        while self._step < len(plan):
            yield self._batches(plan, self._step)
        self.epoch, self._step = self.epoch + 1, 0

    def _batches(self, plan: list[Step], number: int) -> Iterator[B]:
        step = plan[number]
        before = sum(len(earlier) for earlier in plan[:number])
        while self._step == number and self._within < len(step):
            at = self._within
            self._within += 1
            if self._within == len(step):
                self._step, self._within = number + 1, 0
            batch = self._make_batch(step[at], (before + at) * self.planner.world_size + self.rank)
            if step[at].indices:
                positions = max(batch.num_tokens, self.pack_capacity or 0)
                self._meter.add(batch.num_real_tokens, positions, num_sequences=batch.num_samples)
            if self.confirming:
                self._handed.append((batch.pack_index, self._state()))
            yield batch

    @property
    def pack_capacity(self) -> int | None:
        """Tokens that a pack holds at most; None where batches are rows of samples."""
        return self.planner.capacity if "packing" in self.planner.batching else None

    @property
    def packing(self) -> PackingMetrics:
        """How well the batches are filled that this rank has taken in this epoch, or since a state was loaded in it."""
        return self._meter.metrics()

    def confirm(self, batch: Batch) -> None:
        """Says that `batch` has been consumed, and all that were taken before it; for when `confirming` is set."""
        if any(number == batch.pack_index for number, _ in self._handed):
            number = None
            while number != batch.pack_index:
                number, self._confirmed = self._handed.popleft()

    def state_dict(self) -> dict[str, Any]:
        """The state behind the batch taken last, or confirmed last: plain values, the same on every rank."""
        if self.confirming and self._handed and self._confirmed is not None:
            return self._confirmed
        return self._state()

    def _state(self) -> dict[str, Any]:
        return {
            "version": STATE_VERSION,
            "settings": dict(self.settings),
            "epoch": self.epoch,
            "step": self._step,
            "micro_batch": self._within,
            "world_size": self.planner.world_size,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on behind the batch that `state` was saved after.

        Raises:
            StateError: other settings or data, each difference named; or another number of ranks within a step.
        """
        if not isinstance(state, Mapping) or state.get("version") != STATE_VERSION or "micro_batch" not in state:
            raise StateError("this is not a state of a fine-tuning loader of this version of mmpack")
        for name, least in (("epoch", 0), ("step", 0), ("micro_batch", 0), ("world_size", 1)):
            if type(value := state.get(name)) is not int or value < least:
                raise StateError(
                    f"the state is damaged: {name}={value!r}, it must be a whole number of at least {least}"
                )
        if not isinstance(state.get("settings"), Mapping):
            raise StateError(f"the state is damaged: settings={state.get('settings')!r}, it must be a mapping")
        if different := states.differences(state["settings"], self.settings):
            raise StateError(
                "the state was made with other settings: " + "; ".join(different) + ". Resume with the saved settings, "
                "or start anew without the state"
            )
        if state["micro_batch"] and state["world_size"] != self.planner.world_size:
            raise StateError(
                f"the state was saved within a step of {state['world_size']} data-parallel ranks, now there are "
                f"{self.planner.world_size}; save behind whole steps to change their number"
            )
        self.epoch, self._step, self._within = state["epoch"], state["step"], state["micro_batch"]
        self._handed.clear()
        self._meter = PackingMeter()
