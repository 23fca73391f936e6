"""NeMo-RL's `BatchedDataDict` as far as micro batches go: shard a batch over ranks, iterate, restore the order.

The planning is that of `dynamic_batches` and `packed_microbatches`; here it is applied to a dictionary of tensors
and lists that all hold one entry a sequence. Three things differ from NeMo-RL, on purpose. Every rank gets the same
number of micro batches, so nothing is sent between ranks to find out and no micro batch is repeated to fill up. The
indices that `shard_by_batch_size` returns are in the order of the shards, also with several global batches of dynamic
batching, so that `reorder_data` always restores. And a sequence that does not fit is a `ConfigError`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Required, TypedDict

from torch import Tensor

from mmpack.dynamic.batches import MicroBatch, dynamic_batches
from mmpack.dynamic.packed import packed_microbatches
from mmpack.dynamic.rows import Rows, check_row
from mmpack.errors import ConfigError, check_whole, nearest


class DynamicBatchingArgs(TypedDict, total=False):
    """What `shard_by_batch_size` takes for dynamic batching."""

    max_tokens_per_microbatch: Required[int]  # rows x longest row
    input_key: str  # tensor (B, width, ...) whose width rows never exceed; "input_ids"
    input_lengths_key: str  # tokens of each sequence, (B,); "input_lengths"
    sequence_length_round: int  # rows are a multiple of it; 64


class SequencePackingArgs(TypedDict, total=False):
    """What `shard_by_batch_size` takes for packing."""

    max_tokens_per_microbatch: Required[int]
    input_key: str
    input_lengths_key: str
    algorithm: str  # a name in `mmpack.packing.ALGORITHMS`; "modified_first_fit_decreasing"
    sequence_length_pad_multiple: int  # each sequence is rounded up to it: `pad_factor`; 1


class BatchedDataDict(Rows):
    """A batch: name -> tensor (B, ...) or list of B entries. A shard of one also knows its micro batches.

    >>> import torch
    >>> batch = BatchedDataDict({"input_ids": torch.ones(4, 8), "input_lengths": torch.tensor([8, 2, 3, 7])})
    >>> args = DynamicBatchingArgs(max_tokens_per_microbatch=8, sequence_length_round=1)
    >>> shards, order = batch.shard_by_batch_size(2, dynamic_batching_args=args)
    >>> order, [tuple(mb["input_ids"].shape) for mb in shards[0].make_microbatch_iterator_with_dynamic_shapes()]
    ([1, 3, 2, 0], [(1, 3), (1, 8)])
    >>> restored = BatchedDataDict.from_batches(shards)
    >>> restored.reorder_data(order)
    >>> restored["input_lengths"].tolist()
    [8, 2, 3, 7]
    """

    def __init__(self, data: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        if data is not None and not isinstance(data, Mapping):
            raise ConfigError(f"a batch made of {type(data).__name__}; give a dictionary of tensors and lists")
        super().__init__(data, **more)
        # of each global batch: [start, end) of its micro batches' rows, counted within it, and their lengths in tokens
        self.micro_batch_indices: list[list[list[int]]] | None = None
        self.micro_batch_lengths: list[list[int]] | None = None
        self.elem_counts_per_gb: list[int] | None = None  # rows of each global batch in this shard

    def shard_by_batch_size(
        self,
        shards: int,
        batch_size: int | None = None,
        allow_uneven_shards: bool = False,
        dynamic_batching_args: DynamicBatchingArgs | None = None,
        sequence_packing_args: SequencePackingArgs | None = None,
    ) -> Any:
        """Deals every global batch out to the ranks; a rank's part of each follows the other in its shard.

        Args:
            shards: data-parallel ranks.
            batch_size: sequences of a global batch; None: all are one.
            allow_uneven_shards: without micro batches of either kind and with one global batch: the last shards may
                be smaller.
            dynamic_batching_args: sort, stride and cut by a budget of tokens; then go through
                `make_microbatch_iterator_with_dynamic_shapes`.
            sequence_packing_args: pack; then go through `make_microbatch_iterator_for_packable_sequences`.

        Returns:
            The shards. With either kind of micro batch a tuple of the shards and the number that each of their rows
            had in this batch, shard after shard, for `reorder_data`. All shards then have as many micro batches.

        Raises:
            ConfigError: both kinds at once, a sequence above the budget, an unknown argument, sizes that do not divide.
        """
        check_whole("shards", shards)
        total = self.size
        size = total if batch_size is None else check_whole("batch_size", batch_size)
        uneven = allow_uneven_shards and dynamic_batching_args is None
        _check_division(total, size, shards, uneven, batch_size, sequence_packing_args is not None)
        if dynamic_batching_args is not None and sequence_packing_args is not None:
            raise ConfigError("dynamic_batching_args and sequence_packing_args exclude each other; give one of them")
        if dynamic_batching_args is not None:
            plan = self._dynamic_plan(shards, size, dynamic_batching_args)
        elif sequence_packing_args is not None:
            plan = self._packing_plan(shards, size, sequence_packing_args)
        else:
            per_shard = -(-size // shards)
            return [
                self.select_indices(
                    [
                        i
                        for first in range(0, total, size or 1)
                        for i in range(first + rank * per_shard, min(first + (rank + 1) * per_shard, first + size))
                    ]
                )
                for rank in range(shards)
            ]
        parts = [self._shard(batches, -(-total // size) if size else 0) for batches in plan]
        return parts, [i for batches in plan for batch in batches for i in batch.indices]

    def get_batch(self, batch_idx: int, batch_size: int | None = None) -> BatchedDataDict:
        """One global batch of a shard, with its micro batches. `batch_size`: its rows, where the shard has none."""
        if self.elem_counts_per_gb is None or self.micro_batch_indices is None or self.micro_batch_lengths is None:
            rows = check_whole("batch_size", batch_size)
            check_row("batch_idx", batch_idx, -(-self.size // rows))
            return self.slice(rows * batch_idx, rows * (batch_idx + 1))
        check_row("batch_idx", batch_idx, len(self.elem_counts_per_gb))
        start = sum(self.elem_counts_per_gb[:batch_idx])
        batch = self.slice(start, start + self.elem_counts_per_gb[batch_idx])
        batch.micro_batch_indices = [self.micro_batch_indices[batch_idx]]
        batch.micro_batch_lengths = [self.micro_batch_lengths[batch_idx]]
        batch.elem_counts_per_gb = [self.elem_counts_per_gb[batch_idx]]
        return batch

    def make_microbatch_iterator(self, microbatch_size: int) -> Iterator[BatchedDataDict]:
        """Micro batches of so many rows. Raises ConfigError if that does not divide."""
        if self.size % check_whole("microbatch_size", microbatch_size):
            raise ConfigError(f"{self.size} rows are no multiple of microbatch_size={microbatch_size}")
        return (self.slice(i, i + microbatch_size) for i in range(0, self.size, microbatch_size))

    def make_microbatch_iterator_with_dynamic_shapes(self, sequence_dim: int = 1) -> Iterator[BatchedDataDict]:
        """The micro batches of dynamic batching, tensors cut along `sequence_dim` to the micro batch's length."""
        lengths, places = self._micro_batches()
        check_whole("sequence_dim", sequence_dim)
        return (self._cut(start, end, sequence_dim, n) for n, (start, end) in zip(lengths, places, strict=True))

    def get_microbatch_iterator_dynamic_shapes_len(self) -> int:
        """How many there are."""
        return len(self._micro_batches()[1])

    def make_microbatch_iterator_for_packable_sequences(self) -> Iterator[BatchedDataDict]:
        """The micro batches of packing: the sequences of a pack as rows, to be laid out one after the other."""
        return (self.slice(start, end) for start, end in self._micro_batches()[1])

    def get_microbatch_iterator_for_packable_sequences_len(self) -> tuple[int, int]:
        """How many there are, and the tokens of the longest pack."""
        lengths, _ = self._micro_batches()
        return len(lengths), max(lengths, default=0)

    def _micro_batches(self) -> tuple[list[int], list[list[int]]]:
        if self.micro_batch_indices is None or self.micro_batch_lengths is None:
            raise ConfigError("no micro batches here; make shards with dynamic_batching_args or sequence_packing_args")
        if len(self.micro_batch_indices) != 1:
            raise ConfigError(f"{len(self.micro_batch_indices)} global batches; take one with get_batch(number) first")
        return self.micro_batch_lengths[0], self.micro_batch_indices[0]

    def _cut(self, start: int, end: int, dim: int, length: int) -> BatchedDataDict:
        rows = self.slice(start, end)
        rows.truncate_tensors(dim, length)
        return rows

    def _shard(self, batches: Sequence[MicroBatch], num_global: int) -> BatchedDataDict:
        shard = self.select_indices([i for batch in batches for i in batch.indices])
        shard.micro_batch_indices = [[] for _ in range(num_global)]
        shard.micro_batch_lengths = [[] for _ in range(num_global)]
        for batch in batches:
            places = shard.micro_batch_indices[batch.global_batch]
            start = places[-1][1] if places else 0
            places.append([start, start + len(batch.indices)])
            shard.micro_batch_lengths[batch.global_batch].append(batch.padded_length)
        shard.elem_counts_per_gb = [places[-1][1] for places in shard.micro_batch_indices]
        return shard

    def _dynamic_plan(self, shards: int, size: int, args: DynamicBatchingArgs) -> list[list[MicroBatch]]:
        _check_names("dynamic_batching_args", args, DynamicBatchingArgs)
        check_whole("max_tokens_per_microbatch", args["max_tokens_per_microbatch"])
        key = args.get("input_key", "input_ids")
        if not isinstance(tokens := self._entry(key), Tensor) or tokens.ndim < 2:
            met = f"a tensor {tuple(tokens.shape)}" if isinstance(tokens, Tensor) else type(tokens).__name__
            raise ConfigError(f"entry {key!r} is {met}; dynamic batching cuts a tensor (B, width, ...): set input_key")
        return dynamic_batches(
            self._lengths(args.get("input_lengths_key", "input_lengths")),
            tokens_per_microbatch=args["max_tokens_per_microbatch"],
            sequence_length_round=args.get("sequence_length_round", 64),
            num_ranks=shards,
            global_batch_size=size or None,
            max_length=tokens.shape[1],
        )

    def _packing_plan(self, shards: int, size: int, args: SequencePackingArgs) -> list[list[MicroBatch]]:
        _check_names("sequence_packing_args", args, SequencePackingArgs)
        check_whole("max_tokens_per_microbatch", args["max_tokens_per_microbatch"])
        return packed_microbatches(
            self._lengths(args.get("input_lengths_key", "input_lengths")),
            capacity=args["max_tokens_per_microbatch"],
            num_ranks=shards,
            algorithm=args.get("algorithm", "modified_first_fit_decreasing"),
            pad_multiple=args.get("sequence_length_pad_multiple", 1),
            global_batch_size=size or None,
        )

    def _lengths(self, key: str) -> list[int]:
        lengths = self._entry(key)
        return lengths.tolist() if isinstance(lengths, Tensor) else list(lengths)

    def _entry(self, key: str) -> Any:
        if not isinstance(key, str) or key not in self.data:
            raise ConfigError(f"the batch has no {key!r}; {nearest(str(key), map(str, self.data))}")
        return self.data[key]


