"""A text file -> a packed store, whole or not at all; a store that is already there with the same key is left alone."""

from __future__ import annotations

import itertools
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mmpack.convert.folder import lasting_folder, partial_folder, take_place
from mmpack.engine import open_engine
from mmpack.errors import ConfigError, Reason
from mmpack.layout import Layout
from mmpack.offline.config import PackConfig, resolve_format
from mmpack.offline.lines import file_hash, read_text_records
from mmpack.offline.store import META_NAME, PackedStore, TokenPool, read_meta, write_store
from mmpack.offline.tokenizing import Progress, TokenBlock, tokenize
from mmpack.offline.tokens import tokenizer_hash
from mmpack.packing import pack_lengths
from mmpack.processes import terminate_as_exit

_EXAMPLES = 20  # places of left-out records kept for each reason


@dataclass(frozen=True, kw_only=True, slots=True)
class PackReport:
    """What became of a file."""

    path: Path
    key: str  # the cache key
    record_format: str
    num_records: int
    num_sequences: int
    num_packs: int
    packed_sequence_size: int
    num_tokens: int
    num_targets: int
    longest_sequence: int  # tokens
    skipped: dict[str, int]  # reason -> records
    examples: dict[str, list[str]]  # reason -> the first places
    truncated: int  # sequences that were cut
    seconds: float
    cached: bool = field(default=False)  # it was there already

    @property
    def fill_percent(self) -> float:
        """Share of all packs' positions that hold a token."""
        return 100 * self.num_tokens / (self.num_packs * self.packed_sequence_size)

    @property
    def sequences_per_pack(self) -> float:
        """NeMo's n: what the global batch size is to be divided by."""
        return self.num_sequences / self.num_packs

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            **asdict(self),
            "path": str(self.path),
            "fill_percent": self.fill_percent,
            "n": self.sequences_per_pack,
        }


def pack_dataset(config: PackConfig, tokenizer: Any, progress: Progress = lambda done, total: None) -> PackReport:
    """Tokenizes and packs a file.

    Raises:
        ConfigError: the file cannot be read or has no usable record, or the destination holds something else.
        SampleError: a bad record, with ``on_error="raise"``.
    """
    started = time.perf_counter()
    record_format = _format_of(config)
    encoder = config.encoder(record_format, tokenizer)
    key = config.key(record_format, encoder, file_hash(config.input_path), tokenizer_hash(tokenizer))
    if (cached := _cached(config, key)) is not None:
        return cached
    total = _count_records(config.input_path)
    with (
        closing(open_engine(config.engine, config.workers, address=config.address, what="tokenizing")) as engine,
        terminate_as_exit(),
        _work_folder(config, key) as (folder, remembered),
    ):
        records = read_text_records(config.input_path)
        blocks = tokenize(records, encoder, on_error=config.on_error, engine=engine, done=remembered)
        with closing(blocks):
            pool, counts = _collect(folder, blocks, lambda done: progress(done, total))
        if not len(pool.lengths_n):
            skipped = ", ".join(f"{count} {reason}" for reason, count in counts.skipped.items())
            raise ConfigError(
                f"{config.input_path}: none of {counts.num_records} records can be used ({skipped})"
                + _remedy(config, record_format, counts)
            )
        layout = Layout(sequence_multiple=config.sequence_multiple)
        rooms = [layout.room(int(length)) for length in pool.lengths_n]
        packs = _packs(rooms, config, rows_per_record=2 if record_format == "preference" else 1)
        report = PackReport(
            path=config.output_path,
            key=key,
            record_format=record_format,
            num_records=counts.num_records,
            num_sequences=len(pool.lengths_n),
            num_packs=len(packs),
            packed_sequence_size=config.packed_sequence_size,
            num_tokens=int(pool.lengths_n.sum()),
            num_targets=counts.num_targets,
            longest_sequence=int(pool.lengths_n.max()),
            skipped=dict(sorted(counts.skipped.items())),
            examples=counts.examples,
            truncated=counts.truncated,
            seconds=time.perf_counter() - started,
        )
        _write(folder, pool, packs, report, config)
    return report


@contextmanager
def _work_folder(config: PackConfig, key: str) -> Iterator[tuple[Path, Path | None]]:
    """A folder to work in, and one in it that remembers blocks for another run where they are made on a cluster."""
    if config.engine == "local":
        with partial_folder(config.output_path) as folder:
            yield folder, None
        return
    with lasting_folder(config.output_path, f"{key[:16]}-{config.on_error}") as folder:
        remembered = folder / "blocks"
        remembered.mkdir(exist_ok=True)
        shutil.rmtree(folder / "done", ignore_errors=True)  # a store that a run which died had begun to write
        yield folder, remembered
        shutil.rmtree(folder)


