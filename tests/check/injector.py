"""Puts faults into a dataset at random places, by a seed, and says which sample got which."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

from tests.energon.test_faults import Parts, rewrite, with_text
from tests.images.pictures import case


def _picture(change: Callable[[bytes], bytes | None]) -> Callable[[Parts], Parts]:
    def changed(parts: Parts) -> Parts:
        name = min(part for part in parts if part != "json")
        data = change(parts[name])
        rest = {part: content for part, content in parts.items() if part != name}
        return rest if data is None else {name: data, **rest}

    return changed


def _record(change: Callable[[dict], object]) -> Callable[[Parts], Parts]:  # type: ignore[type-arg]
    return lambda parts: {**parts, "json": json.dumps(change(json.loads(parts["json"]))).encode()}


def _turns(record: dict, change: Callable[[list], object]) -> dict:  # type: ignore[type-arg]
    turns = [dict(turn) for turn in record["conversations"]]
    change(turns)
    return {**record, "conversations": turns}


# kind -> (the reason it is counted under, whether it needs a picture, the change)
KINDS: dict[str, tuple[str, bool, Callable[[Parts], Parts]]] = {
    "picture cut": ("image_truncated", True, _picture(lambda data: data[: len(data) * 2 // 3])),
    "picture empty": ("not_an_image", True, _picture(lambda data: b"")),
    "picture of zeros": ("not_an_image", True, _picture(lambda data: bytes(len(data)))),
    "picture gone": ("image_missing", True, _picture(lambda data: None)),
    "html page": ("not_an_image", True, _picture(lambda data: case("html_page.jpg"))),
    "lfs pointer": ("not_an_image", True, _picture(lambda data: case("lfs_pointer.jpg"))),
    "bomb": ("image_too_large", True, _picture(lambda data: case("png_bomb_header_30000x30000.png"))),
    "no width": ("image_zero_size", True, _picture(lambda data: case("png_zero_width.png"))),
    "header cut": ("image_truncated", True, _picture(lambda data: data[:20])),
    "json cut": ("broken_json", False, lambda parts: {**parts, "json": parts["json"][:-7]}),
    "json gone": ("missing_field", True, lambda parts: {k: v for k, v in parts.items() if k != "json"}),
    "no record": ("not_a_record", False, _record(lambda record: [1, 2])),
    "no conversation": ("empty_conversation", False, _record(lambda record: {**record, "conversations": []})),
    "no answer": ("no_answer", False, lambda parts: with_text(parts, " ")),
    "role": ("unknown_role", False, _record(lambda r: _turns(r, lambda t: t[0].update({"from": "narrator"})))),
    "marks": ("placeholder_count", True, _record(lambda r: _turns(r, lambda t: t[0].update(value="<image>" * 9)))),
    "type": ("wrong_type", False, _record(lambda r: _turns(r, lambda t: t[0].update(value=7)))),
}
SHARD_KINDS = ("shard cut", "shard zeroed")


def inject(good: Path, bad: Path, *, per_kind: int = 1, seed: int = 0) -> dict[str, str]:
    """A copy with faults of every kind in random samples. Returns key -> reason of those that are lost."""
    rng = random.Random(seed)
    shutil.copytree(good, bad)
    has_picture: dict[str, bool] = {}
    rewrite(bad, lambda key, parts: has_picture.update({key: len(parts) > 1}) or parts)  # type: ignore[func-returns-value]
    kinds: dict[str, str] = {}
    for kind, (_, needs_picture, _) in KINDS.items():
        free = [key for key in sorted(has_picture) if key not in kinds and has_picture[key] >= needs_picture]
        kinds |= dict.fromkeys(rng.sample(free, per_kind), kind)
    rewrite(bad, lambda key, parts: KINDS[kinds[key]][2](parts) if key in kinds else parts)
    lost = {key: KINDS[kind][0] for key, kind in kinds.items()}
    shards = sorted(bad.glob("train-*.tar"))
    for kind, shard in zip(SHARD_KINDS, rng.sample(shards, 2), strict=True):
        keys, starts = _keys_and_starts(shard)
        place = rng.randrange(1, len(keys) - 1)
        data = bytearray(shard.read_bytes())
        if kind == "shard cut":
            del data[starts[place] + 300 :]
            lost |= dict.fromkeys(keys[place:], "unreadable")
        else:
            data[starts[place] : starts[place] + 512] = bytes(512)
            lost[keys[place]] = "unreadable"
        shard.write_bytes(data)
    return lost


def _keys_and_starts(shard: Path) -> tuple[list[str], list[int]]:
    data = shard.with_suffix(".tar.idx").read_bytes()
    starts = list(struct.unpack(f"<{len(data) // 8}Q", data))
    content = shard.read_bytes()
    return [content[start : start + 100].split(b".")[0].decode() for start in starts[:-1]], starts
