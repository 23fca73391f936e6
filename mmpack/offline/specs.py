"""What a packed run of text is asked for, under NeMo's names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mmpack.errors import ConfigError


@dataclass(frozen=True, slots=True)
class PackedSequenceSpecs:
    """Whether and how the text of a fine-tuning run is packed before training. NeMo's names and defaults.

    Args:
        packed_sequence_size: tokens of a pack; 0 or less for no packing.
        tokenizer_model_name: a name for the tokenizer that goes into the names of the packed files.
        packed_train_data_path: a pack of the training data that was made before; None to make one.
        packed_val_data_path: the same of the validation data.
        packed_metadata_path: the metadata that was written beside NeMo's ``.npy`` files.
        pad_cu_seqlens: bring ``cu_seqlens`` of all packs to one length, as CUDA graphs need it.

    Raises:
        ConfigError: a size that is no whole number, or a path to a file that is not there.
    """

    packed_sequence_size: int = -1
    tokenizer_model_name: str | None = None
    packed_train_data_path: str | Path | None = None
    packed_val_data_path: str | Path | None = None
    packed_metadata_path: str | Path | None = None
    pad_cu_seqlens: bool = False

    def __post_init__(self) -> None:
        size = self.packed_sequence_size
        if isinstance(size, bool) or not isinstance(size, int):
            raise ConfigError(f"packed_sequence_size={size!r}; a whole number of tokens, or -1 for no packing")
        if not isinstance(self.pad_cu_seqlens, bool):
            raise ConfigError(f"pad_cu_seqlens={self.pad_cu_seqlens!r}; it is True or False")
        for name in ("packed_train_data_path", "packed_val_data_path"):
            path = getattr(self, name)
            if path is None:
                continue
            if not isinstance(path, str | Path):
                raise ConfigError(f"{name}={path!r}; it is a path, or None")
            if not Path(path).exists():
                raise ConfigError(f"{name}={str(path)!r} does not exist; make it with `mmpack pack`, or leave it out")
        if self.packed_metadata_path is not None and not isinstance(self.packed_metadata_path, str | Path):
            raise ConfigError(f"packed_metadata_path={self.packed_metadata_path!r}; it is a path, or None")

    @property
    def enabled(self) -> bool:
        """Whether to pack at all."""
        return self.packed_sequence_size > 0


def check_micro_batch_size(
    micro_batch_size: int, packed_sequence_size: int, global_batch_size: int | None = None
) -> None:
    """Refuses a micro batch of several packs: a longer pack does the same with fewer seams.

    Does nothing when `packed_sequence_size` is 0 or less, which means no packing.

    Raises:
        ConfigError: with the equivalent settings.

    >>> check_micro_batch_size(4, 2048, 32)
    Traceback (most recent call last):
    mmpack.errors.ConfigError: micro_batch_size=4 with packed sequences; it must be 1. The same work a step: set \
micro_batch_size=1, packed_sequence_size=8192, global_batch_size=8
    """
    if packed_sequence_size <= 0 or micro_batch_size == 1:
        return
    if micro_batch_size < 1:
        raise ConfigError(f"micro_batch_size={micro_batch_size}; with packed sequences it must be 1")
    same = [f"micro_batch_size=1, packed_sequence_size={micro_batch_size * packed_sequence_size}"]
    if global_batch_size is not None:
        same.append(f"global_batch_size={max(1, global_batch_size // micro_batch_size)}")
    else:
        same.append(f"global_batch_size divided by {micro_batch_size}")
    raise ConfigError(
        f"micro_batch_size={micro_batch_size} with packed sequences; it must be 1. The same work a step: set "
        + ", ".join(same)
    )
