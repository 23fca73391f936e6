"""Energon's sample classes -> Conversation. A kind of one's own is added with `register_encoder`.

A typed sample is seen as the record of the same name (`mmpack.sources`), so the rules of a kind are those of its
format. Pictures must still be bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from megatron.energon import (
    CaptioningSample,
    ImageSample,
    InterleavedSample,
    MultiChoiceVQASample,
    OCRSample,
    Sample,
    SimilarityInterleavedSample,
    TextSample,
    VQASample,
)
from megatron.energon.flavors.vqa_and_ocr import VQAOCRSample

from mmpack.errors import ConfigError, Reason, SampleError
from mmpack.sample import Conversation, Picture, PictureSlot, Turn
from mmpack.sources import SOURCES, checks, similarity

KindResult = tuple[tuple[Turn, ...], tuple[Picture, ...]]
Encoder = Callable[[Any], Conversation]
S = TypeVar("S", bound=Sample)


def source_of(sample: Any) -> str:
    """The dataset that a sample came from, as counters name it."""
    sources = getattr(sample, "__sources__", None)
    path = str(sources[0].dataset_path) if sources else ""
    return path.rstrip("/").rpartition("/")[2] or path or "?"


def _vqa(sample: Any) -> KindResult:
    record = {"question": sample.context, "answers": sample.answers, "answer_weights": sample.answer_weights}
    return _as_record("vqa", record, sample.image)


def _multi_choice(sample: Any) -> KindResult:
    record = {"question": sample.context, "choices": sample.choices, "answer": sample.correct_choice_idx}
    return _as_record("multi_choice", record, sample.image)


def _captioning(sample: Any) -> KindResult:
    return _as_record("captioning", {"caption": sample.caption}, sample.image)


def _ocr(sample: Any) -> KindResult:
    record = {name: getattr(sample, name) for name in ("text", "lines_text", "words_text")}
    return _as_record("ocr", record, sample.image)


def _text(sample: Any) -> KindResult:
    return _as_record("text", {"text": sample.text}, [])


def _interleaved(sample: Any) -> KindResult:
    entries = checks.list_of(sample.sequence, "'sequence'")
    pictures = [entry for entry in entries if not isinstance(entry, str)]
    sequence = [entry if isinstance(entry, str) else {"image": None} for entry in entries]
    return _as_record("interleaved", {"sequence": sequence}, pictures)


def _similarity_interleaved(sample: Any) -> KindResult:
    """Each picture stands before the text it is matched to, by number or by the similarity matrix."""
    images = checks.list_of(sample.images, "'images'")
    texts = [checks.text_of(_plain(text), "a text") for text in checks.list_of(sample.texts, "'texts'")]
    matched = similarity.matched_texts(
        len(images), len(texts), _plain(sample.matched_text_indices), _plain(sample.similarity_matrix)
    )
    order = similarity.in_reading_order(texts, matched)
    pictures = [images[entry] for entry in order if isinstance(entry, int)]
    sequence = [{"image": None} if isinstance(entry, int) else entry for entry in order]
    return _as_record("interleaved", {"sequence": sequence}, pictures)


def _image(sample: Any) -> KindResult:
    raise SampleError(Reason.NO_ANSWER, "a picture without text has nothing to learn from")


KINDS: dict[type, Callable[[Any], KindResult]] = {
    VQASample: _vqa,
    VQAOCRSample: _vqa,
    MultiChoiceVQASample: _multi_choice,
    CaptioningSample: _captioning,
    OCRSample: _ocr,
    InterleavedSample: _interleaved,
    SimilarityInterleavedSample: _similarity_interleaved,
    TextSample: _text,
    ImageSample: _image,
}
ENCODERS: dict[type, Encoder] = {}  # what `register_encoder` was told


def register_encoder(sample_class: type[S], function: Callable[[S], Conversation]) -> None:
    """Encodes samples of `sample_class`, and of classes derived from it, with `function`.

    The class may be one of energon's own, which `function` then encodes instead of mmpack. A key or source left empty
    in the conversation is filled in. `function` may raise SampleError; a KeyError, IndexError, TypeError, ValueError
    or AttributeError counts as a fault of the sample too. Register before the data module is built.

    Raises:
        ConfigError: `sample_class` is not a class of energon samples, or `function` cannot be called.
    """
    if not (isinstance(sample_class, type) and issubclass(sample_class, Sample)):
        raise ConfigError(f"sample_class={sample_class!r}; it must be a class derived from megatron.energon.Sample")
    if not callable(function):
        raise ConfigError(f"function={function!r} cannot be called; pass a function (sample) -> Conversation")
    ENCODERS[sample_class] = function


def encode_kind(sample: Any) -> Conversation:
    """The conversation in a typed sample, by the nearest of its classes that has an encoder.

    Raises:
        SampleError: no class has one, the sample breaks a rule of its kind, or a picture is not bytes.
    """
    for known in type(sample).__mro__:
        if known in ENCODERS:
            return accepted(guarded(ENCODERS[known], sample), sample)
        if known in KINDS:
            turns, pictures = KINDS[known](sample)
            return Conversation(key=sample.__key__, turns=turns, pictures=pictures, source=source_of(sample))
    known_names = ", ".join(known.__name__ for known in [*KINDS, *ENCODERS])
    name = type(sample).__name__
    raise SampleError(
        Reason.WRONG_TYPE,
        f"no encoder for a {name}; register_encoder({name}, function) adds one, known are {known_names}",
    )


def guarded(function: Callable[[Any], Any], argument: Any) -> Any:
    """What a user's function returns; errors that a faulty sample causes become SampleErrors without its content."""
    name = getattr(function, "__name__", type(function).__name__)
    try:
        return function(argument)
    except (KeyError, IndexError) as error:
        what = f" {error.args[0]!r}" if isinstance(error, KeyError) and error.args else ""
        raise SampleError(Reason.MISSING_FIELD, f"{name} raised {type(error).__name__}{what}") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise SampleError(Reason.WRONG_TYPE, f"{name} raised {type(error).__name__}") from error


