"""``mmpack inspect``."""

from __future__ import annotations

import itertools
from pathlib import Path

from mmpack.cli.show import print_json, print_table, say
from mmpack.config import read_config
from mmpack.errors import ConfigError
from mmpack.report import PackFacts, pack_facts, pack_html, pack_png


def run(
    path: str, overrides: list[str], number: int, split: str, html: Path | None, png: Path | None, *, as_json: bool
) -> None:
    """Shows pack `number`; writes pictures where asked."""
    if number < 0:
        raise ConfigError(f"--pack {number}: packs are counted from 0")
    config = read_config(path, overrides)
    module = config.with_values("data", {"num_workers": 0}).data_module()
    loaders = {"train": module.train_dataloader, "val": module.val_dataloader, "test": module.test_dataloader}
    if split not in loaders:
        raise ConfigError(f"--split {split!r}; allowed: train, val, test")
    batch = next(itertools.islice(loaders[split](), number, None), None)
    if batch is None:
        raise ConfigError(f"--pack {number}: split {split!r} has fewer packs")
    pack = pack_facts(batch.check(), config.tokenizer)
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


def _rows(pack: PackFacts) -> list[tuple[str, str]]:
    shares = ", ".join(f"{kind} {100 * pack.share(kind):.1f} %" for kind in ("prompt", "image", "trained", "padding"))
    rows = [("positions", f"{len(pack.kind_t):,}: {shares}")]
    for segment in pack.segments:
        what = f"{segment.num_trained} learned, {len(segment.tiles)} tiles" if segment.key else "padding"
        rows.append((f"{segment.start}-{segment.end}", f"{segment.key or ''} {what}".strip()))
    return rows
