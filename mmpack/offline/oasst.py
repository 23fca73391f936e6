"""OpenAssistant's message trees -> NeMo's chat records, every way from a root to an answer at a leaf.

A line of the trees' file is ``{"message_tree_id", "prompt": message}``; a message has ``"text"``, ``"role"``
(prompter or assistant), ``"replies"``, and may have ``"labels"``, a mapping of names to ``{"value": 0 to 1}``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mmpack.errors import ConfigError, Reason, SampleError
from mmpack.offline.dolly import Prepared, Skips
from mmpack.offline.files import whole_file
from mmpack.offline.lines import read_text_records
from mmpack.offline.records import text_field

SPEAKERS = {"prompter": "User", "assistant": "Assistant"}
LABELS = ("quality", "toxicity", "humor", "creativity", "violence", "helpfulness", "not_appropriate")
LABEL_STEPS = 4  # a label's value from 0 to 1 becomes a whole number from 0 to this


def label_text(labels: Mapping[str, Any]) -> str | None:
    """The labels of a message as text, or None if it has none of `LABELS`.

    >>> label_text({"quality": {"value": 0.9}, "toxicity": {"value": 0.1}, "spam": {"value": 0.0}})
    'quality:4,toxicity:0'
    """
    parts = []
    for name in LABELS:
        entry = labels.get(name)
        value = entry.get("value") if isinstance(entry, Mapping) else None
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
            parts.append(f"{name}:{int(value * LABEL_STEPS + 0.5)}")
    return ",".join(parts) or None


def conversations(tree: object) -> Iterator[list[dict[str, Any]]]:
    """The turns from the root to each answer that no further answer follows; deleted messages end their branch.

    A question without an answer is left out, so a way may end before its leaf; ways that are then the same, or the
    beginning of another, are given once. Raises SampleError for a tree that is none.
    """
    if not isinstance(tree, dict):
        raise SampleError(Reason.NOT_A_RECORD, f"a tree is an object, this is a {type(tree).__name__}")
    if "prompt" not in tree:
        raise SampleError(Reason.MISSING_FIELD, "no 'prompt'")
    stack: list[tuple[object, list[dict[str, Any]]]] = [(tree["prompt"], [])]
    num_found = 0
    while stack:
        message, before = stack.pop()
        turn, replies = _turn(message)
        if turn is None:
            continue
        way = [*before, turn]
        stack += [(reply, way) for reply in reversed(replies)]
        if turn["from"] == "Assistant" and not any(_leads_to_answer(reply) for reply in replies):
            num_found += 1
            yield way
    if not num_found:
        raise SampleError(Reason.NO_ANSWER, "no answer in the tree")


def _turn(message: object) -> tuple[dict[str, Any] | None, list[object]]:
    if not isinstance(message, dict):
        raise SampleError(Reason.WRONG_TYPE, f"a message is an object, this is a {type(message).__name__}")
    if message.get("deleted"):
        return None, []
    role = message.get("role")
    if role not in SPEAKERS:
        raise SampleError(Reason.UNKNOWN_ROLE, f"role {str(role)[:40]!r}; known: {', '.join(SPEAKERS)}")
    replies = message.get("replies") or []
    if not isinstance(replies, list):
        raise SampleError(Reason.WRONG_TYPE, "'replies' is no list")
    labels = message.get("labels")
    label = label_text(labels) if isinstance(labels, dict) and role == "assistant" else None
    return {"from": SPEAKERS[role], "value": text_field(message, "text"), "label": label}, replies


def _leads_to_answer(message: object) -> bool:
    """Whether an answer stands at or below this message."""
    stack = [message]
    while stack:
        found = stack.pop()
        if not isinstance(found, dict) or found.get("deleted"):
            continue
        if found.get("role") == "assistant":
            return True
        replies = found.get("replies")
        stack += replies if isinstance(replies, list) else []
    return False


def chat_record(turns: list[dict[str, Any]], *, system: str = "", labels: bool = True) -> dict[str, Any]:
    """NeMo's chat record; its labels stand before the answers (``VALUE_TO_TEXT``) if it has any."""
    has_labels = labels and any(turn["label"] is not None for turn in turns)
    return {
        "system": system,
        "mask": "User",
        "type": "VALUE_TO_TEXT" if has_labels else None,
        "conversations": [{**turn, "label": turn["label"] if has_labels else None} for turn in turns],
    }


def prepare_oasst(
    input_path: Path,
    output_directory: Path,
    *,
    val_share: float = 0.05,
    seed: int = 0,
    language: str | None = None,
    system: str = "",
    labels: bool = True,
) -> Prepared:
    """Writes ``train.jsonl`` and ``val.jsonl``. A whole tree goes to one split, by a hash of `seed` and its id.

    Args:
        input_path: the trees, JSONL or JSONL.gz.
        output_directory: made if it is not there; files of these names are replaced.
        val_share: share of the trees for validation, 0 to below 1.
        seed: of the choice.
        language: keep trees of this language only, such as ``"en"``.
        system: the system prompt of all records.
        labels: write the answers' labels.

    Raises:
        ConfigError: the file cannot be read, has no usable tree, or `val_share` is out of range.
    """
    if not 0 <= val_share < 1:
        raise ConfigError(f"val_share={val_share}; it is a share from 0 to below 1")
    paths = {split: output_directory / f"{split}.jsonl" for split in ("train", "val")}
    kept = dict.fromkeys(paths, 0)
    skips = Skips()
    with whole_file(paths["train"]) as train, whole_file(paths["val"]) as val:
        for record in read_text_records(input_path):
            try:
                if record.error is not None:
                    raise record.error
                ways = list(conversations(record.data))
            except SampleError as error:
                skips.add(error.reason.value, record.place)
                continue
            assert isinstance(record.data, dict)
            if language is not None and record.data["prompt"].get("lang") != language:
                skips.add("other_language", record.place)
                continue
            split = "val" if _draw(seed, record.data, record.place) < val_share else "train"
            for way in ways:
                line = json.dumps(chat_record(way, system=system, labels=labels), ensure_ascii=False)
                (val if split == "val" else train).write(line.encode() + b"\n")
                kept[split] += 1
        if not kept["train"]:
            reasons = str(skips) or "all drawn for validation"
            raise ConfigError(f"{input_path}: no conversation for training ({reasons})")
    return Prepared(paths=paths, kept=kept, skipped=skips.counts, examples=skips.examples)


def _draw(seed: int, tree: Mapping[str, Any], place: str) -> float:
    """A number from 0 to below 1 that depends on the seed and the tree's id (else its place) alone."""
    name = f"{seed}:{tree.get('message_tree_id', place)}"
    return int.from_bytes(hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()[:7]) / 2**56
