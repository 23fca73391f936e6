"""A fine-tuned model answers with the template that it stores: a prompt has the tokens of a training record."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from mmpack.cli.generate import run
from mmpack.datamodules.finetune import FineTuningDataModule
from mmpack.errors import ConfigError, StateError
from mmpack.model.causal import CausalSpec
from mmpack.train import TrainConfig, TrainResult, generate, load_fine_tuned, train
from mmpack.train.assets import Assets
from mmpack.train.generate import check_template, encode_prompt
from tests.llm.texts import write_jsonl

ANSWERS = {"one": "the red dog.", "two": "a river under\nthe sky!", "three": "small birds"}


def forms() -> dict[str, tuple[list[dict[str, Any]], dict[str, Any]]]:
    """Records of each form with the same questions, and what tells the module how to read them."""
    plain = [{"q": word, "hint": "say it", "a": answer} for word, answer in ANSWERS.items()]
    nemo = [
        {
            "system": "be kind",
            "mask": "User",
            "conversations": [{"from": "User", "value": word}, {"from": "Assistant", "value": answer}],
        }
        for word, answer in ANSWERS.items()
    ]
    openai = [
        {
            "messages": [
                {"role": "system", "content": "be kind"},
                {"role": "user", "content": word},
                {"role": "assistant", "content": answer},
            ]
        }
        for word, answer in ANSWERS.items()
    ]
    return {
        "prompt": (plain, {"prompt_template": "{hint}: {q}? {a}", "add_bos": True}),
        "nemo chat": (nemo, {"chat": True}),
        "nemo chat, control marks": (nemo, {"chat": True, "chat_prompt_tokens": "control"}),
        "messages": (openai, {"chat": True, "template": "chatml"}),
    }


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> dict[str, TrainResult]:
    """A model for each form that has learnt its three answers by heart."""
    results = {}
    for name, (records, kwargs) in forms().items():
        folder = tmp_path_factory.mktemp("form")
        data = FineTuningDataModule(
            train=write_jsonl(folder / "data.jsonl", records), seq_length=128, tokenizer=tokenizer, batching="packing",
            global_batch_size=1, dataset_kwargs=kwargs,
        )  # fmt: skip
        settings = TrainConfig(output_dir=folder / "run", max_steps=300, learning_rate=4e-3)
        results[name] = train(settings, data, CausalSpec(seed=3).build(tokenizer))
        assert results[name].last_loss < 0.05
    return results


def ask(result_or_path: Any, name: str, word: str) -> str:
    model = load_fine_tuned(result_or_path)
    if name == "prompt":
        return generate(model, word, fields={"hint": "say it"}, max_new_tokens=40)
    return generate(model, word, system="be kind", max_new_tokens=40)


@pytest.mark.parametrize("name", forms())
def test_what_was_learnt_comes_out(runs: dict[str, TrainResult], name: str) -> None:
    result = runs[name]
    for where in (result.checkpoint, result.records_path.parent, result.exported):
        assert {word: ask(where, name, word) for word in ANSWERS} == ANSWERS, where


@pytest.mark.parametrize("name", forms())
def test_the_prompt_has_the_tokens_of_the_training_record(
    runs: dict[str, TrainResult], name: str, tokenizer: Any
) -> None:
    assets = load_fine_tuned(runs[name].checkpoint).assets
    records, _ = forms()[name]
    for record, (word, answer) in zip(records, ANSWERS.items(), strict=True):
        row = assets.form.encoder(assets.record_format, tokenizer).encode(record)
        more = {"fields": {"hint": "say it"}} if name == "prompt" else {"system": "be kind"}
        prompt = encode_prompt(assets, word, **more)
        whole = row.token_ids_n.tolist()
        assert prompt.token_ids == whole[: len(prompt.token_ids)]
        last = int(row.trained_n.nonzero()[0][-1]) + 1
        end = whole[len(prompt.token_ids) : last]
        assert tokenizer.decode(end[: len(end) - len(prompt.stop_ids)]) == answer
        assert end[len(end) - len(prompt.stop_ids) :] == prompt.stop_ids


def test_the_command_prints_the_answer(runs: dict[str, TrainResult], capsys: Any) -> None:
    run(runs["messages"].checkpoint, "one", system="be kind", max_new_tokens=40)
    assert capsys.readouterr().out == "the red dog.\n"
    run(runs["prompt"].checkpoint, "three", fields=["hint=say it"], as_json=True)
    printed = json.loads(capsys.readouterr().out)
    assert printed["answer"] == "small birds"
    with pytest.raises(ConfigError, match="name=text"):
        run(runs["prompt"].checkpoint, "three", fields=["hint"])


@pytest.mark.parametrize(
    ("name", "asked", "words"),
    [
        ("messages", {"template": "v1"}, "template='v1' was asked for, the model was trained with chatml"),
        ("messages", {"prompt_template": "{input} {output}"}, "the model was trained with 'openai'"),
        ("prompt", {"prompt_template": "{q} {a}"}, r"was trained with '\{hint\}: \{q\}\? \{a\}'"),
        ("prompt", {"template": "chatml"}, "its records are prompt_response"),
    ],
)
def test_another_template_is_named(runs: Any, name: str, asked: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        run(runs[name].checkpoint, "one", **asked)


def test_the_stored_template_may_be_named(runs: dict[str, TrainResult]) -> None:
    check_template(load_fine_tuned(runs["messages"].checkpoint).assets, template="chatml")
    check_template(load_fine_tuned(runs["prompt"].checkpoint).assets, prompt_template="{hint}: {q}? {a}")


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("prompt", {}, "has the fields hint, q; give all but one"),
        ("prompt", {"fields": {"hint": "x"}, "system": "s"}, "no system prompt"),
        ("prompt", {"fields": {"hint": "x", "z": "y"}}, "no field 'z'"),
        ("messages", {"fields": {"a": "b"}}, "trained on chats"),
        ("messages", {"max_new_tokens": 0}, "max_new_tokens=0"),
    ],
)
def test_prompts_that_do_not_fit_are_refused(runs: Any, name: str, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        generate(load_fine_tuned(runs[name].checkpoint), "one", **arguments)


def test_a_checkpoint_stores_template_tokenizer_and_settings(runs: dict[str, TrainResult], tokenizer: Any) -> None:
    saved = torch.load(runs["prompt"].checkpoint, weights_only=True)["assets"]
    described = json.loads(saved["json"])
    assert described["form"]["prompt"]["prompt_template"] == "{hint}: {q}? {a}"
    assert described["settings"]["train"]["max_steps"] == 300
    assert described["settings"]["data"]["batching"] == "packing"
    assert "tokenizer.json" in saved["tokenizer_files"]
    assert Assets.from_plain(saved).tokenizer.get_vocab() == tokenizer.get_vocab()


def test_a_swapped_tokenizer_is_found(runs: dict[str, TrainResult], tmp_path: Path) -> None:
    saved = torch.load(runs["prompt"].checkpoint, weights_only=True)
    described = json.loads(saved["assets"]["json"])
    with pytest.raises(StateError, match="tokenizer is not the one"):
        Assets.from_plain(saved["assets"] | {"json": json.dumps(described | {"tokenizer_hash": "0"})})


def test_what_is_no_fine_tuned_model_is_named(tmp_path: Path, tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match="is no checkpoint"):
        load_fine_tuned(tmp_path)
    torch.save({"version": 1, "step": 1}, tmp_path / "step-000001.pt")
    with pytest.raises(StateError, match="stores no prompt template"):
        load_fine_tuned(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tokenizer.json", b'{"version": "1.0", "tru', "tokenizer or mmpack.json is damaged"),
        ("mmpack.json", b"{}", "tokenizer or mmpack.json is damaged"),
        ("mmpack.json", b"{", "no readable mmpack.json"),
        ("model.safetensors", b"cut", "its model cannot be loaded"),
    ],
)
def test_a_damaged_folder_is_named(
    runs: dict[str, TrainResult], tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    exported = runs["prompt"].exported
    assert exported is not None
    folder = shutil.copytree(exported, tmp_path / "final")
    (folder / name).write_bytes(content)
    with pytest.raises(StateError, match=words):
        load_fine_tuned(folder)


def test_a_folder_without_weights_or_model_is_told_in_words(runs: dict[str, TrainResult], tmp_path: Path) -> None:
    exported = runs["prompt"].exported
    assert exported is not None
    folder = shutil.copytree(exported, tmp_path / "final")
    (folder / "model.safetensors").unlink()
    with pytest.raises(StateError, match=r"but no weights \(model\.safetensors\).*give the run's folder"):
        load_fine_tuned(folder)
    (folder / "config.json").unlink()
    with pytest.raises(StateError, match=r"neither a config\.json, with a model, nor an adapter_config\.json"):
        load_fine_tuned(folder)


def test_prompts_at_the_limits(runs: dict[str, TrainResult]) -> None:
    model = load_fine_tuned(runs["messages"].checkpoint)
    positions, short = model.hf.config.max_position_embeddings, len(encode_prompt(model.assets, "q").token_ids)
    with pytest.raises(ConfigError, match=f"tokens, the model {positions} positions"):
        generate(model, "q\n" * positions)
    trained = model.assets.seq_length
    with pytest.warns(UserWarning, match=rf"trained on at most {trained} \(seq_length\)"):
        generate(model, "q\n" * trained, max_new_tokens=1)
    model.hf.config.max_position_embeddings = short + 5
    with pytest.warns(UserWarning, match="ends after 5 tokens at the latest, not 9"):
        generate(model, "q", max_new_tokens=9)


def test_drawing_depends_on_the_seed_alone(runs: dict[str, TrainResult]) -> None:
    model = load_fine_tuned(runs["messages"].checkpoint)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    texts = [generate(model, "what", temperature=5.0, seed=seed, max_new_tokens=12) for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]
    assert torch.equal(before, torch.get_rng_state())
