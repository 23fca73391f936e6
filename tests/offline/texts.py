"""Small real tokenizers for text rows."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:.,?!'\n"
EXTRA = ["<extra_id_0>", "<extra_id_1>", "<extra_id_2>"]


def _wrap(backend: Any, **options: Any) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token="</s>", **options)


@cache
def char_tokenizer() -> Any:
    """One token a character, blanks not counted."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    words = ["<unk>", "<s>", "</s>", "<pad>", *CHARACTERS]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    backend.normalizer = normalizers.Replace(" ", "")
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), "isolated")
    return _wrap(backend, bos_token="<s>", pad_token="<pad>")


@cache
def bpe_tokenizer(*, extra: bool = True) -> Any:
    """A byte-level BPE that gives text back to the byte; with `extra`, it knows NeMo's chat marks as tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ["<unk>", "<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>", *(EXTRA if extra else [])]
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([Path(__file__).read_text(encoding="utf-8")] * 3, trainer)
    return _wrap(backend, bos_token="<s>", pad_token="<pad>")


@cache
def mistral_tokenizer() -> Any:
    """The bundled one, which puts a blank before every text."""
    from transformers import AutoTokenizer

    import mmpack

    return AutoTokenizer.from_pretrained(Path(mmpack.__file__).parent / "demo_data" / "tokenizer")


def trained_text(tokenizer: Any, row: Any) -> str:
    """What is learned, decoded; marks included."""
    ids = row.token_ids_n[row.trained_n].tolist()
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def trained_runs(tokenizer: Any, row: Any) -> list[str]:
    """Each stretch of learned tokens, decoded."""
    runs: list[list[int]] = []
    before = False
    for token, trained in zip(row.token_ids_n.tolist(), row.trained_n.tolist(), strict=True):
        if trained:
            if not before:
                runs.append([])
            runs[-1].append(token)
        before = trained
    return [tokenizer.decode(run, clean_up_tokenization_spaces=False) for run in runs]
