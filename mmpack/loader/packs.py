"""The loader: packs of all logical streams in one fixed global order, read by any number of ranks and workers.

Global pack p comes from stream p mod L. Rank r of W takes pack ``base + t * W + r`` at its step t, where `base` is
how many packs the job had handed out when it was (re)started. A worker process reads the streams that fall to it in
turn. So the sequence of packs depends on the data and the seed, and on nothing else.

A state is the states of the packs consumed last, one per stream: nothing is asked of the workers, and nothing is
lost with a worker that dies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Generic

from mmpack import state as states
from mmpack.batch import B, Batch
from mmpack.errors import ConfigError, StateError
from mmpack.ledger import DropLedger
from mmpack.loader.contract import StreamFactory
from mmpack.loader.equal import EqualSteps, Exchange, sure_turns
from mmpack.loader.work import Work
from mmpack.loader.workers import EndOfStream, Feed, InProcessFeed, WorkerFeed
from mmpack.packing import PackingMeter, PackingMetrics


class PackLoader(Generic[B]):
    """Iterates over the packs of one rank.

    ``iter()`` goes on where the last iteration stopped, to the end of the epoch; the next ``iter()`` after the end
    gives the next epoch. With ``restart=True`` (validation) every ``iter()`` gives the whole split from its beginning.

    Args:
        factory: opens the logical streams.
        rank, world_size: data-parallel place of this process; `world_size` must divide the number of streams.
        num_workers: processes that read, encode and decode; 0 reads in this process.
        prefetch: packs that each worker prepares ahead.
        restart: begin anew at every ``iter()``.
        exchange: how the ranks agree that an epoch has ended, for equal numbers of steps; None: they do not.

    Setting `confirming` makes `state_dict` wait for `confirm`.

    Raises:
        ConfigError: sizes that do not go together; the text names those that do.
    """

    def __init__(
        self,
        factory: StreamFactory[B],
        *,
        rank: int = 0,
        world_size: int = 1,
        num_workers: int = 0,
        prefetch: int = 2,
        restart: bool = False,
        exchange: Exchange | None = None,
    ) -> None:
        self.factory = factory
        self.num_streams = factory.num_streams
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank={rank} is not in 0..{world_size - 1} (world_size={world_size})")
        if self.num_streams % world_size:
            fitting = [n for n in range(1, self.num_streams + 1) if self.num_streams % n == 0]
            raise ConfigError(
                f"world_size={world_size} does not divide num_streams={self.num_streams}; data-parallel sizes that "
                f"work: {', '.join(map(str, fitting))}. For any size use the global plan mode (mmpack.epoch)"
            )
        if not 0 <= num_workers <= self.num_streams // world_size:
            raise ConfigError(
                f"num_workers={num_workers}; this rank reads {self.num_streams // world_size} of "
                f"{self.num_streams} streams, so 0..{self.num_streams // world_size} workers can be used"
            )
        if prefetch < 1:
            raise ConfigError(f"prefetch={prefetch}; it must be at least 1")
        self.rank, self.world_size, self.num_workers = rank, world_size, num_workers
        self.prefetch, self.restart = prefetch, restart
        self.exchange = None if factory.endless or world_size == 1 else exchange
        self.confirming = False
        self._handed: deque[tuple[tuple[int, int], dict[str, Any]]] = deque()  # packs not confirmed yet, with states
        self._confirmed: dict[str, Any] | None = None
        self._iteration = 0  # of those begun; an older one must not go on
        self._meter = PackingMeter()
        self.work = Work()  # what making the packs took that were taken so far
        self._feed: Feed[B] | None = None
        self._reset()

    def _reset(self) -> None:
        self.epoch = 0
        self._base = 0  # packs that all ranks together had handed out when this rank began to count its steps
        self._steps = 0
        self._shift = 0  # packs that this rank's place in a step lies behind its number
        self._streams: dict[int, dict[str, Any] | None] = dict.fromkeys(self._own_streams())

    def _own_streams(self) -> list[int]:
        """The streams of this rank in the order of its steps."""
        turns = range(self.num_streams // self.world_size)
        return [(self._base + t * self.world_size + self._place) % self.num_streams for t in turns]

    @property
    def _place(self) -> int:
        """This rank's place in a step: its number, unless ranks changed within an earlier epoch.

        An epoch's first pack is number 0, and a rank goes on with the streams that it has.
        """
        return (self.rank + self._shift) % self.world_size

    def _next_pack(self) -> int:
        """Packs that all ranks together have handed out in this epoch."""
        return self._base + self._steps * self.world_size

    def __iter__(self) -> Iterator[B]:
        self._iteration += 1
        if self.restart:
            self._reset()
        self._handed.clear()
        self._confirmed = self._state() if self.confirming else None
        feed = self._feed = self._open_feed()
        try:
            yield from self._consume(feed)
        finally:
            feed.close()
            if self._feed is feed:
                self._feed = None

    def _open_feed(self) -> Feed[B]:
        turn = self._steps % (self.num_streams // self.world_size)
        own = self._own_streams()
        order = own[turn:] + own[:turn]
        plan = [(stream, self._streams[stream]) for stream in order]
        if self.num_workers == 0:
            return InProcessFeed(self.factory, plan, self.epoch, work=self.work)
        return WorkerFeed(
            self.factory, plan, self.epoch, num_workers=self.num_workers, prefetch=self.prefetch, work=self.work
        )

    def _consume(self, feed: Feed[B]) -> Iterator[B]:
        own = self._own_streams()
        ended: set[int] = set()
        if self._steps == 0:
            self._meter = PackingMeter()
        iteration = self._iteration
        equal = None if self.exchange is None else EqualSteps(self.exchange)
        empty_turns = 0  # in a row, on all ranks: one for each stream of a rank, and the epoch is over everywhere
        while len(ended) < len(own) if equal is None else empty_turns < len(own):
            if iteration != self._iteration:
                raise StateError(
                    "this iteration is over: another one of the same loader has begun, or a state was loaded; "
                    "make one loader for each loop that runs at the same time"
                )
            stream, pack_index = own[self._steps % len(own)], self._next_pack() + self._place
            item = None if stream in ended else feed.get(stream)
            if isinstance(item, EndOfStream):
                self._streams[stream] = item.state
                ended.add(stream)
                item = None
            any_pack = item is not None if equal is None else equal.any_pack(self._steps, self._sure_turns(item))
            if item is not None:
                self._streams[stream] = item.stream_state
            self._steps += 1
            empty_turns = 0 if any_pack else empty_turns + 1
            if any_pack:
                batch = self.factory.filler(pack_index) if item is None else item
                if item is not None:
                    positions = max(item.num_tokens, self.pack_capacity or 0)
                    self._meter.add(item.num_real_tokens, positions, num_sequences=item.num_samples)
                if self.confirming:
                    self._handed.append((_name_of(batch), self._state()))
                yield batch
        self._shift = (self._shift + self._base) % self.world_size
        self.epoch, self._base, self._steps = self.epoch + 1, 0, 0

    def _sure_turns(self, item: B | None) -> int:
        if item is None:
            return 0
        states = {**self._streams, item.stream_state["stream"]: item.stream_state}
        return sure_turns(states.values(), len(states))

    @property
    def drops(self) -> DropLedger:
        """What this rank's streams have left out so far, by dataset and reason, as of the packs taken."""
        ledger = DropLedger()
        for state in self._streams.values():
            if state is not None:
                ledger.merge(DropLedger.from_dict(state["drops"]))
        return ledger

    @property
    def pack_capacity(self) -> int | None:
        """Tokens that a pack holds at most; None where batches are rows of samples."""
        capacity: int | None = getattr(getattr(self.factory, "stream", None), "capacity", None)
        return capacity

    @property
    def packing(self) -> PackingMetrics:
        """How well the packs are filled that this rank has taken in this epoch, or since a state was loaded in it.

        A pack's positions are `pack_capacity`, or those of its row where that is longer or there is no capacity.
        """
        return self._meter.metrics()

    @property
    def num_ready(self) -> int:
        """Packs that the workers have made and nobody has taken yet: the depth of the queue."""
        return 0 if self._feed is None else self._feed.num_ready

    def confirm(self, batch: B) -> None:
        """Says that `batch` has been consumed, and all that were taken before it; for when `confirming` is set."""
        if any(name == _name_of(batch) for name, _ in self._handed):
            name = None
            while name != _name_of(batch):
                name, self._confirmed = self._handed.popleft()

    def state_dict(self) -> dict[str, Any]:
        """The state behind the pack that was taken last: plain data, to be saved anywhere.

        If `confirming` is set, as for a trainer that takes packs ahead, behind the pack that was confirmed last.
        """
        if self.confirming and self._handed and self._confirmed is not None:
            return states.sealed(self._confirmed)
        return states.sealed(self._state())

    def _state(self) -> dict[str, Any]:
        return states.envelope(
            settings=self.factory.settings,
            versions=self.factory.versions,
            num_streams=self.num_streams,
            epoch=self.epoch,
            next_pack=self._next_pack(),
            shift=self._shift,
            streams=self._streams,
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on behind the pack that `state` was saved after; takes effect at the next ``iter()``.

        Raises:
            StateError: the state does not fit; each difference is named.
        """
        states.check(
            state, settings=self.factory.settings, versions=self.factory.versions, num_streams=self.num_streams
        )
        self._moved_to(state["epoch"], state["next_pack"], state["shift"])
        own = self._own_streams()
        states.require_streams(state["streams"], own)
        self._streams = {stream: states.opened(state["streams"][str(stream)]) for stream in own}

    def _moved_to(self, epoch: int, next_pack: int, shift: int) -> None:
        self._iteration += 1
        self._handed.clear()
        self._meter = PackingMeter()
        self.epoch, self._base, self._steps, self._shift = epoch, next_pack, 0, shift


def _name_of(batch: Batch) -> tuple[int, int]:
    """What tells a pack of one loader from all others."""
    return batch.stream_state.get("epoch", -1), batch.pack_index
