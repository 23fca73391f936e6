"""Context parallelism: the numbers of the cut, the way back, and that the slices together teach the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers import AttentionInterface

from mmpack.batch import IGNORE_INDEX, IMAGE_TOKEN_INDEX
from mmpack.batch.context_parallel import ContextParallelSlice, context_parallel_slice, gather_slices
from mmpack.errors import ConfigError
from mmpack.layout import Layout, zigzag_indices
from mmpack.model.varlen import register_attention
from tests.loss_neutral.packs import mixed_samples, model, pack


@pytest.mark.parametrize(
    ("cu", "size", "ranks"),
    [
        ([0, 8], 2, [[0, 1, 6, 7], [2, 3, 4, 5]]),
        ([0, 16], 4, [[0, 1, 14, 15], [2, 3, 12, 13], [4, 5, 10, 11], [6, 7, 8, 9]]),
        ([0, 24], 3, [[0, 1, 2, 3, 20, 21, 22, 23], [4, 5, 6, 7, 16, 17, 18, 19], list(range(8, 16))]),
        ([0, 4, 12, 16], 2, [[0, 3, 4, 5, 10, 11, 12, 15], [1, 2, 6, 7, 8, 9, 13, 14]]),
        ([0, 4, 12], 2, [[0, 3, 4, 5, 10, 11], [1, 2, 6, 7, 8, 9]]),
        ([0, 3, 8], 1, [[0, 1, 2, 3, 4, 5, 6, 7]]),
        (
            [0, 8, 24],
            4,
            [
                [0, 7, 8, 9, 22, 23],
                [1, 6, 10, 11, 20, 21],
                [2, 5, 12, 13, 18, 19],
                [3, 4, 14, 15, 16, 17],
            ],
        ),
    ],
)
def test_which_rank_holds_what(cu: list[int], size: int, ranks: list[list[int]]) -> None:
    assert zigzag_indices(cu, size).tolist() == ranks


def test_tokens_of_two_ranks() -> None:
    """Lengths 5, 8, 1, 3 in rooms of a multiple of 4."""
    offsets = Layout.for_parallelism(context_parallel=2).offsets([5, 8, 1, 3], [8, 8, 4, 4])
    assert offsets.cu_seqlens == (0, 5, 13, 14, 17)
    assert offsets.cu_seqlens_padded == (0, 8, 16, 20, 24)
    assert offsets.max_seqlen == 8
    row = np.zeros(24, dtype=int)
    for k, (start, length) in enumerate(zip(offsets.cu_seqlens_padded, [5, 8, 1, 3], strict=False)):
        row[start : start + length] = 100 * (k + 1) + np.arange(length)
    assert row[zigzag_indices(offsets.cu_seqlens_padded, 2)].tolist() == [
        [100, 101, 0, 0, 200, 201, 206, 207, 300, 0, 400, 0],
        [102, 103, 104, 0, 202, 203, 204, 205, 0, 0, 401, 402],
    ]


def test_a_length_that_would_lose_tokens_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"6 positions .* multiple of 4; set layout.sequence_multiple=4"):
        zigzag_indices([0, 6], 2)
    for offsets in ([], [8, 0], [1, 9]):
        with pytest.raises(ConfigError, match="offsets begin with 0 and never fall"):
            zigzag_indices(offsets, 2)


@pytest.mark.parametrize(
    ("sizes", "sequence", "total"),
    [
        ({}, 1, 1),
        ({"tensor_parallel": 4}, 1, 1),
        ({"tensor_parallel": 4, "sequence_parallel": True}, 1, 4),
        ({"context_parallel": 2}, 4, 4),
        ({"context_parallel": 2, "tensor_parallel": 2, "sequence_parallel": True}, 4, 4),
        ({"context_parallel": 4, "tensor_parallel": 8, "sequence_parallel": True}, 8, 32),
        ({"context_parallel": 8, "tensor_parallel": 8, "sequence_parallel": True}, 16, 64),
        ({"context_parallel": 2, "tensor_parallel": 2, "sequence_parallel": True, "fp8_multiple": 128}, 4, 512),
        ({"context_parallel": 2, "tensor_parallel": 4}, 4, 4),
    ],
)
def test_multiples_of_parallel_layouts(sizes: dict[str, Any], sequence: int, total: int) -> None:
    layout = Layout.for_parallelism(**sizes)
    assert (layout.sequence_multiple, layout.total_multiple) == (sequence, total)


@given(size=st.integers(1, 5), pieces=st.lists(st.integers(1, 6), min_size=1, max_size=8))
def test_every_position_on_one_rank_and_back_again(size: int, pieces: list[int]) -> None:
    cu = [0, *np.cumsum([2 * size * n for n in pieces]).tolist()]
    indices = zigzag_indices(cu, size)
    assert sorted(indices.reshape(-1).tolist()) == list(range(cu[-1]))
    row = torch.randn(2, cu[-1])
    parts = [row[:, torch.from_numpy(own)] for own in indices]
    assert torch.equal(gather_slices(parts, torch.tensor(cu)), row)
    # causal attention costs every rank the same: each query sees the keys up to itself in its own segment
    starts = np.repeat(cu[:-1], np.diff(cu))
    work = [int((own - starts[own] + 1).sum()) for own in indices]
    assert len(set(work)) == 1


def slices_of(size: int) -> tuple[Any, list[ContextParallelSlice]]:
    batch = pack(mixed_samples(), multiple=2 * size, total=None, weight="sqrt").check()
    return batch, [context_parallel_slice(batch, rank=rank, size=size) for rank in range(size)]


@pytest.mark.parametrize("size", [2, 4])
def test_everything_slices_along(size: int) -> None:
    batch, parts = slices_of(size)
    for name in ("tokens", "labels", "loss_weight", "position_ids", "padding_mask"):
        assert torch.equal(
            gather_slices([getattr(p, name) for p in parts], batch.cu_seqlens_padded), getattr(batch, name)
        )
    assert sum(p.num_loss_tokens for p in parts) == batch.num_loss_tokens
    assert sorted(torch.cat([p.picture_positions for p in parts]).tolist()) == list(
        range(int(batch.tokens_per_image.sum()))
    )
    for part in parts:
        assert int((part.tokens == IMAGE_TOKEN_INDEX).sum()) == len(part.picture_positions)


@pytest.mark.parametrize("size", [2, 4])
def test_the_slices_together_give_the_unsliced_loss_and_gradients(size: int) -> None:
    """All ranks stand side by side in one row, as they hold it; attention alone sees the row in its own order."""
    batch, parts = slices_of(size)
    packed = model()
    output = packed(batch)
    output.loss_sum.backward()
    wanted = {name: p.grad.clone() for name, p in packed.named_parameters() if p.grad is not None}
    packed.zero_grad()

    order = torch.cat([part.indices for part in parts])
    ordinary = AttentionInterface()[register_attention("sdpa_loop")]

    def gathered(module: Any, q: Any, k: Any, v: Any, mask: Any, **given: Any) -> Any:
        back = torch.argsort(order)
        out, weights = ordinary(module, q[:, :, back], k[:, :, back], v[:, :, back], mask, **given)
        return out[:, order], weights

    AttentionInterface.register("zigzag_test", gathered)
    hf = packed.hf
    hf.set_attn_implementation({"text_config": "zigzag_test", "vision_config": "sdpa"})
    features = hf.model.get_image_features(pixel_values=batch.pixel_norm(batch.pixels), return_dict=True).pooler_output
    embeddings_Pd = features if isinstance(features, torch.Tensor) else torch.cat(list(features))
    embeddings_Pd = embeddings_Pd.flatten(0, -2)
    loss_sum = torch.zeros(())
    tokens = torch.cat([part.tokens for part in parts], dim=1)
    is_image = tokens == IMAGE_TOKEN_INDEX
    text = hf.get_input_embeddings()(tokens.masked_fill(is_image, 0))
    taken = torch.cat([part.picture_positions for part in parts])
    inputs = text.masked_scatter(is_image[..., None], embeddings_Pd[taken])
    logits = hf(
        inputs_embeds=inputs,
        position_ids=torch.cat([part.position_ids for part in parts], dim=1),
        attention_mask=None,
        use_cache=False,
        cu_seq_lens_q=batch.cu_seqlens_padded,
        cu_seq_lens_k=batch.cu_seqlens_padded,
        max_length_q=batch.max_seqlen,
        max_length_k=batch.max_seqlen,
    ).logits[0]
    for part, own in zip(parts, logits.chunk(size), strict=True):  # each rank's loss from what it holds
        losses = nn.functional.cross_entropy(own, part.labels[0], ignore_index=IGNORE_INDEX, reduction="none")
        loss_sum = loss_sum + (losses * part.loss_weight[0]).sum()
    loss_sum.backward()
    assert abs(float(loss_sum.detach()) - float(output.loss_sum.detach())) < 1e-5
    scale = max(float(g.norm()) for g in wanted.values())
    for name, p in packed.named_parameters():
        if name in wanted:
            assert float((p.grad - wanted[name]).norm()) <= 1e-5 * float(wanted[name].norm()) + 1e-7 * scale, name
