"""One logical stream of packs: read, encode, plan, decode, and say after every pack where the stream stands.

The state that travels with a pack is all that is needed to go on behind it: the source's cursor, the keys and
lengths of what is buffered (never the samples themselves), and the counters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from mmpack.batch import PackedBatch
from mmpack.collate import Collator
from mmpack.encode import SampleEncoder
from mmpack.energon.cook import source_of, to_conversation
from mmpack.energon.plain_state import from_plain, to_plain
from mmpack.energon.reader import Source, SourceConfig
from mmpack.errors import ConfigError, Reason, SampleError, StateError
from mmpack.sample import Conversation, EncodedSample, LostSample, PlannedSample
from mmpack.stats import DropLedger, attention_cost
from mmpack.window import AlignedPlans, Window


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamConfig:
    """How a stream selects its packs.

    Args:
        capacity: positions that samples may fill in a row.
        packing_buffer_size: most samples in the window of one stream.
        align_window: plans held back to give every rank packs of equal cost at each step; 1 holds none.
        seed: of the order in which held plans leave.
    """

    capacity: int
    packing_buffer_size: int
    align_window: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("capacity", "packing_buffer_size", "align_window"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}; it must be at least 1")


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """A sample in the window, and what is saved of it."""

    sample: PlannedSample
    saved: list[Any]  # [restore key in plain form, num_tokens, sample key, source]


class PackStream:
    """Packs of logical stream `stream` out of `num_streams`.

    Iterating gives the packs from where the state stands to the end of the epoch, or for ever if the source
    repeats. `begin` moves on to another epoch.
    """

    def __init__(
        self,
        config: StreamConfig,
        source_config: SourceConfig,
        encoder: SampleEncoder,
        collator: Collator,
        *,
        stream: int,
        num_streams: int,
        cook: Callable[[Any], Conversation] = to_conversation,
    ) -> None:
        self.config = config
        self.stream = stream
        self.num_streams = num_streams
        self._encoder = encoder
        self._collator = collator
        self._cook = cook
        self._source = Source(source_config, stream=stream, num_streams=num_streams, on_fault=self._on_fault)
        self._reading: Iterator[tuple[Any, Any]] | None = None
        self._window: Window[_Held] = Window(config.capacity, config.packing_buffer_size)
        self._aligned: AlignedPlans[list[_Held]] = AlignedPlans(config.align_window, seed=config.seed)
        self._in_window: set[str] = set()  # keys
        self._waiting: list[_Held] = []  # second copies of samples in the window
        self.ledger = DropLedger()
        self.num_read = 0  # samples taken from the source, kept or not
        self.epoch = 0
        self.round = 0  # packs emitted in this epoch
        self.exhausted = False  # the source has no more samples in this epoch

    def begin(self, epoch: int) -> None:
        """Makes the stream stand in `epoch`: nothing happens within it, a drained stream starts the next one."""
        if self.epoch == epoch:
            return
        if not (self.exhausted and not len(self._window) and not len(self._aligned)):
            raise StateError(f"stream {self.stream} is within epoch {self.epoch}, not at the start of {epoch}")
        self.epoch, self.round, self.exhausted = epoch, 0, False
        self._aligned.restart()

    def __iter__(self) -> Iterator[PackedBatch]:
        while (plan := self._next_plan()) is not None:
            batch, lost = self._collator.collate(
                [held.sample for held in plan], pack_index=self.round * self.num_streams + self.stream
            )
            for sample in lost:
                self._drop(sample.source, sample.error, sample.key)
            self.round += 1
            yield dataclasses.replace(batch, stream_state=self.state())

    def _next_plan(self) -> list[_Held] | None:
        """The next pack, oldest sample first; None at the end of the epoch."""
        while self._aligned.wants_plan:
            self._fill_window()
            if not len(self._window):
                break
            plan = self._window.take_pack()
            self._in_window.difference_update(held.saved[2] for held in plan)
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
        while not self.exhausted and len(self._window) + len(self._waiting) < self.config.packing_buffer_size:
            held = self._read()
            if held is None:
                self.exhausted = True
            else:
                self._hold(held)

    def _hold(self, held: _Held) -> None:
        key = held.saved[2]
        if key in self._in_window:
            self._waiting.append(held)
            return
        self._window.add(held, self._collator.layout.room(held.sample.num_tokens))
        self._in_window.add(key)

    def _read(self) -> _Held | None:
        """The next usable sample; None if the source has no more in this epoch."""
        if self._reading is None:
            self._reading = iter(self._source)
        for number, (raw, key) in enumerate(self._reading):
            if number >= 2 * self._source.num_samples:  # only a source that repeats gets here
                reasons = ", ".join(f"{count} {reason}" for reason, count in self.ledger.counts().items())
                raise ConfigError(
                    f"stream {self.stream} of {self.num_streams} of {str(self._source.config.path)!r} has no usable "
                    f"sample (left out so far: {reasons}); mend the data, or use fewer streams (num_streams)"
                )
            self.num_read += 1
            try:
                sample = self._encode(raw)
            except SampleError as error:
                self._drop(source_of(raw), error, raw.__key__)
                continue
            return _Held(sample, [to_plain(key), sample.num_tokens, sample.key, sample.source])
        self._reading = None
        return None

    def _encode(self, raw: Any) -> EncodedSample:
        sample = self._encoder.encode(self._cook(raw))
        room = self._collator.layout.room(sample.num_tokens)
        if room > self.config.capacity:
            detail = f"needs {room} positions with padding, a pack has {self.config.capacity}"
            raise SampleError(Reason.OVERSIZE, detail, key=sample.key)
        return sample

    def _drop(self, source: str, error: SampleError, key: str) -> None:
        self.ledger.count(source, error.reason, key, detail=error.detail)

    def _on_fault(self, error: Exception, name: str) -> None:
        detail = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        self.ledger.count(str(self._source.config.path), Reason.UNREADABLE, name, detail=detail)

    def state(self) -> dict[str, Any]:
        """Where the stream stands behind the pack emitted last: plain dicts, lists, numbers, strings and bytes."""
        return {
            "stream": self.stream,
            "epoch": self.epoch,
            "round": self.round,
            "exhausted": self.exhausted,
            "num_read": self.num_read,
            "source": self._source.state(),
            "window": [held.saved for held in self._window.items],
            "waiting": [held.saved for held in self._waiting],
            "aligned": dict(self._aligned.state()),
            "plans": [[held.saved for held in plan] for plan in self._aligned.plans],
            "drops": self.ledger.to_dict(),
        }

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
        self.ledger = DropLedger.from_dict(state["drops"])
        for saved in state["window"]:
            self._hold(self._read_again(saved))
        self._waiting = [self._read_again(saved) for saved in state["waiting"]]
        plans = [[self._read_again(saved) for saved in plan] for plan in state["plans"]]
        self._aligned.restore(state["aligned"], plans)

    def _read_again(self, saved: list[Any]) -> _Held:
        plain_key, num_tokens, key, source = saved
        sample: PlannedSample
        try:
            sample = self._encode(self._source.read(from_plain(plain_key)))
        except ConfigError:
            raise
        except Exception as error:  # energon passes on whatever its reader met
            lost = (
                error if isinstance(error, SampleError) else SampleError(Reason.UNREADABLE, repr(error)[:200], key=key)
            )
            sample = LostSample(key=key, source=source, num_tokens=num_tokens, error=lost)
        if sample.num_tokens != num_tokens:
            raise StateError(
                f"sample {key!r} of {source!r} had {num_tokens} tokens when the state was saved and has "
                f"{sample.num_tokens} now; resume with the same data, tokenizer, template and tiling"
            )
        return _Held(sample, saved)
