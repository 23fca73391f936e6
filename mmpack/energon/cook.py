"""What energon read -> Conversation. Parts are still bytes here; nothing is decoded but the JSON."""

from __future__ import annotations

import json
from typing import Any

from megatron.energon import InterleavedSample

from mmpack.energon.reader import RawParts
from mmpack.errors import Reason, SampleError
from mmpack.sample import Conversation, Picture
from mmpack.sources.llava import parse_llava

PICTURE_EXTENSIONS = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff")


def source_of(sample: Any) -> str:
    """The dataset that a sample came from, as counters name it."""
    sources = getattr(sample, "__sources__", None)
    path = str(sources[0].dataset_path) if sources else ""
    return path.rstrip("/").rpartition("/")[2] or path or "?"


def to_conversation(sample: Any) -> Conversation:
    """The conversation in a sample of a dataset that `mmpack convert` wrote, or in crude parts of the same shape.

    Raises:
        SampleError: the JSON part is missing or broken, a picture's part is missing, or the record is not a
            valid conversation.
    """
    parts = _parts_of(sample)
    json_bytes = parts.pop("json", None)
    if json_bytes is None:
        raise SampleError(Reason.MISSING_FIELD, "the sample has no .json part")
    try:
        record = json.loads(json_bytes)
    except (ValueError, RecursionError) as error:
        raise SampleError(Reason.BROKEN_JSON, f".json part: {error}") from None
    parsed = parse_llava(record)
    pictures = tuple(_picture(parts, name) for name in parsed.image_names)
    return Conversation(key=sample.__key__, turns=parsed.turns, pictures=pictures, source=source_of(sample))


def _parts_of(sample: Any) -> dict[str, bytes]:
    """Tar members by lower-case extension."""
    if isinstance(sample, RawParts):
        return {name.lower(): data for name, data in sample.parts.items()}
    if isinstance(sample, InterleavedSample):  # mmpack's own datasets hand out raw parts when nothing decodes
        pairs = [item for item in sample.sequence if isinstance(item, tuple)]
        if len(pairs) == len(sample.sequence):
            return {name.lower(): data for name, data in pairs}
    raise SampleError(
        Reason.WRONG_TYPE,
        f"a {type(sample).__name__} has no .json part with a conversation; convert the data with `mmpack convert`, "
        "or make the dataset a CrudeWebdataset whose samples have one",
    )


def _picture(parts: dict[str, bytes], name: str) -> Picture:
    """The picture called `name` in the record: that tar member, or the only picture there is."""
    data = parts.get(name.lower())
    if data is None:
        only = [part for part in parts if part.rpartition(".")[2] in PICTURE_EXTENSIONS]
        if len(only) == 1 and "." not in only[0]:
            data = parts[only[0]]
    if data is None:
        raise SampleError(
            Reason.IMAGE_MISSING, f"no part {name!r}; the sample has {', '.join(sorted(parts)) or 'none'}"
        )
    return Picture(name=name, data=data)
