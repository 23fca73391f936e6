"""The picture of a pack: what it says comes from the batch, and no text can break the page."""

from __future__ import annotations

import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from mmpack.batch import IGNORE_INDEX, IMAGE_TOKEN_INDEX, PackedBatch
from mmpack.convert import ConvertConfig, convert
from mmpack.layout import Layout
from mmpack.report import PackFacts, pack_facts, pack_html, pack_png
from tests.conftest import data_module, png

NASTY = "</mark><script>alert('&amp;')</script> 日本語 🦊👩‍👩‍👧 \u202e $x_1$ <image"


class Page(HTMLParser):
    """Tags met, and all text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def parse(text: str) -> Page:
    page = Page()
    page.feed(text)
    page.close()
    assert page.open == []
    return page


@pytest.fixture(scope="module")
def batch(energon_dataset: Path, tokenizer: Any) -> PackedBatch:
    packs = data_module(
        energon_dataset, tokenizer, layout=Layout(sequence_multiple=8, fixed_total=600)
    ).train_dataloader()
    return next(b for b in packs if b.images_per_sample.max() > 1 and b.images_per_sample.min() == 0)


@pytest.fixture(scope="module")
def pack(batch: PackedBatch, tokenizer: Any) -> PackFacts:
    return pack_facts(batch, tokenizer, packed_sequence_size=700)


def test_its_numbers_are_the_batchs(batch: PackedBatch, pack: PackFacts) -> None:
    T = batch.num_tokens
    assert pack.fill == batch.num_real_tokens / 700
    assert pack.share("padding") == pytest.approx(int(batch.padding_mask.sum()) / T)
    assert pack.share("image") == pytest.approx(int((batch.tokens == IMAGE_TOKEN_INDEX).sum()) / T)
    assert pack.share("trained") == pytest.approx(batch.num_loss_tokens / T)
    assert [s.key for s in pack.segments if s.key is not None] == list(batch.sample_keys)
    assert pack.segments[-1].key is None  # the tail
    assert [s.start for s in pack.segments] == batch.cu_seqlens_padded[:-1].tolist()
    assert sum(len(s.tiles) for s in pack.segments) == batch.pixels.shape[0]
    json.dumps(pack.to_json())


def test_trained_text_is_the_text_of_the_labels(batch: PackedBatch, pack: PackFacts, tokenizer: Any) -> None:
    for segment in pack.segments:
        labels = batch.labels[0, segment.start : segment.end]
        expected = tokenizer.decode(labels[labels != IGNORE_INDEX].tolist())
        assert "".join(text for kind, text in segment.pieces if kind == "trained") == expected


def test_the_page_is_whole_and_needs_nothing_else(pack: PackFacts) -> None:
    page = parse(pack_html(pack))
    assert page.tags.count("img") == sum(len(s.tiles) for s in pack.segments)
    assert all(link.startswith("data:image/png;base64,") for link in page.links)
    assert "script" not in page.tags


def test_no_text_breaks_the_page(tmp_path: Path, tokenizer: Any) -> None:
    import random

    (tmp_path / "i.png").write_bytes(png(random.Random(0), 40, 30))
    turns = [{"from": "human", "value": "<image>\n" + NASTY.replace("<image", "")}, {"from": "gpt", "value": NASTY}]
    records = [{"id": NASTY, "image": "i.png", "conversations": turns}]
    (tmp_path / "l.json").write_text(json.dumps(records), encoding="utf-8")
    convert(ConvertConfig(src=tmp_path / "l.json", dst=tmp_path / "d"))
    batch = next(iter(data_module(tmp_path / "d", tokenizer, seq_length=512).train_dataloader()))
    pack = pack_facts(batch, tokenizer)
    text = pack_html(pack, title=NASTY)
    page = parse(text)
    assert "script" not in page.tags
    answer = "".join(piece for kind, piece in pack.segments[0].pieces if kind == "trained")
    assert answer == NASTY + "</s>"
    assert answer in page.text
    assert re.search(f"<title>{re.escape(html.escape(NASTY))}</title>", text)
    pack_png(pack, tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_a_png_is_drawn(pack: PackFacts, tmp_path: Path) -> None:
    from PIL import Image

    pack_png(pack, tmp_path / "p.png")
    with Image.open(tmp_path / "p.png") as picture:
        assert picture.width > 800
        assert len(picture.convert("RGB").getcolors(1 << 24) or []) > 10
