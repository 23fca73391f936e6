"""What the comparison of padding, dynamic batching and packing measures, and how it is read from a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from mmpack.errors import ConfigError, nearest
from mmpack.train.contract import PRECISIONS

BENCH = "batching"
BASELINE = "padding"


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """One way to batch.

    Args:
        about: in words.
        expected: useful tokens/s over those of padding that teaching material on fine-tuning promises: dynamic batching
            1.5 to 2 times, packing another 20 to 30 %, FlashAttention another 2 to 3 times. None: it promises nothing.
        mask: of packs: "varlen" or "block_diagonal"; None for padded rows.
        attention: backend of "varlen".
        needs_gpu: leave it out elsewhere.
    """

    about: str
    expected: tuple[float, float] | None = None
    mask: str | None = None
    attention: str = "auto"
    needs_gpu: bool = False


_DYNAMIC = (1.5, 2.0)
_PACKED = (1.5 * 1.2, 2.0 * 1.3)
_FLASH = (_PACKED[0] * 2, _PACKED[1] * 3)
WAYS: Mapping[str, Way] = {
    "padding_to_limit": Way(about="as they come, every row seq_length long"),
    BASELINE: Way(about="as they come, padded to the longest of the micro batch", expected=(1.0, 1.0)),
    "buckets": Way(about="buckets of like length, padded to the longest of the micro batch", expected=_DYNAMIC),
    "dynamic": Way(about="the step's samples sorted by length and cut by the budget", expected=_DYNAMIC),
    "packing_block_diagonal": Way(about="packed, dense block-diagonal mask", expected=_PACKED, mask="block_diagonal"),
    "packing_varlen": Way(about="packed, attention by offsets", expected=_PACKED, mask="varlen"),
    "packing_flash": Way(
        about="packed, flash-attn", expected=_FLASH, mask="varlen", attention="flash_attn", needs_gpu=True
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchingConfig:
    """What to measure.

    Args:
        text: "stdlib" for the docstrings of the running Python's standard library, or a JSONL file.
        ways: names in `WAYS`; padding is always measured.
        seq_length: most tokens of a sample; longer ones are cut, and counted.
        tokens_per_microbatch: positions that a micro batch may have, padding included: the same budget for every way.
        global_batch_size: samples of the step, the same ones for every way.
        bucket_size: samples of a bucket.
        sequence_length_round: rows of ``dynamic`` are rounded up to a multiple of it.
        vocab_size: of a tokenizer that is trained on the text, or that of `tokenizer`.
        tokenizer: folder of a tokenizer; None trains one.
        family, hidden_size, num_layers, num_heads: of the model, which is random and trained whole.
        learning_rate: of AdamW.
        repeats: times that the step is repeated and averaged.
        warmups: steps before that are not counted.
        precision: see `mmpack.train.TrainConfig`.
        device: "auto" takes a GPU where there is one.
        picture: PNG of the result; None for none.
        seed: of the choice of samples and of the weights.

    Raises:
        ConfigError: a number that cannot work, or an unknown way.
    """

    text: str = "stdlib"
    ways: tuple[str, ...] = tuple(WAYS)
    seq_length: int = 1024
    tokens_per_microbatch: int = 2048
    global_batch_size: int = 128
    bucket_size: int = 32
    sequence_length_round: int = 8
    vocab_size: int = 4096
    tokenizer: str | None = None
    family: str = "gpt2"
    hidden_size: int = 128
    num_layers: int = 4
    num_heads: int = 4
    learning_rate: float = 1e-3
    repeats: int = 10
    warmups: int = 1
    precision: str = "auto"
    device: str = "auto"
    picture: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in self.ways:
            if name not in WAYS:
                raise ConfigError(f"ways: unknown way {name!r}; {nearest(name, WAYS)}")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name in ("seed", "warmups") else 1
            if isinstance(value, int) and value < least:
                raise ConfigError(f"{field.name}={value}; give at least {least}")
        if self.tokens_per_microbatch < self.seq_length:
            raise ConfigError(
                f"tokens_per_microbatch={self.tokens_per_microbatch} is below seq_length={self.seq_length}: some "
                "samples would fit no micro batch; raise it"
            )
        if self.precision not in PRECISIONS:
            raise ConfigError(f"precision={self.precision!r}; {nearest(self.precision, PRECISIONS)}")
        if self.hidden_size % self.num_heads:
            raise ConfigError(f"hidden_size={self.hidden_size} is no multiple of num_heads={self.num_heads}")
        if self.picture is not None and find_spec("matplotlib") is None:
            raise ConfigError("picture needs matplotlib: pip install 'mmpack[report]', or set picture=null")
        if self.text != "stdlib" and not Path(self.text).is_file():
            raise ConfigError(f"text={self.text!r} is no file; give a JSONL file, or 'stdlib'")

    @property
    def measured(self) -> tuple[str, ...]:
        """The ways in the order of `WAYS`, padding among them."""
        return tuple(name for name in WAYS if name in self.ways or name == BASELINE)


def config_from_mapping(settings: Mapping[str, object], *, where: str) -> BatchingConfig:
    """The config from what a YAML file holds. Raises ConfigError, naming `where`, for an unknown key or wrong type."""
    known = {field.name: field for field in dataclasses.fields(BatchingConfig)}
    values: dict[str, object] = {}
    for key, value in settings.items():
        if key not in known:
            raise ConfigError(f"{where}: unknown setting {key!r}; {nearest(str(key), known)}")
        default = known[key].default
        if isinstance(default, tuple):
            if not isinstance(value, list) or any(not isinstance(item, str) for item in value):
                raise ConfigError(f"{where}: {key}={value!r}; give a list of names, such as [padding, dynamic]")
            values[key] = tuple(value)
            continue
        allowed = (
            (int, float) if isinstance(default, float) else (str, type(None)) if default is None else type(default)
        )
        if isinstance(value, bool) or not isinstance(value, allowed):
            raise ConfigError(f"{where}: {key}={value!r}; give one like {default!r}")
        values[key] = value
    return BatchingConfig(**values)  # type: ignore[arg-type]  # the config checks what it was given
