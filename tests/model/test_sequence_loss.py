"""A loss of one sequence on a pack gives what it gives on the samples one by one."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from mmpack.batch import IGNORE_INDEX
from mmpack.model.sequence_loss import Sequence, sequence_losses
from tests.loss_neutral.packs import mixed_samples, model, pack


def margin(logits_nV: Tensor, sequence: Sequence) -> Tensor:
    """No sum over tokens, so that mixing sequences up would show: the log of the mean likelihood."""
    trained = sequence.labels != IGNORE_INDEX
    logs = nn.functional.log_softmax(logits_nV[trained], dim=-1)
    chosen = logs.gather(1, sequence.labels[trained, None]).squeeze(1)
    return -torch.logsumexp(chosen, dim=0) + float(len(sequence.key))


def test_each_sample_sees_itself_alone() -> None:
    samples, packed = mixed_samples(), model()
    batch = pack(samples, multiple=8, total=400).check()
    together = sequence_losses(margin, packed.logits(batch), batch)
    alone = torch.cat([sequence_losses(margin, packed.logits(one), one) for one in (pack([s]) for s in samples)])
    assert torch.allclose(together, alone, atol=1e-5)
    together.sum().backward()
    assert any(p.grad is not None for p in packed.parameters())


def test_a_pack_without_samples_gives_no_loss() -> None:
    batch = pack(mixed_samples()[:1])
    empty = batch.cu_seqlens * 0
    nothing = dataclasses.replace(batch, cu_seqlens=empty, sample_keys=())
    logits = torch.randn(batch.num_tokens, 7, requires_grad=True)
    losses = sequence_losses(margin, logits, nothing)
    assert losses.shape == (0,)
    losses.sum().backward()
    assert float(logits.grad.abs().sum()) == 0
