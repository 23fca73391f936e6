"""``mmpack inspect``."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from mmpack.cli.show import print_json, print_table, say
from mmpack.config import Config, load, package_path, read_config
from mmpack.energon.store import is_remote
from mmpack.epoch import GlobalPlanLoader
from mmpack.errors import ConfigError
from mmpack.report import PackFacts, pack_facts, pack_html, pack_png


def run(
    path: str, overrides: list[str], number: int, split: str, html: Path | None, png: Path | None, *, as_json: bool
) -> None:
    """Shows pack `number`; writes pictures where asked."""
    if number < 0:
        raise ConfigError(f"--pack {number}: packs are counted from 0")
    config = open_config(path, overrides, as_json=as_json)
    loader = load(config, split=split, num_workers=0)
    factory = loader.prepared() if isinstance(loader, GlobalPlanLoader) else loader.factory
    # only the stream that gives this pack is read
    stream, place = factory(number % factory.num_streams), number // factory.num_streams
    batch = next(itertools.islice(stream.packs(), place, None), None)
    if batch is None:
        raise ConfigError(f"--pack {number}: split {split!r} has fewer packs")
    pack = pack_facts(batch.check(), config.tokenizer, packed_sequence_size=config.data.packed_sequence_size)
    if html is not None:
        html.parent.mkdir(parents=True, exist_ok=True)
        html.write_text(pack_html(pack), encoding="utf-8")
    if png is not None:
        png.parent.mkdir(parents=True, exist_ok=True)
        pack_png(pack, png)
    if as_json:
        print_json(pack.to_json())
        return
    print_table(f"Pack {pack.pack_index}", list(_rows(pack)))
    for written in (html, png):
        if written is not None:
            say(f"Picture: {written}")


def open_config(path: str, overrides: Sequence[str], *, as_json: bool = False) -> Config:
    """The config file at `path`; for the folder of a dataset, the demo's settings on that data."""
    if not Path(path).is_dir() and not is_remote(path):
        return read_config(path, overrides)
    say(f"{path} is a dataset: packed with the settings of the demo, change them with --set", as_json=as_json)
    return read_config(package_path("demo_data/demo.yaml"), [f"data.path={path}", *overrides])


def _rows(pack: PackFacts) -> list[tuple[str, str]]:
    shares = ", ".join(f"{kind} {100 * pack.share(kind):.1f} %" for kind in ("prompt", "image", "trained", "padding"))
    rows = [("positions", f"{len(pack.kind_t):,}: {shares}"), ("filled", f"{100 * pack.fill:.2f} %")]
    for segment in pack.segments:
        what = f"{segment.num_trained} learned, {len(segment.tiles)} tiles" if segment.key else "padding"
        rows.append((f"{segment.start}-{segment.end}", f"{segment.key or ''} {what}".strip()))
    return rows
