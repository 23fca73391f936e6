"""The settings of a fine-tuning data module, as plain values that a file can hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from mmpack.collate.rows import check_loss_weight
from mmpack.datamodules.kinds import check_fields
from mmpack.datamodules.step_plan import BATCHINGS
from mmpack.datamodules.text_form import TextForm
from mmpack.errors import ConfigError, nearest
from mmpack.layout import Layout
from mmpack.offline import PackedSequenceSpecs, check_micro_batch_size

AUTO = "auto"
PACKED = ("packing", "global_packing")
_SPLIT_FILES = {"train": "training", "validation": "validation", "test": "test"}
_ENDINGS = (".jsonl", ".jsonl.gz", ".json")


@dataclass(frozen=True, kw_only=True, slots=True)
class FinetuneConfig:
    """Where the text is, and how it becomes steps.

    Args:
        dataset_root: folder with ``training.jsonl``, ``validation.jsonl`` and ``test.jsonl``.
        train, validation, test: files in place of those; any format of `mmpack.offline`.
        seq_length: most tokens of one sequence.
        batching: ``padding``, ``dynamic``, ``buckets``, ``packing`` or ``global_packing``; see
            `mmpack.datamodules.step_plan.StepPlanner`. None: packing if `specs` ask for it, else padding.
        validation_batching: the same for validation and test; None for that of training.
        specs: size of packs, and packs that were made before. With no size, packs hold `seq_length` tokens.
        micro_batch_size: sequences of a micro batch; None for 4, or 1 with packing, where it must be 1.
        global_batch_size: sequences (with ``packing``: packs) of a step over all ranks; "auto" for
            `global_batch_samples`, divided by the sequences of a pack where packs are counted.
        global_batch_samples: sequences of a step, for "auto".
        tokens_per_microbatch: of ``dynamic``: positions of a micro batch; None for as many as padding would use.
        sequence_length_round: padded rows are rounded up to a multiple of it.
        pad_to_max_length: rows of ``padding`` always have `seq_length`.
        bucket_size: of ``buckets``: sequences of a bucket.
        streaming: read and pack in a window while training, instead of before; for files that are not to be
            tokenized first.
        packing_buffer_size: sequences of one stream's window.
        num_streams: logical streams of the window; None for a number that the data decides.
        form: what a record looks like.
        algorithm: packs a whole file; see `mmpack.packing.ALGORITHMS`.
        layout: multiples of packed rows and sequences.
        loss_weight: "token", "sample" or "sqrt".
        seed: of the order.
        drop_last: leave out a last step that is not whole, instead of taking it as it is.
        memmap_workers: processes that tokenize before training.
        num_workers: processes that read while training, with `streaming`.
        cache_dir: where packs are kept; None for a folder ``packed`` beside each file.

    Raises:
        ConfigError: settings that cannot work together, with the remedy.
    """

    dataset_root: Path | None = None
    train: Path | None = None
    validation: Path | None = None
    test: Path | None = None
    seq_length: int = 2048
    batching: str | None = None
    validation_batching: str | None = None
    specs: PackedSequenceSpecs = field(default_factory=PackedSequenceSpecs)
    micro_batch_size: int | None = None
    global_batch_size: int | str | None = 8
    global_batch_samples: int = 128
    tokens_per_microbatch: int | None = None
    sequence_length_round: int = 1
    pad_to_max_length: bool = False
    bucket_size: int = 64
    streaming: bool = False
    packing_buffer_size: int = 200
    num_streams: int | None = None
    form: TextForm = field(default_factory=TextForm)
    algorithm: str = "exact_fill"
    layout: Layout = field(default_factory=Layout)
    loss_weight: str = "token"
    seed: int = 1234
    drop_last: bool = False
    memmap_workers: int = 1
    num_workers: int = 1
    cache_dir: Path | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        for name in (
            "seq_length", "micro_batch_size", "global_batch_samples", "tokens_per_microbatch", "sequence_length_round",
            "bucket_size", "packing_buffer_size", "num_streams", "memmap_workers",
        ):  # fmt: skip
            if (value := getattr(self, name)) is not None and value < 1:
                raise ConfigError(f"{name}={value}; it must be at least 1")
        for name in ("batching", "validation_batching"):
            if (value := getattr(self, name)) is not None and value not in BATCHINGS:
                raise ConfigError(f"{name}={value!r} is unknown; {nearest(value, BATCHINGS)}")
        check_loss_weight(self.loss_weight)
        self._check_sizes()
        self.form.pack_config(
            Path("-"), Path("-"), seq_length=self.seq_length, packed_sequence_size=self.packed_sequence_size,
            algorithm=self.algorithm, sequence_multiple=self.layout.sequence_multiple,
        )  # fmt: skip
        for split in _SPLIT_FILES:
            path: Path | None = getattr(self, split)
            if path is not None and not Path(path).is_file():
                raise ConfigError(f"{split}={str(path)!r} is no file; give a JSONL or JSON file of records")
        if self.dataset_root is not None and self.train is None and self.file("train") is None:
            raise ConfigError(
                f"dataset_root={str(self.dataset_root)!r} holds no training.jsonl; put the data there, or give train="
            )

    def _check_sizes(self) -> None:
        size = self.global_batch_size
        if size is not None and size != AUTO and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise ConfigError(f"global_batch_size={size!r}; it is a whole number of at least 1, or 'auto'")
        if self.chosen_batching in PACKED and self.micro_batch_size is not None:
            count = size if isinstance(size, int) else None
            check_micro_batch_size(self.micro_batch_size, self.packed_sequence_size, count)
        if self.specs.pad_cu_seqlens:
            raise ConfigError(
                "pad_cu_seqlens=True: a PackedBatch has as many offsets as segments, or a number that you choose: set "
                "layout.cu_seqlens_size and layout.fixed_total; for NeMo's own rows use mmpack.offline.nemo_collate"
            )
        if self.layout.cu_seqlens_size is not None and "global_packing" in (self.batching, self.validation_batching):
            raise ConfigError(
                f"layout.cu_seqlens_size={self.layout.cu_seqlens_size} with batching='global_packing', which knows no "
                "limit of samples; use batching='packing'"
            )
        if self.streaming and self.chosen_batching == "global_packing":
            raise ConfigError(
                "batching='global_packing' with streaming=True: the window packs across global batches; use "
                "batching='packing', or streaming=False"
            )
        given = [self.specs.packed_train_data_path, self.specs.packed_val_data_path]
        for path, batching in zip(given, (self.chosen_batching, self.batching_of("validation")), strict=True):
            if path is not None and (batching != "packing" or self.streaming):
                raise ConfigError(
                    f"{path}: packs that were made before are for batching='packing' with streaming=False, not "
                    f"{batching!r}"
                )
        budget, longest = self.tokens_budget, self.seq_length
        if "dynamic" in (self.batching, self.validation_batching) and budget < longest:
            raise ConfigError(
                f"tokens_per_microbatch={budget} is below the longest row of {longest}; raise it, or lower seq_length"
            )

    @property
    def chosen_batching(self) -> str:
        """How training samples become batches."""
        return self.batching or ("packing" if self.specs.enabled else "padding")

    def batching_of(self, split: str) -> str:
        """The same for ``train``, ``validation`` or ``test``."""
        return self.chosen_batching if split == "train" else self.validation_batching or self.chosen_batching

    @property
    def packed_sequence_size(self) -> int:
        """Tokens of a pack."""
        return self.specs.packed_sequence_size if self.specs.enabled else self.seq_length

    def sequences_of(self, split: str) -> int:
        """Sequences (or packs) of a micro batch."""
        if self.batching_of(split) in PACKED:
            return 1
        return 4 if self.micro_batch_size is None else self.micro_batch_size

    @property
    def tokens_budget(self) -> int:
        """Positions of a micro batch of ``dynamic``."""
        if self.tokens_per_microbatch is not None:
            return self.tokens_per_microbatch
        return self.seq_length * (4 if self.micro_batch_size is None else self.micro_batch_size)

    def file(self, split: str) -> Path | None:
        """The file of ``train``, ``validation`` or ``test``; None if there is none."""
        given: Path | None = getattr(self, split)
        if given is not None or self.dataset_root is None:
            return None if given is None else Path(given)
        for ending in _ENDINGS:
            path = Path(self.dataset_root) / f"{_SPLIT_FILES[split]}{ending}"
            if path.is_file():
                return path
        return None

    def global_batch(self, per_step: int, sequences_per_pack: float) -> int:
        """Sequences or packs of a step, a multiple of `per_step`.

        Args:
            per_step: micro batch times ranks.
            sequences_per_pack: n, for "auto" with packs.

        >>> FinetuneConfig(global_batch_size="auto", batching="packing").global_batch(8, 4.2)
        32
        """
        if self.global_batch_size is None:
            return per_step
        if isinstance(self.global_batch_size, int):
            return self.global_batch_size
        n = sequences_per_pack if self.chosen_batching == "packing" else 1.0
        return max(1, round(self.global_batch_samples / n / per_step)) * per_step
