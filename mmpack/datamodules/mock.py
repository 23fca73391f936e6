"""`NevaMockDataModule`: made-up samples of any shape, to choose sizes and to measure with, under NeMo's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmpack.batch import Batch
from mmpack.datamodules.factory import PackStreamFactory
from mmpack.datamodules.indexed import (
    IndexedDataModule,
    NothingToEncode,
    pad_token_id,
    refuse_rampup,
    wrapped_tokenizer,
)
from mmpack.datamodules.kinds import checked
from mmpack.datamodules.rows import Rows
from mmpack.errors import ConfigError, whole_number
from mmpack.indexed import CellTiles, Count, MockSamples, OpenIndexed, make_lengths, shortest_sample
from mmpack.layout import Layout
from mmpack.tiling import TileSpec
from mmpack.tiling.processor import policy_of

DEFAULT_VOCAB_SIZE = 32_000  # Llama 2's
_FIRST_TEXT_ID = 3  # behind <unk>, <s> and </s>
# The tile of CLIP ViT-L/14 at 336 px, which gives 576 embeddings: what LLaVA-1.5 sees
_CLIP_TILE = TileSpec(
    tile_size_px=336,
    embeddings_per_tile=576,
    mean=(0.48145466, 0.4578275, 0.40821073),
    std=(0.26862954, 0.26130258, 0.27577711),
)


class NevaMockDataModule(IndexedDataModule):
    """Train, validation and test loaders of mock samples. Nothing is downloaded.

    Sample i of a split is a function of (seed, split, i): random text, of which the last three quarters are learned,
    behind real little pictures that are decoded and resized as others are.

    Args:
        seq_length: most tokens of a sample, and the length of all with the default `length_distribution`.
        decoder_seq_length: fixed length of a row, for pipeline parallelism; None for none.
        tokenizer: gives the vocabulary (its special tokens are left out) and the padding; None for `vocab_size`.
        image_processor: of transformers, or a `TileSpec`: gives size, mean and std of a tile; None for CLIP's of
            336 px.
        micro_batch_size: samples of a step on one rank.
        global_batch_size: samples of an optimizer step over all ranks.
        rampup_batch_size: refused.
        num_train_samples, num_val_samples, num_test_samples: how many there are before the first comes again.
        num_workers: processes that make batches; as many as there are streams at most.
        pin_memory, persistent_workers: NeMo's; nothing depends on them. Workers live as long as an iteration.
        packed_sequence: the whole micro batch as one THD row (`PackedBatch`); False for a row of `seq_length` a sample
            (`PaddedBatch`).
        num_image_embeddings_per_tile: positions that a tile takes.
        num_tiles_per_image, num_images_per_sample: a number, or (least, most).
        vocab_size: without a tokenizer: ids are below this.
        length_distribution: "constant", "lognormal", "zipf", the path of a file with a length a line, or a mapping with
            their options; see `mmpack.indexed.make_lengths`. Pictures count in full. In a file, a length too short for
            the pictures gives a sample with fewer.
        packing_buffer_size: fill rows of `packed_sequence_size` exactly from a window of so many samples, instead of
            taking the next micro batch. A row then counts as `micro_batch_size` samples.
        packed_sequence_size: None for ``micro_batch_size * seq_length``.
        layout: multiples of a row and its samples; see `mmpack.layout.Layout`.
        loss_weight: "token", "sample" or "sqrt".
        seed: of the samples.
        repeat: train for ever; False makes every iteration one pass over the samples.
        num_streams: logical streams; None for a number that the data decides. Fixed for the life of a run.
        align_window: of `EnergonMultiModalDataModule`.
        data_parallel_rank, data_parallel_size, num_val_workers, prefetch: as in `PackDataModule`.

    Raises:
        ConfigError: settings that cannot work together, with the remedy.
    """

    @checked
    def __init__(
        self,
        seq_length: int = 2048,
        decoder_seq_length: int | None = None,
        tokenizer: Any = None,
        image_processor: Any = None,
        micro_batch_size: int = 4,
        global_batch_size: int | None = 8,
        rampup_batch_size: Sequence[int] | None = None,
        num_train_samples: int = 10_000_000,
        num_val_samples: int = 10_000_000,
        num_test_samples: int = 10_000_000,
        num_workers: int = 8,
        pin_memory: bool = True,
        persistent_workers: bool = False,
        packed_sequence: bool = False,
        num_image_embeddings_per_tile: int = 576,
        *,
        num_tiles_per_image: Count = 1,
        num_images_per_sample: Count = 1,
        vocab_size: int | None = None,
        length_distribution: str | Path | Mapping[str, Any] = "constant",
        packing_buffer_size: int | None = None,
        packed_sequence_size: int | None = None,
        layout: Layout | None = None,
        loss_weight: str = "token",
        seed: int = 42,
        repeat: bool = True,
        num_streams: int | None = None,
        align_window: int = 1,
        num_val_workers: int | None = None,
        data_parallel_rank: int | None = None,
        data_parallel_size: int | None = None,
        prefetch: int = 2,
    ) -> None:
        refuse_rampup(rampup_batch_size)
        super().__init__(
            micro_batch_size=micro_batch_size,
            global_batch_size=global_batch_size,
            num_workers=num_workers,
            num_val_workers=num_val_workers,
            prefetch=prefetch,
            data_parallel_rank=data_parallel_rank,
            data_parallel_size=data_parallel_size,
        )
        self.seq_length, self.decoder_seq_length = seq_length, decoder_seq_length
        self.tokenizer, self.image_processor = wrapped_tokenizer(tokenizer), image_processor
        self.pin_memory, self.persistent_workers = pin_memory, persistent_workers
        self.packed_sequence, self.seed, self.repeat, self.num_streams = packed_sequence, seed, repeat, num_streams
        self.rows = Rows(
            seq_length=seq_length,
            decoder_seq_length=decoder_seq_length,
            micro_batch_size=micro_batch_size,
            packed=packed_sequence,
            packing_buffer_size=packing_buffer_size,
            packed_sequence_size=packed_sequence_size,
            width=seq_length,
            layout=layout or Layout(),
            loss_weight=loss_weight,
            align_window=align_window,
        )
        self.tiling = CellTiles(mock_tile(image_processor, num_image_embeddings_per_tile))
        self._num_samples = {"train": num_train_samples, "val": num_val_samples, "test": num_test_samples}
        self._counts = (num_tiles_per_image, num_images_per_sample)
        self._token_ids = text_ids(self.tokenizer, vocab_size)
        longest = self.rows.sample_limit
        shortest = shortest_sample(num_image_embeddings_per_tile, *self._counts)
        if longest < shortest:
            raise ConfigError(
                f"{self.rows.limit_setting}={longest}: a sample with its pictures takes {shortest} tokens at least "
                f"({num_image_embeddings_per_tile} embeddings a tile, and text); set {self.rows.limit_setting} to "
                f"{shortest} or more, or lower num_image_embeddings_per_tile, num_tiles_per_image or "
                "num_images_per_sample"
            )
        self._lengths = make_lengths(length_distribution, shortest=shortest, longest=longest)
        self._open_train()
        self.num_streams = self._train.num_streams

    def samples(self, split: str) -> MockSamples:
        """The samples of ``train``, ``val`` or ``test``."""
        return MockSamples(
            split=split,
            num_samples=self._num_samples[split],
            lengths=self._lengths,
            tiling=self.tiling,
            token_ids=self._token_ids,
            num_tiles_per_image=self._counts[0],
            num_images_per_sample=self._counts[1],
            seed=self.seed,
        )

    def factory(self, split: str, *, training: bool = False) -> PackStreamFactory[Batch]:
        """Opens the logical streams of a split; samples come in the order of their numbers."""
        samples = self.samples(split)
        endless = training and self.repeat
        return self._factory(
            OpenIndexed(datasets=(samples,), shuffle=False, repeat=endless),
            NothingToEncode(),
            self.tiling,
            pad_token_id(self.tokenizer),
            num_samples=len(samples),
            training=training,
            endless=endless,
            settings={"data": samples.describe(), "data.repeat": endless},
        )


def mock_tile(image_processor: Any, num_image_embeddings_per_tile: int) -> TileSpec:
    """The tile that an image processor makes, or CLIP's. Raises ConfigError for one that makes patches."""
    if num_image_embeddings_per_tile < 1:
        raise ConfigError(f"num_image_embeddings_per_tile={num_image_embeddings_per_tile}; it must be at least 1")
    if image_processor is None or isinstance(image_processor, TileSpec):
        return replace(image_processor or _CLIP_TILE, embeddings_per_tile=num_image_embeddings_per_tile)
    if policy_of(image_processor) == "native":
        raise ConfigError(
            f"{type(image_processor).__name__} makes patches of native resolution; mock pictures are tiles: pass a "
            "processor of tiles, an mmpack.tiling.TileSpec, or None"
        )
    return TileSpec.from_processor(image_processor, embeddings_per_tile=num_image_embeddings_per_tile)


