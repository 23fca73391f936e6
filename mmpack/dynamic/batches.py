"""Dynamic batching: sort inside the global batch, stride over the ranks, cut by a budget of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from mmpack.errors import ConfigError, check_whole, nearest
from mmpack.packing import check_lengths

MicrobatchOrder = Literal["packer", "largest_first"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MicroBatch:
    """What one rank works on at one time."""

    indices: tuple[int, ...]  # of its samples, in the order of its rows; empty if it is all fillers
    padded_length: int  # tokens of every row; of a packed micro batch, which is one row, all its tokens
    num_fillers: int = 0  # rows of weight 0 behind the samples', so that all ranks have as many; or 1 filler pack
    global_batch: int = 0  # number of the global batch it belongs to

    @property
    def num_rows(self) -> int:
        """Rows of a padded micro batch, fillers included."""
        return len(self.indices) + self.num_fillers

    @property
    def positions(self) -> int:
        """Positions that a padded micro batch computes, padding included."""
        return self.num_rows * self.padded_length


def dynamic_batches(
    lengths: Sequence[int],
    *,
    tokens_per_microbatch: int,
    sequence_length_round: int = 64,
    num_ranks: int = 1,
    global_batch_size: int | None = None,
    microbatch_order: MicrobatchOrder = "packer",
    max_length: int | None = None,
) -> list[list[MicroBatch]]:
    """Micro batches of padded rows for every rank: the same number on each, of the same shapes at the same place.

    In each global batch samples are sorted by length and dealt to the ranks in turn, so that the k-th samples of all
    ranks are about equally long. A micro batch takes samples, shortest first, while rows x longest row stays within
    the budget; how long the rows are is decided over all ranks. Rows are rounded up to `sequence_length_round`, but
    not above `max_length`. These are the micro batches of NeMo-RL's dynamic batching, number for number; what it
    refuses, samples that do not divide by the ranks, gets filler rows on the ranks that are one short.

    Args:
        lengths: tokens of each sample.
        tokens_per_microbatch: budget: positions of a micro batch, padding included.
        sequence_length_round: multiple for the length of rows.
        num_ranks: data-parallel ranks.
        global_batch_size: samples of one optimizer step, over all ranks; None: all of them are one step.
        microbatch_order: ``"packer"``: shortest first in each global batch; ``"largest_first"``: the other way, so
            that memory is claimed at once.
        max_length: rows are never longer; None: the longest sample's length.

    Returns:
        For each rank its micro batches, global batch after global batch.

    Raises:
        ConfigError: a setting below 1, or a sample whose row is above the budget or `max_length`.

    >>> (rank,) = dynamic_batches([2, 4, 7, 6, 3, 4], tokens_per_microbatch=16, sequence_length_round=1)
    >>> [(batch.indices, batch.padded_length) for batch in rank]
    [((0, 4, 1, 5), 4), ((3, 2), 7)]
    """
    check_at_least_1(
        tokens_per_microbatch=tokens_per_microbatch, sequence_length_round=sequence_length_round, num_ranks=num_ranks
    )
    check_order(microbatch_order)
    if max_length is not None:
        check_at_least_1(max_length=max_length)
    lengths = check_lengths(lengths, max_length)
    longest = max(lengths, default=1) if max_length is None else max_length
    widths = [min(-(-length // sequence_length_round) * sequence_length_round, longest) for length in lengths]
    for i, width in enumerate(widths):
        if width > tokens_per_microbatch:
            raise ConfigError(
                f"lengths[{i}]={lengths[i]} makes a row of {width} tokens, "
                f"tokens_per_microbatch={tokens_per_microbatch}; raise it, or drop or cut what is longer"
            )
    ranks: list[list[MicroBatch]] = [[] for _ in range(num_ranks)]
    for number, members in enumerate(global_batches(len(lengths), global_batch_size)):
        ordered = sorted(members, key=lengths.__getitem__)  # stable: of equals the earlier first
        cuts = list(_cuts([widths[i] for i in ordered], tokens_per_microbatch, num_ranks))
        if microbatch_order == "largest_first":
            cuts.reverse()
        for start, end, width in cuts:
            for rank, batches in enumerate(ranks):
                mine = tuple(ordered[start * num_ranks + rank : end * num_ranks : num_ranks])
                batches.append(
                    MicroBatch(
                        indices=mine, padded_length=width, num_fillers=end - start - len(mine), global_batch=number
                    )
                )
    return ranks


def _cuts(ascending: Sequence[int], budget: int, num_ranks: int) -> Iterator[tuple[int, int, int]]:
    """(first row, row after the last, width) of each micro batch, rows counted on every rank alike."""
    rows = [max(ascending[i : i + num_ranks]) for i in range(0, len(ascending), num_ranks)]
    start = width = 0
    for row, needed in enumerate(rows):
        if max(width, needed) * (row + 1 - start) > budget:
            yield start, row, width
            start, width = row, 0
        width = max(width, needed)
    if rows:
        yield start, len(rows), width


def global_batches(num_samples: int, global_batch_size: int | None) -> Iterator[range]:
    """The samples of each global batch, in order; the last may be smaller. Raises ConfigError for a size below 1."""
    if global_batch_size is not None:
        check_at_least_1(global_batch_size=global_batch_size)
    size = global_batch_size or max(1, num_samples)
    return (range(start, min(start + size, num_samples)) for start in range(0, num_samples, size))


def check_at_least_1(**settings: int) -> None:
    """Raises ConfigError, naming the setting, for one that is no whole number of at least 1."""
    for name, value in settings.items():
        check_whole(name, value)


def check_order(microbatch_order: str) -> None:
    """Raises ConfigError with the nearest name for an unknown order."""
    if microbatch_order not in get_args(MicrobatchOrder):
        hint = nearest(str(microbatch_order), get_args(MicrobatchOrder))
        raise ConfigError(f"unknown microbatch_order {microbatch_order!r}; {hint}")
