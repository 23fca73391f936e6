"""`PackedBatch` as keyword arguments of a transformers model, and the refusal of calls that would be silently wrong.

transformers finds the seams of a pack only under exact conditions. Several calls that look right run without a
word and let samples attend to each other; `refuse_traps` names each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mmpack.batch.packed import PackedBatch
from mmpack.batch.padded import PaddedBatch
from mmpack.batch.pictures import tower_inputs
from mmpack.errors import ConfigError, nearest, whole_number
from mmpack.sample import IGNORE_INDEX, IMAGE_TOKEN_INDEX

MASKS = ("varlen", "block_diagonal")


def to_transformers(
    batch: PackedBatch | PaddedBatch, *, image_token_id: int, mask: str = "varlen", dtype: torch.dtype = torch.float32
) -> dict[str, Any]:
    """Everything that ``model(**kwargs)`` needs to compute transformers' own loss on the pack.

    What `model_inputs` gives, and:

    * ``shift_labels`` (1, T): `batch.labels`, shifted inside each segment;
    * ``labels`` (1, T): the same in transformers' unshifted form, for models that shift by themselves;
    * ``num_items_in_batch``: labels in this pack. A trainer that accumulates overwrites it with the sum over the
      global batch.

    Raises ConfigError as `model_inputs` does, and if the labels have weights other than 1: transformers' loss
    would ignore them.
    """
    trained = batch.labels != IGNORE_INDEX
    if bool((batch.loss_weight[trained] != 1).any()):
        raise ConfigError(
            "this pack weighs its labels, and transformers' loss would ignore the weights; "
            "set loss_weight='token', or compute the loss with mmpack.model.PackedModel"
        )
    unshifted = torch.full_like(batch.labels, IGNORE_INDEX)
    unshifted[:, 1:] = batch.labels[:, :-1]  # the last label of a segment is ignored, so no seam is crossed
    return {
        **model_inputs(batch, image_token_id=image_token_id, mask=mask, dtype=dtype),
        "labels": unshifted,
        "shift_labels": batch.labels,
        "num_items_in_batch": max(1, batch.num_loss_tokens),  # it divides a sum: 0 / 1 for a pack that teaches nothing
    }


def model_inputs(
    batch: PackedBatch | PaddedBatch,
    *,
    image_token_id: int | None,
    mask: str = "varlen",
    dtype: torch.dtype = torch.float32,
) -> dict[str, Any]:
    """The arguments of a forward pass without loss.

    Of a padded batch: ``input_ids``, ``position_ids`` and ``attention_mask``, all (B, T). Of a packed one:

    * ``input_ids`` (1, T): placeholders mapped to `image_token_id`; ``position_ids`` (1, T), or (4, 1, T) with M-RoPE;
      ``use_cache`` False;
    * with ``mask="varlen"``: ``attention_mask`` None, and ``cu_seq_lens_q``, ``cu_seq_lens_k`` (S + 1,) int32,
      ``max_length_q``, ``max_length_k`` int, which describe the row (padding included). For attention
      implementations that know packs: mmpack's own, flash_attention_2, and also sdpa and eager, which read the
      position ids;
    * with ``mask="block_diagonal"``: ``attention_mask`` (1, 1, T, T) of `dtype`, added to the attention scores: causal
      within each segment. For sdpa and eager (which would misread a bool mask) in models that know nothing of packs;
    * ``pixel_values`` and what else the family takes, see `mmpack.batch.pictures.tower_inputs`; none without pictures.

    Args:
        image_token_id: the model's id for an image embedding; None for a model without pictures.
        dtype: of the model's parameters.

    Raises ConfigError for an unknown `mask`, if a text token equals `image_token_id`, or if there are pictures
    without it.
    """
    if mask not in MASKS:
        raise ConfigError(f"mask={mask!r}; {nearest(mask, MASKS)}")
    inputs: dict[str, Any] = {
        "input_ids": _map_placeholders(batch, image_token_id),
        "position_ids": batch.position_ids,
        "attention_mask": None,
        "use_cache": False,  # with a cache, transformers does not look for packs
    }
    inputs |= tower_inputs(batch, batch.pixel_norm, dtype)
    if isinstance(batch, PaddedBatch):
        inputs["attention_mask"] = (~batch.padding_mask).long()
        return inputs
    if mask == "varlen":
        inputs |= {
            "cu_seq_lens_q": batch.cu_seqlens_padded,
            "cu_seq_lens_k": batch.cu_seqlens_padded,
            "max_length_q": batch.max_seqlen,
            "max_length_k": batch.max_seqlen,
        }
    else:
        inputs["attention_mask"] = additive(block_diagonal_mask(batch.cu_seqlens_padded), dtype)
    refuse_traps(inputs)
    return inputs


def _map_placeholders(batch: PackedBatch | PaddedBatch, image_token_id: int | None) -> Tensor:
    is_image = batch.tokens == IMAGE_TOKEN_INDEX
    if image_token_id is None:
        if bool(is_image.any()):
            raise ConfigError("the pack holds pictures and the model has no image token; give image_token_id")
        return batch.tokens
    if whole_number(image_token_id) is None or not 0 <= image_token_id < 2**31:
        raise ConfigError(f"image_token_id={image_token_id!r}; give the model's, a whole number of at least 0")
    if bool((batch.tokens == image_token_id).any()):
        raise ConfigError(
            f"a text token has the id {image_token_id}, which the model takes for a picture (image_token_id); "
            "choose an id that the tokenizer does not produce"
        )
    return batch.tokens.masked_fill(is_image, image_token_id)


def block_diagonal_mask(cu_seqlens: Tensor) -> Tensor:
    """(1, 1, T, T) bool, True where a query (row) may see a key (column): earlier or same, and same segment.

    >>> block_diagonal_mask(torch.tensor([0, 2, 3])).int().tolist()
    [[[[1, 0, 0], [1, 1, 0], [0, 0, 1]]]]
    """
    lengths = cu_seqlens.diff().long()
    segment_t = torch.repeat_interleave(torch.arange(len(lengths), device=cu_seqlens.device), lengths)
    same = segment_t[:, None] == segment_t[None, :]
    return same.tril()[None, None]


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A bool mask as numbers to be added to attention scores: 0 where it is True, the lowest number elsewhere."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)


def refuse_traps(inputs: Mapping[str, Any], *, attention: str | None = None) -> None:
    """Raises ConfigError if a packed call of a transformers model would run and be silently wrong.

    Args:
        inputs: the keyword arguments of the call.
        attention: the text tower's attention implementation, when known.
    """
    mask, positions = inputs.get("attention_mask"), inputs.get("position_ids")
    has_offsets = inputs.get("cu_seq_lens_q") is not None
    if inputs.get("use_cache") is not False:
        raise ConfigError("packed call with use_cache unset or on: transformers then ignores the seams; pass False")
    if positions is None:
        raise ConfigError("packed call without position_ids: every sample but the first gets wrong positions")
    _refuse_picture_traps(inputs, positions)
    if positions.ndim == 3 and positions.shape[0] == 3:
        raise ConfigError(
            "packed call with 3 rows of M-RoPE position_ids: the seams are read from the row of text positions; "
            "pass (4, 1, T) with the text positions first"
        )
    if mask is not None and mask.ndim != 4:
        raise ConfigError(
            f"packed call with a {mask.ndim}-D attention_mask: transformers then takes the row for one sample; "
            "pass None, or mask='block_diagonal'"
        )
    if attention == "eager" and mask is not None and mask.dtype == torch.bool:
        raise ConfigError("eager attention adds its mask to the scores, a bool mask would hide nothing; use sdpa")
    if attention is not None and attention.startswith("mmpack_") and not has_offsets:
        raise ConfigError(f"attention {attention!r} needs cu_seq_lens_q; use mask='varlen'")


def _refuse_picture_traps(inputs: Mapping[str, Any], positions: Tensor) -> None:
    pixels, grids = inputs.get("pixel_values"), inputs.get("image_grid_thw")
    if grids is not None and positions.ndim == 2:
        raise ConfigError(
            "packed call with image_grid_thw and one row of position_ids: the model takes them for the positions in "
            "time, height and width too, and looks for no seams; pass (4, 1, T)"
        )
    if pixels is None:
        return
    if pixels.ndim == 2 and grids is None:
        raise ConfigError(
            "packed call with flat patches as pixel_values and no image_grid_thw: the tower cannot tell the pictures "
            "apart; pass their grids (pictures, 3)"
        )
    if pixels.ndim == 5 and inputs.get("image_sizes") is None:
        raise ConfigError(
            "packed call with pixel_values by picture and no image_sizes: the model cannot put the tiles together; "
            "pass their sizes (pictures, 2) as height, width"
        )
