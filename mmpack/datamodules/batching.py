"""What one batch of the Energon module is: an exactly filled row, or padded rows chosen in one of three ways."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from mmpack.collate import Collator, PaddedCollator
from mmpack.datamodules.multimodal import MultiModalTaskEncoder
from mmpack.dynamic import MicrobatchOrder
from mmpack.errors import ConfigError, nearest
from mmpack.stream import DynamicBatching, LengthBuckets, StreamConfig

BATCHINGS = ("packing", "dynamic", "buckets", "padding")


@dataclass(frozen=True, kw_only=True, slots=True)
class Batching:
    """How samples become batches.

    * ``packing``: rows of `packed_sequence_size`, exactly filled from a window of `packing_buffer_size` samples;
    * ``dynamic``: padded rows of like length within a budget of `tokens_per_microbatch` positions: the samples of a
      window are sorted by length and cut, as NeMo-RL's dynamic batching does;
    * ``buckets``: `micro_batch_size` padded rows from one bucket of lengths;
    * ``padding``: the next `micro_batch_size` samples, padded to the longest.

    Args:
        kind: one of these; None for what the task encoder's `packed_sequence` says, packing or padding.
        packing_buffer_size: samples of one stream to choose from (not for ``padding``).
        packing_buffer_tokens: the window is full with this many tokens as well; for mixes with very long samples.
        micro_batch_size: rows of a batch, for ``padding`` and ``buckets``.
        tokens_per_microbatch: for ``dynamic``.
        sequence_length_round: padded rows are rounded up to a multiple of this, but not above `seq_length`.
        microbatch_order: for ``dynamic``, "packer" (shortest first) or "largest_first".
        bucket_boundaries, length_tolerance: for ``buckets``, one of the two.
        max_tiles_per_pack, max_images_per_pack, max_samples_per_pack: for ``packing``; None for no such limit.
        align_window: for ``packing``; see `mmpack.window.AlignedPlans`.

    Raises:
        ConfigError: settings that do not go together, with the remedy.
    """

    kind: str | None = None
    packing_buffer_size: int | None = None
    packing_buffer_tokens: int | None = None
    micro_batch_size: int = 1
    tokens_per_microbatch: int | None = None
    sequence_length_round: int = 1
    microbatch_order: MicrobatchOrder = "packer"
    bucket_boundaries: Sequence[int] | None = None
    length_tolerance: int | None = None
    max_tiles_per_pack: int | None = None
    max_images_per_pack: int | None = None
    max_samples_per_pack: int | None = None
    align_window: int = 1

    def __post_init__(self) -> None:
        if self.kind is not None and self.kind not in BATCHINGS:
            raise ConfigError(f"batching={self.kind!r}; {nearest(str(self.kind), BATCHINGS)}")
        for name in ("max_tiles_per_pack", "max_images_per_pack", "max_samples_per_pack"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value}; it must be at least 1")
        if self.sequence_length_round < 1:
            raise ConfigError(f"sequence_length_round={self.sequence_length_round}; it must be at least 1")

    def for_encoder(self, task_encoder: MultiModalTaskEncoder) -> Batching:
        """The same with `kind` decided, and checked against the rest. Raises ConfigError."""
        kind = self.kind or ("packing" if task_encoder.packed_sequence else "padding")
        size = self.packing_buffer_size
        if kind != "padding" and (size is None or size < 1):
            raise ConfigError(
                f"packing_buffer_size={size}; give the number of samples to choose a "
                f"{'pack' if kind == 'packing' else 'batch'} from, e.g. 200"
            )
        if kind == "padding" and size is not None:
            remedy = "batching='packing'" if task_encoder.packed_sequence else "packed_sequence=True"
            raise ConfigError(
                f"packing_buffer_size={size} with packed_sequence={task_encoder.packed_sequence} and "
                f"batching={kind!r}: nothing is chosen from a buffer then; leave it out, or set {remedy}"
            )
        if kind == "packing":
            self._check_packing(task_encoder)
            return replace(self, kind=kind, max_samples_per_pack=self._most_samples(task_encoder))
        self._check_padded(kind, task_encoder)
        return replace(self, kind=kind)

    def _most_samples(self, task_encoder: MultiModalTaskEncoder) -> int | None:
        """Of a pack: what is asked for, and no more than there are offsets for."""
        asked, most = self.max_samples_per_pack, task_encoder.layout.max_samples
        if asked is not None and most is not None and asked > most:
            raise ConfigError(
                f"max_samples_per_pack={asked} with layout.cu_seqlens_size={task_encoder.layout.cu_seqlens_size}, "
                f"which holds {most} and a tail; set layout.cu_seqlens_size={asked + 2}"
            )
        return most if asked is None else asked

    def _check_packing(self, task_encoder: MultiModalTaskEncoder) -> None:
        if not task_encoder.packed_sequence:
            raise ConfigError("packed_sequence=False with batching='packing'; set packed_sequence=True")
        if self.micro_batch_size != 1:
            size = task_encoder.packed_sequence_size or 0
            raise ConfigError(
                f"micro_batch_size={self.micro_batch_size} with packing_buffer_size={self.packing_buffer_size}: a pack "
                f"is one row already; set micro_batch_size=1 and, for the same memory, packed_sequence_size="
                f"{size * self.micro_batch_size}"
            )
        for name in ("tokens_per_microbatch", "bucket_boundaries", "length_tolerance"):
            if getattr(self, name) is not None:
                raise ConfigError(f"{name}={getattr(self, name)} has no meaning for packing; leave it out")

    def _check_padded(self, kind: str, task_encoder: MultiModalTaskEncoder) -> None:
        if task_encoder.layout.fixed_total is not None:
            raise ConfigError(
                f"layout.fixed_total={task_encoder.layout.fixed_total} with batching={kind!r}: rows of fixed length "
                "(pipeline parallelism) and rows as long as the batch needs exclude each other; use packing"
            )
        if (kind == "dynamic") != (self.tokens_per_microbatch is not None):
            raise ConfigError(
                f"tokens_per_microbatch={self.tokens_per_microbatch} with batching={kind!r}; it is the budget of "
                "batching='dynamic', and of nothing else"
            )
        if kind == "dynamic" and self.micro_batch_size != 1:
            raise ConfigError(
                f"micro_batch_size={self.micro_batch_size} with batching='dynamic': tokens_per_microbatch decides how "
                "many rows a batch has; leave micro_batch_size at 1"
            )

    @property
    def packs(self) -> bool:
        """Whether a batch is one packed row."""
        return self.kind == "packing"

    def stream_config(
        self, task_encoder: MultiModalTaskEncoder, seq_length: int, *, seed: int, training: bool
    ) -> StreamConfig:
        """How a stream selects."""
        if self.kind == "padding":
            return StreamConfig(samples_per_pack=self.micro_batch_size, seed=seed)
        size = self.packing_buffer_size
        assert size is not None
        rule: DynamicBatching | LengthBuckets
        if self.kind == "buckets":
            rule = LengthBuckets(
                num_samples=size,
                batch_size=self.micro_batch_size,
                bucket_boundaries=self.bucket_boundaries,
                length_tolerance=self.length_tolerance,
            )
            return StreamConfig(batching=rule, seed=seed)
        if self.kind == "dynamic":
            assert self.tokens_per_microbatch is not None
            rule = DynamicBatching(
                num_samples=size,
                tokens_per_microbatch=self.tokens_per_microbatch,
                max_length=seq_length,
                sequence_length_round=self.sequence_length_round,
                microbatch_order=self.microbatch_order,
            )
            return StreamConfig(batching=rule, seed=seed)
        assert task_encoder.packed_sequence_size is not None
        return StreamConfig(
            capacity=task_encoder.layout.capacity(task_encoder.packed_sequence_size),
            packing_buffer_size=size,
            packing_buffer_tokens=self.packing_buffer_tokens,
            max_tiles=self.max_tiles_per_pack,
            max_images=self.max_images_per_pack,
            max_samples=self.max_samples_per_pack,
            align_window=self.align_window if training else 1,
            seed=seed,
        )

    def collator(self, task_encoder: MultiModalTaskEncoder, seq_length: int) -> Collator | PaddedCollator:
        """How a batch is laid out."""
        packed = task_encoder.build_collator()
        if self.packs:
            return packed
        return PaddedCollator(
            tiling=packed.tiling,
            pad_token_id=packed.pad_token_id,
            loss_weight=packed.loss_weight,
            width_multiple=self.sequence_length_round,
            max_width=seq_length,
        )

    def positions(self, task_encoder: MultiModalTaskEncoder, seq_length: int) -> int:
        """Most positions of a batch, about."""
        if self.kind == "dynamic":
            return self.tokens_per_microbatch or 0
        return seq_length * self.micro_batch_size if not self.packs else task_encoder.packed_sequence_size or 0


def batching_arguments(given: dict[str, Any]) -> Batching:
    """A `Batching` from the arguments of a data module, of which ``batching`` is its kind."""
    names = [name for name in Batching.__dataclass_fields__ if name != "kind"]
    return Batching(kind=given["batching"], **{name: given[name] for name in names})
