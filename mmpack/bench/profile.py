"""Which stage of a loader takes the time, on this machine and data, and what to change."""

from __future__ import annotations

import dataclasses
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

from mmpack.datamodules.factory import PackStreamFactory
from mmpack.encode import SampleEncoder
from mmpack.images import decode_image
from mmpack.loader.slots import SlotMemory, SlotReader, SlotWriter
from mmpack.stream.contract import Drawn

STAGES = {
    "read": "samples from disk, parsed",
    "encode": "headers, tiles counted, text tokenized",
    "decode": "pictures to pixels",
    "cut": "resized and cut into tiles",
    "lay out": "packs chosen and laid out as rows, with their state",
    "transfer": "from a worker to the trainer",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """CPU of one process, by stage, per sample that came out in a pack."""

    num_samples: int
    num_packs: int
    stage_ms: dict[str, float]  # CPU ms a sample
    decode: str  # "exact" or "fast", of pictures in files; empty without any
    has_simplejpeg: bool

    @property
    def total_ms(self) -> float:
        """CPU ms a sample, all stages."""
        return sum(self.stage_ms.values())

    @property
    def bound(self) -> str:
        """The stage that takes most."""
        return max(self.stage_ms, key=self.stage_ms.__getitem__)

    @property
    def samples_per_s(self) -> float:
        """What one worker gives on a core of its own."""
        return 1000 / self.total_ms

    @property
    def packs_per_s(self) -> float:
        """The same in packs."""
        return self.samples_per_s * self.num_packs / self.num_samples

    def advice(self) -> list[str]:
        """What would help, the most first."""
        pixels = self.stage_ms["decode"] + self.stage_ms["cut"]
        found = []
        if pixels > 0.4 * self.total_ms and self.decode == "exact":
            found.append("data.decode=fast: large JPEGs are decoded at a part of their size, and torch resizes")
        if self.bound == "decode" and not self.has_simplejpeg:
            found.append("pip install 'mmpack[jpeg]': JPEGs through libjpeg-turbo in place of Pillow, the same pixels")
        if self.bound in ("decode", "cut") and self.decode == "fast":
            found.append("smaller pictures: store them nearer to the size of their tiles")
        if self.bound == "encode":
            found.append("text bounds: a tokenizer with fewer rules, or pack it ahead of training (mmpack pack)")
        if self.bound == "read":
            found.append("reading bounds: local disks, or data.order=global_plan, which reads by number")
        found.append(
            f"data.num_workers: one worker gives {self.packs_per_s:.1f} packs/s on a core of its own; take as many as "
            "the training steps need"
        )
        return found

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "samples": self.num_samples,
            "packs": self.num_packs,
            "cpu_ms_per_sample": self.total_ms,
            "stages_ms": dict(self.stage_ms),
            "bound": self.bound,
            "samples_per_s_per_worker": self.samples_per_s,
            "packs_per_s_per_worker": self.packs_per_s,
            "advice": self.advice(),
        }


class _Clock:
    """CPU by stage; what an inner stage takes does not count for the outer one."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._stack: list[str] = []
        self._since = time.process_time()

    def _switch(self) -> None:
        now = time.process_time()
        if self._stack:
            self.seconds[self._stack[-1]] += now - self._since
        self._since = now

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self._switch()
        self._stack.append(name)
        try:
            yield
        finally:
            self._switch()
            self._stack.pop()

    def timed(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            with self.stage(name):
                return work(*args, **options)

        return run


class _Timed:
    """An object of which some methods are timed; everything else is its own."""

    def __init__(self, inner: Any, **methods: Callable[..., Any]) -> None:
        self._inner = inner
        self.__dict__.update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _TimedSource(_Timed):
    def __init__(self, inner: Any, clock: _Clock) -> None:
        super().__init__(inner)
        self._clock = clock

    def __iter__(self) -> Iterator[Drawn]:
        samples = iter(self._inner)
        while True:
            with self._clock.stage("read"):
                drawn = next(samples, None)
            if drawn is None:
                return
            yield drawn


def profile(
    factory: PackStreamFactory[Any], num_samples: int, advance: Callable[[int, int], None] = lambda done, total: None
) -> Profile:
    """Reads packs of the first stream in this process until `num_samples` have come out, and times the stages.

    The window is filled first, untimed. Stages are told apart by wrapping what the stream is made of; a wrapper costs
    some microseconds a call.
    """
    clock = _Clock()
    collator: Any = factory.collator
    tiling = collator.tiling
    timed_tiling = _Timed(tiling, cut=clock.timed("cut", tiling.cut))
    plain: Any = factory
    wrapped = dataclasses.replace(
        plain,
        open_source=lambda **options: _TimedSource(factory.open_source(**options), clock),
        encoder=_Timed(factory.encoder, encode=clock.timed("encode", factory.encoder.encode)),
        collator=dataclasses.replace(collator, tiling=timed_tiling),
    )
    memory = SlotMemory(1, factory.max_batch_bytes)
    writer, reader = SlotWriter(memory), SlotReader(memory)
    count = num_packs = 0
    with patch("mmpack.collate.pictures.decode_image", clock.timed("decode", decode_image)):
        packs = wrapped(0).packs(writer.allocate)
        next(packs, None)
        clock.seconds.clear()
        while count < num_samples:
            batch = None  # its slot is used again
            reader.take_returned()
            writer.begin(0)
            with clock.stage("lay out"):
                batch = next(packs, None)
            if batch is None:
                break
            with clock.stage("transfer"):
                reader.read(writer.finish(batch))
            count, num_packs = count + batch.num_samples, num_packs + 1
            advance(min(count, num_samples), num_samples)
    per_sample = {name: 1000 * clock.seconds[name] / max(1, count) for name in STAGES}
    of_files = isinstance(factory.encoder, SampleEncoder) and per_sample["decode"] > 0  # not made up
    return Profile(
        num_samples=count,
        num_packs=num_packs,
        stage_ms=per_sample,
        decode=tiling.spec.decode if of_files else "",
        has_simplejpeg=find_spec("simplejpeg") is not None,
    )
