"""The conversion from its first check to the finished folder."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from mmpack.convert.books import Books
from mmpack.convert.config import REPORT_NAME, SOURCE_KINDS, ConvertConfig, ConvertReport, Progress, SampleReports
from mmpack.convert.folder import remove_hidden, take_place
from mmpack.convert.plan import plan_shards
from mmpack.convert.shards import ShardJob, name_of, run_shards
from mmpack.convert.takeover import DONE, work_folder
from mmpack.energon.store import is_remote
from mmpack.energon.writer import META_FOLDER, DatasetIndex
from mmpack.engine import Engine, open_engine
from mmpack.errors import ConfigError, DataError, SampleError
from mmpack.processes import terminate_as_exit
from mmpack.readers import Reader, find_source, settle
from mmpack.sources import AUTO, detect, parser_for

_MAX_NOTES = 100


def convert(config: ConvertConfig, progress: Progress = lambda done, total: None) -> ConvertReport:
    """Converts, or leaves nothing behind; on a cluster, where it is broken off, what the next run takes over.

    Raises:
        ConfigError: the source cannot be read, the destination exists, or a split would be empty.
        SampleError: a bad sample, with ``on_error="raise"``.
        DataError: a larger share of the records is bad than `max_bad_share` allows.
        StorageError: the store that `dst` is in does not answer.
    """
    if is_remote(config.dst):
        from mmpack.convert.remote import convert_to_store

        return convert_to_store(config, progress)
    started = time.perf_counter()
    if config.dst.exists() and not config.overwrite and (not config.dst.is_dir() or any(config.dst.iterdir())):
        raise ConfigError(f"{config.dst} already exists; choose another destination, or overwrite it (--overwrite)")
    source = find_source(config.src)
    if source.kind not in SOURCE_KINDS.get(config.format, (source.kind,)):
        kinds = " or ".join(SOURCE_KINDS[config.format])
        raise ConfigError(f"format={config.format!r} means {kinds}, but {config.src} is {source.kind}; try 'auto'")
    image_root = config.image_root if config.image_root is not None else source.image_root
    if config.overwrite:
        _check_replaceable(config.dst, (config.src, *source.files), image_root)
    if not image_root.is_dir():
        raise ConfigError(f"image_root={str(image_root)!r} is not a folder")
    with (
        closing(open_engine(config.engine, config.workers, address=config.address, what="converting")) as engine,
        terminate_as_exit(),
        work_folder(config, source.files, image_root) as (folder, spool),
    ):
        books = Books(spool)
        try:
            reader = source.open(spool / "source")
            formats = _check_records(config, reader, books)
            job = ShardJob(
                folder=folder,
                spool=spool,
                done=None if config.engine == "local" else folder / DONE,
                sources=source.files,
                reader=reader,
                places=books.places,
                image_root=image_root,
                format=config.record_format,
                on_error=config.on_error,
                max_bytes=config.max_bytes_per_shard,
            )
            run = _Run(config, engine, job, books, formats)
            report = run.to_report(progress)
            report = replace(report, seconds=time.perf_counter() - started)
            books.write_report(report, folder)
        finally:
            books.release()
        remove_hidden(folder, keep=(META_FOLDER,))
        take_place(folder, config.dst)
    return report


def _check_replaceable(dst: Path, sources: tuple[Path, ...], image_root: Path) -> None:
    """Overwriting removes what is there: only a dataset of our own, and never the data that is converted."""
    if not dst.exists() or (dst.is_dir() and not any(dst.iterdir())):
        return
    if not (dst / REPORT_NAME).is_file() or not (dst / META_FOLDER).is_dir():
        raise ConfigError(
            f"{dst} is not a dataset that mmpack made, so it is not overwritten; choose another destination"
        )
    place = dst.resolve()
    for source in (*(source.resolve() for source in sources), image_root.resolve()):
        if source == place or place in source.parents:
            raise ConfigError(f"{dst} holds {source}, which is being converted; choose another destination")


def _check_records(config: ConvertConfig, reader: Reader, books: Books) -> Counter[str]:
    """Enters every record into the books, bad ones with what their text alone says. Returns the good ones by format."""
    parse = parser_for(config.record_format)
    formats: Counter[str] = Counter()
    for sample in reader.scan():
        record = sample.record
        position = books.add(sample.place, record.data.get("id") if isinstance(record.data, dict) else None)
        try:
            data, _ = settle(sample, parse)
        except SampleError as error:
            if config.on_error == "raise":
                raise error.with_key(name_of(record)) from None
            books.fault(position, error.reason, f"{record.place}: {error.detail}")
        else:
            formats[(detect(data) or AUTO) if config.record_format == AUTO else config.record_format] += 1
    books.close()
    if not len(books):
        raise ConfigError(f"{config.src} holds no samples")
    if books.num_bad == len(books):
        raise ConfigError(f"{config.src}: none of {len(books)} samples can be used ({_counts(books)})")
    _keep_budget(config, books)
    return formats


def _remove_others(folder: Path, names: set[str]) -> None:
    """Removes shards that are not of these names: an earlier attempt had more."""
    for path in folder.glob("*.tar*"):
        if path.name.removesuffix(".idx") not in names:
            path.unlink()


def _counts(books: Books) -> str:
    """The faults in words, with one of them as an example."""
    counts = ", ".join(f"{count} {reason}" for reason, count in books.skipped().items())
    first = next((sample.detail for sample in books.samples() if sample.detail is not None), None)
    return counts if first is None else f"{counts}; {first}"


def _keep_budget(config: ConvertConfig, books: Books) -> None:
    if config.max_bad_share is not None and books.num_bad > config.max_bad_share * len(books):
        share = f"{books.num_bad} of {len(books)} records are bad ({_counts(books)})"
        raise DataError(f"{config.src}: {share}; max_bad_share={config.max_bad_share:g} allows fewer")


class _Run:
    """The second half: shards of the records that are good so far."""

    def __init__(
        self,
        config: ConvertConfig,
        engine: Engine,
        job: ShardJob,
        books: Books,
        formats: Counter[str],
    ) -> None:
        self._config = config
        self._engine = engine
        self._job = job
        self._reader = job.reader
        self._books = books
        self._formats = formats
        self._folder = job.folder

    def to_report(self, progress: Progress) -> ConvertReport:
        for attempt in (1, 2):
            report = self._write(progress)
            if attempt == 2 or report.kept < len(self._config.split) or all(report.splits.values()):
                break
            # Bad pictures emptied a split of a small set; they are known now, so the shares are dealt again.
        self._refuse_empty_splits(report)
        return report

    def _write(self, progress: Progress) -> ConvertReport:
        """Writes and indexes the shards, and notes what became of each record."""
        shutil.rmtree(self._folder / META_FOLDER, ignore_errors=True)
        config, books = self._config, self._books
        tasks = plan_shards(config, books.usable())
        splits = dict.fromkeys(config.split, 0)
        done = books.num_bad
        num_bytes = num_shards = num_pictures = 0
        names: set[str] = set()
        split_before = ""
        with (
            closing(DatasetIndex(self._folder, list(config.split))) as index,
            closing(run_shards(self._engine, self._job, tasks)) as results,
        ):
            for task, result in zip(tasks, results, strict=True):
                if task.split != split_before:
                    books.start_faults()
                    split_before = task.split
                for fault in result.faults:
                    books.fault(*fault)
                names.update(shard.name for shard in result.shards)
                for shard in result.shards:
                    index.add(task.split, shard.name, shard.samples)
                    num_bytes += shard.num_bytes
                num_shards += len(result.shards)
                num_pictures += result.num_pictures
                splits[task.split] += len(task.positions) - len(result.faults)
                done += len(task.positions)
                if result.faults:
                    _keep_budget(config, books)
                progress(done, len(books))
            _remove_others(self._folder, names)
            index.finish(next(iter(self._formats)) if len(self._formats) == 1 else AUTO)
        return ConvertReport(
            path=config.dst,
            source=self._reader.what,
            formats=dict(self._formats.most_common()),
            samples=SampleReports(config.dst / REPORT_NAME, len(books)),
            splits=splits,
            skipped=books.skipped(),
            num_duplicate_ids=books.num_duplicate_ids(),
            num_shards=num_shards,
            num_pictures=num_pictures,
            num_bytes=num_bytes,
            seconds=0.0,
            notes=tuple(self._reader.notes[:_MAX_NOTES]),
        )

    def _refuse_empty_splits(self, report: ConvertReport) -> None:
        if not report.kept:
            what = f"none of {len(self._books)} samples can be used ({_counts(self._books)})"
            raise ConfigError(f"{self._config.src}: {what}")
        if empty := [name for name, count in report.splits.items() if not count]:
            skipped = _counts(self._books) if report.skipped else "too few samples"
            raise ConfigError(f"split {', '.join(empty)} would be empty ({skipped}); ask for fewer splits")
