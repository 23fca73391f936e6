"""``mmpack convert``."""

from __future__ import annotations

from mmpack.cli.show import print_json, print_table, progress, say
from mmpack.convert import REPORT_NAME, ConvertConfig, ConvertReport, convert
from mmpack.errors import ConfigError


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


def run(config: ConvertConfig, *, as_json: bool) -> ConvertReport:
    """Converts with progress and shows the report."""
    with progress("converting") as advance:
        report = convert(config, lambda done, total: advance(done, total, ""))
    if as_json:
        print_json(report.to_json())
        return report
    rows = [
        ("kept", f"{report.kept:,} samples with {report.num_pictures:,} pictures"),
        *((f"split {name}", f"{count:,}") for name, count in report.splits.items()),
        *((f"skipped: {reason}", f"{count:,}") for reason, count in report.skipped.items()),
        ("shards", f"{report.num_shards} ({report.num_bytes / 1e6:.1f} MB)"),
        ("seconds", f"{report.seconds:.1f}"),
    ]
    if report.num_duplicate_ids:
        rows.append(("ids that occur twice", f"{report.num_duplicate_ids} (kept, each under a key of its own)"))
    print_table(f"Converted {config.src}", rows)
    say(f"Dataset: {report.path}   report with every skipped sample: {report.path / REPORT_NAME}")
    return report
