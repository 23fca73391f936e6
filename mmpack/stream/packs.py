"""One logical stream of packs: read, encode, plan, decode, and say after every pack where the stream stands.

The state that travels with a pack is all that is needed to go on behind it: the source's cursor, the keys and
lengths of what is buffered (never the samples themselves), and the counters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol

from mmpack.batch import B, B_co
from mmpack.batch.memory import Allocate, on_heap
from mmpack.errors import ConfigError, Reason, SampleError, StateError, StorageError
from mmpack.ledger import DropLedger
from mmpack.sample import Conversation, EncodedSample, LostSample, PlannedSample
from mmpack.stats import attention_cost
from mmpack.stream.config import StreamConfig
from mmpack.stream.contract import Drawn, OpenSource, ReadFault, Sample
from mmpack.stream.selection import Selection
from mmpack.window import AlignedPlans


class Encoder(Protocol):
    """What makes an `EncodedSample` of a conversation; see `mmpack.encode.SampleEncoder`."""

    def encode(self, conversation: Conversation) -> EncodedSample: ...


class PackCollator(Protocol[B_co]):
    """What makes a batch of a pack; see `mmpack.collate`."""

    def room(self, num_tokens: int) -> int: ...
    def collate(
        self, pack: Sequence[PlannedSample], *, pack_index: int, allocate: Allocate = on_heap
    ) -> tuple[B_co, list[LostSample]]: ...


class FillingCollator(PackCollator[B_co], Protocol[B_co]):
    """A collator that can also make a batch of weight zero."""

    def filler(self, *, pack_index: int) -> B_co: ...


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """A sample in the window, and what is saved of it."""

    sample: PlannedSample
    saved: list[Any]  # [place in the source, num_tokens, sample key, source, costs]
    name: tuple[str, str]  # source and key, which tell it from others: keys are unique within a dataset only

    @classmethod
    def of(cls, sample: PlannedSample, saved: list[Any]) -> _Held:
        return cls(sample, saved, (saved[3], saved[2]))


class PackStream(Generic[B]):
    """Packs of logical stream `stream` out of `num_streams`.

    Iterating gives the packs from where the state stands to the end of the epoch, or for ever if the source
    repeats. `begin` moves on to another epoch.
    """

    def __init__(
        self,
        config: StreamConfig,
        open_source: OpenSource,
        encoder: Encoder,
        collator: PackCollator[B],
        *,
        stream: int,
        num_streams: int,
    ) -> None:
        self.config = config
        self.stream = stream
        self.num_streams = num_streams
        self._encoder = encoder
        self._collator = collator
        self._source = open_source(stream=stream, num_streams=num_streams, on_fault=self._on_fault)
        self._reading: Iterator[Drawn] | None = None
        self._window: Selection[_Held] = config.selection()
        self._alone: list[_Held] = []  # samples that get packs of their own, next to be planned
        self._aligned: AlignedPlans[list[_Held]] = AlignedPlans(config.align_window, seed=config.seed)
        self._in_window: set[tuple[str, str]] = set()  # source, key
        self._waiting: list[_Held] = []  # second copies of samples in the window
        self.ledger = DropLedger(budget=config.error_budget)
        self.num_read = 0  # samples taken from the source, kept or not
        self.num_read_in_epoch = 0
        self.num_emitted = 0  # samples in the packs of this epoch
        self.epoch = 0
        self.round = 0  # packs emitted in this epoch
        self.exhausted = False  # the source has no more samples in this epoch

    def begin(self, epoch: int) -> None:
        """Makes the stream stand in `epoch`: nothing happens within it, a drained stream starts the next one."""
        if self.epoch == epoch:
            return
        if not self.exhausted or len(self._window) or self._alone or len(self._aligned):
            raise StateError(f"stream {self.stream} is within epoch {self.epoch}, not at the start of {epoch}")
        self.epoch, self.round, self.exhausted = epoch, 0, False
        self.num_read_in_epoch = self.num_emitted = 0
        self._aligned.restart()

    def __iter__(self) -> Iterator[B]:
        return self.packs()

    def packs(self, allocate: Allocate = on_heap) -> Iterator[B]:
        """The packs, as iterating gives them, with their pixels in memory that `allocate` gives."""
        while (plan := self._next_plan()) is not None:
            batch, lost = self._collator.collate(
                [held.sample for held in plan],
                pack_index=self.round * self.num_streams + self.stream,
                allocate=allocate,
            )
            for sample in lost:
                self._drop(sample.source, sample.error, sample.key)
            self.round += 1
            self.num_emitted += len(plan)
            yield dataclasses.replace(batch, stream_state=self.state())

    def _next_plan(self) -> list[_Held] | None:
        """The next pack, oldest sample first; None at the end of the epoch."""
        while self._aligned.wants_plan:
            self._fill_window()
            if self._alone:
                plan = [self._alone.pop(0)]
            elif len(self._window):
                plan = self._window.take_pack()
            else:
                break
            self._in_window.difference_update(held.name for held in plan)
            self._aligned.add(plan, attention_cost(held.sample.num_tokens for held in plan))
        return self._aligned.take() if len(self._aligned) else None

    def _fill_window(self) -> None:
        """Reads until as many samples as allowed are held, or the source ends.

        No sample is in the window twice, so none is in a pack twice: where an epoch's end meets the next one's
        beginning, a second copy waits outside until the first has left.
        """
        waiting, self._waiting = self._waiting, []
        for second in waiting:
            self._hold(second)
        most = self.config.most_held
        while not (self.exhausted or self._alone or self._window.full or len(self._waiting) >= most):
            held = self._read()
            if held is None:
                self.exhausted = True
            else:
                self._hold(held)

    def _hold(self, held: _Held) -> None:
        if held.name in self._in_window:
            self._waiting.append(held)
            return
        self._in_window.add(held.name)
        room = self._collator.room(held.sample.num_tokens)
        if self.config.capacity is not None and room > self.config.capacity:
            self._alone.append(held)
        else:
            self._window.add(held, room, held.saved[4])

    def _read(self) -> _Held | None:
        """The next usable sample; None if the source has no more in this epoch."""
        if self._reading is None:
            self._reading = iter(self._source)
        for number, drawn in enumerate(self._reading):
            if number >= 2 * self._source.num_samples:  # only a source that repeats gets here
                reasons = ", ".join(f"{count} {reason}" for reason, count in self.ledger.counts().items())
                raise ConfigError(
                    f"stream {self.stream} of {self.num_streams} of {self._source.name!r} has no usable "
                    f"sample (left out so far: {reasons}); mend the data, or use fewer streams (num_streams)"
                )
            self.ledger.read(self._source.name)
            self.num_read += 1
            self.num_read_in_epoch += 1
            try:
                if isinstance(drawn.sample, SampleError):
                    raise drawn.sample
                sample = self._encode(drawn.sample)
            except SampleError as error:
                self._drop(drawn.source, error, drawn.key, drawn.shard)
                continue
            if sample.changed is not None:
                self.ledger.count(sample.source, sample.changed, sample.key)
            saved = [drawn.place, sample.num_tokens, sample.key, sample.source, self.config.costs(sample)]
            return _Held.of(sample, saved)
        self._reading = None
        return None

    def _encode(self, sample: Sample) -> EncodedSample:
        encoded = sample if isinstance(sample, EncodedSample) else self._encoder.encode(sample)
        self.config.check_limits(encoded)
        room, capacity = self._collator.room(encoded.num_tokens), self.config.capacity
        if capacity is not None and room > capacity and not encoded.own_pack:
            detail = f"needs {room} positions with padding, a pack has {capacity}"
            raise SampleError(Reason.OVERSIZE, detail, key=encoded.key)
        return encoded

    def _drop(self, source: str, error: SampleError, key: str, shard: str = "") -> None:
        self.ledger.count(source, error.reason, key, detail=error.detail, shard=shard)

    def _on_fault(self, error: Exception, name: str) -> None:
        self.ledger.read(self._source.name)
        if isinstance(error, ReadFault):
            self.ledger.count(error.source, Reason.UNREADABLE, name, detail=error.cause, shard=error.shard)
        else:
            detail = f"{type(error).__name__}: {error}"
            self.ledger.count(self._source.name, Reason.UNREADABLE, name, detail=detail)

    def state(self) -> dict[str, Any]:
        """Where the stream stands behind the pack emitted last: plain dicts, lists, numbers, strings and bytes."""
        return {
            "stream": self.stream,
            "epoch": self.epoch,
            "round": self.round,
            "exhausted": self.exhausted,
            "num_read": self.num_read,
            "num_read_in_epoch": self.num_read_in_epoch,
            "emitted": self.num_emitted,
            "left": self._left(),
            "source": self._source.state(),
            "window": [held.saved for held in self._window.items],
            "alone": [held.saved for held in self._alone],
            "emitting": self._window.emitting,
            "waiting": [held.saved for held in self._waiting],
            "aligned": dict(self._aligned.state()),
            "plans": [[held.saved for held in plan] for plan in self._aligned.plans],
            "drops": self.ledger.to_dict(),
            "recent_losses": self.ledger.recent.state(),
        }

    def _left(self) -> int:
        """Samples that are still to come in this epoch, about: held ones, and those that were not read yet."""
        held = len(self._window) + len(self._alone) + len(self._waiting) + sum(map(len, self._aligned.plans))
        return held + max(0, self._source.num_samples - self.num_read_in_epoch)

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on behind the pack that `state` came with; must be called before iterating.

        Only what was buffered is read again. A buffered sample that can no longer be read keeps its place as
        padding of its length and is counted.

        Raises:
            StateError: the state is another stream's, or a buffered sample now has another length.
        """
        if state["stream"] != self.stream:
            raise StateError(f"this is the state of stream {state['stream']}, not of stream {self.stream}")
        self._source.restore(state["source"])
        self.epoch, self.round = state["epoch"], state["round"]
        self.exhausted, self.num_read = state["exhausted"], state["num_read"]
        self.num_read_in_epoch, self.num_emitted = state["num_read_in_epoch"], state["emitted"]
        self.ledger = DropLedger.from_dict(state["drops"], budget=self.config.error_budget)
        self.ledger.recent.restore(state.get("recent_losses", []))
        for saved in (*state["window"], *state["alone"]):
            self._hold(self._read_again(saved))
        self._window.emitting = state["emitting"]
        self._waiting = [self._read_again(saved) for saved in state["waiting"]]
        plans = [[self._read_again(saved) for saved in plan] for plan in state["plans"]]
        self._aligned.restore(state["aligned"], plans)

    def _read_again(self, saved: list[Any]) -> _Held:
        place, num_tokens, key, source, _ = saved
        sample: PlannedSample
        try:
            sample = self._encode(self._source.read(place))
        except (ConfigError, StorageError):
            raise
        except Exception as error:  # a source passes on whatever its reader met
            lost = (
                error if isinstance(error, SampleError) else SampleError(Reason.UNREADABLE, repr(error)[:200], key=key)
            )
            sample = LostSample(key=key, source=source, num_tokens=num_tokens, error=lost)
        if sample.num_tokens != num_tokens:
            raise StateError(
                f"sample {key!r} of {source!r} had {num_tokens} tokens when the state was saved and has "
                f"{sample.num_tokens} now; resume with the same data, tokenizer, template and tiling"
            )
        return _Held.of(sample, saved)
