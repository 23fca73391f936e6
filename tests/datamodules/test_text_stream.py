"""Text records as an indexed data set: in the window, and in one pack with image-text samples."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from mmpack.batch import IGNORE_INDEX, PackedBatch
from mmpack.collate import Collator
from mmpack.datamodules.text_form import TextForm
from mmpack.datamodules.text_stream import TextFile
from mmpack.encode import LengthLimit, SampleEncoder
from mmpack.errors import ConfigError, Reason, SampleError
from mmpack.indexed import LlavaFile, OpenIndexed, open_pictures
from mmpack.layout import Layout
from mmpack.stream import PackStream, StreamConfig
from mmpack.stream.mixed import OpenMix
from mmpack.templates import make_template
from mmpack.tiling import make_tiling
from tests.conftest import tile_spec, write_llava
from tests.llm.texts import prompt_response, write_jsonl


def mixed_stream(text: Path, llava: Path, tokenizer: Any) -> PackStream[PackedBatch]:
    """Text and pictures, two thirds of the tokens text, in packs of 384."""
    tiling = make_tiling("single", tile_spec())
    encoder = SampleEncoder(
        tokenizer=tokenizer,
        template=make_template("v1"),
        tiling=tiling,
        limit=LengthLimit(seq_length=384, oversize="drop"),
    )
    sources = (
        OpenIndexed(datasets=(TextFile(text, TextForm(), tokenizer, seq_length=384),), repeat=False),
        OpenIndexed(datasets=(LlavaFile(llava, pictures=open_pictures(llava.parent / "images")),), repeat=False),
    )
    return PackStream(
        StreamConfig(capacity=384, packing_buffer_size=40),
        OpenMix(sources=sources, weights=(2, 1), unit="tokens", encoder=encoder),
        encoder,
        Collator(tiling=tiling, layout=Layout()),
        stream=0,
        num_streams=1,
    )


@pytest.fixture
def sets(tmp_path: Path) -> tuple[Path, Path]:
    return write_jsonl(tmp_path / "text.jsonl", prompt_response(150)), write_llava(tmp_path / "llava", 40)


def test_text_and_pictures_meet_in_one_pack(sets: tuple[Path, Path], tokenizer: Any) -> None:
    stream = mixed_stream(*sets, tokenizer)
    records = [json.loads(line) for line in sets[0].read_text().splitlines()]
    batches = [batch.check() for batch in stream]
    both = [batch for batch in batches if set(batch.sources) == {"text", "llava"} and batch.pixels.shape[0]]
    assert len(both) > 10  # until the pictures have all come
    seen = []
    for batch in batches:
        bounds = batch.cu_seqlens_padded.tolist()
        for key, source, start, end in zip(batch.sample_keys, batch.sources, bounds, bounds[1:], strict=False):
            seen.append((source, key))
            if source == "text":
                labels = batch.labels[0, start:end]
                text = tokenizer.decode(labels[labels != IGNORE_INDEX].tolist())
                assert text == records[int(key)]["output"] + "</s>"
    assert len(set(seen)) == len(seen) == 190
    assert all(batch.num_real_tokens == 384 for batch in batches[:10])


def test_a_mixed_stream_goes_on_where_it_stood(sets: tuple[Path, Path], tokenizer: Any) -> None:
    whole = list(mixed_stream(*sets, tokenizer))
    for place in (0, 4, len(whole) - 2):
        resumed = mixed_stream(*sets, tokenizer)
        resumed.restore(whole[place].stream_state)
        rest = [(batch.sources, batch.sample_keys, batch.tokens.tolist()) for batch in resumed]
        assert rest == [(b.sources, b.sample_keys, b.tokens.tolist()) for b in whole[place + 1 :]]


@pytest.mark.parametrize("ending", ["jsonl", "json", "jsonl.gz"])
def test_every_kind_of_file_gives_the_same_samples(tmp_path: Path, tokenizer: Any, ending: str) -> None:
    records = prompt_response(9)
    path = tmp_path / f"data.{ending}"
    lines = "".join(json.dumps(record) + "\n\n" for record in records)
    if ending == "json":
        path.write_text(json.dumps(records))
    else:
        path.write_bytes(gzip.compress(lines.encode()) if ending.endswith("gz") else lines.encode())
    data = TextFile(path, TextForm(), tokenizer, seq_length=256)
    assert (len(data), data.name, data.record_format) == (9, "data", "prompt_response")
    for index, record in enumerate(records):
        sample = data.sample(index)
        assert tokenizer.decode(sample.token_ids_n[sample.trained_n].tolist()) == record["output"] + "</s>"


def test_bad_records_are_named(tmp_path: Path, tokenizer: Any) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"input": "a", "output": "b"}\n{"input": \n{"input": "a", "output": " "}\n')
    data = TextFile(path, TextForm(), tokenizer, seq_length=64)
    for index, reason in ((1, Reason.BROKEN_JSON), (2, Reason.NO_ANSWER)):
        with pytest.raises(SampleError) as caught:
            data.sample(index)
        assert (caught.value.reason, caught.value.key) == (reason, f"{index:08d}")


def test_a_description_tells_data_and_form_apart(tmp_path: Path, tokenizer: Any) -> None:
    path, other = (
        write_jsonl(tmp_path / "a.jsonl", prompt_response(5)),
        write_jsonl(tmp_path / "b.jsonl", prompt_response(6)),
    )
    one = TextFile(path, TextForm(), tokenizer, seq_length=64).describe()
    assert one == TextFile(path, TextForm(), tokenizer, seq_length=64).describe()
    assert one != TextFile(other, TextForm(), tokenizer, seq_length=64).describe()
    assert one != TextFile(path, TextForm.of({"add_eos": False}), tokenizer, seq_length=64).describe()


def test_forms_are_read_from_nemo_s_names() -> None:
    form = TextForm.of({"chat": True, "special_tokens": {"turn_start": "<t>"}, "oversize": "skip", "add_bos": True})
    assert (form.record_format, form.chat_tokens.turn_start, form.oversize) == ("chat", "<t>", "drop")
    assert form.prompt.add_bos
    assert TextForm.from_plain(json.loads(json.dumps(form.to_plain()))) == form
    with pytest.raises(ConfigError, match="truncation_method"):
        TextForm.of({"truncation_method": "middle"})
