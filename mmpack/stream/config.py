"""How one stream selects its packs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mmpack.errors import ConfigError, Reason, SampleError
from mmpack.ledger import ErrorBudget
from mmpack.sample import EncodedSample
from mmpack.stream.selection import DynamicBatching, LengthBuckets, NextFew, Selection
from mmpack.window import Window

_LIMITS = ("max_tiles", "max_images", "max_samples")


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamConfig:
    """How a stream selects its packs: an exact fill from a window, the next few samples as they come, or by a rule.

    Args:
        capacity, packing_buffer_size: positions that samples may fill in a row, and most samples in the window of one
            stream, for exact fill.
        packing_buffer_tokens: the window is full with this many tokens as well; for mixes of short and very long chats.
        max_tiles, max_images, max_samples: most that a pack holds of these; None for no such limit.
        samples_per_pack: in their place: take this many samples a pack, in order, whatever their lengths.
        batching: in their place: padded batches of samples of like length.
        align_window: plans held back to give every rank packs of equal cost at each step; 1 holds none.
        seed: of the order in which held plans leave.
        error_budget: how many of the last samples of a stream may be lost before it stops; None for any number.

    Raises:
        ConfigError: a number below 1, or neither or both ways to select.
    """

    capacity: int | None = None
    packing_buffer_size: int | None = None
    packing_buffer_tokens: int | None = None
    max_tiles: int | None = None
    max_images: int | None = None
    max_samples: int | None = None
    samples_per_pack: int | None = None
    batching: DynamicBatching | LengthBuckets | None = None
    align_window: int = 1
    seed: int = 0
    error_budget: ErrorBudget | None = None

    def __post_init__(self) -> None:
        for name in ("capacity", "packing_buffer_size", "samples_per_pack", "align_window", *_LIMITS):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value}; it must be at least 1")
        ways = [
            self.capacity is not None and self.packing_buffer_size is not None,
            self.samples_per_pack is not None,
            self.batching is not None,
        ]
        if sum(ways) != 1 or (self.capacity is None) != (self.packing_buffer_size is None):
            raise ConfigError("give either capacity and packing_buffer_size, or samples_per_pack, or batching")

    @property
    def most_held(self) -> int:
        """Most samples that wait for their pack."""
        if self.batching is not None:
            return self.batching.num_samples
        return self.packing_buffer_size or self.samples_per_pack or 1

    def selection(self) -> Selection[Any]:
        """An empty place to hold samples until their pack is chosen."""
        if self.batching is not None:
            return self.batching.selection()
        if self.samples_per_pack is not None:
            return NextFew(self.samples_per_pack)
        assert self.capacity is not None
        limits = {name: most for name in ("max_tiles", "max_images") if (most := getattr(self, name)) is not None}
        return Window(
            self.capacity,
            self.packing_buffer_size,
            self.packing_buffer_tokens,
            limits=limits,
            max_pack_samples=self.max_samples,
        )

    def costs(self, sample: EncodedSample) -> list[int]:
        """What the sample takes of each limit beside tokens, in the order of the limits."""
        costs = {"max_tiles": sample.num_tiles, "max_images": len(sample.pictures)}
        return [costs[name] for name in costs if getattr(self, name) is not None]

    def check_limits(self, sample: EncodedSample) -> None:
        """Raises SampleError if a limit is below what the sample alone takes."""
        for name, taken in (("max_tiles", sample.num_tiles), ("max_images", len(sample.pictures))):
            most = getattr(self, name)
            if most is not None and taken > most:
                raise SampleError(Reason.OVERSIZE, f"takes {taken} of {name}={most}", key=sample.key)
