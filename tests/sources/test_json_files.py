"""Files of records: what a file is, and where it is broken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmpack.errors import ConfigError
from mmpack.sources import json_files
from mmpack.sources.json_files import read_records, scan_records

GOOD = json.dumps({"id": 1}).encode()


def read(folder: Path, content: bytes) -> list[tuple[str, object, str | None]]:
    path = folder / "records"
    path.write_bytes(content)
    return [(r.place, r.data, r.error.reason.value if r.error else None) for r in read_records(path)]


def test_lists_and_lines_by_content(tmp_path: Path) -> None:
    assert read(tmp_path, b"\xef\xbb\xbf [" + GOOD + b"]") == [("entry 1", {"id": 1}, None)]
    assert read(tmp_path, b"\xef\xbb\xbf\r\n" + GOOD + b"\r\n\r\n" + GOOD) == [
        ("line 2", {"id": 1}, None),
        ("line 4", {"id": 1}, None),
    ]


def test_files_put_together_keep_their_byte_order_marks_apart(tmp_path: Path) -> None:
    one = b"\xef\xbb\xbf" + GOOD + b"\n"
    assert read(tmp_path, one + one) == [("line 1", {"id": 1}, None), ("line 2", {"id": 1}, None)]
    for found in scan_records(tmp_path / "records"):
        assert (tmp_path / "records").read_bytes()[found.start : found.start + found.size].strip() == GOOD


def test_a_line_that_is_too_long_is_one_bad_record_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_files, "MAX_RECORD_BYTES", 50)
    for length in range(40, 160):
        long = b'"' + b"a" * length + b'"'
        got = read(tmp_path, GOOD + b"\n" + long + b"\n" + GOOD)
        expected = None if len(long) <= 50 else "broken_json"
        assert [reason for _, _, reason in got] == [None, expected, None]
        assert [place for place, _, _ in got] == ["line 1", "line 2", "line 3"]


@pytest.mark.parametrize("broken", [b'{"id": ', b'{"id": "\xe9"}', b'{"a":' * 100_000])
def test_a_broken_line_is_one_bad_record_wherever_it_stands(tmp_path: Path, broken: bytes) -> None:
    for place in range(3):
        lines = [GOOD, GOOD]
        lines.insert(place, broken)
        got = read(tmp_path, b"\n".join(lines))
        assert [reason for _, _, reason in got] == [("broken_json" if i == place else None) for i in range(3)]


def test_separators_inside_a_string_do_not_end_a_line(tmp_path: Path) -> None:
    line = json.dumps({"x": "a\u2028b\u0085c"}, ensure_ascii=False).encode()
    assert read(tmp_path, line + b"\n" + GOOD) == [("line 1", json.loads(line), None), ("line 2", {"id": 1}, None)]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (json.dumps([1]).encode("utf-16"), "UTF-16"),
        (json.dumps([1]).encode("utf-16-le"), "UTF-16-LE"),
        (json.dumps([1]).encode("utf-16-be"), "UTF-16-BE"),
        (json.dumps([1]).encode("utf-32"), "UTF-32"),
        (b"\x1f\x8b\x08", "gzip"),
        (b"[1, 2", "line 1 column 6.*cut"),
        (b"[1,\n]", "line 2 column 1"),
        (b"[1] [2]", "line 1 column 5"),
        (b"[" * 100_000, "too deeply"),
        (b'{"a":' * 100_000, "neither a JSON list nor JSON lines: line 1"),
        (b'{\n"a": 1\n}', "holds one dict"),
        (b"", "is empty"),
        (b" \n ", "is empty"),
        (b'["\xe9"]', "byte 2"),
    ],
)
def test_a_fault_of_the_file_names_file_and_place(tmp_path: Path, content: bytes, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        read(tmp_path, content)
    assert "records" in str(caught.value)
