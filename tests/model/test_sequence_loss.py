"""A loss of one sequence on a pack gives what it gives on the samples one by one."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor, nn

from mmpack.batch import IGNORE_INDEX
from mmpack.model.sequence_loss import Sequence, sequence_log_probs, sequence_losses
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


def test_log_probs_of_a_pair_give_dpo_of_the_samples_alone() -> None:
    samples, policy = mixed_samples(), model()
    batch = dataclasses.replace(pack(samples, multiple=8, total=400), pair_of_sample=(-1, 0, 0, 1, 1, -1)).check()
    logs = sequence_log_probs(policy.logits(batch), batch)
    for one, log in zip(samples, logs.tolist(), strict=True):
        alone = pack([one])
        losses = policy(alone).per_token_loss[0]
        assert abs(float(losses.sum()) + log) < 1e-4
    reference = torch.zeros(len(samples))
    margin = (logs - reference)[batch.pairs]
    loss = -nn.functional.logsigmoid(0.1 * (margin[:, 0] - margin[:, 1])).mean()
    by_hand = [-math.log(1 / (1 + math.exp(-0.1 * float((logs[a] - logs[b]).detach())))) for a, b in ((1, 2), (3, 4))]
    assert abs(float(loss.detach()) - sum(by_hand) / 2) < 1e-5
    loss.backward()
