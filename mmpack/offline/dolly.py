"""Dolly's records (instruction, context, response, category) -> prompt-response JSONL, as NeMo-Aligner makes it."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path

from mmpack.errors import ConfigError, Reason, SampleError
from mmpack.offline.files import whole_file
from mmpack.offline.lines import read_text_records
from mmpack.offline.records import text_field


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """What a preparation wrote."""

    paths: dict[str, Path]  # split -> file
    kept: dict[str, int]  # split -> records
    skipped: dict[str, int]  # reason -> records
    examples: dict[str, list[str]]  # reason -> the first places


@dataclass(slots=True)
class Skips:
    """Records left out: how many for each reason, and the places of the first five."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, reason: str, place: str) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + 1
        if self.counts[reason] <= 5:
            self.examples.setdefault(reason, []).append(place)

    def __str__(self) -> str:
        return ", ".join(f"{count} {reason}" for reason, count in self.counts.items())


def dolly_record(record: object, *, context_first: bool) -> dict[str, str]:
    """One record as input, output and category. Raises SampleError for one that cannot be used.

    >>> dolly_record({"instruction": "Who?", "context": "Ada.", "response": "Ada"}, context_first=True)
    {'input': 'Ada.\\n\\nWho?', 'output': 'Ada'}
    """
    if not isinstance(record, dict):
        raise SampleError(Reason.NOT_A_RECORD, f"a record is an object, this is a {type(record).__name__}")
    instruction, response = text_field(record, "instruction"), text_field(record, "response")
    context = text_field(record, "context") if record.get("context") is not None else ""
    if not response.strip():
        raise SampleError(Reason.NO_ANSWER, "'response' is blank")
    parts = (
        [instruction] if not context.strip() else [context, instruction] if context_first else [instruction, context]
    )
    prepared = {"input": "\n\n".join(parts), "output": response}
    if record.get("category") is not None:
        prepared["category"] = text_field(record, "category")
    return prepared


def prepare_dolly(input_path: Path, output_path: Path | None = None, *, seed: int = 0) -> Prepared:
    """Writes ``<stem>-output.jsonl`` beside the input, whole or not at all.

    Whether a record's context stands before or behind its instruction is drawn by `seed`, one draw a record.

    Raises:
        ConfigError: the file cannot be read, or has no usable record.
    """
    name = input_path.name.removesuffix(".gz")
    target = output_path or input_path.with_name(f"{Path(name).stem}-output.jsonl")
    draw = random.Random(seed)
    skips = Skips()
    kept = 0
    with whole_file(target) as file:
        for record in read_text_records(input_path):
            context_first = draw.random() < 0.5
            try:
                if record.error is not None:
                    raise record.error
                line = dolly_record(record.data, context_first=context_first)
            except SampleError as error:
                skips.add(error.reason.value, record.place)
                continue
            file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
            kept += 1
        if not kept:
            raise ConfigError(f"{input_path}: no record has instruction and response ({skips})")
    return Prepared(paths={"all": target}, kept={"all": kept}, skipped=skips.counts, examples=skips.examples)
