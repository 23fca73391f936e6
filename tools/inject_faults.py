#!/usr/bin/env python3
"""A copy of a LLaVA set with faults at random places, and the truth about them beside it.

    python tools/inject_faults.py llava.json images OUT --share 0.01 --seed 0

Each of the faults in `FAULTS` gets that share of the records; no record gets two. Written are

* ``OUT/records.jsonl``  the records in their order, one a line, since a broken one must not break its neighbours,
* ``OUT/images``         the pictures (hard links where possible), new files for pictures that are made bad,
* ``OUT/truth.json``     ``{"faults": {position: {"fault", "reason"}}, "skipped": {reason: count}, "good": count}``.

Whoever reads the copy must keep exactly the records that have no fault, unchanged, and count the others under their
reasons. Needs Pillow, and nothing of mmpack, whose reasons are written out here.

With ``--energon`` the same faults are also written as an Energon dataset, ``OUT/energon``, for what reads those: its
keys are the positions, and bad records and pictures stand in its tar files as they are. That needs mmpack's writer.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import shutil
import struct
import sys
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

BAD_FOLDER = "injected"  # below the image folder
Record = dict[str, Any]


def png_header(width_px: int, height_px: int) -> bytes:
    """A PNG of that size which holds no pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width_px, height_px, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def half(picture: bytes) -> bytes:
    """A picture cut in the middle, as JPEG if it is neither JPEG nor PNG."""
    if not picture.startswith((b"\xff\xd8\xff", b"\x89PNG")) or len(picture) < 2000:
        out = io.BytesIO()
        Image.effect_noise((64, 64), 80).save(out, "JPEG")
        picture = out.getvalue()
    return picture[: len(picture) // 2]


def answers(record: Record, change: Callable[[str], Any]) -> Record:
    """The record with every answer changed."""
    turns = [{**t, "value": change(t["value"])} if t["from"] == "gpt" else t for t in record["conversations"]]
    return {**record, "conversations": turns}


def with_turn(record: Record, place: int, turn: dict[str, str]) -> Record:
    turns = list(record["conversations"])
    turns.insert(place, turn)
    return {**record, "conversations": turns}


def without_mark(record: Record) -> Record:
    turns = []
    missing = True
    for turn in record["conversations"]:
        if missing and "<image>" in turn["value"]:
            turn, missing = {**turn, "value": turn["value"].replace("<image>", "", 1)}, False
        turns.append(turn)
    return {**record, "conversations": turns}


def line(record: Any) -> bytes:
    return json.dumps(record, ensure_ascii=False).encode("utf-8")


def escaped_line(record: Any) -> bytes:
    return json.dumps(record, ensure_ascii=True).encode("ascii")


# name: (reason, what becomes of the record's line)
TEXT_FAULTS: dict[str, tuple[str, Callable[[Record], bytes]]] = {
    "list_for_record": ("not_a_record", lambda r: line([r["conversations"]])),
    "cut_line": ("broken_json", lambda r: line(r)[:-7]),
    "no_conversations": ("missing_field", lambda r: line({k: v for k, v in r.items() if k != "conversations"})),
    "empty_conversation": ("empty_conversation", lambda r: line({**r, "conversations": []})),
    "number_for_answer": ("wrong_type", lambda r: line(answers(r, lambda text: 7))),
    "unknown_role": ("unknown_role", lambda r: line(with_turn(r, 1, {"from": "narrator", "value": "x"}))),
    "late_system_turn": ("role_order", lambda r: line(with_turn(r, 1, {"from": "system", "value": "x"}))),
    "no_answer": (
        "no_answer",
        lambda r: line({**r, "conversations": [t for t in r["conversations"] if t["from"] != "gpt"]}),
    ),
    "blank_answers": ("no_answer", lambda r: line(answers(r, lambda text: " \n"))),
    "mark_too_many": ("placeholder_count", lambda r: line(with_turn(r, 0, {"from": "human", "value": "<image>"}))),
    "half_a_surrogate": ("bad_text", lambda r: escaped_line(answers(r, lambda text: text + "\ud83d"))),
}
# For records with pictures. name: (reason, what becomes of the record)
PLACE_FAULTS: dict[str, tuple[str, Callable[[Record], Record]]] = {
    "mark_missing": ("placeholder_count", without_mark),
    "path_outside": ("image_missing", lambda r: {**r, "image": name_first(r, "../../../../../etc/hostname")}),
}
# name: (reason, what becomes of the first picture's bytes; None for no file)
PICTURE_FAULTS: dict[str, tuple[str, Callable[[bytes], bytes | None]]] = {
    "file_missing": ("image_missing", lambda data: None),
    "empty_file": ("not_an_image", lambda data: b""),
    "html_page": ("not_an_image", lambda data: b"<!doctype html><title>404</title>"),
    "cut_picture": ("image_truncated", half),
    "no_width": ("image_zero_size", lambda data: png_header(0, 10)),
    "huge_header": ("image_too_large", lambda data: png_header(60_000, 60_000)),
    "photoshop_file": ("image_unsupported", lambda data: b"8BPS\0\1" + data[:500]),
}
FAULTS = (*TEXT_FAULTS, *PLACE_FAULTS, *PICTURE_FAULTS)


def name_first(record: Record, name: str) -> Any:
    """The record's pictures, the first of them called `name`."""
    names = record["image"]
    return [name, *names[1:]] if isinstance(names, list) else name


def inject(source: Path, images: Path, out: Path, *, share: float, seed: int) -> dict[str, Any]:
    """Writes the copy; returns the truth."""
    records: list[Record] = json.loads(source.read_text(encoding="utf-8"))
    rng = random.Random(seed)
    count = round(share * len(records))
    chosen = choose(records, count, rng)
    shutil.copytree(images, out / "images", copy_function=link_or_copy)
    bad_folder = out / "images" / BAD_FOLDER
    bad_folder.mkdir()
    skipped: Counter[str] = Counter()
    faults = {}
    with (out / "records.jsonl").open("wb") as file:
        for position, record in enumerate(records):
            fault = chosen.get(position)
            data = line(record)
            if fault is not None:
                data, reason = faulty(record, fault, images, bad_folder / f"{position:08d}")
                skipped[reason] += 1
                faults[position] = {"fault": fault, "reason": reason}
            file.write(data + b"\n")
    truth = {"faults": faults, "skipped": dict(sorted(skipped.items())), "good": len(records) - len(faults)}
    (out / "truth.json").write_text(json.dumps(truth, indent=1), encoding="utf-8")
    return truth


def choose(records: list[Record], count: int, rng: random.Random) -> dict[int, str]:
    """Which record gets which fault. Those that need a picture are dealt first."""
    with_pictures = [i for i, record in enumerate(records) if record.get("image")]
    needy = [*PLACE_FAULTS, *PICTURE_FAULTS] * count
    if len(with_pictures) < len(needy) or len(records) < len(FAULTS) * count:
        sys.exit(f"{len(records)} records, {len(with_pictures)} with pictures: too few for {count} of each fault")
    chosen = dict(zip(rng.sample(with_pictures, len(needy)), needy, strict=True))
    free = [i for i in range(len(records)) if i not in chosen]
    rest = list(TEXT_FAULTS) * count
    return chosen | dict(zip(rng.sample(free, len(rest)), rest, strict=True))


def faulty(record: Record, fault: str, images: Path, new_file: Path) -> tuple[bytes, str]:
    """The line of a record with a fault, and the reason it must be counted under."""
    if fault in TEXT_FAULTS:
        reason, make = TEXT_FAULTS[fault]
        return make(record), reason
    if fault in PLACE_FAULTS:
        reason, change = PLACE_FAULTS[fault]
        return line(change(record)), reason
    reason, spoil = PICTURE_FAULTS[fault]
    names = record["image"] if isinstance(record["image"], list) else [record["image"]]
    data = spoil((images / names[0]).read_bytes())
    if data is not None:
        new_file.write_bytes(data)
    return line({**record, "image": name_first(record, f"{BAD_FOLDER}/{new_file.name}")}), reason


def write_energon(source: Path, images: Path, out: Path, truth: dict[str, Any], shard_samples: int = 500) -> None:
    """Writes the records, faults included, as a dataset of the split ``train``."""
    from contextlib import closing

    from mmpack.energon.writer import DatasetIndex, ShardWriter

    out.mkdir()
    records: list[Record] = json.loads(source.read_text(encoding="utf-8"))
    with closing(DatasetIndex(out, ["train"])) as index:
        for first in range(0, len(records), shard_samples):
            name = f"train-{first // shard_samples:06d}.tar"
            with ShardWriter(out / name) as shard:
                for position in range(first, min(first + shard_samples, len(records))):
                    fault = truth["faults"].get(position, {}).get("fault")
                    shard.put(f"{position:08d}", [(*part, None) for part in parts_of(records[position], fault, images)])
            index.add("train", name, shard.samples)
        index.finish("auto")


def parts_of(record: Record, fault: str | None, images: Path) -> list[tuple[str, bytes]]:
    """Names and contents of a sample's tar members: pictures, then the record that names them."""
    names = record.get("image") or []
    names = [names] if isinstance(names, str) else names
    parts = [(f"{i}{Path(name).suffix}", (images / name).read_bytes()) for i, name in enumerate(names)]
    if parts:
        record = {**record, "image": [name for name, _ in parts]}
    if fault in PICTURE_FAULTS:
        name, data = parts[0]
        spoilt = PICTURE_FAULTS[fault][1](data)
        parts[:1] = [] if spoilt is None else [(name, spoilt)]
    if fault in PLACE_FAULTS:
        record = PLACE_FAULTS[fault][1](record)
    make = TEXT_FAULTS[fault][1] if fault in TEXT_FAULTS else line
    return [*parts, ("json", make(record))]


def link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="LLaVA JSON, a list")
    parser.add_argument("images", type=Path, help="its picture folder")
    parser.add_argument("out", type=Path, help="new folder")
    parser.add_argument("--share", type=float, default=0.01, help="of the records, for each fault")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--energon", action="store_true", help="write an Energon dataset of them too")
    options = parser.parse_args()
    options.out.mkdir(parents=True)
    truth = inject(options.source, options.images, options.out, share=options.share, seed=options.seed)
    if options.energon:
        write_energon(options.source, options.images, options.out / "energon", truth)
    print(json.dumps({name: truth[name] for name in ("good", "skipped")}))


if __name__ == "__main__":
    main()