def get_microbatch_iterator(
    data: BatchedDataDict, cfg: Mapping[str, Any], mbs: int
) -> tuple[Iterator[BatchedDataDict], int]:
    """The micro batches of one global batch of a shard and their number, by the sections of NeMo-RL's ``policy``.

    Args:
        data: a shard, or `get_batch` of one that has several global batches.
        cfg: ``policy``; of it ``dynamic_batching.enabled`` and ``sequence_packing.enabled`` are read.
        mbs: rows of a micro batch where neither is enabled.
    """
    if not isinstance(data, BatchedDataDict):
        raise ConfigError(f"data is of kind {type(data).__name__}; give a BatchedDataDict")
    dynamic, packing = _enabled(cfg, "dynamic_batching"), _enabled(cfg, "sequence_packing")
    if dynamic and packing:
        raise ConfigError("policy.sequence_packing and policy.dynamic_batching are both enabled; enable one of them")
    if dynamic:
        batches = data.make_microbatch_iterator_with_dynamic_shapes()
        return batches, data.get_microbatch_iterator_dynamic_shapes_len()
    if packing:
        number, _ = data.get_microbatch_iterator_for_packable_sequences_len()
        return data.make_microbatch_iterator_for_packable_sequences(), number
    return data.make_microbatch_iterator(mbs), data.size // mbs


