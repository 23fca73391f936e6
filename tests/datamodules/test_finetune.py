"""Fine-tuning data: answers and nothing else are learned, everything comes once, resume is exact, policies count."""

from __future__ import annotations

import itertools
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from mmpack.batch import IGNORE_INDEX, Batch, PackedBatch, PaddedBatch
from mmpack.datamodules.finetune import FineTuningDataModule
from mmpack.datamodules.finetune_config import FinetuneConfig
from mmpack.errors import ConfigError, Reason, StateError
from mmpack.layout import Layout
from mmpack.offline import PackedSequenceSpecs, prepare_packed_sequence_data
from tests.llm.texts import prompt_response, write_jsonl, write_sets

WAYS: dict[str, dict[str, Any]] = {
    "padding": {"batching": "padding"},
    "padded to the limit": {"batching": "padding", "pad_to_max_length": True},
    "dynamic": {"batching": "dynamic", "tokens_per_microbatch": 512},
    "buckets": {"batching": "buckets"},
    "packing": {"batching": "packing"},
    "packing within the global batch": {"batching": "global_packing"},
    "window": {"batching": "packing", "streaming": True, "packing_buffer_size": 20},
    "stream of padded": {"batching": "padding", "streaming": True},
    "stream of dynamic": {"batching": "dynamic", "streaming": True, "packing_buffer_size": 20},
    "stream of buckets": {"batching": "buckets", "streaming": True, "packing_buffer_size": 20},
}


SPECS = PackedSequenceSpecs(packed_sequence_size=256)


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sets(tmp_path_factory.mktemp("sets"))


def module(sets: Path, tokenizer: Any, **changes: Any) -> FineTuningDataModule:
    options: dict[str, Any] = {"seq_length": 256, "global_batch_size": 8, "num_workers": 0}
    return FineTuningDataModule(sets, tokenizer=tokenizer, **(options | changes))


@pytest.mark.parametrize("way", ["packing", "window"])
def test_offsets_of_constant_number(sets: Path, tokenizer: Any, way: str) -> None:
    layout = Layout(fixed_total=256, cu_seqlens_size=5)
    data = module(sets, tokenizer, layout=layout, packed_sequence_specs=SPECS, **WAYS[way])
    batches = [batch.check() for batch in data.train_dataloader()]
    assert {(len(batch.cu_seqlens), batch.max_seqlen, batch.num_tokens) for batch in batches} == {(5, 256, 256)}
    assert max(len(batch.sample_keys) for batch in batches) == 3
    seen = [int(key) for batch in batches for key in batch.sample_keys]
    records = (sets / "training.jsonl").read_text().splitlines()
    assert sorted(seen) == list(range(len(records)))


def samples(batch: Batch) -> list[tuple[str, list[int], list[int]]]:
    """Key, tokens and trained tokens of every sample, read from the batch alone."""
    found = []
    if isinstance(batch, PaddedBatch):
        spans = [(row, 0, int(length)) for row, length in enumerate(batch.lengths) if int(length)]
    else:
        real = batch.cu_seqlens.diff()
        spans = [
            (0, int(start), int(start) + int(length))
            for start, length in zip(batch.cu_seqlens_padded[:-1], real, strict=True)
            if int(length)
        ]
    for key, (row, start, end) in zip(batch.sample_keys, spans, strict=True):
        labels = batch.labels[row, start:end]
        found.append((key, batch.tokens[row, start:end].tolist(), labels[labels != IGNORE_INDEX].tolist()))
    return found


def digest(batch: Batch) -> Any:
    """What training sees of a batch, and its place."""
    return batch.pack_index, tuple(batch.tokens.shape), samples(batch)


@pytest.mark.parametrize("way", WAYS)
def test_an_epoch_is_complete_and_learns_exactly_the_answers(sets: Path, tokenizer: Any, way: str) -> None:
    records = [json.loads(line) for line in (sets / "training.jsonl").read_text().splitlines()]
    seen = []
    for batch in module(sets, tokenizer, **WAYS[way]).train_dataloader():
        assert isinstance(batch, PackedBatch if "pack" in way or way == "window" else PaddedBatch)
        for key, tokens, trained in samples(batch.check()):
            record = records[int(key)]
            assert tokenizer.decode(trained) == record["output"] + "</s>"
            assert tokenizer.decode(tokens) == f"{record['input']} {record['output']}</s>"
            seen.append(int(key))
    assert sorted(seen) == list(range(len(records)))


