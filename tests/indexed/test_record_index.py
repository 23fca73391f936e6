"""Where records begin: against the reader that parses everything, on files cut and broken in every way."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmpack.errors import ConfigError
from mmpack.indexed import record_index
from mmpack.indexed.json_list import ListScanner
from mmpack.indexed.record_index import index_records
from mmpack.sources.json_files import read_records

VALUES: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.sampled_from(["\\", '"', '\\"', "[", "}", ",", '{"a":1}']),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def records_of(path: Path) -> list[bytes]:
    index, content = index_records(path), path.read_bytes()
    return [content[start : start + size] for start, size in (index.span(i) for i in range(len(index)))]


@settings(max_examples=200, deadline=None)
@given(
    values=st.lists(VALUES, min_size=1, max_size=6),
    indent=st.sampled_from([None, 1]),
    ascii_only=st.booleans(),
    chunk=st.integers(1, 40),
    bom=st.booleans(),
)
def test_elements_of_a_list(
    tmp_path_factory: pytest.TempPathFactory,
    values: list[Any],
    indent: int | None,
    ascii_only: bool,
    chunk: int,
    bom: bool,
) -> None:
    text = json.dumps(values, indent=indent, ensure_ascii=ascii_only)
    data = text.encode("utf-8", "surrogatepass")
    scanner = ListScanner(3 if bom else 0)
    for start in range(0, len(data), chunk):
        scanner.feed(data[start : start + chunk])
    starts = scanner.finish()
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:  # half a surrogate pair, written raw
        assert starts is None
        return
    assert starts is not None
    whole = b"\xef\xbb\xbf" * bom + data
    got = [
        json.loads(whole[a : b - 1].decode()) for a, b in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
    ]
    assert got == values


@settings(max_examples=200, deadline=None)
@given(
    lines=st.lists(
        st.sampled_from([b'{"a": 1}', b"", b"  ", b"\t", b"\r", b" {}", b"{broken", b"\t[1]\r", b"7"]), max_size=12
    ),
    chunk=st.integers(1, 12),
    end=st.sampled_from([b"", b"\n", b"\r\n", b"\n \n"]),
    bom=st.booleans(),
)
def test_lines(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], chunk: int, end: bytes, bom: bool) -> None:
    path = tmp_path_factory.mktemp("lines") / "records.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" * bom + b"\n".join([b'{"first": 0}', *lines]) + end)
    before = record_index._CHUNK_BYTES
    record_index._CHUNK_BYTES = chunk
    try:
        got = records_of(path)
    finally:
        record_index._CHUNK_BYTES = before
    wanted = list(read_records(path))
    assert len(got) == len(wanted)
    for own, record in zip(got, wanted, strict=True):
        if record.error is None:
            assert json.loads(own.strip(b" \t\r\n")) == record.data
        else:
            assert own.strip(b" \t\r\n") == b"{broken"


GOOD = b'{"id": 1}'


@pytest.mark.parametrize(
    "content",
    [
        json.dumps([1]).encode("utf-16"), json.dumps([1]).encode("utf-16-le"), json.dumps([1]).encode("utf-16-be"),
        json.dumps([1]).encode("utf-32"), b"\x1f\x8b\x08", b"[1, 2", b"[1,\n]", b"[1] [2]", b"[" * 100_000,
        b'{"a":' * 100_000, b'{\n"a": 1\n}', b"", b" \n ", b'["\xe9"]', b"[]", b"[ ]", b"[1,,2]", b'["a\nb"]',
        b'[{"a": "b]', b'[{"a": "b\\"}]', b"[1]x", b"<html>", b'[{"id": 1}, {"id": "\xc3',
    ],
    ids=lambda content: repr(content[:14]),
)  # fmt: skip
def test_an_unusable_file_is_refused_in_the_same_words(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "records"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as expected:
        list(read_records(path))
    with pytest.raises(ConfigError) as got:
        index_records(path)
    assert str(got.value) == str(expected.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        index_records(tmp_path / "nothing.json")


def test_a_list_longer_than_a_chunk(tmp_path: Path) -> None:
    records = [{"id": i, "text": 'quoted \\" and [braces}, ' * (i % 50)} for i in range(4000)]
    path = tmp_path / "records.json"
    path.write_text(json.dumps(records))
    assert os.stat(path).st_size > 2 * record_index._CHUNK_BYTES
    assert [json.loads(record) for record in records_of(path)] == records
