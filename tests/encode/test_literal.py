"""Trained tokens decode to exactly the answer, also by tokenizers that put a blank before a text."""

from __future__ import annotations

from typing import Any

import pytest

from mmpack.offline.records import PromptResponseEncoder


def byte_level(*, in_sequence: bool) -> Any:
    """A byte-level BPE with ``add_prefix_space``, alone or behind another step."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    step: Any = pre_tokenizers.ByteLevel(add_prefix_space=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(), step]) if in_sequence else step
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["</s>"], initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(["the red dog a river under the sky"] * 9, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")


@pytest.mark.parametrize("in_sequence", [False, True])
@pytest.mark.parametrize("answer", ["dog", " dog", "dog\n red ", "\nriver"])
@pytest.mark.parametrize("prompt", ["the red", "the red\n", "a "])
def test_no_blank_is_added_or_lost(in_sequence: bool, answer: str, prompt: str) -> None:
    tokenizer = byte_level(in_sequence=in_sequence)
    before = tokenizer("dog")["input_ids"]
    row = PromptResponseEncoder(tokenizer).encode({"input": prompt, "output": answer})
    assert tokenizer.decode(row.token_ids_n[row.trained_n].tolist()) == f"{answer}</s>"
    assert tokenizer.decode(row.token_ids_n.tolist()) == f"{prompt} {answer}</s>"
    assert tokenizer("dog")["input_ids"] == before  # the caller's own is left as it was
