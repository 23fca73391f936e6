"""What energon read -> Conversation. Pictures are still bytes here; nothing is decoded but JSON and texts.

A typed sample is encoded by its class (`mmpack.energon.kinds`). The parts of a crude sample are seen as a record:

* A cooker (`register_cooker`) whose subflavors match makes it, else
* the part ``json`` is it, else a part ``txt``, ``text`` or ``caption`` is the caption of the picture beside it, or
  alone a text to be learned.

Its format is what the subflavor ``format`` names, else what its fields say (`mmpack.sources.detect`). Its picture
names are parts of the sample, or whole tar members, without regard to case. A record that names one picture means a
plain part (``jpg``, not ``first.jpg``) too, if that is the only picture; a record that names none means all of them,
in the order of their parts' names (numbers by value), where there are as many as it has places.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from megatron.energon import Cooker, InterleavedSample, Sample
from megatron.energon.task_encoder.cooking import get_cooker_need_cache, get_cooker_need_primary

from mmpack.energon.kinds import accepted, encode_kind, guarded, picture_of, register_encoder, source_of
from mmpack.energon.reader import RawParts
from mmpack.energon.text_decoder import text_part
from mmpack.errors import ConfigError, Reason, SampleError
from mmpack.sample import Conversation, Picture
from mmpack.sources import SOURCES, ParsedRecord, RecordParser, detect
from mmpack.sources.inline import inline_picture, short_name

__all__ = ["register_cooker", "register_encoder", "source_of", "to_conversation"]

PICTURE_EXTENSIONS = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "avif", "jfif", "ppm", "pgm")
CAPTION_PARTS = ("txt", "text", "caption")
COOKERS: list[Cooker[Any]] = []  # what `register_cooker` was told; the first that matches is used


def register_cooker(function: Callable[..., Any], has_subflavors: Mapping[str, Any] | None = None) -> None:
    """Makes samples of a crude dataset's parts with `function`, where the dataset has these subflavors.

    `function` gets a dict: the parts by extension (``json`` read, ``txt`` as text, all else as bytes) and energon's
    own ``__key__``, ``__restore_key__``, ``__subflavors__``, ``__sources__``. It returns a record of a known format,
    a sample of one of energon's classes (so a cooker written for energon serves, if it decodes no pictures), or a
    Conversation. Its faults count as those of `register_encoder`'s functions. Register before the data module is
    built; of several that match, the one registered first is used.

    Raises:
        ConfigError: `function` cannot be called, or wants energon's cache or random access to the dataset;
            `has_subflavors` is no mapping.
    """
    if not callable(function):
        raise ConfigError(f"function={function!r} cannot be called; pass a function (parts) -> record")
    if has_subflavors is not None and not isinstance(has_subflavors, Mapping):
        raise ConfigError(f"has_subflavors={has_subflavors!r}; give a mapping of names to values, or None for all")
    if get_cooker_need_cache(function) or get_cooker_need_primary(function):
        raise ConfigError(
            f"cooker {getattr(function, '__name__', function)!r} needs energon's cache or the primary dataset, which "
            "are not there before a pack is planned; read what it needs from the parts"
        )
    COOKERS.append(Cooker(function, None if has_subflavors is None else dict(has_subflavors)))


def to_conversation(sample: Any) -> Conversation:
    """The conversation in a sample: typed, crude, or of a dataset that `mmpack convert` wrote.

    Raises:
        SampleError: the sample breaks a rule of its kind or format, a part is missing or broken, or nothing is known
            about its class.
        ConfigError: the subflavor ``format`` names an unknown format.
    """
    parts = _parts_of(sample)
    if parts is None:
        return encode_kind(sample)
    subflavors = dict(sample.__subflavors__ or {})
    cooked = _cooked(parts, sample, subflavors)
    if isinstance(cooked, Conversation):
        return accepted(cooked, sample)
    if isinstance(cooked, Sample):
        if isinstance(cooked, RawParts):
            raise SampleError(Reason.WRONG_TYPE, "the cooker returned raw parts again")
        return encode_kind(cooked)
    record = cooked if cooked is not None else _record(parts)
    names = picture_parts(parts)
    parsed = _parse(record, names, subflavors.get("format"))
    pictures = tuple(_picture(parts, name, parsed.image_names, sample.__key__) for name in parsed.image_names)
    return Conversation(key=sample.__key__, turns=parsed.turns, pictures=pictures, source=source_of(sample))


def _parts_of(sample: Any) -> dict[str, Any] | None:
    """The parts of a crude sample by lower-case extension, or of one of mmpack's own datasets; None for others."""
    if isinstance(sample, RawParts):
        return {name.lower(): value for name, value in sample.parts.items()}
    if isinstance(sample, InterleavedSample) and isinstance(
        sample.sequence, list
    ):  # mmpack's own datasets hand out raw parts when nothing decodes
        pairs = [entry for entry in sample.sequence if isinstance(entry, tuple)]
        if pairs and len(pairs) == len(sample.sequence):
            return {name.lower(): value for name, value in pairs}
    return None


