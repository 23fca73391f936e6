"""``mmpack prepare-dolly`` and ``mmpack prepare-oasst``."""

from __future__ import annotations

from pathlib import Path

from mmpack.cli.show import print_json, print_table
from mmpack.offline.dolly import Prepared, prepare_dolly
from mmpack.offline.oasst import prepare_oasst


def run_dolly(input_path: Path, output_path: Path | None, seed: int, *, as_json: bool) -> Prepared:
    """Prepares Dolly's records and shows what was written."""
    return _show(prepare_dolly(input_path, output_path, seed=seed), input_path, as_json=as_json)


def run_oasst(
    input_path: Path,
    output_directory: Path,
    *,
    val_share: float = 0.05,
    seed: int = 0,
    language: str | None = None,
    system: str = "",
    labels: bool = True,
    as_json: bool,
) -> Prepared:
    """Prepares OpenAssistant's trees and shows what was written."""
    prepared = prepare_oasst(
        input_path,
        output_directory,
        val_share=val_share,
        seed=seed,
        language=language,
        system=system,
        labels=labels,
    )
    return _show(prepared, input_path, as_json=as_json)


def _show(prepared: Prepared, input_path: Path, *, as_json: bool) -> Prepared:
    if as_json:
        paths = {split: str(path) for split, path in prepared.paths.items()}
        print_json({"kept": prepared.kept, "skipped": prepared.skipped, "paths": paths, "examples": prepared.examples})
        return prepared
    rows = [(str(path), f"{prepared.kept[split]:,} records") for split, path in prepared.paths.items()]
    rows += [
        (
            f"left out: {reason}",
            f"{count:,}" + "".join(f" (first: {at[0]})" for at in [prepared.examples.get(reason)] if at),
        )
        for reason, count in prepared.skipped.items()
    ]
    print_table(f"Prepared {input_path}", rows)
    return prepared
