"""One pack as a picture: its segments, image tokens, trained tokens, seams, and the pictures themselves."""

from __future__ import annotations

import base64
import html
import io
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmpack.batch import IGNORE_INDEX, IMAGE_TOKEN_INDEX, PackedBatch
from mmpack.report.page import COLORS, facts, legend, page

KINDS = ("prompt", "image", "trained", "padding")
ROW_TOKENS = 512  # positions drawn in one line
_WIDTH, _BAR, _GAP = 1024, 26, 16


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentFacts:
    """One segment of the row. `key` is None for padding."""

    key: str | None
    source: str
    start: int
    end: int
    num_trained: int
    tiles: tuple[NDArray[np.uint8], ...]  # (3, S, S) each
    pieces: tuple[tuple[str, str], ...]  # (kind, text) in reading order


@dataclass(frozen=True, kw_only=True, slots=True)
class PackFacts:
    """What the picture of a pack shows."""

    pack_index: int
    kind_t: NDArray[np.int8]  # (T,) index into KINDS
    segments: tuple[SegmentFacts, ...]
    packed_sequence_size: int  # positions that it could have

    @property
    def fill(self) -> float:
        """Real tokens of the positions that it could have, 0 to 1."""
        return float((self.kind_t != KINDS.index("padding")).sum()) / self.packed_sequence_size

    def share(self, kind: str) -> float:
        """Part of the positions that are of that kind, 0 to 1."""
        return float((self.kind_t == KINDS.index(kind)).mean())

    def to_json(self) -> dict[str, Any]:
        """The numbers, without text and pictures."""
        return {
            "pack": self.pack_index,
            "positions": len(self.kind_t),
            "fill_percent": 100 * self.fill,
            "share": {kind: self.share(kind) for kind in KINDS},
            "segments": [
                {
                    "key": s.key,
                    "source": s.source,
                    "start": s.start,
                    "end": s.end,
                    "trained": s.num_trained,
                    "tiles": len(s.tiles),
                }
                for s in self.segments
            ],
        }


def pack_facts(batch: PackedBatch, tokenizer: Any, *, packed_sequence_size: int | None = None) -> PackFacts:
    """Reads a batch; `tokenizer` gives the text back. Without a `packed_sequence_size`, the row's length is taken."""
    tokens, labels = batch.tokens[0].numpy(), batch.labels[0].numpy()
    kind = np.zeros(len(tokens), dtype=np.int8)
    kind[1:][labels[:-1] != IGNORE_INDEX] = KINDS.index("trained")  # a label at t makes token t + 1 a target
    kind[tokens == IMAGE_TOKEN_INDEX] = KINDS.index("image")
    kind[batch.padding_mask[0].numpy()] = KINDS.index("padding")
    used = batch.cu_seqlens.diff().tolist()
    bounds = itertools.pairwise(batch.cu_seqlens_padded.tolist())
    keys, images = iter(zip(batch.sample_keys, batch.sources, strict=True)), iter(_tiles_by_sample(batch))
    segments = []
    for real, (start, end) in zip(used, bounds, strict=True):
        if start == end:
            continue  # only there to make offsets of constant number
        key, source = next(keys) if real else (None, "")
        segment = SegmentFacts(
            key=key,
            source=source,
            start=start,
            end=end,
            num_trained=int((kind[start:end] == KINDS.index("trained")).sum()),
            tiles=tuple(next(images)) if real else (),
            pieces=tuple(_pieces(tokens[start:end], kind[start:end], tokenizer)) if real else (),
        )
        segments.append(segment)
    return PackFacts(
        pack_index=batch.pack_index,
        kind_t=kind,
        segments=tuple(segments),
        packed_sequence_size=packed_sequence_size or len(kind),
    )


def _tiles_by_sample(batch: PackedBatch) -> Iterator[list[NDArray[np.uint8]]]:
    tiles, per_image = iter(batch.pixels.numpy()), iter(batch.tiles_per_image.tolist())
    for num_images in batch.images_per_sample.tolist():
        count = sum(next(per_image) for _ in range(num_images))
        yield [next(tiles) for _ in range(count)]


def _pieces(tokens: NDArray[np.int64], kind: NDArray[np.int8], tokenizer: Any) -> Iterator[tuple[str, str]]:
    for name, start, end in runs(kind):
        if name == "image":
            yield name, f"{end - start} image tokens"
        elif name != "padding":
            yield name, tokenizer.decode(tokens[start:end].tolist())


