"""``mmpack check``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape

from mmpack.check import CheckConfig, CheckReport, check, histogram, quarantine
from mmpack.cli import lengths
from mmpack.cli.show import print_json, print_table, progress, say
from mmpack.config import package_path, read_config
from mmpack.energon.store import is_remote, url_of
from mmpack.errors import ConfigError, Reason

_BAR = 40  # characters of the longest bar


def run(
    path: Path,
    *,
    config: str | None,
    overrides: Sequence[str],
    split: str | None,
    image_root: Path | None,
    record_format: str,
    deep: bool,
    leave_out: bool,
    max_bad: float,
    workers: int,
    html: Path | None,
    as_json: bool,
    length_index: bool = False,
    engine: str = "local",
    address: str | None = None,
) -> int:
    """Checks, shows, and leaves bad samples out, measures lengths where asked. Returns 0, or 1 above the budget."""
    if leave_out and is_remote(path):
        raise ConfigError(f"--quarantine: {url_of(path)} is remote; leave the samples out where it was made, and send "
                          ".nv-meta/split.yaml")  # fmt: skip
    if not is_remote(path) and not path.exists():
        raise ConfigError(f"{str(path)!r} does not exist; give the folder of an Energon dataset, a metadataset's YAML "
                          "file, or a file of records")  # fmt: skip
    settings = _settings(
        path, config, overrides, split, image_root, record_format, deep, max_bad, workers, engine, address
    )
    if leave_out and not settings.is_dataset:
        raise ConfigError(f"--quarantine: {path} is no Energon dataset; `mmpack convert` skips its bad samples")
    if length_index and (config is None or not settings.is_dataset):
        raise ConfigError("--length-index needs an Energon dataset, and --config: the file that training will use")
    with progress("checking") as advance:
        report = check(settings, lambda done, total: advance(done, total, ""))
    unset = [sample for sample in report.counts.bad if sample.reason is Reason.VIDEO_FRAMES_UNSET]
    if leave_out and unset:
        raise ConfigError(
            f"--quarantine: {len(unset)} samples hold videos, and how many frames to take is not set, so nothing was "
            f"left out; check with --config FILE --set data.video_frames=8 (the first is {unset[0].key!r}: "
            f"{unset[0].detail})"
        )
    written = quarantine(report.counts.bad) if leave_out else []
    if html is not None:
        from mmpack.report.check import check_html

        html.parent.mkdir(parents=True, exist_ok=True)
        html.write_text(check_html(report), encoding="utf-8")
    measured = {}
    if length_index:
        assert config is not None
        measured = lengths.build(path, config, overrides, split=split or "train", workers=workers)
    if as_json:
        quarantined = {"quarantined": [{"file": str(file), "entries": n} for file, n in written]}
        print_json(report.to_json() | quarantined | ({"length_index": measured} if measured else {}))
    else:
        _show(report)
        if measured:
            say(": ".join(lengths.row(measured)))
        for file, number in written:
            say(f"Quarantine: {number} entries new under `exclude` in {file}; the file as it was is beside it")
        if html is not None:
            say(f"Picture: {html}")
    return 0 if report.passed else 1


def _settings(
    path: Path,
    config: str | None,
    overrides: Sequence[str],
    split: str | None,
    image_root: Path | None,
    record_format: str,
    deep: bool,
    max_bad: float,
    workers: int,
    engine: str,
    address: str | None,
) -> CheckConfig:
    file = package_path("demo_data/demo.yaml") if config is None else config
    read = read_config(file, [f"data.path={path}", *overrides] if config is None else overrides)
    task = read.task_encoder()
    assert task.packed_sequence_size is not None
    whose = "the demo's settings (no --config)" if config is None else config
    tiles = f"{read.data.num_image_embeddings_per_tile} tokens a tile"
    words = f"lengths by {whose}: tokenizer {Path(read.data.tokenizer).name}, template {read.data.template}, {tiles}"
    return CheckConfig(
        path=path,
        encoder=task.build_encoder(min(read.data.seq_length, task.layout.capacity(task.packed_sequence_size))),
        layout=task.layout,
        packed_sequence_size=task.packed_sequence_size,
        packing_buffer_size=read.data.packing_buffer_size or 200,
        counted_with=words,
        splits=split.split(",") if split else None,
        deep=deep,
        image_root=image_root,
        record_format=record_format,
        workers=workers,
        max_bad=max_bad,
        engine=engine,
        address=address,
    )


def _show(report: CheckReport) -> None:
    counts, fill = report.counts, report.fill
    rows = [
        ("splits", ", ".join(report.splits) or "a file of records"),
        ("samples", f"{report.num_samples:,} with {counts.num_pictures:,} pictures"),
        ("good", f"{report.num_good:,}"),
        ("bad", f"{len(counts.bad):,} ({100 * report.bad_share:.2f} %, allowed {100 * report.max_bad:g} %)"),
    ]
    if counts.num_too_long:
        rows.append(("longer than allowed", f"{counts.num_too_long:,} (no fault; set oversize or longer packs)"))
    for reason, number in report.faults.items():
        shown = "\n".join(f"{bad.name}: {bad.detail}" for bad in report.examples(reason))
        rows.append((f"{reason}: {number:,}", shown))
    rows += [("damaged shard", f"{shard} {problem}") for shard, problem in report.damaged_shards]
    if fill is not None:
        full = f"{fill.full_packs_percent:.1f} % full to the last token"
        packs = f"{fill.num_packs:,} packs of {fill.packed_sequence_size:,}, {full}"
        rows.append(("expected fill", f"{fill.fill_percent:.2f} % ({packs})"))
    rows.append(("counted with", report.counted_with))
    rows.append(("pictures", "all decoded" if report.deep else "headers read; --deep decodes them"))
    rows.append(("seconds", f"{report.seconds:.1f}"))
    # names are data: brackets in them are no styles
    print_table(escape(f"Check of {report.path}"), [(name, escape(value)) for name, value in rows])
    for title, values in (("Tokens of a sample", counts.tokens), ("Tiles of a sample", counts.tiles)):
        bins = histogram(values)
        most = max((number for _, _, number in bins), default=0)
        say(title + ("" if bins else ": no good sample"))
        for first, last, number in bins:
            say(f"{first:>8}-{last:<8} {'#' * -(-number * _BAR // most)} {number}".rstrip(" "))
