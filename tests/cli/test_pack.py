"""What ``mmpack pack``, ``prepare-dolly`` and ``prepare-oasst`` do and print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mmpack.cli.pack import build_config, load_tokenizer, run
from mmpack.cli.prepare import run_dolly, run_oasst
from mmpack.cli.settings import named_values
from mmpack.errors import ConfigError
from mmpack.offline import NemoPackedRows, PackedStore
from tests.offline.texts import bpe_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tokenizer's folder and 120 records."""
    bpe_tokenizer().save_pretrained(tmp_path / "tokenizer")
    lines = [{"input": f"what is {i}?", "output": "it is " + "a " * (i % 9) + f"{i}"} for i in range(120)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def options(**given: Any) -> dict[str, Any]:
    """As the command line gives them: None for what was not named."""
    names = (
        "record_format",
        "seq_length",
        "oversize",
        "algorithm",
        "seed",
        "workers",
        "prompt_template",
        "chat_tokens",
    )
    return {**dict.fromkeys(names), **given}


def test_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = build_config(folder / "rows.jsonl", folder / "out", 256, options(workers=2))
    run(config, folder / "tokenizer", npy=folder / "rows.npy", global_batch_size=64, as_json=True)
    printed = json.loads(capsys.readouterr().out)
    store = PackedStore.open(folder / "out")
    assert printed["num_packs"] == len(store)
    assert printed["n"] == pytest.approx(120 / len(store))
    assert printed["global_batch_size"] == round(64 / printed["n"])
    assert printed["fill_percent"] > 90
    assert not printed["cached"]
    rows = NemoPackedRows(folder / "rows.npy")
    assert [row.input_ids.tolist() for row in rows] == [row.input_ids.tolist() for row in store]
    run(config, folder / "tokenizer", as_json=True)
    assert json.loads(capsys.readouterr().out)["cached"]


def test_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = build_config(folder / "rows.jsonl", folder / "out", 256, options(seq_length=30, algorithm="first_fit"))
    run(config, folder / "tokenizer", global_batch_size=64, data_parallel_size=4)
    text = " ".join(capsys.readouterr().out.split())
    for words in ("n = sequences / packs", "fill", "global batch size to set", "--oversize truncate", "(first: line"):
        assert words in text


def test_bad_requests(folder: Path) -> None:
    config = build_config(folder / "rows.jsonl", folder / "out", 256, options())
    with pytest.raises(ConfigError, match="packed_sequence_size=1024, global_batch_size=16"):
        run(config, folder / "tokenizer", global_batch_size=64, micro_batch_size=4)
    with pytest.raises(ConfigError, match="--global-batch-size 0"):
        run(config, folder / "tokenizer", global_batch_size=0)
    with pytest.raises(ConfigError, match="is not a folder"):
        load_tokenizer(folder / "none")
    (folder / "empty").mkdir()
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_tokenizer(folder / "empty")
    with pytest.raises(ConfigError, match="did you mean 'control'"):
        build_config(folder / "rows.jsonl", folder / "out", 256, options(chat_tokens="contrl"))
    assert not (folder / "out").exists()


def test_prepare(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dolly = {"instruction": "ask", "context": "", "response": "say", "category": "qa"}
    (folder / "d.jsonl").write_text(json.dumps(dolly) + "\n{}\n")
    run_dolly(folder / "d.jsonl", None, 0, as_json=True)
    printed = json.loads(capsys.readouterr().out)
    assert printed["kept"] == {"all": 1}
    assert printed["paths"] == {"all": str(folder / "d-output.jsonl")}
    run_dolly(folder / "d.jsonl", None, 0, as_json=False)
    assert "missing_field" in capsys.readouterr().out
    answer = {"role": "assistant", "text": "a", "replies": []}
    tree = {"message_tree_id": "t", "prompt": {"role": "prompter", "text": "q", "replies": [answer]}}
    (folder / "t.jsonl").write_text(json.dumps(tree) + "\n")
    run_oasst(folder / "t.jsonl", folder / "oasst", val_share=0.0, as_json=True)
    assert json.loads(capsys.readouterr().out)["kept"] == {"train": 1, "val": 0}


def test_pairs_are_not_written_for_nemo(folder: Path) -> None:
    pairs = [{"prompt": f"{i}?", "chosen": f"yes {i}", "rejected": "no"} for i in range(9)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    config = build_config(folder / "pairs.jsonl", folder / "out", 64, options(record_format="preference"))
    assert run(config, folder / "tokenizer").num_sequences == 18
    with pytest.raises(ConfigError, match="NeMo's rows know no pairs"):
        run(config, folder / "tokenizer", npy=folder / "rows.npy")
    assert not (folder / "rows.npy").exists()


def test_every_setting_of_prompts_and_answers_may_be_given(folder: Path) -> None:
    given = {"add_eos": False, "add_sep": False, "add_bos": True, "truncation_method": "left", "label_key": "output"}
    form = build_config(folder / "rows.jsonl", folder / "out", 256, options(**given)).form
    assert {name: getattr(form, name) for name in given} == given


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"instruction": "a", "context": "", "response": "b"}, "Dolly's: run `mmpack prepare-dolly` first"),
        ({"Frage": "a", "Antwort": "b"}, "the fields Antwort, Frage; name them in a template"),
    ],
)
def test_a_file_of_other_fields_says_what_to_do(folder: Path, record: dict[str, str], words: str) -> None:
    (folder / "other.jsonl").write_text(f"{json.dumps(record)}\n" * 3)
    with pytest.raises(ConfigError, match=words):
        run(build_config(folder / "other.jsonl", folder / "out", 256, options()), folder / "tokenizer")


def test_a_template_without_quotes_says_how_to_quote_it() -> None:
    with pytest.raises(ConfigError, match=r"""quote it once more: --set 'prompt_template="\{q\} \{a\}"'"""):
        named_values(["prompt_template={q} {a}"])