@pytest.mark.parametrize("way", WAYS)
def test_resume_is_exact_after_any_batch(sets: Path, tokenizer: Any, way: str) -> None:
    def two_epochs(data: FineTuningDataModule) -> Any:
        loader = data.train_dataloader()
        return itertools.chain(loader, loader)

    data = module(sets, tokenizer, **WAYS[way])
    whole, states = [], []
    for batch in two_epochs(data):
        whole.append(digest(batch))
        states.append(pickle.loads(pickle.dumps(data.state_dict())))
    in_first = sum(state["epoch"] == 0 for state in states)
    assert whole[:in_first] != whole[in_first:]  # another order
    for place in (0, 3, in_first - 1, in_first, len(whole) - 2):
        resumed = module(sets, tokenizer, **WAYS[way])
        resumed.load_state_dict(states[place])
        passes = two_epochs(resumed) if place < in_first else resumed.train_dataloader()
        if place == in_first - 1:  # the rest of the first epoch is empty
            passes = itertools.chain(passes, resumed.train_dataloader())
        rest = list(itertools.islice((digest(batch) for batch in passes), len(whole) - place - 1))
        assert rest == whole[place + 1 :], place


@pytest.mark.parametrize("way", [way for way in WAYS if "stream" not in way and way != "window"])
def test_ranks_share_the_steps_and_may_change_in_number_between_them(sets: Path, tokenizer: Any, way: str) -> None:
    def ranks(world_size: int, state: Any = None) -> list[list[list[Batch]]]:
        found = []
        for rank in range(world_size):
            data = module(sets, tokenizer, **WAYS[way], data_parallel_rank=rank, data_parallel_size=world_size)
            loader = data.train_dataloader()
            if state is not None:
                data.load_state_dict(state)
            found.append([list(step) for step in loader.steps()])
        return found

    def keys_of_steps(found: list[list[list[Batch]]]) -> list[list[str]]:
        return [sorted(k for step in steps for b in step for k in b.sample_keys) for steps in zip(*found, strict=True)]

    two = ranks(2)
    assert [len(step) for step in two[0]] == [len(step) for step in two[1]]
    alone = module(sets, tokenizer, **WAYS[way])
    steps = alone.train_dataloader().steps()
    whole = [sorted(k for b in step for k in b.sample_keys) for step in itertools.islice(steps, 2)]
    if way != "buckets":
        assert keys_of_steps(two)[:2] == whole
    for step, weights in zip(two[0], two[1], strict=True):
        assert sum(b.num_samples for b in (*step, *weights)) > 0
    if way != "buckets":
        rest = keys_of_steps(ranks(2, alone.state_dict()))
        assert rest == keys_of_steps(two)[2:]


def test_a_state_of_other_settings_names_the_difference(sets: Path, tokenizer: Any) -> None:
    data = module(sets, tokenizer, batching="padding")
    next(iter(data.train_dataloader()))
    other = module(sets, tokenizer, batching="dynamic", seed=5)
    with pytest.raises(StateError, match=r"plan\.batching: saved 'padding', now 'dynamic'; .*plan\.seed"):
        other.load_state_dict(data.state_dict())


def test_n_is_printed_and_can_set_the_global_batch(sets: Path, tokenizer: Any, capsys: Any) -> None:
    specs = PackedSequenceSpecs(packed_sequence_size=256, tokenizer_model_name="toy")
    data = module(sets, tokenizer, packed_sequence_specs=specs, global_batch_size="auto", global_batch_samples=32)
    data.setup()
    n = 90 / len(data._rows["train"])
    assert f"n = {n:.2f} sequences a pack" in capsys.readouterr().err
    assert data.global_batch_size == data.gradient_accumulation_steps == round(32 / n)
    again = module(sets, tokenizer, packed_sequence_specs=specs, global_batch_size="auto", global_batch_samples=32)
    again.setup()
    assert again.reports["train"].cached
    padded = module(sets, tokenizer, global_batch_size="auto", global_batch_samples=32)
    padded.setup()
    assert padded.global_batch_size == 32
    streamed = module(sets, tokenizer, **WAYS["window"] | {"global_batch_size": "auto", "global_batch_samples": 32})
    streamed.setup()
    assert streamed.global_batch_size == pytest.approx(32 / n, abs=1)


def test_a_micro_batch_of_packs_is_refused_with_the_same_work(sets: Path, tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match="micro_batch_size=1, packed_sequence_size=1024, global_batch_size=2"):
        module(sets, tokenizer, batching="packing", micro_batch_size=4)


def test_train_and_validation_are_each_packed_or_not(sets: Path, tokenizer: Any) -> None:
    data = module(sets, tokenizer, batching="packing", validation_batching="padding")
    assert isinstance(next(iter(data.train_dataloader())), PackedBatch)
    batches = list(data.val_dataloader())
    assert all(isinstance(batch, PaddedBatch) for batch in batches)
    assert sorted(k for batch in batches for k in batch.sample_keys) == [f"{i:08d}" for i in range(12)]
    other = module(sets, tokenizer, batching="padding", validation_batching="packing", global_batch_size=8)
    assert isinstance(next(iter(other.val_dataloader())), PackedBatch)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("policy", ["truncate", "skip", "raise"])
