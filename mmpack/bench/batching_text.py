"""Real text of skewed lengths that is there without a network: the docstrings of Python's standard library."""

from __future__ import annotations

import ast
import hashlib
import itertools
import json
import sysconfig
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmpack.datamodules.text_form import TextForm
from mmpack.datamodules.text_stream import format_of, sample_of
from mmpack.errors import ConfigError, SampleError
from mmpack.indexed import Permutation
from mmpack.offline.lines import read_text_records
from mmpack.sample import EncodedSample

_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo"}
_MOST_RECORDS = 20_000


def docstrings(library: Path) -> Iterator[dict[str, str]]:
    """What each module, class and function of a library says of itself: input its name, output its docstring."""
    for path in sorted(library.rglob("*.py")):
        place = path.relative_to(library)
        if _LEFT_OUT & set(place.parts):
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, ValueError, OSError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text and text.strip():
                    name = getattr(node, "name", "")
                    dotted = ".".join(place.with_suffix("").parts)
                    yield {"input": f"{dotted}.{name}".removesuffix("."), "output": text}


@dataclass(frozen=True, slots=True, eq=False)
class TextSet:
    """Records, and what they are."""

    records: list[Any]
    record_format: str
    about: str
    digest: str


def read_texts(text: str) -> TextSet:
    """The records of "stdlib", or of a JSONL file. Raises ConfigError if there are none."""
    if text == "stdlib":
        library = Path(sysconfig.get_paths()["stdlib"])
        records: list[Any] = list(itertools.islice(docstrings(library), _MOST_RECORDS))
        about, record_format = "docstrings of Python's standard library", "prompt_response"
    else:
        with closing(read_text_records(Path(text))) as lines:
            records = [line.data for line in itertools.islice(lines, _MOST_RECORDS) if line.error is None]
        about, record_format = Path(text).name, format_of(Path(text), TextForm())
    if not records:
        raise ConfigError(f"text={text!r} holds no records")
    digest = hashlib.sha256(json.dumps(records, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return TextSet(records, record_format, about, digest)


def train_tokenizer(texts: TextSet, vocab_size: int) -> Any:
    """A byte-level BPE of the text itself, so that the vocabulary goes with a small model."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator((json.dumps(record, ensure_ascii=False) for record in texts.records), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="<pad>")


def draw_samples(
    texts: TextSet, tokenizer: Any, *, count: int, seq_length: int, seed: int
) -> tuple[list[EncodedSample], int]:
    """`count` samples drawn by `seed`, all of their tokens learned; and how many of them were cut.

    Raises:
        ConfigError: there are not so many.
    """
    form = TextForm.of({"answer_only_loss": False, "truncation_field": "output"})
    if texts.record_format != "prompt_response":
        form = TextForm()
    encoder = form.encoder(texts.record_format, tokenizer, seq_length)
    order = Permutation(len(texts.records), seed)
    samples: list[EncodedSample] = []
    for place in range(len(texts.records)):
        number = order(place)
        try:
            row = encoder.encode(texts.records[number])
        except SampleError:
            continue
        samples.append(sample_of(row, key=f"{number:08d}", source="text"))
        if len(samples) == count:
            return samples, sum(sample.changed is not None for sample in samples)
    raise ConfigError(f"global_batch_size={count}, but only {len(samples)} records can be used; lower it")
