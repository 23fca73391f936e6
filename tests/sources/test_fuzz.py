"""Whatever a record or a file holds: a sample, a reason, or one clear error, and never anything else."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmpack.errors import ConfigError, Reason, SampleError
from mmpack.readers.rows import checked_row
from mmpack.sample import PictureSlot, Role
from mmpack.sources import SOURCES, detect, parser_for
from mmpack.sources.json_files import read_records, scan_records
from tests.fuzzing import fuzz

TEXTS = st.sampled_from(
    ["", " ", "a", "<image>", "x<image>y<image>", "\ud83d", "\0", "\u2028", "data:,x", "../a"]
) | st.text(max_size=6)
NAMES = """
id image images conversations messages from value role content type text image_url url path weight tools name tool_calls
function arguments system question context answer answers answer_weights choices correct_choice_idx caption lines_text
words_text sequence texts prompt response input output image_source
"""
FIELDS = st.sampled_from(NAMES.split())
ROLES = st.sampled_from(["human", "gpt", "user", "assistant", "system", "tool", "Human ", "?", ""])
LEAVES = st.none() | st.booleans() | st.integers(-2, 3) | st.floats(allow_nan=True) | TEXTS | ROLES
VALUES = st.recursive(LEAVES, lambda v: st.lists(v, max_size=4) | st.dictionaries(FIELDS, v, max_size=5), max_leaves=25)
TURN = st.fixed_dictionaries({}, optional={"from": ROLES | VALUES, "value": TEXTS | VALUES})
MESSAGE = st.fixed_dictionaries(
    {"role": ROLES}, optional={"content": TEXTS | VALUES, "weight": VALUES, "tool_calls": VALUES}
)
RECORDS = VALUES | st.fixed_dictionaries(
    {},
    optional={
        "image": TEXTS | VALUES,
        "images": VALUES,
        "conversations": st.lists(TURN, max_size=4) | VALUES,
        "messages": st.lists(MESSAGE, max_size=4) | VALUES,
        "question": TEXTS | VALUES,
        "answer": TEXTS | VALUES,
        "answers": VALUES,
        "choices": st.lists(TEXTS, max_size=3) | VALUES,
        "caption": TEXTS | VALUES,
        "sequence": VALUES,
        "prompt": TEXTS | VALUES,
        "response": TEXTS | VALUES,
        "tools": VALUES,
    },
)


@pytest.mark.parametrize("name", [*SOURCES, "auto"])
@fuzz(60)
@given(record=RECORDS)
def test_a_record_is_a_sample_or_has_a_reason(name: str, record: Any) -> None:
    before = repr(record)
    error: SampleError | None = None
    try:
        parsed = parser_for(name)(record)
    except SampleError as met:
        error = met
    if error is not None:
        assert error.reason in Reason
        assert "\n" not in error.detail
        assert len(error.detail) < 1000
    else:
        slots = [part.index for turn in parsed.turns for part in turn.parts if isinstance(part, PictureSlot)]
        assert slots == list(range(len(parsed.image_names)))
        assert any(turn.trained and turn.text.strip() for turn in parsed.turns)
        assert all(turn.role is not Role.SYSTEM for turn in parsed.turns[1:])
        for turn in parsed.turns:
            turn.text.encode("utf-8")
    assert repr(record) == before
    assert detect(record) is None or detect(record) in SOURCES


@fuzz(150)
@given(data=st.data())
def test_a_file_is_records_or_one_error(data: st.DataObject, tmp_path: Path) -> None:
    entries = data.draw(st.lists(RECORDS, max_size=5))
    lines = [json.dumps(entry).encode() for entry in entries]
    joined = {"lines": b"\n".join(lines), "list": b"[" + b",\n".join(lines) + b"]"}
    content = bytearray(joined[data.draw(st.sampled_from(sorted(joined)))])
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(0, len(content)))
        content[place : place + data.draw(st.integers(0, 2))] = data.draw(
            st.sampled_from([b"", b"\n", b'"', b"{", b"[", b"]", b"\xff", b"\xef\xbb\xbf", b"\0", b"\r", b","])
        )
    path = tmp_path / "file"
    path.write_bytes(content)
    try:
        records = list(read_records(path))
    except ConfigError:
        with pytest.raises(ConfigError, match=re.escape(str(path))):
            list(scan_records(path))
        return
    for record, found in zip(records, scan_records(path), strict=True):
        assert repr(record.data) == repr(found.record.data)
        assert record.place == found.record.place
        if record.error is None:
            assert repr(json.loads(content[found.start : found.start + found.size])) == repr(record.data)
        else:
            assert record.error.reason is Reason.BROKEN_JSON


CELLS = st.recursive(
    LEAVES | st.binary(max_size=4) | st.dates() | st.decimals(),
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.sampled_from(["bytes", "path", "a"]), v, max_size=3),
    max_leaves=8,
)


@fuzz(150)
@given(row=st.dictionaries(st.sampled_from(["image", "images", "jpg", "conversations", "id", "a"]), CELLS, max_size=5))
def test_a_row_is_a_record_of_plain_values_with_its_pictures(row: dict[str, Any]) -> None:
    try:
        record, pictures = checked_row(row)
    except SampleError:
        return
    json.dumps(record, allow_nan=False)
    assert all(isinstance(picture, bytes) for picture in pictures.values())
