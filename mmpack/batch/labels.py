"""What labels and their weights promise, in packed and in padded batches."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from mmpack.sample import IGNORE_INDEX


class WithLabels(Protocol):
    """The fields that `check_labels` reads, each (rows, T)."""

    @property
    def tokens(self) -> Tensor: ...
    @property
    def labels(self) -> Tensor: ...
    @property
    def loss_weight(self) -> Tensor: ...
    @property
    def padding_mask(self) -> Tensor: ...
    @property
    def num_loss_tokens(self) -> int: ...


def check_labels(batch: WithLabels) -> None:
    """Raises AssertionError if a label is not the next token of its row, or weights and counts do not go with them."""
    labels, tokens = batch.labels.cpu(), batch.tokens.cpu()
    weight, pad = batch.loss_weight.cpu(), batch.padding_mask.cpu()
    trained = labels != IGNORE_INDEX
    assert not bool(trained[pad].any()), "a padding position has a label"
    assert bool((weight[~trained] == 0).all()), "loss_weight must be 0 where labels are ignored"
    assert bool((weight[trained] > 0).all()), "loss_weight must be positive where there is a label"
    assert int(trained.sum()) == batch.num_loss_tokens, "num_loss_tokens does not count the labels"
    assert not bool(trained[:, -1].any()), "the last position of a row has a label"
    following = tokens.roll(-1, dims=1)
    assert torch.equal(labels[trained], following[trained]), "a label is not the next token"
    assert not bool((labels[trained] < 0).any()), "an image placeholder is a label"
