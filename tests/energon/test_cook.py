"""Crude samples: formats, pictures by the names of their parts, cookers."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from megatron.energon import VQASample, basic_sample_keys, cooker, stateless

from mmpack.energon import cook
from mmpack.energon.cook import register_cooker, to_conversation
from mmpack.energon.reader import RawParts, Source, SourceConfig
from mmpack.errors import ConfigError, Reason, SampleError
from mmpack.sample import Conversation, Picture, PictureSlot, Role, Turn
from tests.conftest import write_llava
from tests.sources.shards import CRUDE, picture, read_all, write_dataset

JPG = b"\xff\xd8\xff\xe0 not a whole picture, nobody decodes it here"


@pytest.fixture(autouse=True)
def own_cookers() -> Iterator[None]:
    before = list(cook.COOKERS)
    yield
    cook.COOKERS[:] = before


def raw(subflavors: dict[str, Any] | None = None, /, **parts: Any) -> RawParts:
    named = {name.replace("__", "."): value for name, value in parts.items()}
    return RawParts(__key__="k", __restore_key__=(), __subflavors__=subflavors, __sources__=None, parts=named)


def as_json(**record: object) -> bytes:
    return json.dumps(record).encode()


def asked(text: str) -> list[dict[str, str]]:
    return [{"from": "human", "value": text}, {"from": "gpt", "value": "a"}]


def pictures(sample: RawParts) -> list[bytes]:
    return [p.data for p in to_conversation(sample).pictures]


def texts(sample: RawParts) -> list[str]:
    return [turn.text for turn in to_conversation(sample).turns]


def reason_of(sample: RawParts) -> Reason:
    with pytest.raises(SampleError) as caught:
        to_conversation(sample)
    return caught.value.reason


@pytest.mark.parametrize("read", [False, True])
def test_the_format_is_told_by_the_fields(read: bool) -> None:
    """The JSON part may come as bytes or read already."""
    for record, want in [
        ({"image": "jpg", "question": "q", "answer": "a"}, ["<image>\nq", "a"]),
        ({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}, ["q", "a"]),
        ({"conversations": asked("<image>q"), "image": "x/y.jpg"}, ["<image>q", "a"]),
        ({"caption": "c"}, ["<image>", "c"]),
        ({"text": "c"}, ["<image>", "c"]),
        ({"prompt": "p", "response": "r"}, ["<image>\np", "r"]),
    ]:
        assert texts(raw(jpg=JPG, json=record if read else as_json(**record))) == want


def test_the_subflavor_names_the_format() -> None:
    record = {"image": "jpg", "text": "EXIT"}
    assert len(texts(raw(jpg=JPG, json=record))[0]) == len("<image>")  # a caption
    assert texts(raw({"format": "ocr"}, jpg=JPG, json=record))[0].startswith("<image>\nRead")
    with pytest.raises(ConfigError, match="did you mean 'captioning'"):
        to_conversation(raw({"format": "captoning"}, jpg=JPG, json=record))


def test_a_text_part_is_a_caption_or_a_text() -> None:
    assert texts(raw(jpg=JPG, txt=b" a cat\n")) == ["<image>", " a cat\n"]
    assert texts(raw(JPG=JPG, TXT="a cat")) == ["<image>", "a cat"]
    assert texts(raw(txt=b"a text")) == ["a text"]
    about = as_json(url="https://host/1.jpg", width=3, status="success")  # what a downloader leaves beside it
    assert texts(raw(jpg=JPG, txt=b"a cat", json=about)) == ["<image>", "a cat"]
    assert texts(raw(jpg=JPG, txt=b"x", json=as_json(caption="a dog"))) == ["<image>", "a dog"]
    assert reason_of(raw(jpg=JPG, txt=b"\xff")) is Reason.BAD_TEXT


def test_pictures_are_parts_by_name() -> None:
    record = as_json(image=["first.JPG", "second.jpg"], conversations=asked("<image><image>"))
    assert pictures(raw(jpg=b"1", first__jpg=b"2", second__jpg=b"3", json=record)) == [b"2", b"3"]
    lost = as_json(image=["first.jpg", "third.jpg"], conversations=asked("<image><image>"))
    assert reason_of(raw(jpg=b"1", first__jpg=b"2", json=lost)) is Reason.IMAGE_MISSING


def test_pictures_are_members_by_their_whole_name() -> None:
    record = as_json(image=["sub/K.1.jpg", "k.0.jpg"], conversations=asked("<image><image>"))
    assert pictures(raw(json=record, **{"0.jpg": b"0", "1.jpg": b"1"})) == [b"1", b"0"]


def test_one_name_means_the_only_plain_picture() -> None:
    record = as_json(image="coco/1.jpg", conversations=asked("<image>"))
    assert pictures(raw(png=b"1", json=record)) == [b"1"]
    assert reason_of(raw(first__png=b"1", json=record)) is Reason.IMAGE_MISSING
    assert reason_of(raw(png=b"1", jpg=b"2", json=record)) is Reason.IMAGE_MISSING
    assert reason_of(raw(json=record)) is Reason.IMAGE_MISSING


def test_no_name_means_all_pictures_in_order() -> None:
    record = as_json(conversations=asked("<image><image><image>"))
    assert pictures(raw(json=record, **{"10.png": b"c", "9.png": b"b", "1.jpg": b"a"})) == [b"a", b"b", b"c"]
    assert reason_of(raw(json=record, jpg=b"1")) is Reason.PLACEHOLDER_COUNT
    assert texts(raw(json=as_json(conversations=asked("q")), jpg=b"1")) == ["q", "a"]
    parts = [{"type": "image"}, {"type": "text", "text": "q"}]
    chat = [{"role": "user", "content": parts}, {"role": "assistant", "content": "a"}]
    assert pictures(raw(json=as_json(messages=chat), jpg=b"1")) == [b"1"]


def test_names_inside_a_record_win() -> None:
    parts = [{"type": "image", "image": "2.jpg"}, {"type": "image", "image": "1.jpg"}]
    chat = [{"role": "user", "content": parts}, {"role": "assistant", "content": "a"}]
    assert pictures(raw(json=as_json(messages=chat), **{"1.jpg": b"1", "2.jpg": b"2"})) == [b"2", b"1"]


def test_a_record_may_hold_its_picture() -> None:
    url = "data:image/jpeg;base64," + base64.b64encode(JPG).decode()
    parts = [{"type": "image_url", "image_url": {"url": url}}]
    chat = [{"role": "user", "content": parts}, {"role": "assistant", "content": "a"}]
    (held,) = to_conversation(raw(json=as_json(messages=chat))).pictures
    assert held == Picture(name="data:image/jpeg;base64", data=JPG)


def test_faults_of_crude_samples() -> None:
    assert reason_of(raw(jpg=JPG)) is Reason.MISSING_FIELD
    assert reason_of(raw(jpg=JPG, json=b"{")) is Reason.BROKEN_JSON
    assert reason_of(raw(json=b"[" * 100_000)) is Reason.BROKEN_JSON
    assert reason_of(raw(json=b"3")) is Reason.NOT_A_RECORD
    assert reason_of(raw(json=as_json(id=3))) is Reason.MISSING_FIELD
    decoded = raw(jpg=object(), json=as_json(image="jpg", caption="c"))
    with pytest.raises(SampleError, match=r"builtins\.object, not bytes"):
        to_conversation(decoded)


def test_a_cooker_returns_a_record() -> None:
    def by_class(parts: dict[str, Any]) -> dict[str, Any]:
        return {"image": "jpg", "question": "what?", "answer": ["cat", "dog"][parts["json"]["class"]]}

    register_cooker(by_class, {"task": "classes"})
    assert texts(raw({"task": "classes", "more": 1}, jpg=JPG, json=as_json(**{"class": 1}))) == [
        "<image>\nwhat?",
        "dog",
    ]
    assert texts(raw({"task": "other"}, jpg=JPG, txt=b"c")) == ["<image>", "c"]
    assert reason_of(raw({"task": "classes"}, jpg=JPG, json=b"{}")) is Reason.MISSING_FIELD
    assert reason_of(raw({"task": "classes"}, jpg=JPG, json=b"{")) is Reason.WRONG_TYPE


def test_a_cooker_returns_a_conversation() -> None:
    def whole(parts: dict[str, Any]) -> Conversation:
        turn = Turn(role=Role.ASSISTANT, parts=(PictureSlot(0), parts["txt"]))
        return Conversation(key="", turns=(turn,), pictures=(Picture(name="jpg", data=parts["jpg"]),))

    register_cooker(whole)
    conversation = to_conversation(raw(jpg=JPG, txt=b"a cat"))
    assert (conversation.key, conversation.turns[0].text) == ("k", "<image>a cat")


def test_a_cooker_written_for_energon_serves() -> None:
    @stateless
    def cook_vqa(sample: dict[str, Any]) -> VQASample:
        return VQASample(
            **basic_sample_keys(sample), image=sample["jpg"], context=sample["json"]["q"], answers=["a", "b"]
        )

    register_cooker(cook_vqa)
    conversation = to_conversation(raw({}, jpg=JPG, json=as_json(q="what?")))
    assert [turn.text for turn in conversation.turns] == ["<image>\nwhat?", "a"]
    assert (conversation.key, conversation.pictures[0].data) == ("k", JPG)


def test_a_cooker_that_cannot_work_is_refused() -> None:
    @cooker(need_cache=True)
    def wants_cache(sample: dict[str, Any], cache: Any) -> VQASample:
        raise NotImplementedError

    with pytest.raises(ConfigError, match="'wants_cache' needs energon's cache"):
        register_cooker(wants_cache)
    with pytest.raises(ConfigError, match="cannot be called"):
        register_cooker("cook")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="has_subflavors='a'; give a mapping"):
        register_cooker(lambda parts: parts, has_subflavors="a")  # type: ignore[arg-type]
    register_cooker(lambda parts: 3)
    assert reason_of(raw(txt=b"a")) is Reason.WRONG_TYPE
    cook.COOKERS.clear()
    register_cooker(lambda parts: raw(txt=b"a"))
    assert reason_of(raw(txt=b"a")) is Reason.WRONG_TYPE


def test_a_crude_dataset_on_disk(tmp_path: Path) -> None:
    samples = {
        "0": {"jpg": picture(0), "json": as_json(question="q", answers=["a"])},
        "1": {"JPEG": picture(1), "txt": b"caption"},
        "2": {"txt": b"text"},
        "3": {"0.png": picture(2), "1.png": picture(3), "json": as_json(conversations=asked("<image>or<image>"))},
    }
    write_dataset(tmp_path / "crude", samples, CRUDE)
    read = {c.key: c for c in map(to_conversation, read_all(tmp_path / "crude"))}
    assert {key: [turn.text for turn in c.turns] for key, c in read.items()} == {
        "0": ["<image>\nq", "a"],
        "1": ["<image>", "caption"],
        "2": ["text"],
        "3": ["<image>or<image>", "a"],
    }
    assert [p.data for p in read["3"].pictures] == [picture(2), picture(3)]
    assert {c.source for c in read.values()} == {"crude"}


def test_a_jsonl_dataset_of_energon(tmp_path: Path) -> None:
    from megatron.energon.flavors.jsonl.jsonl_prepare import JsonlPreparator

    path = tmp_path / "set.jsonl"
    path.write_text('{"prompt": "p", "response": "r"}\n{"text": "t"}\n', encoding="utf-8")
    JsonlPreparator.prepare_dataset(path)
    config = SourceConfig(path=path, repeat=False)
    read = [to_conversation(sample) for sample, _ in Source(config, stream=0, num_streams=1, on_fault=_no_fault)]
    assert sorted([turn.text for turn in c.turns] for c in read) == [["p", "r"], ["t"]]
    assert len({c.key for c in read}) == 2


def test_a_dataset_of_mmpacks_own(tmp_path: Path) -> None:
    from mmpack.convert import ConvertConfig, convert

    source = write_llava(tmp_path / "llava", 6)
    convert(ConvertConfig(src=source, dst=tmp_path / "out", image_root=source.parent / "images", split={"train": 1.0}))
    config = SourceConfig(path=tmp_path / "out", repeat=False)
    read = [to_conversation(sample) for sample, _ in Source(config, stream=0, num_streams=1, on_fault=_no_fault)]
    records = json.loads(source.read_text(encoding="utf-8"))
    want = {}
    for i, record in enumerate(records):
        names = record.get("image", [])
        files = [source.parent / "images" / name for name in ([names] if isinstance(names, str) else names)]
        want[f"{i:08d}"] = ([turn["value"] for turn in record["conversations"]], [f.read_bytes() for f in files])
    assert {c.key: ([t.text for t in c.turns], [p.data for p in c.pictures]) for c in read} == want


def _no_fault(error: Exception, name: str) -> None:
    raise AssertionError(f"{name}: {error}")
