"""Preference data: every pair whole in one pack, answers alone are learned, streamed and packed ahead alike."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from mmpack.batch import IGNORE_INDEX, PackedBatch
from mmpack.collate import Collator, PairCollator
from mmpack.datamodules.finetune import FineTuningDataModule
from mmpack.datamodules.finetune_data import text_tiling
from mmpack.datamodules.text_form import TextForm
from mmpack.datamodules.text_stream import TextFile
from mmpack.errors import ConfigError, Reason, SampleError
from mmpack.layout import Layout
from mmpack.offline import PackConfig, PackedSequenceSpecs, pack_dataset
from mmpack.sample import EncodedPair, LostSample
from mmpack.train import TrainConfig, train
from tests.conftest import words
from tests.llm.texts import prompt_response, write_jsonl

WAYS: dict[str, dict[str, Any]] = {
    "packed ahead": {"batching": "packing"},
    "window": {"batching": "packing", "streaming": True, "packing_buffer_size": 20},
}


def texts(num_records: int) -> list[dict[str, str]]:
    rng = random.Random(5)
    return [
        {
            "prompt": f"question {i} {words(rng, rng.randint(1, 9))}?",
            "chosen": f"good {i} {words(rng, rng.randint(1, 30))}",
            "rejected": f"bad {i} {words(rng, rng.randint(1, 30))}",
        }
        for i in range(num_records)
    ]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def module(path: Path, tokenizer: Any, **changes: Any) -> FineTuningDataModule:
    options: dict[str, Any] = {"seq_length": 128, "global_batch_size": 4, "num_workers": 0, "train": path}
    specs = PackedSequenceSpecs(packed_sequence_size=256)
    return FineTuningDataModule(tokenizer=tokenizer, packed_sequence_specs=specs, **(options | changes))


def sides(batch: PackedBatch, tokenizer: Any) -> list[tuple[str, str, str]]:
    """Key, whole text and learned text of every sample, read from the batch alone."""
    spans = zip(batch.cu_seqlens_padded.tolist(), batch.cu_seqlens.diff().tolist(), strict=False)
    found = []
    for key, (start, length) in zip(batch.sample_keys, [s for s in spans if s[1]], strict=True):
        labels = batch.labels[0, start : start + length]
        whole = tokenizer.decode(batch.tokens[0, start : start + length].tolist())
        found.append((key, whole, tokenizer.decode(labels[labels != IGNORE_INDEX].tolist())))
    return found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "layout", [Layout(), Layout(sequence_multiple=8, fixed_total=256), Layout(fixed_total=256, cu_seqlens_size=7)]
)
def test_every_pair_comes_once_and_whole(tmp_path: Path, tokenizer: Any, way: str, layout: Layout) -> None:
    records = texts(60)
    data = module(write_jsonl(tmp_path / "pairs.jsonl", records), tokenizer, layout=layout, **WAYS[way])
    assert data.record_format == "preference"
    seen = []
    for batch in data.train_dataloader():
        assert isinstance(batch, PackedBatch)
        batch.check()
        assert len(batch.pairs) * 2 == len(batch.sample_keys)
        assert layout.max_samples is None or len(batch.sample_keys) <= 4  # five would fit, two pairs and a half
        found = sides(batch, tokenizer)
        for chosen, rejected in batch.pairs.tolist():
            number = int(found[chosen][0].removesuffix("/chosen"))
            assert found[rejected][0] == f"{number:08d}/rejected"
            for place, side in ((chosen, "chosen"), (rejected, "rejected")):
                record = records[number]
                assert found[place][1:] == (f"{record['prompt']} {record[side]}</s>", record[side] + "</s>")
            seen.append(number)
    assert sorted(seen) == list(range(60))


def test_streaming_goes_on_where_it_stood(tmp_path: Path, tokenizer: Any) -> None:
    path = write_jsonl(tmp_path / "pairs.jsonl", texts(60))
    whole = [batch.sample_keys for batch in module(path, tokenizer, **WAYS["window"]).train_dataloader()]
    begun, seen = module(path, tokenizer, **WAYS["window"]), []
    for batch in begun.train_dataloader():
        seen.append(batch.sample_keys)
        if len(seen) == 4:
            break
    resumed = module(path, tokenizer, **WAYS["window"])
    resumed.load_state_dict(begun.state_dict())
    assert seen + [batch.sample_keys for batch in resumed.train_dataloader()] == whole


# --- the forms of a record -------------------------------------------------------------------------------------------


def encoded(record: Any, tokenizer: Any, path: Path, *, seq_length: int = 200, **form: Any) -> EncodedPair:
    file = TextFile(write_jsonl(path / "one.jsonl", [record]), TextForm(**form), tokenizer, seq_length=seq_length)
    pair = file.sample(0)
    assert isinstance(pair, EncodedPair)
    return pair


CHAT = [user("one?"), assistant("first."), user("two?")]


@pytest.mark.parametrize(
    "record",
    [
        {"prompt": CHAT, "chosen": [assistant("yes.")], "rejected": [assistant("no!")]},
        {"chosen": [*CHAT, assistant("yes.")], "rejected": [*CHAT, assistant("no!")]},
    ],
)
def test_messages(record: dict[str, Any], tokenizer: Any, tmp_path: Path) -> None:
    pair = encoded(record, tokenizer, tmp_path, template="chatml", record_format="preference")
    for side, answer in ((pair.chosen, "yes."), (pair.rejected, "no!")):
        assert tokenizer.decode(side.token_ids_n[side.trained_n].tolist()) == answer + "<|im_end|>"
        text = tokenizer.decode(side.token_ids_n.tolist())
        assert "one?" in text
        assert "first." in text
        assert text.count("<|im_start|>") == 4
    start = int(pair.chosen.trained_n.argmax())
    assert (pair.chosen.token_ids_n[:start] == pair.rejected.token_ids_n[:start]).all()


def test_texts_through_a_template(tokenizer: Any, tmp_path: Path) -> None:
    record = {"prompt": "one?", "chosen": "yes.", "rejected": "no!"}
    pair = encoded(record, tokenizer, tmp_path, template="chatml")
    assert tokenizer.decode(pair.rejected.token_ids_n.tolist()).endswith("assistant\nno!<|im_end|>\n")
    form = TextForm.of({"prompt_template": "Q: {prompt} A: {chosen}", "record_format": "preference"})
    file = TextFile(write_jsonl(tmp_path / "two.jsonl", [record]), form, tokenizer, seq_length=64)
    templated = file.sample(0)
    assert isinstance(templated, EncodedPair)
    assert tokenizer.decode(templated.rejected.token_ids_n.tolist()) == "Q: one? A: no!</s>"


@pytest.mark.parametrize(
    ("record", "reason", "words_"),
    [
        ({"prompt": "a", "chosen": "b"}, Reason.MISSING_FIELD, "no 'rejected'"),
        ({"chosen": "b", "rejected": "c"}, Reason.MISSING_FIELD, "no 'prompt'"),
        ({"prompt": "a", "chosen": [assistant("b")], "rejected": [assistant("c")]}, Reason.WRONG_TYPE, "neither all"),
        ({"prompt": "a", "chosen": " ", "rejected": "c"}, Reason.NO_ANSWER, "blank"),
        ({"prompt": [user("a")], "chosen": [], "rejected": [assistant("c")]}, Reason.NO_ANSWER, "no answer"),
        (
            {
                "prompt": [user("<image>")],
                "chosen": [assistant("b")],
                "rejected": [assistant("c")],
                "images": ["a.png"],
            },
            Reason.IMAGE_UNSUPPORTED,
            "1 pictures",
        ),
        ({"prompt": "a", "chosen": "b " * 300, "rejected": "c"}, Reason.OVERSIZE, "allowed 200"),
        ("words", Reason.NOT_A_RECORD, "str"),
    ],
)
def test_what_is_no_pair_is_left_out_with_its_reason(
    record: Any, reason: Reason, words_: str, tokenizer: Any, tmp_path: Path
) -> None:
    with pytest.raises(SampleError, match=words_) as caught:
        encoded(record, tokenizer, tmp_path, record_format="preference", template=None)
    assert caught.value.reason is reason


@pytest.mark.parametrize("way", WAYS)
def test_a_pair_too_long_for_a_pack_is_counted(tmp_path: Path, tokenizer: Any, way: str) -> None:
    records = texts(30)
    records[7] = {"prompt": "q", "chosen": "long " * 30, "rejected": "long " * 40}
    path = write_jsonl(tmp_path / "pairs.jsonl", records)
    specs = PackedSequenceSpecs(packed_sequence_size=128)
    options = {"seq_length": 128, "global_batch_size": 1, "num_workers": 0, "train": path}
    data = FineTuningDataModule(tokenizer=tokenizer, packed_sequence_specs=specs, **options, **WAYS[way])
    loader = data.train_dataloader()
    keys = {key.split("/")[0] for batch in loader for key in batch.sample_keys}
    counts = loader.drops.counts()
    assert len(keys) + counts["oversize"] == 30
    assert "00000007" not in keys


# --- what cannot be --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{"batching": "padding"}, {"batching": "padding", "streaming": True},
                                     {"batching": "global_packing"}])  # fmt: skip
def test_only_packs_keep_pairs(tmp_path: Path, tokenizer: Any, changes: dict[str, Any]) -> None:
    data = module(write_jsonl(tmp_path / "pairs.jsonl", texts(20)), tokenizer, **changes)
    with pytest.raises(ConfigError, match="only packs keep a pair together; use batching='packing'"):
        next(iter(data.train_dataloader()))


@pytest.mark.parametrize("way", [*WAYS, "ready-made"])
def test_the_trainer_does_not_learn_rejected_answers(tmp_path: Path, tokenizer: Any, way: str) -> None:
    path = write_jsonl(tmp_path / "pairs.jsonl", texts(20))
    if way == "ready-made":
        made = tmp_path / "made"
        pack_dataset(PackConfig(input_path=path, output_path=made, packed_sequence_size=256), tokenizer)
        specs = PackedSequenceSpecs(packed_sequence_size=256, packed_train_data_path=made)
        data = FineTuningDataModule(tokenizer=tokenizer, packed_sequence_specs=specs, seq_length=256)
    else:
        data = module(path, tokenizer, **WAYS[way])
    with pytest.raises(ConfigError, match=r"rejected ones as well.*PackedBatch\.pairs"):
        train(TrainConfig(output_dir=tmp_path / "run", max_steps=1), data, torch.nn.Linear(1, 1))


# --- the batch -------------------------------------------------------------------------------------------------------


def test_pairs_among_single_and_lost_samples(tmp_path: Path, tokenizer: Any) -> None:
    pair = encoded({"prompt": "a", "chosen": "b", "rejected": "c d"}, tokenizer, tmp_path)
    file = TextFile(write_jsonl(tmp_path / "t.jsonl", prompt_response(2)), TextForm(), tokenizer, seq_length=99)
    lost = LostSample(key="x", source="s", num_tokens=5, error=SampleError(Reason.UNREADABLE, "gone"))
    plain = Collator(tiling=text_tiling(), layout=Layout())
    with pytest.raises(ConfigError, match=r"collate with mmpack\.collate\.PairCollator"):
        plain.collate([pair], pack_index=0)
    batch, gone = PairCollator(inner=plain).collate([file.sample(0), pair, lost, file.sample(1)], pack_index=0)
    assert gone == [lost]
    assert batch.check().pair_of_sample == (-1, 0, 0, -1)
    assert batch.pairs.tolist() == [[1, 2]]
    assert json.dumps(batch.pair_of_sample) == "[-1, 0, 0, -1]"
    single, _ = PairCollator(inner=plain).collate([file.sample(0)], pack_index=0)
    assert (single.pair_of_sample, single.pairs.shape) == ((), (0, 2))
