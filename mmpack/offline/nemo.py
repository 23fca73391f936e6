"""NeMo's offline packing under its own names: a file of records -> an ``.npy`` of packs and its metadata.

A row's length here is NeMo's: one less than its number of tokens, since the last token is a label only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mmpack.errors import ConfigError, check_whole, nearest
from mmpack.layout import round_up
from mmpack.offline.chat import NemoChatEncoder
from mmpack.offline.files import check_path, whole_file
from mmpack.offline.lines import read_text_records
from mmpack.offline.nemo_rows import write_nemo_rows
from mmpack.offline.records import PromptResponse, PromptResponseEncoder, RecordEncoder, TextLimit
from mmpack.offline.tokenizing import Progress, tokenize
from mmpack.packing import ALGORITHMS, check_capacity, pack_lengths

Item = Mapping[str, Any]  # input_ids, and answer_start_idx or loss_mask
Sequences = dict[int, list[Item]]  # by length


def create_hist(dataset: Sequence[Item], truncate_seq_len: int) -> tuple[Sequences, list[int]]:
    """The items by length, and how many there are of each length from 0 to `truncate_seq_len`.

    Raises:
        ConfigError: an item that is longer, or too short to have a label.

    >>> create_hist([{"input_ids": [1, 2, 3, 9]}, {"input_ids": [4, 9]}], 4)[1]
    [0, 1, 0, 1, 0]
    """
    sequences: Sequences = {length: [] for length in range(truncate_seq_len + 1)}
    for number, item in enumerate(dataset):
        num_ids = len(item["input_ids"])
        if num_ids < 2:
            raise ConfigError(f"item {number} has {num_ids} tokens; at least 2, since the last is a label only")
        if num_ids - 1 > truncate_seq_len:
            raise ConfigError(
                f"item {number} has {num_ids} tokens, most allowed are {truncate_seq_len} and one for the last label; "
                "cut or leave out what is longer, or raise max_seq_length"
            )
        sequences[num_ids - 1].append(item)
    return sequences, [len(items) for items in sequences.values()]


def create_packing_strategy(
    histogram: Sequence[int], pack_size: int, packing_algorithm: str = "first_fit", *, seed: int = 0
) -> tuple[list[list[int]], dict[str, Any]]:
    """Packs as lists of lengths, and NeMo's metadata of them.

    Raises:
        ConfigError: nothing to pack, a length above `pack_size`, or an unknown algorithm.
    """
    lengths = [length for length, count in enumerate(histogram) for _ in range(count)]
    ALGORITHMS.get(packing_algorithm)
    if not lengths:
        raise ConfigError("no sequences to pack: the data set is empty")
    if lengths[-1] > pack_size:
        raise ConfigError(
            f"a sequence of {lengths[-1]} positions does not fit a pack of {pack_size}; raise packed_sequence_size, "
            "or lower max_seq_length"
        )
    packs = pack_lengths(lengths, pack_size, algorithm=packing_algorithm, seed=seed)
    assignments = [[lengths[i] for i in pack] for pack in packs]
    sizes = [sum(pack) for pack in assignments]
    metadata = {
        "dataset_max_seqlen": max(lengths),
        "max_samples_per_bin": max(map(len, assignments)),
        "packing_factor": round(len(lengths) / len(packs), 2),
        "packing_efficiency": round(100 * sum(sizes) / len(packs) / pack_size, 2),
        "pack_size": pack_size,
        "min_packed_seqlen": min(sizes),
    }
    return assignments, metadata


def fill_packing_strategy(
    assignments: Sequence[Sequence[int]], sequences: Sequences, pack_size: int, pad_id: int, *, seed: int = 0
) -> list[dict[str, list[int]]]:
    """NeMo's rows: items of each length, in an order drawn by `seed`, put where the plan has that length.

    Raises:
        ConfigError: the plan asks for a length more often than there are items of it, or a pack is too long.
    """
    draw = np.random.RandomState(seed)
    ready = {length: [items[i] for i in draw.permutation(len(items))] for length, items in sorted(sequences.items())}
    rows = []
    for number, pack in enumerate(assignments):
        if sum(pack) > pack_size:
            raise ConfigError(f"pack {number} of {list(pack)} is longer than pack_size={pack_size}")
        ids: list[int] = []
        mask: list[int] = []
        starts: list[int] = []
        for length in pack:
            if not ready.get(length):
                raise ConfigError(f"pack {number} asks for a sequence of {length} positions, and none is left")
            item = ready[length].pop()
            starts.append(len(ids))
            ids += map(int, item["input_ids"])
            mask += shifted_mask(item)
        rows.append({"input_ids": ids, "loss_mask": mask, "seq_start_id": starts})
    return rows


def shifted_mask(item: Item) -> list[int]:
    """1 where the next token is a target: from ``loss_mask``, else from ``answer_start_idx``; the last is 0.

    >>> shifted_mask({"input_ids": [1, 2, 3, 9], "answer_start_idx": 2})
    [0, 1, 1, 0]
    """
    num_ids = len(item["input_ids"])
    if "loss_mask" in item:
        mask = [int(bool(m)) for m in item["loss_mask"]]
        if len(mask) != num_ids:
            raise ConfigError(f"an item has {num_ids} tokens and a loss_mask of {len(mask)}")
        return [*mask[1:], 0]
    start = item.get("answer_start_idx", 1)
    return [*(int(i + 1 >= start) for i in range(num_ids - 1)), 0]


def prepare_packed_sequence_data(
    input_path: str | Path,
    output_path: str | Path,
    output_metadata_path: str | Path | None,
    packed_sequence_size: int,
    tokenizer: Any,
    max_seq_length: int,
    seed: int = 0,
    packing_algorithm: str = "first_fit_shuffle",
    dataset_kwargs: Mapping[str, Any] | None = None,
    pad_seq_to_mult: int | None = 1,
    *,
    workers: int = 1,
    progress: Progress = lambda done, total: None,
) -> dict[str, Any]:
    """Writes NeMo's packed file and adds its metadata to the list in `output_metadata_path`; returns the metadata.

    The same arguments give the same bytes: `seed` decides the packing and the order, numpy's global state nothing.

    Args:
        input_path: JSONL, JSONL.gz or a JSON list of prompt-response records, or of NeMo's chats with ``chat=True``.
        output_path: the ``.npy`` file.
        output_metadata_path: a JSON file with one entry for each packed file (train, then val); None for none.
        packed_sequence_size: positions of a pack.
        tokenizer: a fast tokenizer of transformers.
        max_seq_length: most tokens of one sequence.
        dataset_kwargs: ``prompt_template, label_key, truncation_field, truncation_method, answer_only_loss, add_bos,
            add_eos, add_sep``; ``chat`` and ``special_tokens``; ``oversize``.
        pad_seq_to_mult: pad every sequence with the end token to a multiple of this (2 x context-parallel size).

    Raises:
        ConfigError: nothing usable in the file, or settings that cannot work.
    """
    packed_sequence_size = check_capacity(packed_sequence_size, name="packed_sequence_size")
    max_seq_length, workers = check_whole("max_seq_length", max_seq_length), check_whole("workers", workers)
    multiple = check_whole("pad_seq_to_mult", pad_seq_to_mult or 1)
    for name, path in (("input_path", input_path), ("output_path", output_path)):
        check_path(name, path)
    if output_metadata_path is not None:
        check_path("output_metadata_path", output_metadata_path)
    if not isinstance(dataset_kwargs, Mapping | None):
        raise ConfigError(f"dataset_kwargs={dataset_kwargs!r}; give a mapping such as {{'chat': True}}, or None")
    if max_seq_length % multiple:
        raise ConfigError(f"max_seq_length={max_seq_length} is no multiple of pad_seq_to_mult={multiple}")
    if max_seq_length > packed_sequence_size:
        raise ConfigError(
            f"max_seq_length={max_seq_length} is longer than packed_sequence_size={packed_sequence_size}; lower it"
        )
    pad_id = getattr(tokenizer, "eos_token_id", None)
    if pad_id is None:
        raise ConfigError("the tokenizer has no eos_token, which pads and ends sequences; set one")
    encoder = _encoder(tokenizer, max_seq_length, dict(dataset_kwargs or {}))
    dataset: list[Item] = []
    skipped: list[str] = []
    num_records = 0
    for block in tokenize(read_text_records(Path(input_path)), encoder, workers=workers):
        dataset += _items(block, multiple, pad_id)
        skipped += [f"{place}: {reason.value}" for place, reason, _ in block.skipped]
        num_records += block.num_records
        progress(num_records, 0)
    if not dataset:
        raise ConfigError(f"{input_path}: none of {num_records} records can be used ({'; '.join(skipped[:5])})")
    sequences, histogram = create_hist(dataset, max_seq_length)
    assignments, metadata = create_packing_strategy(histogram, packed_sequence_size, packing_algorithm, seed=seed)
    entries = [] if output_metadata_path is None else _metadata_entries(Path(output_metadata_path))
    write_nemo_rows(
        Path(output_path), fill_packing_strategy(assignments, sequences, packed_sequence_size, pad_id, seed=seed)
    )
    if output_metadata_path is not None:
        with whole_file(Path(output_metadata_path)) as file:
            file.write(json.dumps([*entries, metadata]).encode())
    return metadata


def _items(block: Any, multiple: int, pad_id: int) -> list[Item]:
    """The block's rows as items; with a multiple, padded to one token more than one, so that the labels fill it."""
    items: list[Item] = []
    ends = np.cumsum(block.lengths_n)
    for end, length in zip(ends.tolist(), block.lengths_n.tolist(), strict=True):
        ids = block.token_ids_t[end - length : end].tolist()
        mask = [0, *block.loss_mask_t[end - length : end - 1].tolist()]
        if multiple > 1:
            missing = round_up(length, multiple) + 1 - length
            ids += [pad_id] * missing
            mask += [0] * missing
        items.append({"input_ids": ids, "loss_mask": mask})
    return items