def picture_parts(parts: Mapping[str, Any]) -> list[str]:
    """The names of the parts that are pictures, numbers in them by value.

    >>> picture_parts({"10.png": b"", "json": b"", "9.png": b"", "jpg": b""})
    ['9.png', '10.png', 'jpg']
    """
    names = [name for name in parts if name.rpartition(".")[2] in PICTURE_EXTENSIONS]
    return sorted(names, key=lambda name: [(not s.isdigit(), s.zfill(20)) for s in re.split(r"(\d+)", name) if s])


def _cooked(parts: Mapping[str, Any], sample: Any, subflavors: dict[str, Any]) -> Any:
    """What the first cooker that matches makes of a crude sample; None if none matches."""
    if not isinstance(sample, RawParts):
        return None
    cooker = next((cooker for cooker in COOKERS if cooker.is_match(subflavors)), None)
    if cooker is None:
        return None
    raw = {name: text_part(name, value) for name, value in parts.items()}
    own = ("__key__", "__restore_key__", "__subflavors__", "__sources__")
    cooked = guarded(cooker.cook, raw | {name: getattr(sample, name) for name in own})
    if not isinstance(cooked, Conversation | Sample | dict):
        what = type(cooked).__name__
        raise SampleError(Reason.WRONG_TYPE, f"the cooker returned a {what}, not a record, a sample or a Conversation")
    return cooked


def _record(parts: Mapping[str, Any]) -> object:
    """The record in the JSON part, or what a text part makes with the pictures beside it."""
    captions = [name for name in CAPTION_PARTS if name in parts]
    if "json" in parts:
        record = parts["json"]
        if isinstance(record, bytes):
            try:
                record = json.loads(record)
            except (ValueError, RecursionError) as error:
                raise SampleError(Reason.BROKEN_JSON, f".json part: {error}") from None
        # Downloaders write what they know of a picture as JSON beside its caption.
        if len(captions) != 1 or detect(record) is not None:
            return record
    if len(captions) == 1:
        text = text_part("txt", parts[captions[0]])
        if isinstance(text, bytes):
            raise SampleError(Reason.BAD_TEXT, f".{captions[0]} part: not UTF-8")
        return {"text": text}
    raise SampleError(Reason.MISSING_FIELD, f"the sample has no .json part, and no text part; it has {_listed(parts)}")


def _parse(record: object, picture_names: Sequence[str], source_format: Any) -> ParsedRecord:
    """The parsed record; one that names no pictures is tried with those of the sample too."""
    with_all = None
    if picture_names and isinstance(record, dict) and not record.get("image") and not record.get("images"):
        with_all = {**record, "image": list(picture_names)}
    if source_format is None:
        source_format = detect(record if with_all is None else with_all)
        if source_format is None:
            what = f"an object with {_listed(record)}" if isinstance(record, dict) else "not an object"
            reason = Reason.MISSING_FIELD if isinstance(record, dict) else Reason.NOT_A_RECORD
            raise SampleError(reason, f"no format fits the record, {what}; name one as subflavor 'format'")
    parse = SOURCES.get(str(source_format))
    if with_all is None:
        return parse(record)
    return _first_that_fits(parse, record, with_all)


def _first_that_fits(parse: RecordParser, record: object, with_all: object) -> ParsedRecord:
    """A record that names its pictures inside stays as it is; the sample's pictures come in where they fit."""
    alone: ParsedRecord | None = None
    with contextlib.suppress(SampleError):
        alone = parse(record)
    if alone is not None and alone.image_names:
        return alone
    try:
        return parse(with_all)
    except SampleError:
        if alone is not None:
            return alone  # pictures beside a text that has no place for them
        raise


def _picture(parts: Mapping[str, Any], name: str, all_names: Sequence[str], key: str) -> Picture:
    """The picture that the record calls `name`: that part, or a plain part if there is one picture and one name."""
    inline = inline_picture(name)
    if inline is not None:
        return Picture(name=short_name(name), data=inline)
    part = name.lower()
    if part not in parts:  # the whole name of a tar member, KEY.PART
        part = part.rpartition("/")[2].removeprefix(f"{key.rpartition('/')[2].lower()}.")
    if part not in parts and len(all_names) == 1:
        only = picture_parts(parts)
        if len(only) == 1 and "." not in only[0]:
            part = only[0]
    if part not in parts:
        raise SampleError(Reason.IMAGE_MISSING, f"no part {name!r}; the sample has {_listed(parts)}")
    return picture_of(parts[part], f"part {part!r}" if not isinstance(parts[part], bytes) else name)


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(sorted(map(str, names))[:20]) or "none"
