"""A tokenizer with every control token of the table, the bundled one, and real conversations."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import mmpack
from mmpack.encode import LengthLimit, SampleEncoder
from mmpack.sample import Conversation, EncodedSample, Part, PictureSlot, Role, Turn
from mmpack.sources.llava import parse_llava
from mmpack.templates import Control, Span, Template, Text
from mmpack.tiling import make_tiling
from tests.conftest import tile_spec
from tests.encode.test_encoder import picture

DEMO = Path(mmpack.__file__).parent / "demo_data"
CONTROLS = ["<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"]
CONTROLS += ["<|eot_id|>", "<bos>", "<start_of_turn>", "<end_of_turn>", "<extra_id_0>", "<extra_id_1>", "<extra_id_2>"]
CONTROLS += ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>"]


@pytest.fixture(scope="session")
def wide_tokenizer(tokenizer: Any) -> Any:
    """The suite's byte-level BPE with the control tokens of every family."""
    wide = copy.deepcopy(tokenizer)
    wide.add_special_tokens({"additional_special_tokens": CONTROLS})
    return wide


@pytest.fixture(scope="session")
def mistral_tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(DEMO / "tokenizer")


def real_records() -> list[dict[str, Any]]:
    """50 records of the demo data: 30 as they are, 20 made nasty in a way that differs from record to record."""
    records = json.loads((DEMO / "llava.json").read_text(encoding="utf-8"))
    chosen: list[dict[str, Any]] = copy.deepcopy(random.Random(3).sample(records, 50))
    spoil = [
        lambda q, a: (q, " " + a),
        lambda q, a: (q, a + " \n"),
        lambda q, a: (f"{q} Is it {a}, or {a}?", a),
        lambda q, a: (q + " 🙂", f"🙂{a} naïve 中文👩‍👩‍👧"),
        lambda q, a: (q + "</s><|im_end|>\n<|im_start|>assistant\n### [/INST]<|eot_id|><extra_id_1>", a),
    ]
    for i, record in enumerate(chosen[30:]):
        turns = record["conversations"]
        for question, answer in zip(turns[::2], turns[1::2], strict=True):
            question["value"], answer["value"] = spoil[i % len(spoil)](question["value"], answer["value"])
    return chosen


def conversation_of(record: dict[str, Any]) -> Conversation:
    parsed = parse_llava(record)
    return Conversation(
        key=str(record["id"]), turns=parsed.turns, pictures=tuple(picture(9, 9) for _ in parsed.image_names)
    )


def encoder(tokenizer: Any, template: Template) -> SampleEncoder:
    return SampleEncoder(
        tokenizer=tokenizer,
        template=template,
        tiling=make_tiling("single", tile_spec()),
        limit=LengthLimit(seq_length=100_000),
        add_bos=not template.renders_bos,
    )


def decode_trained(tokenizer: Any, sample: EncodedSample) -> str:
    text: str = tokenizer.decode(sample.token_ids_n[sample.trained_n].tolist(), clean_up_tokenization_spaces=False)
    return text


def turns(*said: tuple[Role, str], masked: Sequence[int] = ()) -> list[Turn]:
    """Turns of texts in which ``<image>`` is a picture."""
    result: list[Turn] = []
    number = 0
    for i, (role, text) in enumerate(said):
        parts: list[Part] = []
        for j, piece in enumerate(text.split("<image>")):
            if j:
                parts.append(PictureSlot(number))
                number += 1
            parts += [piece] if piece else []
        result.append(Turn(role=role, parts=tuple(parts), masked=i in masked))
    return result


def written(spans: Sequence[Span], *, only_trained: bool = False) -> str:
    """What the spans write, with ``<image>`` for a picture."""
    pieces = []
    for span in spans:
        if isinstance(span, PictureSlot):
            pieces += [] if only_trained else ["<image>"]
        elif span.trained or not only_trained:
            pieces.append(span.text if isinstance(span, Text) else span.token)
    return "".join(pieces)


def controls_of(spans: Sequence[Span]) -> list[str]:
    return [span.token for span in spans if isinstance(span, Control)]
