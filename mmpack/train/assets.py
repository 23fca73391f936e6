"""What a fine-tuned model's checkpoint stores beside weights: how prompts are written, the tokenizer, the settings."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from mmpack.datamodules.finetune import FineTuningDataModule
from mmpack.datamodules.text_form import TextForm
from mmpack.errors import StateError
from mmpack.model.causal import CausalModel, CausalSpec
from mmpack.offline.tokens import tokenizer_hash

ASSETS_NAME = "mmpack.json"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Assets:
    """Everything but weights that using a fine-tuned model takes.

    Args:
        record_format, form: how records, and so prompts, are written out.
        seq_length: longest sequence in training.
        spec: what the model was built from; None for one that was built elsewhere.
        hf_config: the model's config of transformers, as plain values.
        tokenizer: of transformers.
        settings: of the run, as plain values.
    """

    record_format: str
    form: TextForm
    seq_length: int
    spec: CausalSpec | None
    hf_config: dict[str, Any]
    tokenizer: Any
    settings: dict[str, Any]

    def described(self) -> dict[str, Any]:
        """As plain values, without the tokenizer's files."""
        return {
            "record_format": self.record_format,
            "form": self.form.to_plain(),
            "seq_length": self.seq_length,
            "model": None if self.spec is None else self.spec.describe(),
            "hf_config": self.hf_config,
            "tokenizer_hash": tokenizer_hash(self.tokenizer),
            "settings": self.settings,
        }

    def to_plain(self) -> dict[str, Any]:
        """For a checkpoint: JSON, and the tokenizer's files."""
        with tempfile.TemporaryDirectory() as folder:
            self.tokenizer.save_pretrained(folder)
            files = {
                str(path.relative_to(folder)): torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
                for path in sorted(Path(folder).rglob("*"))
                if path.is_file() and path.stat().st_size
            }
        return {"json": json.dumps(self.described()), "tokenizer_files": files}

    @classmethod
    def from_plain(cls, saved: dict[str, Any]) -> Assets:
        """What `to_plain` gave. Raises StateError if the tokenizer is not the one that was saved."""
        from transformers import AutoTokenizer

        with tempfile.TemporaryDirectory() as folder:
            for name, content in saved["tokenizer_files"].items():
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.numpy().tobytes())
            tokenizer = AutoTokenizer.from_pretrained(folder)
        return cls.of(json.loads(saved["json"]), tokenizer)

    @classmethod
    def read(cls, folder: Path) -> Assets:
        """Those of a folder that `export` wrote."""
        from transformers import AutoTokenizer

        try:
            described = json.loads((folder / ASSETS_NAME).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise StateError(f"{folder} has no readable {ASSETS_NAME} ({error}); give a run's folder") from None
        try:
            return cls.of(described, AutoTokenizer.from_pretrained(folder))
        except (OSError, ValueError, KeyError, TypeError) as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise StateError(
                f"{folder}: its tokenizer or {ASSETS_NAME} is damaged ({text}); give a run's folder"
            ) from None

    @classmethod
    def of(cls, described: dict[str, Any], tokenizer: Any) -> Assets:
        """From what `described` gave, and the tokenizer. Raises StateError if it is another one."""
        if tokenizer_hash(tokenizer) != described["tokenizer_hash"]:
            raise StateError("the tokenizer is not the one that the model was trained with; use the stored files")
        return cls(
            record_format=described["record_format"],
            form=TextForm.from_plain(described["form"]),
            seq_length=described["seq_length"],
            spec=None if described["model"] is None else CausalSpec.from_plain(described["model"]),
            hf_config=described["hf_config"],
            tokenizer=tokenizer,
            settings=described["settings"],
        )

    def export(self, model: CausalModel, folder: Path) -> None:
        """Writes model, tokenizer and `described` as a folder that transformers (or peft) reads."""
        folder.mkdir(parents=True, exist_ok=True)
        model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        (folder / ASSETS_NAME).write_text(json.dumps(self.described(), indent=1) + "\n", encoding="utf-8")


def assets_of(data: Any, model: Any, settings: Any) -> Assets | None:
    """The assets of a fine-tuning run; None for another kind of run.

    Args:
        settings: the run's `mmpack.train.TrainConfig`.
    """
    if not isinstance(data, FineTuningDataModule) or not isinstance(model, CausalModel):
        return None
    model.check_length(data.seq_length)
    plain = json.loads(json.dumps({"data": asdict(data.settings), "train": asdict(settings)}, default=str))
    return Assets(
        record_format=data.record_format,
        form=data.settings.form,
        seq_length=data.seq_length,
        spec=model.spec,
        hf_config=json.loads(model.hf.config.to_json_string(use_diff=False)),
        tokenizer=data.tokenizer,
        settings=plain,
    )
