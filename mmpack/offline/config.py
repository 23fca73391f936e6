"""What to pack and how; everything here but places and workers goes into the cache key."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mmpack.engine import check_engine
from mmpack.errors import ConfigError, check_whole, nearest
from mmpack.offline.chat import ChatTokens, NemoChatEncoder
from mmpack.offline.conversations import ConversationEncoder
from mmpack.offline.preference import PreferenceEncoder
from mmpack.offline.records import FIELD_PAIRS, PromptResponse, PromptResponseEncoder, RecordEncoder, TextLimit
from mmpack.offline.store import FORMAT
from mmpack.packing import ALGORITHMS, check_capacity
from mmpack.sources import SOURCES, detect
from mmpack.templates import CHAT_TEMPLATE_NAMES, make_template

OWN_FORMATS = ("prompt_response", "nemo_chat", "chat", "preference")  # the others are those of `mmpack.sources`


@dataclass(frozen=True, kw_only=True, slots=True)
class PackConfig:
    """A text file to be packed.

    Args:
        input_path: JSONL, JSONL.gz, or a JSON list.
        output_path: folder of the new packed store.
        packed_sequence_size: tokens of a pack.
        record_format: ``prompt_response``, ``nemo_chat``, ``chat`` (OpenAI's if its records have messages, else
            NeMo's), ``preference`` (see `mmpack.offline.preference`), or a format of `mmpack.sources`; None: what the
            first readable record looks like.
        seq_length: most tokens of one sequence; None for a whole pack.
        oversize: ``drop`` leaves a longer one out, ``truncate`` cuts it, ``raise`` stops.
        algorithm: a name in `mmpack.packing.ALGORITHMS`.
        seed: of an algorithm that shuffles.
        sequence_multiple: plan with every sequence's room a multiple of this (2 x context-parallel size).
        max_samples: sequences that a pack holds at most; None for no such limit.
        form: how a prompt-response record is put together.
        chat_tokens: the marks of NeMo's chats.
        template, system, stop_string: a name for `mmpack.templates.make_template` for all other formats, and its
            options; None for the tokenizer's own chat template, or ``chatml`` if it has none.
        add_bos: begin those with the tokenizer's bos token.
        on_error: ``skip`` counts a bad record, ``raise`` stops at it.
        workers: processes that tokenize.
        max_tokens_per_shard: tokens in one file of the store.
        overwrite: replace a store at `output_path` that was made otherwise.
        engine: that tokenizes: ``local``, or ``ray`` for a Ray cluster whose machines all see the folder of
            `output_path` under the same name. The store is the same; a run that is broken off is taken over by the next
            one with the same settings.
        address: of the Ray cluster; None for ``RAY_ADDRESS``, or one that is started here with `workers` CPUs.

    Raises:
        ConfigError: a value that cannot work.
    """

    input_path: Path
    output_path: Path
    packed_sequence_size: int
    record_format: str | None = None
    seq_length: int | None = None
    oversize: str = "drop"
    algorithm: str = "exact_fill"
    seed: int = 0
    sequence_multiple: int = 1
    max_samples: int | None = None
    form: PromptResponse = field(default_factory=PromptResponse)
    chat_tokens: ChatTokens = field(default_factory=ChatTokens)
    template: str | None = None
    system: str | None = None
    stop_string: str | None = None
    add_bos: bool = True
    on_error: str = "skip"
    workers: int = 1
    max_tokens_per_shard: int = 2**28
    overwrite: bool = False
    engine: str = "local"
    address: str | None = None

    def __post_init__(self) -> None:
        check_engine(self.engine, self.address)
        check_capacity(self.packed_sequence_size, name="packed_sequence_size")
        ALGORITHMS.get(self.algorithm)
        for name in ("workers", "sequence_multiple", "max_tokens_per_shard"):
            check_whole(name, getattr(self, name))
        check_whole("seed", self.seed, least=0)
        if self.max_samples is not None:
            check_whole("max_samples", self.max_samples)
        for name in ("input_path", "output_path"):
            if not isinstance(getattr(self, name), Path):
                raise ConfigError(f"{name}={getattr(self, name)!r}; give a pathlib.Path")
        if self.on_error not in ("skip", "raise"):
            raise ConfigError(f"on_error={self.on_error!r}; it is 'skip' or 'raise'")
        formats = {*OWN_FORMATS, *SOURCES}
        if self.record_format is not None:
            name = str(self.record_format).replace("-", "_")
            if name not in formats:
                raise ConfigError(f"record format {self.record_format!r} is unknown; {nearest(name, formats)}")
            object.__setattr__(self, "record_format", name)
        if self.template is not None and self.template not in CHAT_TEMPLATE_NAMES:
            make_template(self.template)  # refuses an unknown name, though the records may take none
        if self.capacity < 1:
            raise ConfigError(
                f"packed_sequence_size={self.packed_sequence_size} holds no sequence whose room is a multiple of "
                f"{self.sequence_multiple}; raise it"
            )
        if self.seq_length is not None and check_whole("seq_length", self.seq_length, 2) > self.packed_sequence_size:
            raise ConfigError(
                f"seq_length={self.seq_length} is longer than a pack of packed_sequence_size="
                f"{self.packed_sequence_size}; raise packed_sequence_size, or lower seq_length"
            )
        TextLimit(seq_length=self.longest, oversize=self.oversize)

    @property
    def capacity(self) -> int:
        """Positions that sequences may fill in a pack."""
        return self.packed_sequence_size // self.sequence_multiple * self.sequence_multiple

    @property
    def longest(self) -> int:
        """Most tokens of one sequence."""
        return min(self.capacity, self.capacity if self.seq_length is None else self.seq_length)

    def encoder(self, record_format: str, tokenizer: Any) -> RecordEncoder:
        """What encodes the records of that format."""
        limit = TextLimit(seq_length=self.longest, oversize=self.oversize)
        if record_format == "prompt_response":
            return PromptResponseEncoder(tokenizer, self.form, limit)
        if record_format == "nemo_chat":
            return NemoChatEncoder(tokenizer, self.chat_tokens, limit)
        name = self.template or ("hf" if getattr(tokenizer, "chat_template", None) else "chatml")
        template = make_template(name, tokenizer=tokenizer, system=self.system, stop_string=self.stop_string)
        if record_format == "preference":
            return PreferenceEncoder(
                tokenizer, self.form, template, limit, as_turns=self.template is not None, capacity=self.capacity,
                sequence_multiple=self.sequence_multiple, add_bos=self.add_bos,
            )  # fmt: skip
        return ConversationEncoder(tokenizer, record_format, template, limit, add_bos=self.add_bos)

    def key(self, record_format: str, encoder: RecordEncoder, input_hash: str, tokenizer_hash: str) -> str:
        """The cache key: a hash of every setting that changes the packs, of the input's bytes and of the tokenizer."""
        template = encoder.describe() if isinstance(encoder, ConversationEncoder | PreferenceEncoder) else ""
        settings = asdict(self)
        for name in ("input_path", "output_path", "workers", "overwrite", "on_error", "engine", "address"):
            del settings[name]
        if self.max_samples is None:
            del settings["max_samples"]  # stores that were made before there was a limit stay as they are
        settings |= {"record_format": record_format, "seq_length": self.longest}
        whole = json.dumps([FORMAT, settings, template, input_hash, tokenizer_hash], sort_keys=True)
        return hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()


def resolve_format(wanted: str | None, record: object, prompt_template: str | None = None) -> str:
    """The format that a file's records are read as, from what was asked for and how its first record looks.

    >>> resolve_format(None, {"messages": []}), resolve_format(None, {"prompt": "", "response": ""})
    ('openai', 'prompt_response')
    >>> resolve_format(None, {"mask": "User", "conversations": []}), resolve_format(None, {"conversations": []})
    ('nemo_chat', 'sharegpt')
    >>> resolve_format("chat", {"messages": []}), resolve_format("chat", {"conversations": []})
    ('openai', 'nemo_chat')
    >>> resolve_format(None, {"prompt": "", "chosen": "", "rejected": ""})
    'preference'
    """
    fields = record if isinstance(record, dict) else {}
    if wanted is None and "chosen" in fields and "rejected" in fields:
        return "preference"
    if wanted == "chat":
        return "openai" if "messages" in fields else "nemo_chat"
    if wanted is not None:
        return wanted
    if prompt_template is not None:
        return "prompt_response"
    if "conversations" in fields and "mask" in fields:
        return "nemo_chat"
    if any(pair[0] in fields and pair[1] in fields for pair in FIELD_PAIRS) and "context" not in fields:
        return "prompt_response"
    found = detect(fields)
    return {None: "prompt_response", "llava": "sharegpt"}.get(found, found or "")
