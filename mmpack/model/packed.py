"""`PackedModel`: a transformers model that takes a batch and returns the sum of its weighted losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mmpack.attention import AUTO, choose
from mmpack.batch import IGNORE_INDEX, Batch, PaddedBatch
from mmpack.batch.transformers import MASKS, model_inputs, refuse_traps
from mmpack.errors import ConfigError, nearest
from mmpack.model.blank import blank_picture_loss
from mmpack.model.pictures import PictureRules
from mmpack.model.varlen import register_attention
from mmpack.tiling import TilingPolicy


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PackedOutput:
    """The loss of one batch, not yet normalised: divide by `weight_sum` added up over the whole global batch."""

    loss_sum: Tensor  # () sum of weight x cross entropy, with gradient
    weight_sum: Tensor  # () float32 sum of the labels' weights
    num_loss_tokens: int
    per_token_loss: Tensor  # (rows, T) cross entropy without weight, 0 where there is no label; no gradient


class PackedModel(nn.Module):
    """A model of transformers run on packs: LLaVA, LLaVA-NeXT, Qwen2-VL and the like, or a plain language model.

    A batch without pictures sends a blank one through the vision tower with weight zero, so that every rank has
    gradients for the same parameters.

    Args:
        hf: the transformers model. Its text tower's attention is set here, its vision tower's to ``sdpa``.
        attention: a backend of `mmpack.attention`, or ``auto``.
        mask: ``varlen``, or ``block_diagonal`` for text models that don't pass offsets on to their attention: a
            dense mask through torch's sdpa, T x T in memory and time; that is also the one for padded batches.

    Raises ConfigError for an unknown option, or an attention that cannot run where the model is.
    """

    def __init__(self, hf: Any, *, attention: str = AUTO, mask: str = "varlen") -> None:
        super().__init__()
        if mask not in MASKS:
            raise ConfigError(f"mask={mask!r}; {nearest(mask, MASKS)}")
        if mask == "block_diagonal" and attention != AUTO:
            raise ConfigError(
                f"attention={attention!r} has no effect with mask='block_diagonal', which is torch's sdpa"
            )
        self.hf = hf
        self.mask = mask
        self.attention = register_attention(attention) if mask == "varlen" else "sdpa"
        text = hf.config.get_text_config()
        if mask == "varlen":
            head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
            choose(attention, device=self.device, dtype=self.dtype, head_dim=head_dim, needs_grad=True)
        has_vision = getattr(hf.config, "vision_config", None) is not None
        towers = {"text_config": self.attention, "vision_config": "sdpa"}
        # not for all towers: the offsets of the text would reach the vision tower, whose rows are tiles
        hf.set_attn_implementation(towers if has_vision else self.attention)
        self._has_vision = has_vision
        self.image_token_id: int | None = getattr(hf.config, "image_token_id", None)
        self.pictures = PictureRules.of(hf.config)  # None for a family that is not known, which goes unchecked

    @property
    def embeddings_per_tile(self) -> int | None:
        """Positions that one tile takes in the sequence; None where that is not a constant of the tower."""
        return None if self.pictures is None else self.pictures.embeddings_per_tile

    def check_tiling(self, tiling: TilingPolicy) -> None:
        """Raises ConfigError, with the remedy, if pictures cut by `tiling` are not what the vision tower expects."""
        if self.pictures is not None:
            self.pictures.check(tiling)

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        device: torch.device = self.hf.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the parameters."""
        dtype: torch.dtype = self.hf.dtype
        return dtype

    def forward(self, batch: Batch) -> PackedOutput:
        """The loss over the labels of `batch`, which must be on the model's device.

        Logits are computed at labelled positions only: with a vocabulary of 32,000 the others would take most of
        the memory and teach nothing.
        """
        columns = torch.nonzero((batch.labels != IGNORE_INDEX).any(dim=0)).flatten()
        logits_BnV = self._logits(batch, columns)
        exact = torch.promote_types(logits_BnV.dtype, torch.float32)
        labels_Bn = batch.labels[:, columns]
        losses_Bn = nn.functional.cross_entropy(
            logits_BnV.to(exact).flatten(0, 1), labels_Bn.flatten(), ignore_index=IGNORE_INDEX, reduction="none"
        ).view_as(labels_Bn)
        weights_Bn = batch.loss_weight[:, columns]
        per_token = torch.zeros_like(batch.loss_weight, dtype=exact)
        per_token[:, columns] = losses_Bn.detach()
        loss_sum = (losses_Bn * weights_Bn).sum()
        if self._has_vision and not batch.pixels.shape[0] and torch.is_grad_enabled():
            loss_sum = loss_sum + blank_picture_loss(self.hf, self._rules_for(batch), self.device, self.dtype)
        return PackedOutput(
            loss_sum=loss_sum,
            weight_sum=weights_Bn.sum(),
            num_loss_tokens=batch.num_loss_tokens,
            per_token_loss=per_token,
        )

    def logits(self, batch: Batch) -> Tensor:
        """(T, V) logits at every position of the row; (B, T, V) of a padded batch."""
        logits = self._logits(batch, torch.arange(batch.tokens.shape[1], device=batch.tokens.device))
        return logits if isinstance(batch, PaddedBatch) else logits[0]

    def _logits(self, batch: Batch, columns: Tensor) -> Tensor:
        logits: Tensor = self.hf(**self._inputs(batch), logits_to_keep=columns).logits
        return logits

    def _inputs(self, batch: Batch) -> dict[str, Any]:
        if self.pictures is not None:
            self.pictures.check_batch(batch)
        if isinstance(batch, PaddedBatch):
            if self.mask == "varlen":
                raise ConfigError(
                    "a padded batch needs a model with mask='block_diagonal'; this one has 'varlen': set the model's "
                    "mask=block_diagonal, or batching=packing"
                )
            inputs = model_inputs(batch, image_token_id=self.image_token_id, dtype=self.dtype)
        else:
            inputs = model_inputs(batch, image_token_id=self.image_token_id, mask=self.mask, dtype=self.dtype)
            refuse_traps(inputs, attention=self.attention)
        if self.pictures is not None and self.pictures.kind == "patches" and batch.position_ids.ndim == 2:
            # text of another data module: in M-RoPE it has the same position in time, height and width
            inputs["position_ids"] = batch.position_ids.expand(4, -1, -1)
        return inputs

    def _rules_for(self, batch: Batch) -> PictureRules:
        """The tower's rules, or what can be guessed of them from a batch."""
        if self.pictures is not None:
            return self.pictures
        return PictureRules(
            kind=batch.pixel_kind,
            tile_size_px=batch.pixels.shape[-1],
            merge_size=getattr(self.hf.config.vision_config, "spatial_merge_size", None),
            frames_per_patch=batch.pixel_norm.frames_per_patch,
        )


def per_sample_loss(batch: Batch, output: PackedOutput) -> Tensor:
    """(number of samples,) mean cross entropy over each sample's labels, in the order of `batch.sample_keys`.

    0 for a sample without labels.
    """
    if isinstance(batch, PaddedBatch):
        trained = (batch.labels != IGNORE_INDEX).sum(dim=1).clamp(min=1)
        return (output.per_token_loss.sum(dim=1) / trained)[batch.lengths > 0]
    filled = batch.cu_seqlens.diff() > 0  # the other segments are padding
    starts, ends = batch.cu_seqlens_padded[:-1][filled].tolist(), batch.cu_seqlens_padded[1:][filled].tolist()
    trained = batch.labels[0] != IGNORE_INDEX
    means = []
    for start, end in zip(starts, ends, strict=True):
        count = trained[start:end].sum().clamp(min=1)
        means.append(output.per_token_loss[0, start:end].sum() / count)
    return torch.stack(means) if means else output.per_token_loss.new_zeros(0)
