"""``mmpack convert``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmpack.cli.show import print_json, print_table, progress, say
from mmpack.convert import REPORT_NAME, ConvertConfig, ConvertReport, convert
from mmpack.energon.remote import shown
from mmpack.errors import ConfigError, Reason

DEFAULTS = {"split": "train=0.9,val=0.1", "workers": 2}  # where the command differs from `ConvertConfig`


def build_config(src: Path, dst: Path | None, given: Mapping[str, Any], settings: Sequence[str]) -> ConvertConfig:
    """What to convert: from a config file if there is no `dst`, else from the options that were given."""
    if dst is None and src.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"DST is missing: mmpack convert {src} DST; or give a YAML file with a section convert")
    if dst is not None:
        options = {**DEFAULTS, **given}
        values = {**options, "src": src, "dst": dst, "split": parse_split(options["split"])}
        if not settings:
            return ConvertConfig(**values)
    from mmpack.config import convert_config, read_config

    if dst is not None:
        return convert_config(values, settings)
    config = read_config(src, settings)
    if "split" in given:
        given = {**given, "split": parse_split(given["split"])}
    return (config.with_values("convert", given) if given else config).convert


def parse_split(text: str) -> dict[str, float]:
    """Shares such as ``train=0.9,val=0.1``.

    >>> parse_split("train=0.9,val=0.1")
    {'train': 0.9, 'val': 0.1}
    """
    shares: dict[str, float] = {}
    for item in text.split(","):
        name, separator, share = item.partition("=")
        try:
            value = float(share)
        except ValueError:
            value = -1.0
        if not separator or not value > 0 or name.strip() in shares:
            raise ConfigError(f"--split {text!r}: write names and shares above 0, such as train=0.9,val=0.1")
        shares[name.strip()] = value
    return shares


def run(
    config: ConvertConfig, *, as_json: bool, quiet: bool = False, length_index: Path | None = None
) -> ConvertReport:
    """Converts with progress and shows the report, unless `quiet`.

    With `length_index`, a config file, the lengths of the split ``train`` (the first, where there is none) are measured
    for its data section.
    """
    if length_index is not None:
        from mmpack.config import read_config

        read_config(length_index, [f"data.path={config.dst}"])  # what is wrong with it is said before the work
    with progress("converting") as advance:
        report = convert(config, lambda done, total: advance(done, total, ""))
    for note in report.notes:
        say(f"Note: {note}", as_json=True)
    missing = report.skipped.get(Reason.IMAGE_MISSING.value, 0)
    if missing > len(report.samples) // 10:
        root = config.image_root or config.src.parent
        what = f"pictures of {missing} of {len(report.samples)} samples are not under {root}"
        say(f"Warning: {what}; is --image-root right?", as_json=True)
    measured = {}
    if length_index is not None:
        from mmpack.cli import lengths

        split = "train" if "train" in report.splits else next(iter(report.splits))
        measured = lengths.build(report.path, length_index, [], split=split, workers=config.workers)
    if quiet:
        return report
    if as_json:
        print_json(report.to_json() | ({"length_index": measured} if measured else {}))
        return report
    rows = [
        ("source", report.source),
        ("record format", ", ".join(f"{name}: {count:,}" for name, count in report.formats.items())),
        ("kept", f"{report.kept:,} samples with {report.num_pictures:,} pictures"),
        *((f"split {name}", f"{count:,}") for name, count in report.splits.items()),
        *((f"skipped: {reason}", f"{count:,}") for reason, count in report.skipped.items()),
        ("shards", f"{report.num_shards} ({report.num_bytes / 1e6:.1f} MB)"),
        ("seconds", f"{report.seconds:.1f}"),
    ]
    if report.num_duplicate_ids:
        rows.append(("ids that occur twice", f"{report.num_duplicate_ids} (kept, each under a key of its own)"))
    if length_index is not None:
        rows.append(lengths.row(measured))
    print_table(f"Converted {config.src}", rows)
    where = shown(report.path)
    say(f"Dataset: {where}   report with every skipped sample: {where}/{REPORT_NAME}")
    return report