def _enabled(cfg: Mapping[str, Any], section: str) -> bool:
    """Whether a section of ``policy`` is enabled; one that is missing or null is not."""
    if not isinstance(cfg, Mapping):
        raise ConfigError(f"cfg={cfg!r}; give the dictionary under policy")
    settings = cfg.get(section)
    enabled = settings.get("enabled", False) if isinstance(settings, Mapping) else settings
    if settings is not None and not (isinstance(settings, Mapping) and isinstance(enabled, bool)):
        raise ConfigError(f"policy.{section}={settings!r}; give a dictionary whose `enabled` is true or false")
    return bool(enabled)


def _check_division(total: int, size: int, shards: int, uneven: bool, batch_size: int | None, packing: bool) -> None:
    if size and total % size:
        raise ConfigError(f"{total} sequences are no multiple of batch_size={size}")
    if uneven and batch_size is not None:
        raise ConfigError("allow_uneven_shards=True goes with one global batch; leave batch_size out")
    if packing and size < shards:
        raise ConfigError(f"{size} sequences a global batch for {shards} shards; each needs one at least")
    if not (uneven or packing) and size % shards:
        raise ConfigError(
            f"{size} sequences a global batch do not divide by shards={shards}; choose a batch_size that does, or "
            "without dynamic_batching_args one global batch and allow_uneven_shards=True"
        )


def _check_names(name: str, given: Mapping[str, Any], allowed: type) -> None:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{name}={given!r}; give a dictionary with max_tokens_per_microbatch")
    known = allowed.__annotations__
    for key in given:
        if key not in known:
            raise ConfigError(f"{name}: unknown argument {key!r}; {nearest(key, known)}")
    if "max_tokens_per_microbatch" not in given:
        raise ConfigError(f"{name}: set max_tokens_per_microbatch")
