"""A loss that was written for one sequence, run on a pack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mmpack.batch import IGNORE_INDEX, PackedBatch


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Sequence:
    """One sample of a pack, as a loss sees it. n is its length without padding."""

    key: str
    place: int  # among the samples of the pack
    tokens: Tensor  # (n,) int64, IMAGE_TOKEN_INDEX at image embeddings
    labels: Tensor  # (n,) int64, already shifted: labels[t] is the token after t, or IGNORE_INDEX
    loss_weight: Tensor  # (n,) float32


SequenceLoss = Callable[[Tensor, Sequence], Tensor]  # (n, V) logits and their sequence -> () loss


def sequence_log_probs(logits_TV: Tensor, batch: PackedBatch) -> Tensor:
    """(number of samples,) the log-probability of each sample's labels, summed, with gradient.

    What a preference loss is made of. Of DPO (Rafailov et al., arXiv:2305.18290, equation 7), with the same of a
    reference model: ``margin = (logs - reference)[batch.pairs]``, then ``-logsigmoid(beta * (margin[:, 0] -
    margin[:, 1])).mean()``.
    """
    return sequence_losses(_log_prob, logits_TV, batch)


def _log_prob(logits_nV: Tensor, sequence: Sequence) -> Tensor:
    trained = sequence.labels != IGNORE_INDEX
    logs = logits_nV[trained].float().log_softmax(dim=-1)
    return logs.gather(1, sequence.labels[trained, None]).sum()


def sequence_losses(loss: SequenceLoss, logits_TV: Tensor, batch: PackedBatch) -> Tensor:
    """(number of samples,) the loss of each sample, with gradient: each sees its own logits and nothing else.

    The order is that of `batch.sample_keys`; a pack without samples gives an empty tensor that still belongs to the
    graph of the logits. Normalising is the caller's: sums over packs are the same however samples were packed.

    Args:
        loss: of one sequence, such as a policy-gradient or preference loss.
        logits_TV: (T, V) of the whole row, for example `mmpack.model.PackedModel.logits`.
        batch: the pack.
    """
    starts = batch.cu_seqlens_padded.tolist()
    lengths = batch.cu_seqlens.diff().tolist()
    filled = [(start, length) for start, length in zip(starts, lengths, strict=False) if length]
    values = []
    for place, (start, length) in enumerate(filled):
        at = slice(start, start + length)
        sequence = Sequence(
            key=batch.sample_keys[place],
            place=place,
            tokens=batch.tokens[0, at],
            labels=batch.labels[0, at],
            loss_weight=batch.loss_weight[0, at],
        )
        values.append(loss(logits_TV[at], sequence))
    return torch.stack(values) if values else logits_TV[:0].sum(dim=-1)
