"""Turns the SentencePiece model inside mistral-common into a folder that `AutoTokenizer.from_pretrained` reads.

The model file is a protobuf message of which three fields are needed, so it is read here directly: neither
sentencepiece nor protobuf nor torch has to be installed.
"""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path

MODEL = "mistral_common/data/mistral_instruct_tokenizer_241114.model.v7m1"
SPACE = "\u2581"  # SentencePiece's visible space
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4  # SentencePiece's types of pieces that text is never split into (1: normal)
ATOMS = (UNKNOWN, CONTROL, USER_DEFINED)


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """(field number, value) of a protobuf message: varints as int, the rest as bytes."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    while at < len(data):
        tag = varint()
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            yield number, varint()
            continue
        size = {1: 8, 5: 4}[wire] if wire != 2 else varint()
        yield number, data[at : at + size]
        at += size


def read_pieces(model: bytes) -> list[tuple[str, float, int]]:
    """(text, score, type) of every piece, in the order of their ids."""
    pieces = []
    for number, value in _fields(model):
        if number == 1 and isinstance(value, bytes):
            piece = dict(_fields(value))
            text, score = piece[1], piece.get(2, b"\0\0\0\0")
            assert isinstance(text, bytes)
            assert isinstance(score, bytes)
            pieces.append((text.decode(), struct.unpack("<f", score)[0], int(piece.get(3, 1))))
    return pieces


def merges_of(pieces: list[tuple[str, float, int]]) -> list[str]:
    """BPE merges that rebuild the pieces: every split into two known pieces, best score of the result first.

    The score decides, not the id: runs of spaces have low ids but the lowest score, so SentencePiece joins them last.
    """
    ids = {text: i for i, (text, _, kind) in enumerate(pieces) if kind == 1}
    ranked = []
    for text, i in ids.items():
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in ids and right in ids:
                ranked.append((-pieces[i][1], i, ids[left], ids[right], f"{left} {right}"))
    return [merge for *_, merge in sorted(ranked)]


def tokenizer_json(model: bytes) -> dict[str, object]:
    """The tokenizer in the format of the `tokenizers` library.

    SentencePiece would put a space before the text and take it away when decoding. That is left out, so that text
    survives encoding and decoding unchanged and pieces of a conversation can be tokenised one by one.
    """
    pieces = read_pieces(model)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [{"id": i, "content": t, **flags} for i, (t, _, kind) in enumerate(pieces) if kind in ATOMS]
    bpe: dict[str, object] = {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None}
    bpe |= {"end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False}
    bpe |= {"vocab": {text: i for i, (text, _, _) in enumerate(pieces)}, "merges": merges_of(pieces)}
    decoders = [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "never", "split": False},
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [*decoders, {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": bpe,
    }


def write_tokenizer(wheel: zipfile.ZipFile, out: Path) -> None:
    """Writes tokenizer.json (minified) and tokenizer_config.json into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    body = json.dumps(tokenizer_json(wheel.read(MODEL)), ensure_ascii=False, separators=(",", ":"))
    (out / "tokenizer.json").write_text(body + "\n", encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "<unk>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 32768,
        "padding_side": "right",
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