def _packs(rooms: list[int], config: PackConfig, *, rows_per_record: int) -> list[list[int]]:
    """Which rows go into which pack; those of one record stand together."""
    units = [sum(rooms[i : i + rows_per_record]) for i in range(0, len(rooms), rows_per_record)]
    most = None if config.max_samples is None else config.max_samples // rows_per_record
    packs = pack_lengths(units, config.capacity, algorithm=config.algorithm, seed=config.seed, max_samples=most)
    return [[u * rows_per_record + k for u in pack for k in range(rows_per_record)] for pack in packs]


def _write(folder: Path, pool: TokenPool, packs: list[list[int]], report: PackReport, config: PackConfig) -> None:
    done = folder / "done"
    done.mkdir()
    meta = report.to_json()
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(config).items()}
    for name in ("path", "cached", "fill_percent", "n"):
        del meta[name]
    for name in ("engine", "address"):
        del settings[name]
    write_store(done, pool, packs, {**meta, "settings": settings}, max_tokens_per_shard=config.max_tokens_per_shard)
    take_place(done, config.output_path)


def _format_of(config: PackConfig) -> str:
    """What was asked for, or what the first readable record looks like."""
    if config.record_format not in (None, "chat"):
        return str(config.record_format)
    with closing(read_text_records(config.input_path)) as records:
        for record in itertools.islice(records, 1000):
            if record.error is None and isinstance(record.data, dict) and record.data:
                return resolve_format(config.record_format, record.data, config.form.prompt_template)
    return resolve_format(config.record_format, None)


def _cached(config: PackConfig, key: str) -> PackReport | None:
    """The report of the store that is there already, or None for a free place. Raises ConfigError for another's."""
    place = config.output_path
    if not place.exists() or (place.is_dir() and not any(place.iterdir())):
        return None
    if not (place / META_NAME).is_file():
        raise ConfigError(f"{place} exists and is no packed store; choose another destination")
    meta = read_meta(place)
    if meta.get("key") != key:
        if not config.overwrite:
            raise ConfigError(
                f"{place} holds packs of other data or settings; choose another destination, or overwrite it "
                "(--overwrite)"
            )
        return None
    PackedStore.open(place)  # raises if it is damaged
    names = [name for name in PackReport.__dataclass_fields__ if name in meta]
    return PackReport(**{name: meta[name] for name in names}, path=place, cached=True)


def _remedy(config: PackConfig, record_format: str, counts: _Counts) -> str:
    """What to change for a file of which no record could be used, as far as that can be told."""
    if record_format != "prompt_response" or Reason.MISSING_FIELD.value not in counts.skipped:
        return ""
    with closing(read_text_records(config.input_path)) as records:
        first = next((record.data for record in records if isinstance(record.data, dict)), {})
    names = sorted(map(str, first))
    said = f"; a record has the fields {', '.join(names)[:200]}"
    if {"instruction", "response"} <= set(names):
        return f"{said}, Dolly's: run `mmpack prepare-dolly` first, and pack what that writes"
    return f"{said}; name them in a template that ends with the answer: prompt_template='{{question}} {{answer}}'"


def _count_records(path: Path) -> int:
    """About how many records: lines of a JSONL file, for the progress; 0 where counting would mean parsing."""
    if path.suffix == ".gz":
        return 0
    with path.open("rb") as file:
        if file.read(64).lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"[":
            return 0
        file.seek(0)
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))


@dataclass(slots=True)
class _Counts:
    num_records: int = 0
    num_targets: int = 0
    truncated: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, block: TokenBlock) -> None:
        self.num_records += block.num_records
        self.num_targets += int(block.loss_mask_t.sum())
        self.truncated += len(block.truncated)
        for place, reason, _ in block.skipped:
            self._example(reason, place)
            self.skipped[reason.value] += 1
        for place in block.truncated:
            self._example(Reason.TRUNCATED, place)

    def _example(self, reason: Reason, place: str) -> None:
        places = self.examples.setdefault(reason.value, [])
        if len(places) < _EXAMPLES:
            places.append(place)


def _collect(folder: Path, blocks: Iterable[TokenBlock], progress: Any) -> tuple[TokenPool, _Counts]:
    """All rows in two files of `folder`, mapped: memory holds the lengths only."""
    counts = _Counts()
    lengths: list[Any] = [np.zeros(0, dtype=np.int64)]
    numbers: list[Any] = [np.zeros(0, dtype=np.int64)]
    with (folder / "tokens").open("wb") as tokens, (folder / "targets").open("wb") as targets:
        for block in blocks:
            block.token_ids_t.tofile(tokens)
            block.loss_mask_t.tofile(targets)
            lengths.append(block.lengths_n)
            numbers.append(block.record_n)
            counts.add(block)
            progress(counts.num_records)
        empty = tokens.tell() == 0
    pool = TokenPool(
        token_ids_t=np.zeros(0, np.int32) if empty else np.memmap(folder / "tokens", dtype=np.int32, mode="r"),
        loss_mask_t=np.zeros(0, np.uint8) if empty else np.memmap(folder / "targets", dtype=np.uint8, mode="r"),
        lengths_n=np.concatenate(lengths),
        record_n=np.concatenate(numbers),
    )
    return pool, counts
