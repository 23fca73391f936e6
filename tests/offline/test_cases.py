"""Files as they come: byte order marks, gzip, cut and blank lines, odd separators, every form through the whole way."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from mmpack.errors import ConfigError
from mmpack.offline import PackConfig, PackedStore, PackReport, pack_dataset
from tests.offline.texts import bpe_tokenizer, mistral_tokenizer

FOUR = [{"prompt": f"Question {i}?", "response": f"Answer {i}."} for i in range(4)]
FOUR_LINES = "".join(json.dumps(line) + "\n" for line in FOUR).encode()


def pack(folder: Path, content: bytes, name: str = "in.jsonl", **options: Any) -> PackReport:
    path = folder / name
    path.write_bytes(content)
    tokenizer = options.pop("tokenizer", bpe_tokenizer())
    values: dict[str, Any] = {"packed_sequence_size": 512} | options
    return pack_dataset(PackConfig(input_path=path, output_path=folder / "out", **values), tokenizer)


def learned(folder: Path, tokenizer: Any = None) -> list[str]:
    """For each record that was kept, in the order of the file, each stretch that is learned."""
    tokenizer = tokenizer or bpe_tokenizer()
    found: dict[int, list[str]] = {}
    for row in PackedStore.open(folder / "out"):
        for number, (start, end) in zip(row.record_ids, itertools.pairwise(row.seq_bounds), strict=True):
            runs: list[list[int]] = []
            for place in range(start, end - 1):
                if not row.loss_mask[place]:
                    continue
                if place == start or not row.loss_mask[place - 1]:
                    runs.append([])
                runs[-1].append(int(row.input_ids[place + 1]))
            found[int(number)] = [tokenizer.decode(run, clean_up_tokenization_spaces=False) for run in runs]
    return [text for number in sorted(found) for text in found[number]]


ANSWERS = [f"Answer {i}.</s>" for i in range(4)]


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (FOUR_LINES, "in.jsonl"),
        (b"\xef\xbb\xbf" + FOUR_LINES, "in.jsonl"),
        (gzip.compress(FOUR_LINES, mtime=0), "in.jsonl.gz"),
        (gzip.compress(b"\xef\xbb\xbf" + FOUR_LINES.replace(b"\n", b"\r\n\n"), mtime=0), "in.jsonl.gz"),
        (json.dumps(FOUR, indent=1).encode(), "in.json"),
        (FOUR_LINES.rstrip(b"\n"), "in.jsonl"),
    ],
)
def test_readable_files(tmp_path: Path, content: bytes, name: str) -> None:
    report = pack(tmp_path, content, name)
    assert (report.num_sequences, report.skipped) == (4, {})
    assert learned(tmp_path) == ANSWERS


def test_a_cut_last_line_is_counted(tmp_path: Path) -> None:
    for name, content in (("in.jsonl", FOUR_LINES[:-9]), ("in.jsonl.gz", gzip.compress(FOUR_LINES[:-9]))):
        (tmp_path / name).mkdir()
        report = pack(tmp_path / name, content, name)
        assert (report.num_sequences, report.skipped) == (3, {"broken_json": 1})
        assert report.examples == {"broken_json": ["line 4"]}


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (gzip.compress(FOUR_LINES, mtime=0), "in.jsonl", "gzip"),
        (gzip.compress(FOUR_LINES * 900, mtime=0)[:-30], "in.jsonl.gz", "not a whole gzip file"),
        (FOUR_LINES, "in.jsonl.gz", "not a whole gzip file"),
        (b"", "in.jsonl", "empty"),
        (b"\n\n \n", "in.jsonl", "in.jsonl"),
        (gzip.compress(b"\n\n", mtime=0), "in.jsonl.gz", "no samples"),
        ('{"a": 1}\n'.encode("utf-16"), "in.jsonl", "UTF-16"),
        (b'{"a": 1}\n', "in.jsonl", "none of 1 records"),
    ],
)
def test_unreadable_files(tmp_path: Path, content: bytes, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        pack(tmp_path, content, name)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_lines_end_at_line_feeds_only(tmp_path: Path) -> None:
    records = [{"prompt": f"a{mark}b", "response": f"x{mark}y"} for mark in ("\u2028", "\u2029", "\x85", "\x0b")]
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    pack(tmp_path, lines.encode())
    assert learned(tmp_path) == [record["response"] + "</s>" for record in records]


def test_escapes_blanks_and_markers(tmp_path: Path) -> None:
    lines = [
        '{"prompt": "\\u00e9\\ud83d\\ude00", "response": "\\u2764\\ufe0f"}',
        '{"prompt": "  def f():\\n", "response": "    return 1\\n"}',
        '{"prompt": "Explain </s> and <eos>.", "response": "</s> ends a text. <pad> fills."}',
    ]
    report = pack(tmp_path, "\n".join(lines).encode())
    assert report.num_sequences == 3
    wanted = ["\u2764\ufe0f</s>", "    return 1\n</s>", "</s> ends a text. <pad> fills.</s>"]
    assert learned(tmp_path) == wanted
    ids = [token for row in PackedStore.open(tmp_path / "out") for token in row.input_ids.tolist()]
    assert ids.count(bpe_tokenizer().eos_token_id) == 3


def test_a_prompt_that_fills_the_window(tmp_path: Path) -> None:
    lines = [{"prompt": "long " * 600, "response": "short"}, {"prompt": "a", "response": "b"}]
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    report = pack(tmp_path, content, packed_sequence_size=256)
    assert (report.num_sequences, report.skipped) == (1, {"oversize": 1})
    assert learned(tmp_path) == ["b</s>"]
    report = pack(tmp_path, content, packed_sequence_size=256, oversize="truncate", overwrite=True)
    assert (report.num_sequences, report.truncated) == (2, 1)
    assert learned(tmp_path) == ["short</s>", "b</s>"]


MESSAGES: list[Any] = [
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]},
    {"messages": []},
    {"messages": None},
    {"msgs": []},
    {"messages": [{"role": "user", "content": "Only me"}]},
    {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": " b\n"},
            {"role": "user", "content": "c"},
            {"role": "assistant", "content": "d"},
        ]
    },
    {"messages": [{"role": "user", "content": "a"}, {"role": "wizard", "content": "b"}]},
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": None}]},
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "  "}]},
    {
        "messages": [
            {"role": "user", "content": "weather?"},
            {"role": "assistant", "tool_calls": [{"function": {"name": "look", "arguments": '{"at": "Rome"}'}}]},
        ],
        "tools": [{"name": "look"}],
    },
]


def test_messages_with_bad_lines(tmp_path: Path) -> None:
    content = "".join(json.dumps(record) + "\n" for record in MESSAGES).encode()
    report = pack(tmp_path, content)
    assert report.record_format == "openai"
    assert report.num_sequences == 3
    assert sum(report.skipped.values()) == 7
    assert sorted(place for places in report.examples.values() for place in places) == [
        f"line {number}" for number in (2, 3, 4, 5, 7, 8, 9)
    ]
    call = '{"name": "look", "arguments": {"at": "Rome"}}'
    assert learned(tmp_path) == [f"{text}<|im_end|>" for text in ("Hello", " b\n", "d", call)]


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ m['content'] }}<|im_end|>{% endif %}\n{% endfor %}"
)


def test_the_tokenizers_own_template(tmp_path: Path) -> None:
    import copy

    tokenizer = copy.deepcopy(bpe_tokenizer())
    tokenizer.chat_template = CHATML
    messages = MESSAGES[5]
    pack(tmp_path, json.dumps(messages).encode() + b"\n", tokenizer=tokenizer)
    assert learned(tmp_path, tokenizer) == [" b\n<|im_end|>", "d<|im_end|>"]
    row = PackedStore.open(tmp_path / "out")[0]
    assert tokenizer.decode(row.input_ids) == tokenizer.apply_chat_template(messages["messages"], tokenize=False)
    # a template without marks around answers: they are found by rendering, not refused and not all learned
    plain = copy.deepcopy(bpe_tokenizer())
    plain.chat_template = CHATML.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    (tmp_path / "plain").mkdir()
    pack(tmp_path / "plain", json.dumps(messages).encode() + b"\n", tokenizer=plain)
    assert learned(tmp_path / "plain", plain) == [" b\n<|im_end|>", "d<|im_end|>"]


def test_sharegpt_and_pictures(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}]
    lines = [
        {"conversations": turns},
        {"conversations": [{"from": "human", "value": "<image>"}, turns[1]], "image": "a"},
    ]
    report = pack(tmp_path, "".join(json.dumps(line) + "\n" for line in lines).encode())
    assert (report.record_format, report.skipped) == ("sharegpt", {"image_unsupported": 1})
    assert learned(tmp_path) == ["yo<|im_end|>"]


def test_nemo_chat_with_the_bundled_tokenizer(tmp_path: Path) -> None:
    turns = [("User", "hi"), ("Assistant", "yo"), ("User", "q2"), ("Assistant", "a2")]
    record = {"system": "sys", "mask": "User", "conversations": [{"from": a, "value": b} for a, b in turns]}
    content = json.dumps(record).encode() + b"\n"
    report = pack(tmp_path, content, tokenizer=mistral_tokenizer())
    assert report.record_format == "nemo_chat"
    texts = [text.strip() for text in learned(tmp_path, mistral_tokenizer())]
    assert texts == ["yo\n<extra_id_1>", "a2\n<extra_id_1>"]
    for wanted in ("chat", "nemo-chat"):
        report = pack(tmp_path, content, record_format=wanted, tokenizer=mistral_tokenizer(), overwrite=True)
        assert report.record_format == "nemo_chat"
