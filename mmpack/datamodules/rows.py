"""What the batches of NeMo's mock and lazy modules look like: a micro batch as one row, as padded rows, or a window."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from mmpack.collate import Collator, PaddedCollator
from mmpack.collate.rows import check_loss_weight
from mmpack.datamodules.factory import tensor_bytes
from mmpack.errors import ConfigError
from mmpack.layout import Layout, round_up
from mmpack.stream import StreamConfig
from mmpack.tiling import TilingPolicy


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Three kinds of batches, by `packed` and `packing_buffer_size`.

    * packed, no buffer: the next `micro_batch_size` samples one behind the other in one row, as NeMo packs;
    * packed, with a buffer: rows of `packed_sequence_size`, exactly filled from a window of samples;
    * not packed: `micro_batch_size` padded rows.

    Args:
        seq_length: most tokens of a sample.
        decoder_seq_length: fixed length of a row, for pipeline parallelism; None for none.
        packed_sequence_size: None for `decoder_seq_length`, or else for as much as a micro batch can hold.
        width: length of padded rows; None for that of the longest sample.
        layout: multiples of a packed row and its samples; padded rows are rounded up to all of them.
        align_window: of the window; see `mmpack.stream.StreamConfig`.

    Raises:
        ConfigError: numbers that do not go together, with the remedy.
    """

    seq_length: int
    micro_batch_size: int
    packed: bool
    decoder_seq_length: int | None = None
    packing_buffer_size: int | None = None
    packed_sequence_size: int | None = None
    width: int | None = None
    layout: Layout = field(default_factory=Layout)
    loss_weight: str = "token"
    align_window: int = 1

    def __post_init__(self) -> None:
        for name in ("seq_length", "micro_batch_size", "decoder_seq_length", "packing_buffer_size", "align_window"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value}; it must be at least 1")
        check_loss_weight(self.loss_weight)
        if not self.packed and self.packing_buffer_size is not None:
            raise ConfigError(
                f"packing_buffer_size={self.packing_buffer_size} with packed_sequence=False: only packs are filled "
                "from a buffer; set packed_sequence=True, or leave packing_buffer_size out"
            )
        if self.packing_buffer_size is None:
            for name, unset in (("packed_sequence_size", None), ("align_window", 1)):
                if getattr(self, name) != unset:
                    raise ConfigError(
                        f"{name}={getattr(self, name)} without packing_buffer_size: a row is one micro batch then; set "
                        "packing_buffer_size, e.g. 200"
                    )
        if self.packed:
            self._check_row()
        most = self.layout.max_samples
        if self.packed and self.packing_buffer_size is None and most is not None and self.micro_batch_size > most:
            raise ConfigError(
                f"micro_batch_size={self.micro_batch_size} with layout.cu_seqlens_size={self.layout.cu_seqlens_size}, "
                f"which holds {most} and a tail; set layout.cu_seqlens_size={self.micro_batch_size + 2}"
            )

    def _check_row(self) -> None:
        size, fixed, capacity = self.row_size, self.decoder_seq_length, self.capacity
        if self.packing_buffer_size is None:
            if fixed is not None and fixed < capacity:
                raise ConfigError(
                    f"decoder_seq_length={fixed}: a micro batch of {self.micro_batch_size} samples can take {capacity} "
                    f"positions, and none is cut; set decoder_seq_length={capacity}, lower seq_length or "
                    "micro_batch_size, or set packing_buffer_size to fill rows of that length from a window"
                )
            return
        if capacity < self.seq_length:
            raise ConfigError(
                f"packed_sequence_size={size} holds {capacity} positions, below seq_length={self.seq_length}: some "
                "samples would fit no pack; raise packed_sequence_size, or lower seq_length"
            )
        if fixed is not None and fixed < size:
            raise ConfigError(f"decoder_seq_length={fixed} is below packed_sequence_size={size}; make them equal")
        if size % self.layout.total_multiple:
            raise ConfigError(
                f"packed_sequence_size={size} is not a multiple of layout.total_multiple={self.layout.total_multiple}; "
                f"set {round_up(size, self.layout.total_multiple)}"
            )

    @property
    def row_size(self) -> int:
        """Positions of a packed row."""
        if self.packed_sequence_size is not None:
            return self.packed_sequence_size
        if self.packing_buffer_size is not None and self.decoder_seq_length is not None:
            return self.decoder_seq_length
        return self.layout.room(self.seq_length) * self.micro_batch_size

    @property
    def capacity(self) -> int:
        """Positions that samples may fill in a packed row."""
        return self.layout.capacity(self.row_size)

    @property
    def sample_limit(self) -> int:
        """Most tokens of one sample."""
        if self.packed or self.decoder_seq_length is None:
            return self.seq_length
        return min(self.seq_length, self.decoder_seq_length)

    @property
    def limit_setting(self) -> str:
        """The setting that `sample_limit` came from."""
        return "seq_length" if self.sample_limit == self.seq_length else "decoder_seq_length"

    def stream_config(self, *, seed: int, training: bool) -> StreamConfig:
        """How the samples of a batch are chosen."""
        if self.packing_buffer_size is None:
            return StreamConfig(samples_per_pack=self.micro_batch_size, seed=seed)
        return StreamConfig(
            capacity=self.capacity,
            packing_buffer_size=self.packing_buffer_size,
            max_samples=self.layout.max_samples,
            align_window=self.align_window if training else 1,
            seed=seed,
        )

    def collator(self, tiling: TilingPolicy, *, pad_token_id: int) -> Collator | PaddedCollator:
        """How they are laid out."""
        if self.packed:
            layout = self.layout
            if self.decoder_seq_length is not None:
                layout = replace(layout, fixed_total=self.decoder_seq_length)
            return Collator(tiling=tiling, layout=layout, pad_token_id=pad_token_id, loss_weight=self.loss_weight)
        return PaddedCollator(
            tiling=tiling,
            pad_token_id=pad_token_id,
            loss_weight=self.loss_weight,
            width=self.decoder_seq_length if self.decoder_seq_length is not None else self.width,
            width_multiple=math.lcm(self.layout.sequence_multiple, self.layout.total_multiple),
        )

    def max_batch_bytes(self, tiling: TilingPolicy) -> int:
        """Most bytes that the tensors of a batch usually take."""
        filled = self.capacity if self.packed else self.sample_limit * self.micro_batch_size
        positions = filled
        if self.decoder_seq_length is not None:
            positions = self.decoder_seq_length * (1 if self.packed else self.micro_batch_size)
        multiples = self.micro_batch_size * math.lcm(self.layout.sequence_multiple, self.layout.total_multiple)
        return tensor_bytes(positions + multiples, filled, tiling)