def runs(kind_t: NDArray[np.int8]) -> Iterator[tuple[str, int, int]]:
    """Stretches of equal kind: (kind, start, end)."""
    edges = [0, *(np.flatnonzero(np.diff(kind_t)) + 1).tolist(), len(kind_t)]
    for start, end in itertools.pairwise(edges):
        if end > start:
            yield KINDS[int(kind_t[start])], start, end


def pack_html(pack: PackFacts, title: str = "") -> str:
    """The page."""
    samples = [s for s in pack.segments if s.key is not None]
    num_tokens = len(pack.kind_t)
    head = facts(
        [
            ("positions", f"{num_tokens:,}"),
            ("filled", f"{100 * pack.fill:.2f} %"),
            ("samples", str(len(samples))),
            ("image tiles", str(sum(len(s.tiles) for s in samples))),
            ("image tokens", f"{100 * pack.share('image'):.0f} %"),
            ("trained tokens", f"{100 * pack.share('trained'):.0f} %"),
        ]
    )
    names = {"prompt": "read, not learned", "image": "image embeddings", "trained": "learned", "padding": "padding"}
    colors = legend([*((names[kind], COLORS[kind]) for kind in KINDS), ("seam between samples", "#1f2933")])
    cards = "".join(_card(number, segment) for number, segment in enumerate(samples, start=1))
    body = f"{head}{colors}{_bars(pack)}<h2>The samples</h2>{cards}"
    return page(title or f"Pack {pack.pack_index}", "Each line is a stretch of the row, left to right.", body)


def _bars(pack: PackFacts) -> str:
    lines = -(-len(pack.kind_t) // ROW_TOKENS)
    scale = _WIDTH / ROW_TOKENS
    shapes = []
    for name, start, end in runs(pack.kind_t):
        for line, left, right in _wrapped(start, end):
            y = line * (_BAR + _GAP) + _GAP
            x, width = left * scale, (right - left) * scale
            shapes.append(f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{_BAR}" fill="{COLORS[name]}"/>')
    number = 0
    for segment in pack.segments:
        line, left = divmod(segment.start, ROW_TOKENS)
        y = line * (_BAR + _GAP) + _GAP
        x = left * scale
        shapes.append(f'<rect x="{x - 1:.2f}" y="{y - 5}" width="2" height="{_BAR + 10}" fill="#1f2933"/>')
        if segment.key is not None:
            number += 1
            shapes.append(f'<text x="{x + 4:.2f}" y="{y - 3}" font-size="10" fill="#52606d">{number}</text>')
    height = lines * (_BAR + _GAP) + _GAP
    return f'<svg viewBox="-2 0 {_WIDTH + 4} {height}" role="img" aria-label="the pack">{"".join(shapes)}</svg>'


def _wrapped(start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """(line, left, right) of a stretch that may run over the ends of lines."""
    while start < end:
        line, left = divmod(start, ROW_TOKENS)
        stop = min(end, (line + 1) * ROW_TOKENS)
        yield line, left, stop - line * ROW_TOKENS
        start = stop


def _card(number: int, segment: SegmentFacts) -> str:
    length = segment.end - segment.start
    head = f"{number} · {segment.source} / {segment.key} · {length} tokens, {segment.num_trained} learned"
    images = "".join(f'<img alt="tile" src="{_data_url(tile)}">' for tile in segment.tiles)
    text = "".join(_piece_html(kind, piece) for kind, piece in segment.pieces)
    tiles = f'<div class="tiles">{images}</div>' if images else ""
    return f'<div class="card"><header>{html.escape(head)}</header>{tiles}<div class="text">{text}</div></div>'


def _piece_html(kind: str, text: str) -> str:
    safe = html.escape(text)
    if kind == "trained":
        return f"<mark>{safe}</mark>"
    return f'<span class="slot">{safe}</span>' if kind == "image" else safe


def _data_url(tile_CHW: NDArray[np.uint8]) -> str:
    from PIL import Image

    out = io.BytesIO()
    picture = Image.fromarray(np.ascontiguousarray(tile_CHW.transpose(1, 2, 0)))
    picture.thumbnail((168, 168))
    picture.save(out, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode("ascii")
