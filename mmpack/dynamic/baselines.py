"""The plain ways to make padded batches: in order, or from buckets of like length."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Sequence

from mmpack.dynamic.batches import MicroBatch, check_at_least_1
from mmpack.errors import ConfigError, whole_number
from mmpack.packing import check_length, check_lengths


def padded_batches(lengths: Sequence[int], *, batch_size: int, sequence_length_round: int = 1) -> list[MicroBatch]:
    """Dynamic padding without sorting: `batch_size` samples as they come, padded to the longest of them.

    The last batch holds what is left. Raises ConfigError for a setting or length below 1.

    >>> [(batch.indices, batch.padded_length) for batch in padded_batches([2, 7, 4], batch_size=2)]
    [((0, 1), 7), ((2,), 4)]
    """
    check_at_least_1(batch_size=batch_size, sequence_length_round=sequence_length_round)
    checked = check_lengths(lengths)
    places = range(len(checked))
    return [
        _batch(places[start : start + batch_size], checked, sequence_length_round)
        for start in range(0, len(checked), batch_size)
    ]


def bucket_batches(
    lengths: Sequence[int],
    *,
    bucket_boundaries: Sequence[int] | None = None,
    bucket_size: int | None = None,
    length_tolerance: int | None = None,
    batch_size: int | None = None,
    tokens_per_microbatch: int | None = None,
    sequence_length_round: int = 1,
    seed: int = 0,
) -> list[MicroBatch]:
    """Length buckets: batches of samples of one bucket, shuffled inside it; then the batches are shuffled.

    Args:
        lengths: tokens of each sample.
        bucket_boundaries: rising lengths; a bucket ends with its boundary, and one more takes what is longer.
        bucket_size: samples of a bucket, in the order of lengths.
        length_tolerance: tokens by which the longest of a bucket may exceed its shortest.
        batch_size: samples of a batch.
        tokens_per_microbatch: budget of a batch instead, rows x longest row.
        sequence_length_round: multiple for the length of rows; a row that would be above the budget is not rounded.
        seed: of the shuffles.

    Raises:
        ConfigError: not exactly one kind of bucket and one of size; a setting below 1, boundaries that do not rise, a
            sample above the budget.

    >>> batches = bucket_batches([1, 9, 2, 8, 1], bucket_boundaries=[4], batch_size=3)
    >>> sorted(sorted(batch.indices) for batch in batches)
    [[0, 2, 4], [1, 3]]
    """
    check_at_least_1(sequence_length_round=sequence_length_round)
    lengths = check_lengths(lengths)
    buckets = _buckets(lengths, bucket_boundaries, bucket_size, length_tolerance)
    if (batch_size is None) == (tokens_per_microbatch is None):
        raise ConfigError("set either batch_size or tokens_per_microbatch")
    generator = random.Random(f"bucket batches {seed}")
    batches: list[MicroBatch] = []
    for bucket in buckets:
        # Python promises the numbers of random() for a seed for ever, those of shuffle() not.
        keys = {i: generator.random() for i in bucket}
        shuffled = sorted(bucket, key=keys.__getitem__)
        if batch_size is not None:
            check_at_least_1(batch_size=batch_size)
            groups = [shuffled[start : start + batch_size] for start in range(0, len(shuffled), batch_size)]
        else:
            groups = _groups_by_tokens(shuffled, lengths, tokens_per_microbatch or 0)
        batches += [_batch(group, lengths, sequence_length_round, tokens_per_microbatch) for group in groups]
    order = [generator.random() for _ in batches]
    return [batches[k] for k in sorted(range(len(batches)), key=order.__getitem__)]


def _buckets(
    lengths: Sequence[int],
    bucket_boundaries: Sequence[int] | None,
    bucket_size: int | None,
    length_tolerance: int | None,
) -> list[list[int]]:
    if sum(setting is not None for setting in (bucket_boundaries, bucket_size, length_tolerance)) != 1:
        raise ConfigError("set exactly one of bucket_boundaries, bucket_size, length_tolerance")
    ascending = sorted(range(len(lengths)), key=lengths.__getitem__)
    if bucket_size is not None:
        check_at_least_1(bucket_size=bucket_size)
        return [ascending[start : start + bucket_size] for start in range(0, len(ascending), bucket_size)]
    if bucket_boundaries is not None:
        boundaries = list(bucket_boundaries) if isinstance(bucket_boundaries, (list, tuple)) else []
        whole = all(whole_number(boundary) is not None for boundary in boundaries)
        if not boundaries or not whole or boundaries != sorted(set(boundaries)) or boundaries[0] < 1:
            raise ConfigError(f"bucket_boundaries={bucket_boundaries!r}; give rising lengths of at least 1")
        by_boundary: list[list[int]] = [[] for _ in range(len(boundaries) + 1)]
        for i in ascending:
            by_boundary[bisect_left(boundaries, lengths[i])].append(i)
        return [bucket for bucket in by_boundary if bucket]
    if (tolerance := whole_number(length_tolerance)) is None or tolerance < 0:
        raise ConfigError(f"length_tolerance={length_tolerance!r}; give a number of tokens, at least 0")
    buckets: list[list[int]] = []
    for i in ascending:
        if not buckets or lengths[i] - lengths[buckets[-1][0]] > tolerance:
            buckets.append([])
        buckets[-1].append(i)
    return buckets


def _groups_by_tokens(shuffled: Sequence[int], lengths: Sequence[int], budget: int) -> list[list[int]]:
    check_at_least_1(tokens_per_microbatch=budget)
    groups: list[list[int]] = []
    longest = 0
    for i in shuffled:
        check_length(lengths[i], budget, place=f"lengths[{i}]")
        longest = max(longest, lengths[i])
        if not groups or longest * (len(groups[-1]) + 1) > budget:
            groups.append([])
            longest = lengths[i]
        groups[-1].append(i)
    return groups


def _batch(
    indices: Sequence[int], lengths: Sequence[int], sequence_length_round: int, budget: int | None = None
) -> MicroBatch:
    longest = max(lengths[i] for i in indices)
    rounded = -(-longest // sequence_length_round) * sequence_length_round
    fits = budget is None or rounded * len(indices) <= budget
    return MicroBatch(indices=tuple(indices), padded_length=rounded if fits else longest)
