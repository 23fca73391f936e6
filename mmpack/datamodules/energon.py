"""`EnergonMultiModalDataModule`: batches from an Energon dataset, exactly filled packs unless another way is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmpack.datamodules.base import PackDataModule
from mmpack.datamodules.batching import batching_arguments
from mmpack.datamodules.factory import EnergonStreamFactory, dataset_names
from mmpack.datamodules.kinds import checked
from mmpack.datamodules.multimodal import MultiModalSampleConfig, MultiModalTaskEncoder
from mmpack.datamodules.planned import DEFAULT_BUFFER, ORDERS, global_plan, refuse_stream_settings
from mmpack.dynamic import MicrobatchOrder
from mmpack.encode import LengthLimit
from mmpack.energon.reader import SourceConfig
from mmpack.epoch import GlobalPlanLoader
from mmpack.epoch.packs import Lanes
from mmpack.errors import ConfigError, nearest
from mmpack.ledger import ErrorBudget
from mmpack.loader import PackLoader, StreamFactory
from mmpack.stream.mixed import UNITS


class EnergonMultiModalDataModule(PackDataModule[Any]):
    """Train, validation and test loaders of image-text samples: packs, or `PaddedBatch` where nothing is packed.

    Args:
        path: folder of an Energon dataset (made by `mmpack convert`), or a metadataset's YAML file.
        tokenizer, image_processor, multimodal_sample_config: as in `MultiModalTaskEncoder`; not needed if a
            `task_encoder` is given.
        seq_length: most tokens of one sample.
        micro_batch_size: rows of a batch; 1 for packs, since a pack already holds many samples.
        global_batch_size: packs (rows, if they are padded) per optimizer step over all ranks; None for one batch per
            rank. Of dynamic batching, where rows vary, it counts batches.
        num_workers: processes that read, encode and decode; 0 reads in the training process.
        num_val_workers: the same for validation; None for `num_workers`.
        task_encoder: how samples are encoded and how long a pack is; None builds one from the arguments.
        validation_task_encoder: the same for validation; None for `task_encoder`.
        packing_buffer_size: most samples that one logical stream holds to choose from.
        packed_sequence, packed_sequence_size, num_image_embeddings_per_tile: as in `MultiModalTaskEncoder`,
            for when no `task_encoder` is given.
        validation_path, test_path: datasets to read the splits ``val`` and ``test`` from; None for `path`.
        shuffle_buffer_size, max_samples_per_sequence: how energon shuffles; see `SourceConfig`.
        seed: of the order.
        repeat: read the training data for ever; False makes every iteration one epoch.
        num_streams: logical streams; None chooses by the size of the data. Fixed for the life of a run.
        batching: "packing", "dynamic", "buckets" or "padding"; None for what the task encoder's `packed_sequence`
            says. See `mmpack.datamodules.batching.Batching` for it and for `packing_buffer_tokens`,
            `tokens_per_microbatch`, `sequence_length_round`, `microbatch_order`, `bucket_boundaries`,
            `length_tolerance`, `max_tiles_per_pack`, `max_images_per_pack` and `max_samples_per_pack`.
        blend_by: what the weights of a metadataset's blend are shares of: "samples" (energon draws by them), or
            "tokens" (exact shares of the tokens that the model sees).
        align_window: plans that a stream holds back so that at each step all ranks get packs of about equal cost; 1
            holds none. It changes the order of the packs, so it stays the same for the life of a run.
        max_bad_share: stop with an error once more than this share of the last `bad_share_window` samples of a stream
            was lost to faults (what `oversize` leaves out is none); None bears any number. Counts are in `drops`.
        order: how training goes through the data. "stream": a window of `packing_buffer_size` samples over each logical
            stream. "global_plan": every epoch is shuffled, packed and balanced as a whole, ahead (`mmpack.epoch`). The
            first start measures all samples, with `num_workers` processes, and keeps that beside the data; every
            iteration is one epoch, and a run may go on with any number of ranks and workers.
        data_parallel_rank, data_parallel_size: None asks torch.distributed, and without it is 0 of 1.
        prefetch: packs that each worker prepares ahead.

    Raises:
        ConfigError: settings that cannot work together, with the remedy.
    """

    @checked
    def __init__(
        self,
        path: str | Path,
        tokenizer: Any = None,
        image_processor: Any = None,
        seq_length: int = 2048,
        micro_batch_size: int = 1,
        global_batch_size: int | None = None,
        num_workers: int = 1,
        multimodal_sample_config: MultiModalSampleConfig | None = None,
        task_encoder: MultiModalTaskEncoder | None = None,
        packing_buffer_size: int | None = None,
        packed_sequence: bool = True,
        packed_sequence_size: int | None = None,
        num_image_embeddings_per_tile: int = 576,
        *,
        num_val_workers: int | None = None,
        validation_path: str | Path | None = None,
        test_path: str | Path | None = None,
        validation_task_encoder: MultiModalTaskEncoder | None = None,
        shuffle_buffer_size: int | None = 20,
        max_samples_per_sequence: int | None = 100,
        seed: int = 0,
        repeat: bool = True,
        num_streams: int | None = None,
        align_window: int = 1,
        max_bad_share: float | None = None,
        bad_share_window: int = 1000,
        batching: str | None = None,
        packing_buffer_tokens: int | None = None,
        tokens_per_microbatch: int | None = None,
        sequence_length_round: int = 1,
        microbatch_order: MicrobatchOrder = "packer",
        bucket_boundaries: Sequence[int] | None = None,
        length_tolerance: int | None = None,
        max_tiles_per_pack: int | None = None,
        max_images_per_pack: int | None = None,
        max_samples_per_pack: int | None = None,
        blend_by: str = "samples",
        order: str = "stream",
        data_parallel_rank: int | None = None,
        data_parallel_size: int | None = None,
        prefetch: int = 2,
    ) -> None:
        if task_encoder is None:
            task_encoder = MultiModalTaskEncoder(
                tokenizer=tokenizer,
                image_processor=image_processor,
                multimodal_sample_config=multimodal_sample_config or MultiModalSampleConfig(),
                packed_sequence=packed_sequence,
                packed_sequence_size=packed_sequence_size,
                num_image_embeddings_per_tile=num_image_embeddings_per_tile,
            )
        for name, encoder in (("", task_encoder), ("validation_", validation_task_encoder)):
            if encoder is not None and not isinstance(encoder, MultiModalTaskEncoder):
                raise ConfigError(f"{name}task_encoder={encoder!r}; give a vlm.MultiModalTaskEncoder, or None")
        if order not in ORDERS:
            raise ConfigError(f"order={order!r}; {nearest(order, ORDERS)}")
        if order == "global_plan":
            refuse_stream_settings(batching, task_encoder.packed_sequence, align_window, blend_by, num_streams)
            packing_buffer_size = DEFAULT_BUFFER if packing_buffer_size is None else packing_buffer_size
        self.order = order
        self.batching = batching_arguments(locals()).for_encoder(task_encoder)
        if blend_by not in UNITS:
            raise ConfigError(f"blend_by={blend_by!r}; {nearest(blend_by, UNITS)}")
        super().__init__(
            micro_batch_size=micro_batch_size,
            global_batch_size=global_batch_size,
            num_workers=num_workers,
            num_val_workers=num_val_workers,
            prefetch=prefetch,
            data_parallel_rank=data_parallel_rank,
            data_parallel_size=data_parallel_size,
            cap_workers=False,
        )
        self.path, self.seq_length = path, seq_length
        self._paths = {"train": path, "val": validation_path or path, "test": test_path or path}
        self.task_encoder = task_encoder
        self.validation_task_encoder = validation_task_encoder or task_encoder
        self.packing_buffer_size = packing_buffer_size
        self.blend_by = blend_by
        self.seed, self.repeat, self.num_streams = seed, repeat, num_streams
        self._check_oversize()
        self._shuffle = (shuffle_buffer_size, max_samples_per_sequence)
        self.error_budget = ErrorBudget.of(max_bad_share, bad_share_window)
        self._open_train()
        for split, given in (("val", validation_path), ("test", test_path)):
            if given is not None:
                self._open_split(split)
        self.num_streams = None if order == "global_plan" else self._train.num_streams

    def _open_split(self, split: str) -> None:
        """Says now what is wrong with validation data, rather than after hours of training."""
        try:
            self.factory(split)
        except ConfigError as error:
            name = {"val": "validation", "test": "test"}[split]
            raise ConfigError(f"{name}_{error}" if str(error).startswith("path=") else str(error)) from None

    def _check_oversize(self) -> None:
        """Raises ConfigError if a policy is for a dataset that no split has."""
        names: set[str] = set()
        for path in self._paths.values():
            found = dataset_names(path)
            if found is None:
                return
            names |= found
        for encoder in (self.task_encoder, self.validation_task_encoder):
            if encoder.oversize is not None:
                LengthLimit(seq_length=self.seq_length, oversize=encoder.oversize).check_sources(names)

    def factory(self, split: str, *, training: bool = False) -> StreamFactory[Any]:
        """What gives the packs of a split: shuffled or planned if `training`, else every sample once in order."""
        if training and self.order == "global_plan":
            return self._planned(split)
        return self.stream_factory(split, training=training)

    def _planned(self, split: str) -> Lanes[Any]:
        source = SourceConfig(path=self._paths.get(split, self.path), split=split, seed=self.seed)
        workers = max(0, self.num_workers)  # the loader says what is wrong with a number below 0
        plan: Any = global_plan(source, self.batching, self.task_encoder, self.seq_length, num_workers=workers)
        return Lanes(whole=plan, num_streams=1)

    def _loader(self, factory: StreamFactory[Any], *, training: bool) -> PackLoader[Any]:
        if not isinstance(factory, Lanes):
            return super()._loader(factory, training=training)
        return GlobalPlanLoader(
            factory.whole,
            rank=self.rank,
            world_size=self.world_size,
            num_workers=self.num_workers,
            prefetch=self.prefetch,
        )

    def stream_factory(self, split: str, *, training: bool = False) -> EnergonStreamFactory:
        """Opens the logical streams of a split: shuffled if `training`, else every sample once in order."""
        task_encoder = self.task_encoder if training else self.validation_task_encoder
        source = SourceConfig(
            path=self._paths.get(split, self.path),
            split=split,
            training=training,
            repeat=self.repeat and training,
            seed=self.seed,
            shuffle_buffer_size=self._shuffle[0] if training else None,
            max_samples_per_sequence=self._shuffle[1] if training else None,
        )
        stream = self.batching.stream_config(task_encoder, self.seq_length, seed=self.seed, training=training)
        return EnergonStreamFactory.build(
            source=source,
            stream=replace(stream, error_budget=self.error_budget if training else None),
            encoder=task_encoder.build_encoder(self.seq_length),
            collator=self.batching.collator(task_encoder, self.seq_length),
            num_positions=self.batching.positions(task_encoder, self.seq_length),
            num_streams=self.num_streams if training else None,
            world_size=self.world_size,
            by_tokens=self.blend_by == "tokens" and training,
        )
