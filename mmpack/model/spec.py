"""What the specs of all model families share: a text model in plain numbers, and how a model is built from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from mmpack.errors import ConfigError
from mmpack.model.pictures import PictureRules, check_embeddings_per_tile, embeddings_per_tile
from mmpack.tiling import TileSpec, TilingPolicy, make_tiling

if TYPE_CHECKING:
    from mmpack.model.packed import PackedModel

__all__ = ["ModelSpec", "check_embeddings_per_tile", "embeddings_per_tile"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec(ABC):
    """Sizes of a model of one family; a family adds those of its vision tower.

    Args:
        vocab_size: ids of the tokenizer. The embedding table has one row more unless `image_token_id` lies inside.
        image_token_id: id that stands for an image embedding; by default `vocab_size`, which no text has.
        text_kv_heads: key/value heads; fewer than `text_heads` is grouped-query attention.

    Raises ConfigError at construction if the numbers do not fit each other.
    """

    # without annotation, or a dataclass would list them among its fields
    family = ""
    tiling_name = ""  # the tiling policy that cuts pictures for this family

    vocab_size: int
    image_token_id: int | None = None
    text_hidden_size: int = 64
    text_intermediate_size: int = 128
    text_layers: int = 2
    text_heads: int = 4
    text_kv_heads: int = 2
    max_position_embeddings: int = 8192

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if isinstance(value, int) and value < (0 if name == "image_token_id" else 1):
                raise ConfigError(f"{name}={value}; it must be at least 1")
        self._check_divides("text_heads", "text_hidden_size")
        self._check_divides("text_kv_heads", "text_heads")
        if self.head_dim % 2:
            raise ConfigError(
                f"text_hidden_size={self.text_hidden_size} / text_heads={self.text_heads} is odd; rotary positions "
                "need an even head size"
            )
        self._check_family()

    @abstractmethod
    def _check_family(self) -> None:
        """Raises ConfigError if the family's own numbers do not fit each other."""

    @property
    @abstractmethod
    def pictures(self) -> PictureRules:
        """How the vision tower takes pictures."""

    @abstractmethod
    def transformers_config(self) -> Any:
        """The same as a config of transformers."""

    @abstractmethod
    def transformers_class(self) -> Any:
        """The class of transformers that is built from it."""

    @property
    def placeholder_id(self) -> int:
        """The id that stands for an image embedding."""
        return self.vocab_size if self.image_token_id is None else self.image_token_id

    @property
    def head_dim(self) -> int:
        """Size of one attention head of the text model."""
        return self.text_hidden_size // self.text_heads

    def check_tiling(self, tiling: TilingPolicy) -> None:
        """Raises ConfigError, with the remedy, if pictures cut by `tiling` are not what the vision tower expects."""
        self.pictures.check(tiling)

    def tiling(self, *, tile: dict[str, Any] | None = None, name: str | None = None, **options: Any) -> TilingPolicy:
        """A tiling that goes with the model.

        Args:
            tile: fields of the `TileSpec` that the model does not decide, such as ``mean`` and ``std``.
            name: another policy than the family's usual one; ``dynamic`` for a LLaVA, for example.
            options: the policy's own.

        Raises ConfigError if the two do not go together.
        """
        rules = self.pictures
        spec = TileSpec(
            tile_size_px=rules.tile_size_px, embeddings_per_tile=rules.embeddings_per_tile or 1, **(tile or {})
        )
        given: dict[str, Any] = {}
        if rules.kind == "anyres":
            given["image_grid_pinpoints"] = rules.pinpoints
        elif rules.kind == "patches":
            given |= {"merge_size": rules.merge_size, "temporal_patch_size": rules.frames_per_patch}
        tiling = make_tiling(name or self.tiling_name, spec, **(given | options))
        self.check_tiling(tiling)
        return tiling

    def build(
        self, *, seed: int = 0, attention: str = "auto", mask: str = "varlen", dtype: torch.dtype = torch.float32
    ) -> PackedModel:
        """The model with random weights that depend on `seed` alone; torch's global generator is left as it was."""
        from mmpack.model.packed import PackedModel

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = self.transformers_class()._from_config(self.transformers_config(), dtype=dtype)
        return PackedModel(model, attention=attention, mask=mask)

    def _check_divides(self, part: str, whole: str) -> None:
        if getattr(self, whole) % getattr(self, part):
            raise ConfigError(f"{whole}={getattr(self, whole)} must be a multiple of {part}={getattr(self, part)}")

    def _text_sizes(self) -> dict[str, Any]:
        """Arguments that the text configs of all families take."""
        return {
            "vocab_size": max(self.vocab_size, self.placeholder_id + 1),
            "hidden_size": self.text_hidden_size,
            "intermediate_size": self.text_intermediate_size,
            "num_hidden_layers": self.text_layers,
            "num_attention_heads": self.text_heads,
            "num_key_value_heads": self.text_kv_heads,
            "max_position_embeddings": self.max_position_embeddings,
            "bos_token_id": None,  # the family's own special ids mean nothing to another tokenizer
            "eos_token_id": None,
            "pad_token_id": None,
        }
