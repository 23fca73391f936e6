"""A text file as an indexed data set: its records, encoded when they are drawn, for the window and for blends.

`OpenIndexed` makes streams of it, and `OpenMix` blends those with image-text sources, so that both meet in one pack.
"""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from mmpack.datamodules.text_form import TextForm
from mmpack.errors import ConfigError, Reason, SampleError
from mmpack.indexed.record_index import index_records
from mmpack.offline.config import resolve_format
from mmpack.offline.conversations import ConversationEncoder
from mmpack.offline.lines import file_hash, read_text_records
from mmpack.offline.preference import PreferenceEncoder, rows_of_record
from mmpack.offline.records import RecordEncoder
from mmpack.offline.tokens import TextRow, tokenizer_hash
from mmpack.open_file import OpenFile
from mmpack.sample import EncodedPair, EncodedSample

_FIRST_RECORDS = 1000  # read for the format


def format_of(path: Path, form: TextForm) -> str:
    """The format of a file's records: as asked for, or what its first readable record looks like."""
    if form.record_format not in (None, "chat"):
        return str(form.record_format)
    with closing(read_text_records(path)) as records:
        for record in itertools.islice(records, _FIRST_RECORDS):
            if record.error is None and isinstance(record.data, dict) and record.data:
                return resolve_format(form.record_format, record.data, form.prompt.prompt_template)
    return resolve_format(form.record_format, None)


def sample_of(row: TextRow, *, key: str, source: str) -> EncodedSample:
    """A row of text as a sample without pictures."""
    return EncodedSample(
        key=key,
        source=source,
        token_ids_n=row.token_ids_n.astype(np.int64),
        trained_n=row.trained_n,
        pictures=(),
        num_tokens=row.num_tokens,
        changed=Reason.TRUNCATED if row.truncated else None,
    )


class TextFile:
    """The records of the text file at `path`, by number: a `mmpack.indexed.IndexedDataset` of encoded samples.

    A ``.gz`` is held in memory, unpacked.

    Args:
        path: JSONL, JSONL.gz, or a JSON list.
        form: what its records look like.
        tokenizer: a fast tokenizer of transformers.
        seq_length: most tokens of a sample.
        name: what counters call the data set; None for the file's name without its ending.
        capacity, sequence_multiple: of the packs that pairs of preference data must fit; None for packs of any size.

    Raises:
        ConfigError: a file that cannot be read, or a tokenizer that is missing or slow.
    """

    def __init__(
        self,
        path: Path,
        form: TextForm,
        tokenizer: Any,
        *,
        seq_length: int,
        name: str | None = None,
        capacity: int | None = None,
        sequence_multiple: int = 1,
    ) -> None:
        self.path, self.form, self.seq_length = path, form, seq_length
        self.name = path.name.removesuffix(".gz").rpartition(".")[0] if name is None else name
        self.record_format = format_of(path, form)
        self.sequence_multiple = sequence_multiple
        self.encoder: RecordEncoder = form.encoder(
            self.record_format, tokenizer, seq_length, capacity=capacity, sequence_multiple=sequence_multiple
        )
        self._tokenizer_hash = tokenizer_hash(tokenizer)
        if path.suffix == ".gz":
            with gzip.open(path, "rb") as file:
                self._lines = [line for line in file.read().split(b"\n") if line.strip(b" \t\r")]
            self._size = len(self._lines)
            return
        self._index = index_records(path)
        self._size = len(self._index)
        self._file = OpenFile(path)

    def __len__(self) -> int:
        return self._size

    def key(self, index: int) -> str:
        """The record's number, as in a packed store of the file."""
        return f"{index:08d}"

    def sample(self, index: int) -> EncodedSample:
        """Record number `index`, encoded; of preference data an `EncodedPair`.

        Raises:
            SampleError: it cannot be used.
            ConfigError: it is too long, and the policy is to raise.
        """
        key = self.key(index)
        try:
            rows = rows_of_record(self.encoder, self._record(index))
        except SampleError as error:
            raise error.with_key(key) from None
        except ConfigError as error:
            raise ConfigError(f"{self.path}: record {key}: {error}") from None
        samples = [sample_of(row, key=key, source=self.name) for row in rows]
        return samples[0] if len(samples) == 1 else EncodedPair.of(*samples, sequence_multiple=self.sequence_multiple)

    @property
    def holds_pairs(self) -> bool:
        """Whether its records are of preference data."""
        return isinstance(self.encoder, PreferenceEncoder)

    def _record(self, index: int) -> object:
        if self.path.suffix == ".gz":
            content = self._lines[index]
        else:
            start, size = self._index.span(index)
            content = self._file.read(start, size)
        try:
            return json.loads(content.strip(b" \t\r\n").decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise SampleError(Reason.BROKEN_JSON, str(error)) from None

    def describe(self) -> str:
        """Form, tokenizer and a hash of the file's bytes."""
        template = self.encoder.describe() if isinstance(self.encoder, ConversationEncoder | PreferenceEncoder) else ""
        whole = json.dumps([self.form.to_plain(), template, self._tokenizer_hash], sort_keys=True)
        decides = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        return f"{self.record_format} {len(self)} records {file_hash(self.path)[:16]}, {decides}"
