"""A causal language model of transformers for packed and padded batches: small from numbers, or from a folder."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmpack.attention import AUTO
from mmpack.batch import Batch, PaddedBatch
from mmpack.batch.transformers import model_inputs
from mmpack.errors import ConfigError, nearest
from mmpack.model.packed import PackedModel

FAMILIES = ("gpt2", "llama", "qwen2")
DTYPES = ("float32", "bfloat16", "float16")
_DROPOUTS = ("attention_dropout", "attn_pdrop", "resid_pdrop", "embd_pdrop", "hidden_dropout", "embedding_dropout")


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraSpec:
    """Low-rank adapters: the model is frozen and small matrices beside its own are trained (needs peft).

    Args:
        rank, alpha, dropout: of the adapters; their product is scaled by alpha / rank.
        target_modules: names of the layers that get one; None for all linear ones but the output.
    """

    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.0
    target_modules: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.rank < 1 or self.alpha <= 0 or not 0 <= self.dropout < 1:
            raise ConfigError(
                f"lora: rank={self.rank}, alpha={self.alpha}, dropout={self.dropout}; rank is at least 1, alpha above "
                "0, dropout from 0 to below 1"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class CausalSpec:
    """Which model to fine-tune.

    Args:
        causal_lm: folder of a model of transformers; None for one with random weights of the sizes below.
        family: ``gpt2``, ``llama`` or ``qwen2``.
        vocab_size: ids; None for the tokenizer's.
        hidden_size, intermediate_size, num_layers, num_heads: sizes; `intermediate_size` None for four times the
            hidden size.
        num_kv_heads: key/value heads; None for as many as heads (and always for ``gpt2``).
        max_position_embeddings: longest sequence (not pack).
        attention: a backend of `mmpack.attention` for packs, or ``auto``.
        mask: ``varlen``, or ``block_diagonal`` for packs through torch's sdpa with a dense mask.
        dtype: of the parameters.
        lora: train adapters instead of the model.
        seed: of random weights.

    Raises:
        ConfigError: numbers that do not fit each other, or no such folder.
    """

    causal_lm: Path | None = None
    family: str = "llama"
    vocab_size: int | None = None
    hidden_size: int = 64
    intermediate_size: int | None = None
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int | None = None
    max_position_embeddings: int = 2048
    attention: str = AUTO
    mask: str = "varlen"
    dtype: str = "float32"
    lora: LoraSpec | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.causal_lm is not None and not (Path(self.causal_lm) / "config.json").is_file():
            raise ConfigError(f"causal_lm={str(self.causal_lm)!r} holds no config.json; give a folder of transformers")
        if self.family not in FAMILIES:
            raise ConfigError(f"family={self.family!r} is unknown; {nearest(self.family, FAMILIES)}")
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype={self.dtype!r}; {nearest(self.dtype, DTYPES)}")
        for name in (
            "vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads",
            "max_position_embeddings",
        ):  # fmt: skip
            if (value := getattr(self, name)) is not None and value < 1:
                raise ConfigError(f"{name}={value}; it must be at least 1")
        for whole, part in (("hidden_size", "num_heads"), ("num_heads", "num_kv_heads")):
            if getattr(self, part) is not None and getattr(self, whole) % getattr(self, part):
                raise ConfigError(f"{whole}={getattr(self, whole)} must be a multiple of {part}={getattr(self, part)}")

    def transformers_config(self, tokenizer: Any = None) -> Any:
        """The config of transformers, without dropout: packed attention has none, and comparisons need none."""
        from transformers import AutoConfig

        own = self.causal_lm is None
        config = self._sizes(tokenizer) if own else AutoConfig.from_pretrained(self.causal_lm)
        for name in _DROPOUTS:
            if getattr(config, name, None):
                setattr(config, name, 0.0)
        return config

    def _sizes(self, tokenizer: Any) -> Any:
        from transformers import AutoConfig

        num_ids = None if tokenizer is None else len(tokenizer)
        vocab_size = self.vocab_size or num_ids
        if vocab_size is None:
            raise ConfigError("vocab_size is unknown; give it, or a tokenizer")
        if num_ids is not None and vocab_size < num_ids:
            raise ConfigError(f"vocab_size={vocab_size}, but the tokenizer has {num_ids} ids; leave it out")
        ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "eos", "pad")}
        inner = self.intermediate_size or 4 * self.hidden_size
        if self.family == "gpt2":
            return AutoConfig.for_model(
                "gpt2",
                vocab_size=vocab_size,
                n_embd=self.hidden_size,
                n_inner=inner,
                n_layer=self.num_layers,
                n_head=self.num_heads,
                n_positions=self.max_position_embeddings,
                **ids,
            )
        return AutoConfig.for_model(
            self.family,
            vocab_size=vocab_size,
            hidden_size=self.hidden_size,
            intermediate_size=inner,
            num_hidden_layers=self.num_layers,
            num_attention_heads=self.num_heads,
            num_key_value_heads=self.num_kv_heads or self.num_heads,
            max_position_embeddings=self.max_position_embeddings,
            **ids,
        )

    def build(self, tokenizer: Any = None) -> CausalModel:
        """The model. Random weights depend on `seed` alone; torch's global generator is left as it was.

        Raises ConfigError if the tokenizer has more ids than the model, or peft is needed and not there.
        """
        from transformers import AutoModelForCausalLM

        config, dtype = self.transformers_config(tokenizer), getattr(torch, self.dtype)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            if self.causal_lm is not None:
                hf = AutoModelForCausalLM.from_pretrained(self.causal_lm, config=config, dtype=dtype)
            else:
                hf = AutoModelForCausalLM.from_config(config, dtype=dtype)
            if tokenizer is not None and hf.get_input_embeddings().num_embeddings < len(tokenizer):
                raise ConfigError(
                    f"the model has {hf.get_input_embeddings().num_embeddings} ids, its tokenizer {len(tokenizer)}; "
                    "give the tokenizer of this model"
                )
            adapters = None if self.lora is None else add_lora(hf, self.lora)
        return CausalModel(hf, attention=self.attention, mask=self.mask, adapters=adapters, spec=self)

    def describe(self) -> dict[str, Any]:
        """As plain values, for a checkpoint."""
        values = asdict(self)
        return values | {"causal_lm": None if self.causal_lm is None else str(self.causal_lm)}

    @classmethod
    def from_plain(cls, values: dict[str, Any]) -> CausalSpec:
        """What `describe` gave."""
        lora, path = values.get("lora"), values.get("causal_lm")
        if lora is not None:
            targets = lora["target_modules"]
            lora = LoraSpec(**{**lora, "target_modules": None if targets is None else tuple(targets)})
        return cls(**{**values, "lora": lora, "causal_lm": None if path is None else Path(path)})


def add_lora(hf: Any, spec: LoraSpec) -> Any:
    """Puts adapters into a model of transformers and freezes the rest; what peft wraps around it.

    Raises ConfigError without peft.
    """
    try:
        peft: Any = import_module("peft")
    except ImportError:
        raise ConfigError("lora needs peft, which is not installed: pip install 'mmpack[peft]'") from None
    targets: Any = "all-linear" if spec.target_modules is None else list(spec.target_modules)
    config = peft.LoraConfig(
        r=spec.rank,
        lora_alpha=spec.alpha,
        lora_dropout=spec.dropout,
        target_modules=targets,
        fan_in_fan_out=hf.config.model_type == "gpt2",  # its layers keep their weights transposed
        task_type="CAUSAL_LM",
    )
    try:
        return peft.get_peft_model(hf, config)
    except ValueError as error:  # no layer of such a name, or one of a kind that takes no adapter
        raise ConfigError(f"lora: target_modules={spec.target_modules!r}: {str(error).partition('. ')[0]}") from None


class CausalModel(PackedModel):
    """A text model that takes packs through packed attention (or a dense mask), and padded batches through sdpa.

    Args:
        hf: a causal language model of transformers.
        attention, mask: as in `PackedModel`; they concern packs only.
        adapters: what `add_lora` gave for `hf`; None without adapters.
        spec: what it was built from.
    """

    def __init__(
        self,
        hf: Any,
        *,
        attention: str = AUTO,
        mask: str = "varlen",
        adapters: Any = None,
        spec: CausalSpec | None = None,
    ) -> None:
        super().__init__(hf, attention=attention, mask=mask)
        self.spec = spec
        self._adapters = (adapters,)  # in a tuple, or its parameters would be counted twice

    @property
    def is_lora(self) -> bool:
        """Whether only adapters are trained."""
        return self._adapters[0] is not None

    def save_pretrained(self, folder: Path) -> None:
        """Writes the model, or its adapters alone, as transformers (or peft) reads them."""
        adapters = self._adapters[0]
        if adapters is None:
            self.hf.save_pretrained(folder)
        else:
            adapters.save_pretrained(folder, save_embedding_layers=False)  # whether to would be asked of the hub

    @property
    def longest_sequence(self) -> int | None:
        """Positions that the model knows; None where its config does not say."""
        found = getattr(self.hf.config.get_text_config(), "max_position_embeddings", None)
        return None if found is None else int(found)

    def check_length(self, seq_length: int) -> None:
        """Raises ConfigError if sequences of `seq_length` are longer than the model's positions."""
        longest = self.longest_sequence
        if longest is not None and seq_length > longest:
            raise ConfigError(
                f"seq_length={seq_length} is above the model's max_position_embeddings={longest}; lower seq_length "
                "(packs may be longer), or take another model"
            )

    def _inputs(self, batch: Batch) -> dict[str, Any]:
        if not isinstance(batch, PaddedBatch):
            self._attend_with(self.attention)
            return super()._inputs(batch)
        self._attend_with("sdpa")
        inputs = model_inputs(batch, image_token_id=self.image_token_id, dtype=self.dtype)
        mask = inputs["attention_mask"]
        mask[:, 0] = 1  # a row of padding only would attend to nothing, and nothing is NaN
        return inputs

    def _attend_with(self, attention: str) -> None:
        if self.hf.config._attn_implementation != attention:
            self.hf.set_attn_implementation(attention)

    def trained_state(self) -> dict[str, Tensor]:
        """The weights to save: all of them, or the adapters' alone."""
        state = self.state_dict()
        if not self.is_lora:
            return state
        trained = {name for name, parameter in self.named_parameters() if parameter.requires_grad}
        return {name: value for name, value in state.items() if name in trained}

    def load_trained_state(self, state: dict[str, Tensor]) -> None:
        """Puts back what `trained_state` gave. Raises ConfigError if it is another model's."""
        found = self.load_state_dict(state, strict=not self.is_lora)
        if found.unexpected_keys:
            raise ConfigError(f"the weights are another model's: it has no {found.unexpected_keys[0]!r}")
