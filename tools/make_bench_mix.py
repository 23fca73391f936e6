#!/usr/bin/env python3
"""Writes the data that loaders are measured on: a LLaVA-like mix of JPEGs, cropped out of photographs.

    python tools/make_bench_mix.py OUT [--photos FOLDER] [--samples 2000] [--seed 0]

73 % are 640x480, 17 % 336x336, 9 % 1920x1080 and 1 % 4000x3000 pixels, quality 90, each with about 200 tokens of text.
``OUT/llava.json`` and ``OUT/images`` are what it writes; `mmpack convert OUT/llava.json ...` makes a dataset of them.
FOLDER holds photographs, such as those of ``tools/fetch_real_data all FOLDER --only wallpapers``; without one the
bundled ones are cropped and enlarged, which makes smoother pictures, quicker to decode. Needs Pillow.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

from PIL import Image

SIZES = ((0.73, (640, 480)), (0.17, (336, 336)), (0.09, (1920, 1080)), (0.01, (4000, 3000)))
BUNDLED = Path(__file__).parents[1] / "mmpack" / "demo_data" / "images"
SENTENCE = "The picture was cut out of a larger photograph, so that what is seen here has the detail of real ones. "


def photographs(folder: Path | None) -> list[Image.Image]:
    """The largest pictures of a folder, as RGB."""
    found = sorted(path for path in (folder or BUNDLED).rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    if not found:
        raise SystemExit(f"{folder}: no .jpg or .png in it")
    if folder is None:
        print(f"no --photos: cropping the bundled pictures in {BUNDLED}")
        found = sorted(found, key=lambda path: -path.stat().st_size)[:24]
    return [Image.open(path).convert("RGB") for path in found[:24]]


def crop(photo: Image.Image, size: tuple[int, int], rng: random.Random) -> Image.Image:
    """A random part of `photo`, brought to `size`: at least as large as that, if the photograph is."""
    width, height = size
    most = min(photo.width / width, photo.height / height)
    scale = rng.uniform(min(1.0, most), most)
    part_width, part_height = max(1, round(width * scale)), max(1, round(height * scale))
    left, top = rng.randint(0, photo.width - part_width), rng.randint(0, photo.height - part_height)
    return photo.resize(size, Image.Resampling.BICUBIC, box=(left, top, left + part_width, top + part_height))


def main() -> None:
    """Writes the mix."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    photos, rng = photographs(options.photos), random.Random(options.seed)
    images = options.out / "images"
    images.mkdir(parents=True)
    sizes = [size for share, size in SIZES for _ in range(round(share * options.samples))]
    rng.shuffle(sizes)
    records = []
    for number, size in enumerate(sizes):
        name = f"{number:06d}.jpg"
        crop(rng.choice(photos), size, rng).save(images / name, quality=90)
        words = SENTENCE * 7
        talk = [
            {"from": "human", "value": f"<image>\nWhat is in picture {number}?"},
            {"from": "gpt", "value": words[: rng.randint(500, 730)].strip()},
        ]
        records.append({"id": number, "image": name, "conversations": talk})
    (options.out / "llava.json").write_text(json.dumps(records), encoding="utf-8")
    print(f"{len(records)} samples in {options.out}")


if __name__ == "__main__":
    main()
