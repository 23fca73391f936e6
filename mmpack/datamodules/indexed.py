"""What NeMo's mock and lazy modules have in common: data sets with random access, read as rows of some kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import metadata
from typing import Any, NoReturn

from mmpack.batch import Batch
from mmpack.collate import Collator, PaddedCollator
from mmpack.datamodules.base import PackDataModule
from mmpack.datamodules.factory import PackStreamFactory, collator_settings, default_num_streams
from mmpack.datamodules.rows import Rows
from mmpack.errors import ConfigError
from mmpack.ledger import ErrorBudget
from mmpack.sample import Conversation
from mmpack.stream import OpenSource, StreamConfig
from mmpack.stream.packs import Encoder
from mmpack.tiling import TilingPolicy

MICRO_BATCH_STREAMS = 240  # streams without a window cost nothing, and 240 divides among most numbers of ranks


class NothingToEncode:
    """The encoder for sources whose samples are encoded already."""

    def encode(self, conversation: Conversation) -> NoReturn:
        """Never called."""
        raise AssertionError(f"{conversation.key}: a source of encoded samples gave a conversation")


def wrapped_tokenizer(tokenizer: Any) -> Any:
    """The tokenizer of transformers inside one of NeMo's, or `tokenizer` itself."""
    inner = getattr(tokenizer, "tokenizer", None)
    return inner if inner is not None and hasattr(inner, "convert_tokens_to_ids") else tokenizer


def pad_token_id(tokenizer: Any) -> int:
    """The tokenizer's padding id; 0 without one."""
    pad = getattr(tokenizer, "pad_token_id", None)
    return 0 if pad is None else int(pad)


def refuse_rampup(rampup_batch_size: Sequence[int] | None) -> None:
    """Raises ConfigError: how many micro batches make a step is the trainer's to decide."""
    if rampup_batch_size is not None:
        raise ConfigError(
            f"rampup_batch_size={rampup_batch_size!r}: these loaders hand out micro batches, and how many of them "
            "make an optimizer step is the trainer's choice; raise its gradient accumulation from step to step, and "
            "leave rampup_batch_size out"
        )


class IndexedDataModule(PackDataModule[Batch]):
    """A data module whose batches are described by `rows`; the rest is `PackDataModule`'s."""

    rows: Rows
    seed: int
    num_streams: int | None
    error_budget: ErrorBudget | None = None

    def _factory(
        self,
        open_source: OpenSource,
        encoder: Encoder,
        tiling: TilingPolicy,
        pad: int,
        *,
        num_samples: int,
        training: bool,
        endless: bool,
        settings: dict[str, Any],
    ) -> PackStreamFactory[Batch]:
        chosen: StreamConfig = self.rows.stream_config(seed=self.seed, training=training)
        stream = replace(chosen, error_budget=self.error_budget if training else None)
        collator: Any = self.rows.collator(tiling, pad_token_id=pad)
        assert isinstance(collator, Collator | PaddedCollator)
        described = {
            f"stream.{name}": getattr(stream, name)
            for name in ("capacity", "packing_buffer_size", "samples_per_pack", "align_window", "seed")
        }
        return PackStreamFactory(
            open_source=open_source,
            stream=stream,
            encoder=encoder,
            collator=collator,
            num_streams=self._num_streams(num_samples, training),
            endless=endless,
            settings=described | collator_settings(collator) | settings,
            versions={"mmpack": metadata.version("mmpack")},
            max_batch_bytes=self.rows.max_batch_bytes(tiling),
        )

    def _num_streams(self, num_samples: int, training: bool) -> int:
        """As asked, or by the size of the data alone; for data that is never resumed, so that the ranks divide it."""
        if training and self.num_streams is not None:
            if not 1 <= self.num_streams <= num_samples:
                raise ConfigError(
                    f"num_streams={self.num_streams}: there are {num_samples} training samples, and every stream needs "
                    f"one; allowed: 1 to {num_samples}"
                )
            return self.num_streams
        if training and self.rows.packing_buffer_size is None and num_samples >= 200 * MICRO_BATCH_STREAMS:
            return MICRO_BATCH_STREAMS
        number = default_num_streams(num_samples)
        return number if training or number % self.world_size == 0 else self.world_size