def text_ids(tokenizer: Any, vocab_size: int | None) -> NDArray[np.int64]:
    """The ids that mock text is drawn from: the tokenizer's without its special ones, or those below `vocab_size`."""
    if tokenizer is None:
        size = DEFAULT_VOCAB_SIZE if vocab_size is None else vocab_size
        if size <= _FIRST_TEXT_ID:
            raise ConfigError(f"vocab_size={size}; it must be above {_FIRST_TEXT_ID}")
        return np.arange(_FIRST_TEXT_ID, size, dtype=np.int64)
    named = len(tokenizer) if hasattr(tokenizer, "__len__") else whole_number(getattr(tokenizer, "vocab_size", None))
    if named is None or isinstance(tokenizer, str | bytes):
        raise ConfigError(
            f"tokenizer={tokenizer!r} tells no size of its vocabulary; pass a tokenizer of transformers, or vocab_size"
        )
    size = named
    if vocab_size is not None and vocab_size != size:
        raise ConfigError(f"vocab_size={vocab_size}, but the tokenizer has {size} ids; give one of the two")
    special = {*getattr(tokenizer, "all_special_ids", ()), *getattr(tokenizer, "added_tokens_decoder", ())}
    ids = np.setdiff1d(np.arange(size, dtype=np.int64), np.array(sorted(special), dtype=np.int64))
    if not len(ids):
        raise ConfigError(
            f"tokenizer {type(tokenizer).__name__} has special tokens only; pass vocab_size instead of it"
        )
    return ids