def accepted(conversation: object, sample: Any) -> Conversation:
    """A conversation that a user's function made of `sample`, with what it left empty.

    Raises:
        SampleError: it is no Conversation, a picture has no place or several, or nothing in it is learned.
    """
    if not isinstance(conversation, Conversation):
        raise SampleError(
            Reason.WRONG_TYPE, f"the encoder returned a {type(conversation).__name__}, not a Conversation"
        )
    slots = [part.index for turn in conversation.turns for part in turn.parts if isinstance(part, PictureSlot)]
    if sorted(slots) != list(range(len(conversation.pictures))):
        raise SampleError(
            Reason.PLACEHOLDER_COUNT, f"slots {sorted(slots)[:20]} for {len(conversation.pictures)} pictures"
        )
    for turn in conversation.turns:
        for part in turn.parts:
            if isinstance(part, str):
                checks.check_utf8(part, f"a turn of the {turn.role.value}")
    checks.checked(conversation.turns, tuple(picture.name for picture in conversation.pictures))
    pictures = tuple(picture_of(picture.data, picture.name) for picture in conversation.pictures)
    return replace(
        conversation,
        key=conversation.key or sample.__key__,
        source=conversation.source or source_of(sample),
        pictures=pictures,
    )


def picture_of(value: object, name: str) -> Picture:
    """The picture in a part or field. Raises SampleError if it is not bytes any more, or never was."""
    if isinstance(value, bytes | bytearray | memoryview):
        return Picture(name=name, data=bytes(value))
    raise SampleError(
        Reason.WRONG_TYPE,
        f"{name} is a {type(value).__module__}.{type(value).__name__}, not bytes; pictures are decoded once their pack "
        "is planned, so a sample loader or cooker must hand them on as they are stored",
    )


def _as_record(source_format: str, record: dict[str, Any], pictures: Any) -> KindResult:
    """The turns of a typed sample, seen as a record of `source_format` with these pictures."""
    values: Sequence[Any] = pictures if isinstance(pictures, list | tuple) else [pictures]
    names = [f"image {i}" if len(values) > 1 else "image" for i in range(len(values))]
    compressed = tuple(map(picture_of, values, names))
    plain = {name: _plain(value) for name, value in record.items()}
    parsed = SOURCES.get(source_format)({**plain, "image": names} if names else plain)
    return parsed.turns, compressed


def _plain(value: Any) -> Any:
    """Tensors and arrays as lists, bytes (of a text part that was not read) as text."""
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise SampleError(Reason.BAD_TEXT, f"byte {error.start} of a text is not UTF-8") from None
    return value.tolist() if hasattr(value, "tolist") else value