def test_over_long_rows_follow_the_policy_and_are_counted(
    tmp_path: Path, tokenizer: Any, policy: str, streaming: bool
) -> None:
    records = prompt_response(12)
    records[3]["input"] = "long " * 300  # can be cut
    records[5]["output"] = "long " * 300
    records[7]["context"] = "long " * 300  # not in the template
    path = write_jsonl(tmp_path / "data.jsonl", records)
    data = FineTuningDataModule(
        train=path, seq_length=64, tokenizer=tokenizer, global_batch_size=4, num_workers=0, streaming=streaming,
        dataset_kwargs={"prompt_template": "{input} {output}", "truncation_field": "input", "oversize": policy},
    )  # fmt: skip
    if policy == "raise":
        with pytest.raises(ConfigError, match="a sequence needs"):
            list(data.train_dataloader())
        return
    loader = data.train_dataloader()
    found = {key: (tokens, trained) for batch in loader for key, tokens, trained in samples(batch.check())}
    assert all(trained for _, trained in found.values())
    if policy == "skip":
        assert loader.drops.counts() == {Reason.OVERSIZE: 2}
        assert len(found) == 10
        return
    assert loader.drops.counts() == {Reason.TRUNCATED: 2}
    tokens, trained = found["00000003"]
    assert len(tokens) == 64
    assert tokenizer.decode(trained) == records[3]["output"] + "</s>"  # the field to cut gave it all
    assert len(found["00000005"][0]) == 64


@pytest.mark.parametrize("streaming", [False, True])
def test_a_chat_cut_to_no_answer_is_never_trained_on(tmp_path: Path, tokenizer: Any, streaming: bool) -> None:
    chats = [
        {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "fine"}]}
        for text in ("short", "long " * 200, "also short")
    ]
    data = FineTuningDataModule(
        train=write_jsonl(tmp_path / "chats.jsonl", chats), seq_length=64, tokenizer=tokenizer, global_batch_size=1,
        micro_batch_size=1, num_workers=0, streaming=streaming, dataset_kwargs={"chat": True, "template": "chatml"},
    )  # fmt: skip
    loader = data.train_dataloader()
    trained = [tokenizer.decode(ids) for batch in loader for _, _, ids in samples(batch)]
    assert trained == ["fine<|im_end|>"] * 2
    assert loader.drops.counts() == {Reason.NO_ANSWER: 1}


def test_ready_made_packs_are_read(sets: Path, tokenizer: Any, tmp_path: Path) -> None:
    made = tmp_path / "train.npy"
    prepare_packed_sequence_data(sets / "training.jsonl", made, tmp_path / "meta.json", 256, tokenizer, 256)
    specs = PackedSequenceSpecs(packed_sequence_size=256, packed_train_data_path=made)
    data = FineTuningDataModule(seq_length=256, tokenizer=tokenizer, packed_sequence_specs=specs, global_batch_size=2)
    batches = list(data.train_dataloader())
    assert sum(batch.check().num_samples for batch in batches) == 90
    with pytest.raises(ConfigError, match="for batching='packing'"):
        FineTuningDataModule(packed_sequence_specs=specs, batching="padding")


def test_packs_of_a_step_come_from_workers_too(sets: Path, tokenizer: Any) -> None:
    alone = [digest(batch) for batch in module(sets, tokenizer, **WAYS["window"]).train_dataloader()]
    workers = module(sets, tokenizer, **WAYS["window"] | {"num_workers": 2})
    assert [digest(batch) for batch in workers.train_dataloader()] == alone


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batching": "pading"}, "did you mean 'padding'"),
        ({"global_batch_size": "all"}, "or 'auto'"),
        ({"batching": "dynamic", "tokens_per_microbatch": 100}, "below the longest row of 2048"),
        ({"train": Path("no/such.jsonl")}, "is no file"),
        ({"specs": PackedSequenceSpecs(pad_cu_seqlens=True)}, "layout.cu_seqlens_size.*nemo_collate"),
        (
            {"layout": Layout(fixed_total=2048, cu_seqlens_size=9), "batching": "global_packing"},
            "cu_seqlens_size=9 with batching='global_packing'",
        ),
        ({"streaming": True, "batching": "global_packing"}, "use batching='packing'"),
        ({"bucket_size": 0}, "bucket_size=0"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        FinetuneConfig(**settings)


def test_unknown_options_of_a_record_are_refused_with_the_nearest(sets: Path, tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match="did you mean 'prompt_template'"):
        module(sets, tokenizer, dataset_kwargs={"prompt_templat": "{input} {output}"})
