"""Energon's sample classes, read from real datasets of each: turns, pictures, and the tokens that are learned."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from megatron.energon import (
    CaptioningSample,
    ImageSample,
    InterleavedSample,
    MultiChoiceVQASample,
    OCRSample,
    Sample,
    SimilarityInterleavedSample,
    VQASample,
    edataclass,
)

from mmpack.encode import LengthLimit, SampleEncoder
from mmpack.energon import kinds
from mmpack.energon.cook import to_conversation
from mmpack.energon.kinds import register_encoder
from mmpack.errors import ConfigError, Reason, SampleError
from mmpack.sample import Conversation, Picture, PictureSlot, Role, Turn
from mmpack.sources.ocr import OCR_QUESTION
from mmpack.templates import TEMPLATES
from mmpack.tiling import make_tiling
from tests.conftest import tile_spec
from tests.sources.shards import CRUDE, WITH_LOADER, Parts, picture, read_all, typed, write_dataset

COUNT = 3

FILTER = "def part_filter(part):\n    return True\n\n\ndef sample_loader(raw):\n"
DOCUMENT_LOADER = FILTER + '    return {"sequence": ["before ", raw["0.png"], raw["json"]["text"], raw["1.png"]]}\n'
MATCHED_LOADER = FILTER + (
    '    images = [raw["0.png"], raw["1.png"]]\n'
    '    return {"images": images, "texts": ["One.", raw["txt"]], "matched_text_indices": [1, 0]}\n'
)


def as_json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def samples_of(kind: str) -> dict[str, Parts]:
    """`COUNT` samples; every text in them has the sample's number."""
    made: dict[str, Parts] = {}
    for i in range(COUNT):
        parts: Parts = {"png": picture(i)}
        if kind == "vqa":
            parts["json"] = as_json({"q": f"what {i}?", "a": ["no", f"yes {i} 🙂"], "w": [0.25, 0.75]})
        elif kind == "choice":
            parts["json"] = as_json({"q": f"which {i}?", "choices": ["cat", f"dog {i}"], "right": 1})
        elif kind == "caption":
            parts["txt"] = f" caption {i}é\n".encode()
        elif kind == "ocr":
            parts["json"] = as_json({"text": f"EXIT {i}", "lines": ["EXIT", str(i)]})
        elif kind == "text":
            parts = {"json": as_json({"text": f"only text {i} <image>"})}
        elif kind == "document":
            parts = {"0.png": picture(i), "1.png": picture(10 + i), "json": as_json({"text": f"between {i}"})}
        elif kind == "matched":
            parts = {"0.png": picture(i), "1.png": picture(10 + i), "txt": f"Two {i}.".encode()}
        elif kind == "chat":
            content = [{"type": "image", "image": "png"}, {"type": "text", "text": f"chat {i}?"}]
            answer = {"role": "assistant", "content": f"said {i}"}
            parts["json"] = as_json({"messages": [{"role": "user", "content": content}, answer]})
        made[f"{kind}{i}"] = parts
    return made


DATASETS: dict[str, tuple[dict[str, Any], str | None]] = {
    "vqa": (
        typed(
            "VQASample",
            field_map={"image": "png", "context": "json[q]", "answers": "json[a]", "answer_weights": "json[w]"},
        ),
        None,
    ),
    "choice": (
        typed(
            "MultiChoiceVQASample",
            field_map={
                "image": "png",
                "context": "json[q]",
                "choices": "json[choices]",
                "correct_choice_idx": "json[right]",
            },
        ),
        None,
    ),
    "caption": (typed("CaptioningSample", field_map={"image": "png", "caption": "txt"}), None),
    "ocr": (
        typed("OCRSample", field_map={"image": "png", "text": "json[text]", "lines_text": "json[lines]"}),
        None,
    ),
    "text": (typed("TextSample", field_map={"text": "json[text]"}), None),
    "document": (typed("InterleavedSample", **WITH_LOADER), DOCUMENT_LOADER),
    "matched": (typed("SimilarityInterleavedSample", **WITH_LOADER), MATCHED_LOADER),
    "chat": (CRUDE, None),
}

