"""The conversion from its first check to the finished folder."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from mmpack.convert.config import REPORT_NAME, ConvertConfig, ConvertReport, Progress, SampleReport
from mmpack.convert.folder import partial_folder, take_place
from mmpack.convert.plan import ShardTask, plan_shards
from mmpack.convert.shards import Outcome, key_of, name_of, run_shards
from mmpack.energon.writer import META_FOLDER, DatasetIndex, strict_json
from mmpack.errors import ConfigError, SampleError
from mmpack.processes import terminate_as_exit
from mmpack.sources import parser_for
from mmpack.sources.json_files import Record, read_records


def convert(config: ConvertConfig, progress: Progress = lambda done, total: None) -> ConvertReport:
    """Converts, or leaves nothing behind.

    Raises:
        ConfigError: the source cannot be read, the destination exists, or a split would be empty.
        SampleError: a bad sample, with ``on_error="raise"``.
    """
    started = time.perf_counter()
    if config.dst.exists() and not config.overwrite and (not config.dst.is_dir() or any(config.dst.iterdir())):
        raise ConfigError(f"{config.dst} already exists; choose another destination, or overwrite it (--overwrite)")
    image_root = config.image_root if config.image_root is not None else config.src.parent
    if config.overwrite:
        _check_replaceable(config.dst, config.src, image_root)
    if not image_root.is_dir():
        raise ConfigError(f"image_root={str(image_root)!r} is not a folder")
    records = list(read_records(config.src))
    if not records:
        raise ConfigError(f"{config.src} holds no samples")
    with terminate_as_exit(), partial_folder(config.dst) as folder:
        outcomes = _check_records(config, records)
        usable = [position for position, outcome in enumerate(outcomes) if outcome.reason is None]
        for attempt in (1, 2):
            tasks = plan_shards(config, usable)
            num_bytes, num_shards = _write(config, image_root, records, outcomes, tasks, folder, progress)
            report = _report(config, records, tasks, outcomes, num_shards=num_shards, num_bytes=num_bytes)
            if attempt == 2 or report.kept < len(config.split) or all(report.splits.values()):
                break
            # Bad pictures emptied a split of a small set; they are known now, so the shares are dealt again.
            usable = [position for position, outcome in enumerate(outcomes) if outcome.reason is None]
        _refuse_empty_splits(config, report)
        report = replace(report, seconds=time.perf_counter() - started)
        text = json.dumps(report.to_json(), ensure_ascii=True, indent=1, allow_nan=False)
        (folder / REPORT_NAME).write_text(text + "\n", encoding="utf-8")
        take_place(folder, config.dst)
    return report


def _check_replaceable(dst: Path, src: Path, image_root: Path) -> None:
    """Overwriting removes what is there: only a dataset of our own, and never the data that is converted."""
    if not dst.exists() or (dst.is_dir() and not any(dst.iterdir())):
        return
    if not (dst / REPORT_NAME).is_file() or not (dst / META_FOLDER).is_dir():
        raise ConfigError(
            f"{dst} is not a dataset that mmpack made, so it is not overwritten; choose another destination"
        )
    place = dst.resolve()
    for source in (src.resolve(), image_root.resolve()):
        if source == place or place in source.parents:
            raise ConfigError(f"{dst} holds {source}, which is being converted; choose another destination")


def _check_records(config: ConvertConfig, records: Sequence[Record]) -> list[Outcome]:
    """An outcome for every record, from its text alone. Raises the first fault with ``on_error="raise"``."""
    parse = parser_for(config.format)
    outcomes = []
    for record in records:
        try:
            if record.error is not None:
                raise record.error
            parse(record.data)
            outcomes.append(Outcome())
        except SampleError as error:
            if config.on_error == "raise":
                raise error.with_key(name_of(record)) from None
            outcomes.append(Outcome(error.reason, error.detail))
    if all(outcome.reason is not None for outcome in outcomes):
        counts = Counter(outcome.reason for outcome in outcomes)
        skipped = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items(), key=str))
        raise ConfigError(f"{config.src}: none of {len(records)} samples can be used ({skipped})")
    return outcomes


def _write(
    config: ConvertConfig,
    image_root: Path,
    records: Sequence[Record],
    outcomes: list[Outcome],
    tasks: Sequence[ShardTask],
    folder: Path,
    progress: Progress,
) -> tuple[int, int]:
    """Writes and indexes the shards into the emptied `folder`, and notes in `outcomes` what became of each record.

    Returns the shards' bytes and number.
    """
    shutil.rmtree(folder)
    folder.mkdir()
    calls = (
        (folder / task.name, [(i, records[i]) for i in task.positions], image_root, config.format, config.on_error)
        for task in tasks
    )
    done = sum(outcome.reason is not None for outcome in outcomes)
    num_bytes = num_shards = 0
    with (
        closing(DatasetIndex(folder, list(config.split))) as index,
        closing(run_shards(calls, config.workers)) as results,
    ):
        for task, result in zip(tasks, results, strict=True):
            for position, outcome in zip(task.positions, result.outcomes, strict=True):
                outcomes[position] = outcome
            if result.samples:
                index.add(task.split, task.name, result.samples)
                num_bytes += (folder / task.name).stat().st_size
                num_shards += 1
            done += len(task.positions)
            progress(done, len(records))
        index.finish(config.format)
    return num_bytes, num_shards


def _report(
    config: ConvertConfig,
    records: Sequence[Record],
    tasks: Sequence[ShardTask],
    outcomes: Sequence[Outcome],
    *,
    num_shards: int,
    num_bytes: int,
) -> ConvertReport:
    splits = dict.fromkeys(config.split, 0)
    for task in tasks:
        splits[task.split] += sum(outcomes[position].reason is None for position in task.positions)
    samples = []
    for position, (outcome, record) in enumerate(zip(outcomes, records, strict=True)):
        identity = record.data.get("id") if isinstance(record.data, dict) else None
        identity = json.loads(strict_json({"id": identity}))["id"]  # as the dataset has it
        detail = None if outcome.reason is None else f"{record.place}: {outcome.detail}"
        reason = None if outcome.reason is None else outcome.reason.value
        samples.append(SampleReport(id=identity, key=key_of(position), reason=reason, detail=detail))
    return ConvertReport(
        path=config.dst,
        samples=tuple(samples),
        splits=splits,
        num_shards=num_shards,
        num_pictures=sum(outcome.num_pictures for outcome in outcomes),
        num_bytes=num_bytes,
        seconds=0.0,
    )


def _refuse_empty_splits(config: ConvertConfig, report: ConvertReport) -> None:
    skipped = ", ".join(f"{count} {reason}" for reason, count in report.skipped.items())
    if not report.kept:
        raise ConfigError(f"{config.src}: none of {len(report.samples)} samples can be used ({skipped})")
    if empty := [name for name, count in report.splits.items() if not count]:
        names = ", ".join(empty)
        raise ConfigError(f"split {names} would be empty ({skipped or 'too few samples'}); ask for fewer splits")