_FORM = ("prompt_template", "label_key", "truncation_field", "truncation_method", "answer_only_loss")
_KWARGS = (*_FORM, "add_bos", "add_eos", "add_sep", "chat", "special_tokens", "oversize")


def _encoder(tokenizer: Any, max_seq_length: int, kwargs: dict[str, Any]) -> RecordEncoder:
    for name in kwargs:
        if name not in _KWARGS:
            raise ConfigError(f"dataset_kwargs has an unknown key {name!r}; {nearest(name, _KWARGS)}")
    limit = TextLimit(seq_length=max_seq_length, oversize=kwargs.pop("oversize", "truncate"))
    special_tokens = kwargs.pop("special_tokens", None)
    if kwargs.pop("chat", False):
        if kwargs:
            raise ConfigError(f"dataset_kwargs: {', '.join(kwargs)} have no meaning with chat=True; leave them out")
        return NemoChatEncoder(tokenizer, special_tokens or "extra_id", limit)
    if special_tokens is not None:
        raise ConfigError("dataset_kwargs: special_tokens are for chat=True")
    return PromptResponseEncoder(tokenizer, PromptResponse(**kwargs), limit)


def _metadata_entries(path: Path) -> list[Any]:
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; give the name of a file") from None
    except ValueError as error:
        raise ConfigError(f"{path} is no JSON ({error}); move it away") from None
    if not isinstance(entries, list):
        raise ConfigError(f"{path} holds a {type(entries).__name__}, not the list of packed files; move it away")
    return entries