# What the tokens learned must say, written by hand: LLaVA's template ends every answer with </s>.
LEARNED = {
    "vqa": "yes {} 🙂</s>",
    "choice": "B. dog {}</s>",
    "caption": " caption {}é\n</s>",
    "ocr": "EXIT {}</s>",
    "text": "only text {} <image></s>",
    "document": "before between {}</s>",
    "matched": "One. Two {}.</s>",
    "chat": "said {}</s>",
}
READ = {
    "vqa": "<image>\nwhat {}?",
    "choice": "<image>\nwhich {}?\nA. cat\nB. dog {}",
    "caption": "<image>",
    "ocr": "<image>\n" + OCR_QUESTION,
    "text": None,
    "document": None,
    "matched": None,
    "chat": "<image>chat {}?",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("kinds")
    for kind, (dataset, loader) in DATASETS.items():
        write_dataset(root / kind, samples_of(kind), dataset, loader)
    return root


@pytest.fixture(autouse=True)
def own_encoders() -> Iterator[None]:
    before = dict(kinds.ENCODERS)
    yield
    kinds.ENCODERS.clear()
    kinds.ENCODERS.update(before)


def learned_text(tokenizer: Any, conversation: Conversation) -> str:
    encoder = SampleEncoder(
        tokenizer=tokenizer,
        template=TEMPLATES.get("v1")(),
        tiling=make_tiling("single", tile_spec()),
        limit=LengthLimit(seq_length=10_000),
    )
    sample = encoder.encode(conversation)
    assert len(sample.pictures) == len(conversation.pictures)
    return str(tokenizer.decode(sample.token_ids_n[sample.trained_n].tolist(), clean_up_tokenization_spaces=False))


def check_kind(kind: str, conversation: Conversation, tokenizer: Any) -> None:
    number = int(conversation.key.removeprefix(kind))
    assert conversation.source == kind
    assert learned_text(tokenizer, conversation) == LEARNED[kind].format(number)
    question = READ[kind]
    asked = [turn.text for turn in conversation.turns if turn.role is Role.USER]
    assert asked == ([] if question is None else [question.format(number, number)])
    want = [picture(number)] if kind not in ("text", "document", "matched") else []
    if kind in ("document", "matched"):
        want = [picture(number), picture(10 + number)]
    if kind == "matched":  # the first text has the second picture
        want.reverse()
    assert [p.data for p in conversation.pictures] == want


@pytest.mark.parametrize("kind", DATASETS)
def test_a_typed_dataset_on_disk(folder: Path, kind: str, tokenizer: Any) -> None:
    read = [to_conversation(sample) for sample in read_all(folder / kind)]
    assert sorted(conversation.key for conversation in read) == [f"{kind}{i}" for i in range(COUNT)]
    for conversation in read:
        check_kind(kind, conversation, tokenizer)


def test_a_picture_stands_before_its_text(folder: Path) -> None:
    for sample in read_all(folder / "matched"):
        (turn,) = to_conversation(sample).turns
        assert turn.parts[:3] == (PictureSlot(0), "One.", PictureSlot(1))


def test_a_metadataset_blends_all_kinds(
    folder: Path, tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the reader of logical streams, for several epochs: all kinds in one stream, each sample right."""
    from mmpack.energon import reader
    from mmpack.energon.text_decoder import TextDecoder

    monkeypatch.setattr(reader._Undecoded, "decoder", TextDecoder())
    blend = tmp_path / "blend.yaml"
    entries = [{"weight": 1, "path": str(folder / kind), "split_part": "train"} for kind in DATASETS]
    entries[-1]["subflavors"] = {"format": "openai"}
    content = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"train": {"blend": entries}}}
    blend.write_text(yaml.safe_dump(content), encoding="utf-8")
    faults: list[str] = []
    source = reader.Source(
        reader.SourceConfig(path=blend, shuffle_buffer_size=5),
        stream=0,
        num_streams=1,
        on_fault=lambda error, name: faults.append(f"{name}: {error}"),
    )
    seen: dict[str, set[str]] = {kind: set() for kind in DATASETS}
    for number, (sample, _) in enumerate(source):
        conversation = to_conversation(sample)
        check_kind(conversation.source, conversation, tokenizer)
        seen[conversation.source].add(conversation.key)
        if number >= 200:
            break
    assert faults == []
    assert {kind: len(keys) for kind, keys in seen.items()} == dict.fromkeys(DATASETS, COUNT)


def base(key: str = "k") -> dict[str, Any]:
    return {"__key__": key, "__restore_key__": (), "__subflavors__": {}, "__sources__": None}


def reason_of(sample: Any) -> Reason:
    with pytest.raises(SampleError) as caught:
        to_conversation(sample)
    return caught.value.reason


def test_decoded_pictures_are_refused_with_the_way_out() -> None:
    for decoded in (torch.zeros(3, 2, 2), None, "a.png"):
        with pytest.raises(SampleError, match=r"not bytes; .* sample loader or cooker must hand them on") as caught:
            to_conversation(VQASample(**base(), image=decoded, context="q", answers=["a"]))
        assert caught.value.reason is Reason.WRONG_TYPE


def test_tensors_beside_a_picture_are_read() -> None:
    weights = torch.tensor([0.1, 0.9])
    sample = VQASample(**base(), image=b"x", context=b"q", answers=["no", "yes"], answer_weights=weights)
    assert [turn.text for turn in to_conversation(sample).turns] == ["<image>\nq", "yes"]
    index: Any = torch.tensor(1)
    chosen = MultiChoiceVQASample(**base(), image=b"x", context="q", choices=["a", "b"], correct_choice_idx=index)
    assert to_conversation(chosen).turns[1].text == "B. b"


def test_several_pictures_in_a_field() -> None:
    conversation = to_conversation(CaptioningSample(**base(), image=[b"x", b"y"], caption="c"))
    assert [p.data for p in conversation.pictures] == [b"x", b"y"]
    assert conversation.turns[0].parts == (PictureSlot(0), PictureSlot(1))


def test_faults_of_typed_samples() -> None:
    assert reason_of(ImageSample(**base(), image=b"x")) is Reason.NO_ANSWER
    assert reason_of(VQASample(**base(), image=b"x", context="q")) is Reason.WRONG_TYPE
    assert reason_of(CaptioningSample(**base(), image=b"x", caption=b"\xff")) is Reason.BAD_TEXT
    assert reason_of(OCRSample(**base(), image=b"x", text=" ")) is Reason.NO_ANSWER
    assert reason_of(MultiChoiceVQASample(**base(), image=b"x", context="q")) is Reason.WRONG_TYPE
    assert reason_of(InterleavedSample(**base(), sequence=[])) is Reason.EMPTY_CONVERSATION
    assert reason_of(InterleavedSample(**base(), sequence=["a", torch.zeros(1)])) is Reason.WRONG_TYPE
    assert reason_of(InterleavedSample(**base(), sequence=None)) is Reason.WRONG_TYPE
    matched: dict[str, Any] = {"images": [b"x"], "texts": ["a"]}
    assert reason_of(SimilarityInterleavedSample(**base(), **matched)) is Reason.MISSING_FIELD
    wrong = SimilarityInterleavedSample(**base(), **matched, matched_text_indices=[1])
    assert reason_of(wrong) is Reason.PLACEHOLDER_COUNT
    likeness = torch.tensor([[0.1, 0.8], [0.7, 0.2], [0.3, 0.4]])
    pictured: dict[str, Any] = {"images": [b"x", b"y", b"z"], "texts": ["One.", "Two."], "similarity_matrix": likeness}
    conversation = to_conversation(SimilarityInterleavedSample(**base(), **pictured))
    assert [picture.data for picture in conversation.pictures] == [b"y", b"x", b"z"]
    assert conversation.turns[0].text == "<image>One.<image><image> Two."
    given = SimilarityInterleavedSample(**base(), **pictured, matched_text_indices=[0, 0, 0])
    assert to_conversation(given).turns[0].text == "<image><image><image>One. Two."
    lost = SimilarityInterleavedSample(**base(), images=None, texts=["a"], matched_text_indices=[])
    assert reason_of(lost) is Reason.WRONG_TYPE


@edataclass
class Poem(Sample):  # type: ignore[misc]
    lines: list[str]
    drawing: bytes


@edataclass
class LongPoem(Poem):
    pass


def encode_poem(sample: Poem) -> Conversation:
    parts = (PictureSlot(0), "\n".join(sample.lines))
    return Conversation(
        key="",
        turns=(Turn(role=Role.USER, parts=("poem?",)), Turn(role=Role.ASSISTANT, parts=parts)),
        pictures=(Picture(name="drawing", data=sample.drawing),),
    )


def test_a_kind_of_ones_own() -> None:
    sample = LongPoem(**base("p1"), lines=["a", "b"], drawing=b"x")
    with pytest.raises(SampleError, match=r"register_encoder\(LongPoem, function\) adds one, known are VQASample"):
        to_conversation(sample)
    register_encoder(Poem, encode_poem)
    conversation = to_conversation(sample)
    assert (conversation.key, conversation.source) == ("p1", "?")
    assert conversation.turns[1].text == "<image>a\nb"


def test_ones_own_encoder_comes_before_mmpacks() -> None:
    def short(sample: CaptioningSample) -> Conversation:
        return Conversation(key="mine", turns=(Turn(role=Role.ASSISTANT, parts=(sample.caption[:1],)),), source="s")

    register_encoder(CaptioningSample, short)
    conversation = to_conversation(CaptioningSample(**base(), image=b"x", caption="cat"))
    assert (conversation.key, conversation.source, conversation.turns[0].text) == ("mine", "s", "c")


@pytest.mark.parametrize(
    ("turn_parts", "num_pictures", "reason"),
    [
        ((PictureSlot(0), "a"), 0, Reason.PLACEHOLDER_COUNT),
        (("a",), 1, Reason.PLACEHOLDER_COUNT),
        ((PictureSlot(0), PictureSlot(0), "a"), 2, Reason.PLACEHOLDER_COUNT),
        ((" ",), 0, Reason.NO_ANSWER),
        (("\ud800",), 0, Reason.BAD_TEXT),
    ],
)
def test_what_ones_own_encoder_returns_is_checked(turn_parts: Any, num_pictures: int, reason: Reason) -> None:
    pictures = tuple(Picture(name="x", data=b"x") for _ in range(num_pictures))
    turns = (Turn(role=Role.ASSISTANT, parts=turn_parts),)
    register_encoder(Poem, lambda _: Conversation(key="", turns=turns, pictures=pictures))
    assert reason_of(Poem(**base(), lines=[], drawing=b"")) is reason


def test_faults_in_ones_own_encoder_are_the_samples() -> None:
    sample = Poem(**base(), lines=[], drawing=b"")
    for error, reason in ((KeyError("author"), Reason.MISSING_FIELD), (ValueError("secret"), Reason.WRONG_TYPE)):

        def broken(_: Poem, error: Exception = error) -> Conversation:
            raise error

        register_encoder(Poem, broken)
        with pytest.raises(SampleError, match=f"broken raised {type(error).__name__}") as caught:
            to_conversation(sample)
        assert caught.value.reason is reason
        assert "secret" not in str(caught.value)
    register_encoder(Poem, lambda _: None)  # type: ignore[arg-type, return-value]
    assert reason_of(sample) is Reason.WRONG_TYPE


def test_a_registration_that_cannot_work_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"derived from megatron\.energon\.Sample"):
        register_encoder(dict, encode_poem)  # type: ignore[type-var, arg-type]
    with pytest.raises(ConfigError, match="cannot be called"):
        register_encoder(Poem, "encode")  # type: ignore[arg-type]
