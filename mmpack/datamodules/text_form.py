"""What the records of a text file look like, and how they are written out; a prompt at generation needs the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from mmpack.datamodules.kinds import check_fields
from mmpack.errors import ConfigError, nearest
from mmpack.offline.chat import ChatTokens
from mmpack.offline.config import PackConfig
from mmpack.offline.records import PromptResponse, RecordEncoder

_OVERSIZE = {"skip": "drop"}  # another name for it
_LONGEST = 2**30  # tokens; for an encoder that need not cut


@dataclass(frozen=True, kw_only=True, slots=True)
class TextForm:
    """The form of a text file's records.

    Args:
        record_format: ``prompt_response``, ``nemo_chat``, ``chat`` or a format of `mmpack.sources`; None for what the
            first readable record looks like.
        prompt: how a prompt-response record is put together.
        chat_tokens: the marks of NeMo's chats.
        template, system, stop_string: for conversations; see `mmpack.offline.PackConfig`.
        add_bos: begin with the tokenizer's bos token; None for the format's own habit.
        oversize: ``truncate``, ``drop`` (or ``skip``), or ``raise``.

    Raises:
        ConfigError: a value that cannot work.
    """

    record_format: str | None = None
    prompt: PromptResponse = field(default_factory=PromptResponse)
    chat_tokens: ChatTokens = field(default_factory=ChatTokens)
    template: str | None = None
    system: str | None = None
    stop_string: str | None = None
    add_bos: bool | None = None
    oversize: str = "truncate"

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "oversize", _OVERSIZE.get(self.oversize, self.oversize))
        self.pack_config(Path("-"), Path("-"), seq_length=8, packed_sequence_size=8)

    @classmethod
    def of(cls, options: Mapping[str, Any] | None) -> TextForm:
        """From NeMo's ``dataset_kwargs``: the fields above and of `PromptResponse`, ``chat`` and its special tokens.

        Raises:
            ConfigError: an unknown name, with the nearest, or a value that cannot work.

        >>> TextForm.of({"chat": True}).record_format, TextForm.of({"add_eos": False}).prompt.add_eos
        ('chat', False)
        """
        given = dict(options or {})
        prompt_names = {f.name for f in fields(PromptResponse)}
        own = {f.name for f in fields(cls)} - {"prompt"}
        special = ("chat", "chat_prompt_tokens", "special_tokens")
        for name in given:
            if name not in prompt_names | own | set(special):
                raise ConfigError(
                    f"dataset_kwargs: {name!r} is unknown; {nearest(name, [*prompt_names, *own, *special])}"
                )
        tokens = [given.pop(name) for name in special[1:] if given.get(name) is not None]
        if tokens:
            given["chat_tokens"] = tokens[0]
        if given.pop("chat", False):
            given.setdefault("record_format", "chat")
        given["chat_tokens"] = ChatTokens.of(given.get("chat_tokens") or ChatTokens())
        prompt = {name: given.pop(name) for name in prompt_names & set(given) if name != "add_bos"}
        prompt["add_bos"] = bool(given.get("add_bos"))
        return cls(**given, prompt=PromptResponse(**prompt))

    def pack_config(self, input_path: Path, output_path: Path, **options: Any) -> PackConfig:
        """The packing of a file of this form. Raises ConfigError as `PackConfig` does."""
        return PackConfig(
            input_path=input_path,
            output_path=output_path,
            record_format=self.record_format,
            form=self.prompt,
            chat_tokens=self.chat_tokens,
            template=self.template,
            system=self.system,
            stop_string=self.stop_string,
            add_bos=self.add_bos is not False,
            oversize=self.oversize,
            **options,
        )

    def encoder(
        self,
        record_format: str,
        tokenizer: Any,
        seq_length: int | None = None,
        *,
        capacity: int | None = None,
        sequence_multiple: int = 1,
    ) -> RecordEncoder:
        """What encodes records of `record_format`, of at most `seq_length` tokens.

        Both sides of a pair together take at most `capacity` positions, each rounded up to `sequence_multiple`.
        """
        longest = _LONGEST if seq_length is None else seq_length
        config = self.pack_config(
            Path("-"), Path("-"), seq_length=longest, packed_sequence_size=max(longest, capacity or 2 * longest),
            sequence_multiple=sequence_multiple,
        )  # fmt: skip
        return config.encoder(record_format, tokenizer)

    def to_plain(self) -> dict[str, Any]:
        """As plain values, for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> TextForm:
        """What `to_plain` gave."""
        nested = {"prompt": PromptResponse(**values["prompt"]), "chat_tokens": ChatTokens(**values["chat_tokens"])}
        return cls(**{**values, **nested})
