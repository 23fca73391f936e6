"""`NevaLazyDataModule`: LLaVA files read through an index, packed by the micro batch or exactly, under NeMo's names."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from mmpack.batch import Batch
from mmpack.datamodules.factory import PackStreamFactory, encoder_settings
from mmpack.datamodules.image_data import ImageDataConfig
from mmpack.datamodules.indexed import IndexedDataModule, pad_token_id, wrapped_tokenizer
from mmpack.datamodules.kinds import checked
from mmpack.datamodules.lazy_data import LazyData, Paths, split_shares
from mmpack.datamodules.multimodal import MultiModalTaskEncoder
from mmpack.datamodules.rows import Rows
from mmpack.encode import LengthLimit, SampleEncoder
from mmpack.errors import ConfigError
from mmpack.indexed import IndexedDataset, OpenIndexed
from mmpack.layout import Layout
from mmpack.ledger import ErrorBudget
from mmpack.stream import OpenSource
from mmpack.stream.mixed import OpenMix
from mmpack.tiling import Decode, TileSpec, check_follows
from mmpack.tiling.processor import policy_of


class NevaLazyDataModule(IndexedDataModule):
    """Train, validation and test loaders over LLaVA files. A record is read when it is drawn.

    Args:
        paths: one `.json` (a list) or `.jsonl` file, several, or a mapping of ``train``, ``validation`` and ``test`` to
            these.
        weights: shares of the training files, one each; None for as many samples as each has.
        data_config: how records and pictures are read; None for `ImageDataConfig`'s defaults.
        seq_length: most tokens of a sample.
        decoder_seq_length: fixed length of a row, for pipeline parallelism; None for none. A longer sample is treated
            as `oversize` says.
        tokenizer: a fast tokenizer of transformers, or NeMo's around one.
        image_processor: of transformers, or a `TileSpec`.
        micro_batch_size: samples of a step on one rank.
        global_batch_size: samples of an optimizer step over all ranks.
        num_train_samples, num_val_samples, num_test_samples: NeMo's; as there, nothing depends on them.
        num_workers: processes that make batches; as many as there are streams at most.
        pin_memory, persistent_workers: NeMo's; nothing depends on them. Workers live as long as an iteration.
        packed_sequence: the whole micro batch as one THD row (`PackedBatch`); False for padded rows (`PaddedBatch`).
        num_image_embeddings_per_tile: what the vision tower gives for one tile.
        seed: of the order, and of the choice of splits.
        use_packed_sequence: an older name of `packed_sequence`.
        split: shares of train, validation and test, such as "0.9,0.05,0.05": each file is divided by them at random.
            None leaves all to training, and there is no validation then but what `paths` names.
        packing_buffer_size: fill rows of `packed_sequence_size` exactly from a window of so many samples a stream,
            instead of taking the next micro batch. A row then counts as `micro_batch_size` samples.
        packed_sequence_size: None for `decoder_seq_length`, or without it ``micro_batch_size * seq_length``.
        oversize: what becomes of a sample longer than it may be: a policy of `mmpack.encode.LengthLimit`.
        blend_by: what `weights` are shares of, "samples" or "tokens".
        tiling, tiling_options, decode: as in `MultiModalTaskEncoder`.
        layout: multiples of a row and its samples; see `mmpack.layout.Layout`.
        loss_weight: "token", "sample" or "sqrt".
        shuffle: another order in every epoch; False for that of the files.
        repeat: train for ever; False makes every iteration one epoch.
        num_streams: logical streams; None for a number that the data decides. Fixed for the life of a run.
        align_window, max_bad_share, bad_share_window: of `EnergonMultiModalDataModule`.
        data_parallel_rank, data_parallel_size, num_val_workers, prefetch: as in `PackDataModule`.

    Raises:
        ConfigError: settings that cannot work together, or files that cannot be read, with the remedy.
    """

    @checked
    def __init__(
        self,
        paths: Paths | Mapping[str, Paths],
        weights: Sequence[float] | None = None,
        data_config: ImageDataConfig | type[ImageDataConfig] | None = None,
        seq_length: int = 2048,
        decoder_seq_length: int | None = None,
        tokenizer: Any = None,
        image_processor: Any = None,
        micro_batch_size: int = 4,
        global_batch_size: int | None = 8,
        num_train_samples: int | None = 10_000,
        num_val_samples: int | None = 10_000,
        num_test_samples: int | None = 10_000,
        num_workers: int = 8,
        pin_memory: bool = True,
        persistent_workers: bool = False,
        packed_sequence: bool = False,
        num_image_embeddings_per_tile: int = 576,
        seed: int = 1234,
        *,
        use_packed_sequence: bool | None = None,
        split: str | Sequence[float] | None = None,
        packing_buffer_size: int | None = None,
        packed_sequence_size: int | None = None,
        oversize: str | Mapping[str, str] = "drop",
        blend_by: str = "samples",
        tiling: str | None = None,
        tiling_options: Mapping[str, Any] | None = None,
        decode: Decode | None = None,
        layout: Layout | None = None,
        loss_weight: str = "token",
        shuffle: bool = True,
        repeat: bool = True,
        num_streams: int | None = None,
        align_window: int = 1,
        max_bad_share: float | None = None,
        bad_share_window: int = 1000,
        num_val_workers: int | None = None,
        data_parallel_rank: int | None = None,
        data_parallel_size: int | None = None,
        prefetch: int = 2,
    ) -> None:
        super().__init__(
            micro_batch_size=micro_batch_size,
            global_batch_size=global_batch_size,
            num_workers=num_workers,
            num_val_workers=num_val_workers,
            prefetch=prefetch,
            data_parallel_rank=data_parallel_rank,
            data_parallel_size=data_parallel_size,
        )
        self.data_config = _data_config(data_config)
        self.seq_length, self.decoder_seq_length = seq_length, decoder_seq_length
        self.tokenizer, self.image_processor = wrapped_tokenizer(tokenizer), image_processor
        self.pin_memory, self.persistent_workers = pin_memory, persistent_workers
        self.packed_sequence = packed_sequence if use_packed_sequence is None else use_packed_sequence
        self.seed, self.shuffle, self.repeat, self.num_streams = seed, shuffle, repeat, num_streams
        self.error_budget = ErrorBudget.of(max_bad_share, bad_share_window)
        self.rows = Rows(
            seq_length=seq_length,
            decoder_seq_length=decoder_seq_length,
            micro_batch_size=micro_batch_size,
            packed=self.packed_sequence,
            packing_buffer_size=packing_buffer_size,
            packed_sequence_size=packed_sequence_size,
            layout=layout or Layout(),
            loss_weight=loss_weight,
            align_window=align_window,
        )
        self._oversize = oversize
        _check_oversize(oversize, self.rows)
        self._pieces = self._encoder_pieces(num_image_embeddings_per_tile, tiling, tiling_options or {}, decode)
        self.encoder = self._build_encoder()
        self.weights = None if weights is None else _numbers(weights)
        self.blend_by = blend_by
        self.data = LazyData(paths, split_shares(split), self.data_config, seed)
        self.encoder.limit.check_sources(self.data.names)
        self._check_weights()
        self._open_train()
        self.num_streams = self._train.num_streams

    def _encoder_pieces(
        self, embeddings: int, tiling: str | None, options: Mapping[str, Any], decode: Decode | None
    ) -> MultiModalTaskEncoder:
        """Tokenizer, template and tiling, checked against each other."""
        processor = self.image_processor
        is_single = tiling == "single" or (
            tiling is None
            and processor is not None
            and (isinstance(processor, TileSpec) or policy_of(processor) == "single")
        )
        by_itself = is_single and tiling is None
        if is_single:
            tiling, options = "single", {"fit": self.data_config.image_process_mode} | dict(options)
        pieces = MultiModalTaskEncoder(
            tokenizer=self.tokenizer,
            image_processor=processor,
            multimodal_sample_config=self.data_config.sample_config(),
            packed_sequence_size=self.rows.row_size,
            num_image_embeddings_per_tile=embeddings,
            tiling=tiling,
            tiling_options=options,
            decode=decode,
        )
        if by_itself and not isinstance(processor, TileSpec):
            check_follows(processor, pieces.build_tiling(), square_only=True)
        return pieces

    def _build_encoder(self) -> SampleEncoder:
        template = self.data_config.sample_config().conversation_template_config.build(self.tokenizer)
        limit = LengthLimit(seq_length=self.rows.sample_limit, oversize=self._oversize, setting=self.rows.limit_setting)
        return SampleEncoder(
            tokenizer=self.tokenizer, template=template, tiling=self._pieces.build_tiling(), limit=limit,
            video_frames=self.data_config.video_frames,
        )  # fmt: skip

    def _check_weights(self) -> None:
        num_files = len(self.data.paths["train"])
        if self.weights is None:
            if self.blend_by != "samples":
                raise ConfigError(f"blend_by={self.blend_by!r} without weights; give weights, one for each file")
            return
        if len(self.weights) != num_files:
            raise ConfigError(f"{len(self.weights)} weights for {num_files} files; give one for each")
        if num_files > 1 and not self.repeat:
            raise ConfigError("weights with repeat=False: a blend has no end; leave weights out, or set repeat=True")

    def _sources(self, datasets: tuple[IndexedDataset, ...], *, shuffle: bool, repeat: bool) -> OpenSource:
        """The training files blended by weight, or all samples together."""
        if not repeat or self.weights is None:
            return OpenIndexed(datasets=datasets, seed=self.seed, shuffle=shuffle, repeat=repeat)
        opened = [OpenIndexed(datasets=(d,), seed=self.seed, shuffle=shuffle, repeat=True) for d in datasets]
        return OpenMix(sources=opened, weights=self.weights, unit=self.blend_by, encoder=self.encoder)

    def factory(self, split: str, *, training: bool = False) -> PackStreamFactory[Batch]:
        """Opens the logical streams of a split: for ever if `training`, else every sample once in order."""
        datasets = self.data.datasets(split)
        endless, shuffle = training and self.repeat, training and self.shuffle
        settings = {
            "data": [dataset.describe() for dataset in datasets],
            "data.names": [dataset.name for dataset in datasets],
            "data.seed": self.seed,
            "data.shuffle": shuffle,
            "data.repeat": endless,
            "data.weights": self.weights if training else None,
            "data.blend_by": self.blend_by,
        }
        return self._factory(
            self._sources(datasets, shuffle=shuffle, repeat=endless),
            self.encoder,
            self._pieces.build_tiling(),
            pad_token_id(self.tokenizer),
            num_samples=sum(len(dataset) for dataset in datasets),
            training=training,
            endless=endless,
            settings=encoder_settings(self.encoder) | settings,
        )

    def val_dataloader(self) -> Any:
        """Packs of the validation data; under a Trainer none, with a warning, if there is no such data."""
        if not self.data.has("val") and getattr(self, "trainer", None) is not None:
            warnings.warn("no validation data (paths or split name none), so nothing is validated", stacklevel=2)
            return []
        return super().val_dataloader()


NevaPreloadedDataModule = NevaLazyDataModule


def _data_config(given: ImageDataConfig | type[ImageDataConfig] | None) -> ImageDataConfig:
    config = ImageDataConfig() if given is None else given
    if isinstance(config, type) and issubclass(config, ImageDataConfig):
        config = config()
    if not isinstance(config, ImageDataConfig):
        raise ConfigError(f"data_config={given!r}; give a vlm.ImageDataConfig(image_folder=..., conv_template=...)")
    return config


def _numbers(weights: Sequence[float]) -> list[float]:
    try:
        if not isinstance(weights, str | bytes):
            return [float(weight) for weight in weights]
    except (TypeError, ValueError):
        pass
    raise ConfigError(f"weights={weights!r}; a list of numbers, one for each file")


def _check_oversize(oversize: str | Mapping[str, str], rows: Rows) -> None:
    policies = [oversize] if isinstance(oversize, str) else list(oversize.values())
    if "own_pack" in policies and (rows.decoder_seq_length is not None or rows.packing_buffer_size is None):
        raise ConfigError(
            "oversize='own_pack' makes rows that are longer than the others; it needs packing_buffer_size, and no "
            "decoder_seq_length"
        )
