"""The same number of steps on every rank, although their streams end at different times.

A rank whose stream has ended takes part in the others' steps with a filler: a batch of weight zero. To know whether
any rank still has a pack, the ranks exchange one number now and then; how often follows from what is left. Halfway
through an epoch half of the rest goes by without an exchange, so an epoch of a million packs needs some twenty until
its streams drain, and then one a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

Exchange = Callable[[int], int]  # this rank's number -> the largest of all ranks' numbers; all ranks call it together


def torch_exchange(group: Any = None) -> Exchange:
    """An exchange over a process group of torch.distributed; None for all of them."""
    import torch
    import torch.distributed as dist

    def largest(number: int) -> int:
        on_gpu = dist.get_backend(group) == "nccl"
        value = torch.tensor([number], device="cuda" if on_gpu else "cpu")
        dist.all_reduce(value, op=dist.ReduceOp.MAX, group=group)
        return int(value)

    return largest


class EqualSteps:
    """Decides, turn by turn, whether any rank still has a pack. One object an epoch and rank."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._next_turn = 0
        self.num_exchanges = 0

    def any_pack(self, turn: int, sure_turns: int) -> bool:
        """Whether some rank has a pack at `turn`.

        Args:
            turn: of this epoch, the same on all ranks; they ask at every turn.
            sure_turns: turns from this one on at which this rank has a pack, as far as it can tell; 0 if it has none
                now.
        """
        if turn < self._next_turn:
            return True
        most = self._exchange(sure_turns)
        self.num_exchanges += 1
        self._next_turn = turn + most
        return most > 0


def sure_turns(states: Iterable[dict[str, Any] | None], num_own_streams: int) -> int:
    """Turns at which a rank surely has packs, from the states of its streams behind their last packs; at least 1.

    Half of the packs that the rest of each stream makes, if it goes on as so far: what if many of the rest are bad
    samples? Then a rank sends fillers until the next exchange, and nothing else is lost.

    >>> sure_turns([{"round": 10, "emitted": 40, "left": 400, "exhausted": False}], 1)
    50
    >>> sure_turns([{"round": 10, "emitted": 40, "left": 3, "exhausted": True}], 1)
    1
    """
    turns = []
    for state in states:
        if state is None or state["exhausted"] or not state["emitted"]:
            return 1
        per_pack = state["emitted"] / state["round"]
        turns.append(math.floor(state["left"] / per_pack / 2) * num_own_streams)
    return max(1, min(turns, default=1))
