"""A list parsed piece by piece is what the whole file is."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmpack.errors import ConfigError
from mmpack.sources import json_list
from mmpack.sources.json_list import Element, scan_list
from tests.fuzzing import fuzz

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture(params=[3, 64, 1 << 18])
def chunk_bytes(request: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(json_list, "_CHUNK_BYTES", request.param)
    return int(request.param)


def scan(data: bytes) -> list[Element]:
    return list(scan_list(io.BytesIO(data), 0, "file", 1 << 20))


@fuzz(40)
@given(values=st.lists(VALUES, min_size=1, max_size=8), indent=st.sampled_from([None, 0, 2]), ascii_only=st.booleans())
def test_elements_and_their_bytes(chunk_bytes: int, values: list[Any], indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(values, indent=indent, ensure_ascii=ascii_only)
    data = ("\r\n " + text + " \n").encode("utf-8", "replace")
    values = json.loads(data)
    found = scan(data)
    assert repr([element.value for element in found]) == repr(values)  # NaN equals itself here
    assert [repr(json.loads(data[e.start : e.start + e.size])) for e in found] == [repr(value) for value in values]


@fuzz(150)
@given(data=st.data())
def test_damaged_text_is_refused_where_the_parser_refuses_the_whole(chunk_bytes: int, data: st.DataObject) -> None:
    values = data.draw(st.lists(VALUES, min_size=1, max_size=5))
    text = bytearray(json.dumps(values, indent=1, ensure_ascii=False).encode("utf-8", "replace"))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(text)))
        kind = data.draw(st.sampled_from(["cut", "put", "drop"]))
        if kind == "cut":
            del text[place:]
        elif kind == "put":
            text[place:place] = data.draw(st.binary(min_size=1, max_size=3))
        else:
            del text[place : place + data.draw(st.integers(1, 4))]
    whole, place_of_fault = whole_file(bytes(text))
    if isinstance(whole, list) and whole:
        assert repr([element.value for element in scan(bytes(text))]) == repr(whole)
        return
    with pytest.raises(ConfigError) as caught:
        scan(bytes(text))
    if bytes(text).lstrip(b" \t\r\n")[:1] == b"[":
        assert place_of_fault in str(caught.value)


def whole_file(data: bytes) -> tuple[Any, str]:
    """What Python's parser makes of all of it, and where it met a fault; "" where that cannot be compared."""
    try:
        return json.loads(data.decode("utf-8")), ""
    except json.JSONDecodeError as error:
        comparable = "trailing comma" not in error.msg  # later Pythons point at the comma
        return None, f"line {error.lineno} column {error.colno}" if comparable else ""
    except ValueError:
        return None, ""


def test_a_record_that_is_too_large_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_list, "_CHUNK_BYTES", 1000)
    with pytest.raises(ConfigError, match=r"line 1 column 4: a record of more than 5000 characters"):
        list(scan_list(io.BytesIO(b'[1,"' + b"a" * 100_000 + b'"]'), 0, "file", 5000))


def test_a_quote_too_many_does_not_swallow_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_list, "_CHUNK_BYTES", 1000)
    records = b",\n".join(b'{"a": "b"}' for _ in range(10_000))
    broken = b'[{"a": "b"",}' + records + b"]"
    file = io.BytesIO(broken)
    with pytest.raises(ConfigError, match="line 1"):
        list(scan_list(file, 0, "file", 1 << 20))
