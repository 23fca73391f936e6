"""The lazy module: the published snippet, splits, blends, kinds of batches, pictures that are missing."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from mmpack import vlm
from mmpack.batch import PackedBatch, PaddedBatch
from mmpack.errors import ConfigError, StateError
from tests.conftest import tile_spec
from tests.datamodules.helpers import batches, digest, files, keys, lazy, picture, write_records


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lazy")
    files(folder, {"first": 60, "second": 25, "third": 15})
    return folder


def module(folder: Path, tokenizer: Any, *names: str, **changes: Any) -> Any:
    paths = [folder / f"{name}.json" for name in names or ("first",)]
    return lazy(paths, tokenizer, folder / "images", **changes)


def test_the_published_snippet_runs(folder: Path, tokenizer: Any) -> None:
    from transformers import CLIPImageProcessorPil

    data_config = vlm.ImageDataConfig(image_folder=str(folder / "images"), conv_template="v1")
    data = vlm.NevaLazyDataModule(
        paths=str(folder / "first.json"),
        data_config=data_config,
        seq_length=2048,
        decoder_seq_length=None,
        global_batch_size=128,
        micro_batch_size=4,
        tokenizer=tokenizer,
        image_processor=CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}),
        num_workers=4,
        packed_sequence=True,
        num_image_embeddings_per_tile=576,
    )
    batch = next(iter(data.train_dataloader())).check()
    assert isinstance(batch, PackedBatch)
    assert batch.num_samples == 4
    assert (batch.tokens == -200).sum() == 576 * batch.pixels.shape[0]
    assert data.gradient_accumulation_steps == 32
    assert vlm.NevaPreloadedDataModule is vlm.NevaLazyDataModule


def test_without_tokenizer_or_processor_it_says_what_to_pass(folder: Path, tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer is None; pass one, e\.g\. transformers\.AutoTokenizer"):
        module(folder, None)
    with pytest.raises(
        ConfigError, match=r"image_processor is None; pass one, e\.g\. transformers\.CLIPImageProcessor"
    ):
        module(folder, tokenizer, image_processor=None)


def test_an_epoch_has_every_sample_once_with_its_own_labels(folder: Path, tokenizer: Any) -> None:
    records = json.loads((folder / "first.json").read_text())
    for options in ({"packed_sequence": True}, {}, {"packed_sequence": True, "packing_buffer_size": 20}):
        found = batches(module(folder, tokenizer, repeat=False, **options))
        assert sorted(keys(found)) == [("first", f"{i:08d}") for i in range(60)]
        assert {type(b) for b in found} == {PackedBatch if options else PaddedBatch}
        trained: Counter[int] = Counter()
        for batch in found:
            trained.update(batch.labels[batch.labels != -100].tolist())
        wanted: Counter[int] = Counter()
        for record in records:
            for turn in record["conversations"]:
                if turn["from"] == "gpt":
                    wanted.update(tokenizer.encode(turn["value"], add_special_tokens=False))
                    wanted.update([tokenizer.convert_tokens_to_ids("</s>")])
        assert trained == wanted


def test_epochs_differ_in_order_and_so_do_seeds(folder: Path, tokenizer: Any) -> None:
    loader = module(folder, tokenizer, repeat=False).train_dataloader()
    orders = [keys(list(loader)), keys(list(loader)), keys(batches(module(folder, tokenizer, repeat=False, seed=1)))]
    assert len({tuple(order) for order in orders}) == 3
    in_order = keys(batches(module(folder, tokenizer, repeat=False, shuffle=False, num_streams=1)))
    assert in_order == sorted(in_order)


def test_position_ids_count_from_0_in_every_sample(folder: Path, tokenizer: Any) -> None:
    for batch in batches(module(folder, tokenizer, packed_sequence=True), 10):
        offsets = batch.cu_seqlens_padded.tolist()
        assert len(offsets) == 4
        for start, end in itertools.pairwise(offsets):
            assert batch.position_ids[0, start:end].tolist() == list(range(end - start))


def test_micro_batches_are_the_same_samples_packed_or_padded(folder: Path, tokenizer: Any) -> None:
    rows, padded = (batches(module(folder, tokenizer, packed_sequence=packed), 8) for packed in (True, False))
    for row, batch in zip(rows, padded, strict=True):
        assert row.sample_keys == batch.sample_keys
        assert batch.tokens.shape == (3, max(batch.lengths))
        assert torch.equal(row.tokens[0], batch.tokens[~batch.padding_mask])
        assert torch.equal(row.labels[0], batch.labels[~batch.padding_mask])


def test_a_window_fills_rows(folder: Path, tokenizer: Any) -> None:
    options = {"packed_sequence": True, "packing_buffer_size": 40, "packed_sequence_size": 768, "num_streams": 1}
    found = batches(module(folder, tokenizer, "first", "second", **options), 15)
    assert sum(b.num_real_tokens for b in found) >= 0.999 * 768 * 15
    assert module(folder, tokenizer, packed_sequence=True, packing_buffer_size=40).rows.row_size == 3 * 512


def test_several_files_are_one_set_without_weights(folder: Path, tokenizer: Any) -> None:
    found = Counter(source for source, _ in keys(batches(module(folder, tokenizer, "first", "third", repeat=False))))
    assert found == {"first": 60, "third": 15}


@pytest.mark.parametrize("weights", [[1, 1, 2], [0.7, 0.2, 0.1]])
def test_weights_are_kept_at_every_point(folder: Path, tokenizer: Any, weights: list[float]) -> None:
    data = module(folder, tokenizer, "first", "second", "third", weights=weights, num_streams=2)
    counts = dict.fromkeys(("first", "second", "third"), 0)
    for number, batch in enumerate(itertools.islice(data.train_dataloader(), 120), start=1):
        for source in batch.sources:
            counts[source] += 1
        for source, weight in zip(counts, weights, strict=True):
            assert abs(counts[source] - 3 * number * weight / sum(weights)) <= 2 * 1.01 + 3, (number, counts)
    repeats = Counter(keys(batches(data, 120)))
    assert len(repeats) == 100 or weights[2] == 0.1


def test_weights_in_tokens(folder: Path, tokenizer: Any) -> None:
    data = module(folder, tokenizer, "first", "second", weights=[3, 1], blend_by="tokens", packed_sequence=True)
    tokens: Counter[str] = Counter()
    for batch in batches(data, 150):
        for source, length in zip(batch.sources, batch.cu_seqlens.diff().tolist(), strict=True):
            tokens[source] += length
    assert tokens["first"] / tokens.total() == pytest.approx(0.75, abs=0.01)


def test_validation_is_not_training(folder: Path, tokenizer: Any) -> None:
    data = module(folder, tokenizer, "first", "second", split="0.7,0.2,0.1", repeat=False)
    parts = {split: set(keys(batches(data, None, split))) for split in ("train", "val", "test")}
    assert {split: len(part) for split, part in parts.items()} == {"train": 60, "val": 16, "test": 9}
    assert len(set.union(*parts.values())) == 85
    own = {"train": folder / "first.json", "validation": [folder / "second.json"], "test": str(folder / "third.json")}
    data = lazy(own, tokenizer, folder / "images")
    for split, name, size in (("val", "second", 25), ("test", "third", 15)):
        found = keys(batches(data, None, split))
        assert sorted(found) == [(name, f"{i:08d}") for i in range(size)]
        assert found == keys(batches(data, None, split))


def test_without_validation_data_it_says_how_to_give_some(folder: Path, tokenizer: Any) -> None:
    data = module(folder, tokenizer)
    with pytest.raises(ConfigError, match=r"no data for 'val': .*paths=\{'train'.*split='0\.9,0\.05,0\.05'"):
        data.val_dataloader()
    with pytest.raises(ConfigError, match="no data for 'test'"):
        module(folder, tokenizer, split="0.9,0.1").test_dataloader()


@pytest.mark.parametrize(
    "options",
    [{}, {"packed_sequence": True}, {"packed_sequence": True, "packing_buffer_size": 15}, {"weights": [2, 1]}],
)
def test_the_same_batches_from_every_layout_of_ranks_and_workers(
    folder: Path, tokenizer: Any, options: dict[str, Any]
) -> None:
    names = ("first", "second")
    expected = [digest(b) for b in batches(module(folder, tokenizer, *names, **options), 12)]
    assert len(set(expected)) == 12
    assert [digest(b) for b in batches(module(folder, tokenizer, *names, num_workers=2, **options), 12)] == expected
    place = {"data_parallel_size": 2, "num_workers": 1}
    ranks = [batches(module(folder, tokenizer, *names, data_parallel_rank=r, **place, **options), 6) for r in (0, 1)]
    assert [digest(b) for pair in zip(*ranks, strict=True) for b in pair] == expected


def small(folder: Path, tokenizer: Any, records: list[Any], **changes: Any) -> Any:
    options = {"num_streams": 1, "micro_batch_size": 1, "global_batch_size": 1, "repeat": False, "shuffle": False}
    return lazy(write_records(folder / "r.json", records), tokenizer, folder, **(options | changes))


def record(question: str, answer: str, image: Any = None) -> dict[str, Any]:
    turns = [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]
    return {"conversations": turns} | ({} if image is None else {"image": image})


def test_a_missing_picture_leaves_its_sample_out_and_counts_it(tokenizer: Any, tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    records = [record("<image>?", "one", "a.png"), record("<image>?", "two", "b.png"), record("?", "three")]
    data = small(tmp_path, tokenizer, records)
    found = batches(data)
    assert [key for _, key in keys(found)] == ["00000000", "00000002"]
    assert data.train_dataloader().drops.counts() == {"image_missing": 1}
    with pytest.raises(ConfigError, match=r"record 00000001: 'b.png'.*missing_image='skip'"):
        batches(small(tmp_path, tokenizer, records, config={"missing_image": "raise"}))


@pytest.mark.parametrize("template", ["v1", "plain", "mistral", "chatml"])
def test_labels_do_not_depend_on_blanks_or_repetition(tokenizer: Any, tmp_path: Path, template: str) -> None:
    answers = ["a cat ", " two dogs", "the same", "line\n", "😀 \t"]
    turns: list[dict[str, str]] = []
    for answer in answers:
        turns += [{"from": "human", "value": f"say {answer}: the same"}, {"from": "gpt", "value": answer}]
    if template == "plain":
        turns = turns[:2]
        answers = answers[:1]
    tokenizer_of = tokenizer
    data = small(tmp_path, tokenizer_of, [{"conversations": turns}], config={"conv_template": template})
    (batch,) = batches(data)
    labels = batch.labels[0].tolist()
    spans = [list(group) for trained, group in itertools.groupby(labels, lambda label: label != -100) if trained]
    texts = [tokenizer.decode(span) for span in spans]
    assert len(texts) == len(answers)
    for text, answer in zip(texts, answers, strict=True):
        assert text.startswith(answer)
        assert text.removeprefix(answer).strip() in ("</s>", "<|im_end|>", "")


def test_a_sample_that_is_too_long_is_never_cut_in_silence(tokenizer: Any, tmp_path: Path) -> None:
    records = [record("?", "word " * 200), record("?", "short")]
    data = small(tmp_path, tokenizer, records, seq_length=150)
    assert [key for _, key in keys(batches(data))] == ["00000001"]
    assert data.train_dataloader().drops.counts() == {"oversize": 1}
    with pytest.raises(ConfigError, match="seq_length=150: sample '00000000' of 'r' needs"):
        batches(small(tmp_path, tokenizer, records, seq_length=150, oversize="raise"))
    with pytest.raises(ConfigError, match="decoder_seq_length=150: sample '00000000'"):
        batches(small(tmp_path, tokenizer, records, decoder_seq_length=150, oversize="raise"))
    cut = small(tmp_path, tokenizer, records, seq_length=150, oversize="truncate")
    assert int(batches(cut)[0].lengths[0]) == 150
    assert cut.train_dataloader().drops.counts() == {"truncated": 1}
    fixed = small(tmp_path, tokenizer, records, seq_length=800, decoder_seq_length=800, packed_sequence=True)
    assert [b.num_tokens for b in batches(fixed)] == [800, 800]


def test_image_process_mode_is_used(tokenizer: Any, tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    records = [record("<image>?", "one", "a.png")]
    pixels = [
        batches(small(tmp_path, tokenizer, records, config={"image_process_mode": mode}))[0].pixels
        for mode in ("pad", "square", "crop", "keep")
    ]
    assert len({tuple(p.flatten().tolist()) for p in pixels}) == 4


def test_processors_of_other_families(tokenizer: Any, tmp_path: Path) -> None:
    from transformers import Qwen2VLImageProcessorPil

    picture(tmp_path / "a.png")
    (batch,) = batches(
        small(tmp_path, tokenizer, [record("<image>?", "one", "a.png")], image_processor=Qwen2VLImageProcessorPil())
    )
    assert batch.pixel_kind == "patches"
    assert batch.position_ids.shape[0] == 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weights": [1]}, "1 weights for 2 files"),
        ({"weights": [1, 0]}, r"weights=\[1.0, 0.0\]; each must be above 0"),
        ({"weights": [1, 1], "repeat": False}, "weights with repeat=False"),
        ({"blend_by": "tokens"}, "blend_by='tokens' without weights"),
        ({"weights": [1, 1], "blend_by": "token"}, "did you mean 'tokens'"),
        ({"split": "0.9"}, r"split='0\.9'; shares of train, validation and test"),
        ({"split": "0,1"}, "split='0,1'"),
        ({"split": [0.999, 0.001]}, "too few for a 'val' share"),
        ({"oversize": "own_pack"}, "it needs packing_buffer_size"),
        ({"oversize": "cut"}, "oversize='cut'"),
        ({"oversize": {"frist": "drop"}}, "oversize names 'frist', which is no dataset here; did you mean 'first'"),
        ({"num_streams": 86}, "num_streams=86: there are 85 training samples"),
        ({"num_image_embeddings_per_tile": 5}, "num_image_embeddings_per_tile=5, but the TileSpec says 4"),
        ({"packed_sequence": True, "decoder_seq_length": 512}, "decoder_seq_length=512: a micro batch of 3 samples"),
        ({"image_processor": tile_spec(), "tiling": "sngle"}, "did you mean 'single'"),
        ({"config": {"conv_template": "vicuna"}}, "unknown conversation template 'vicuna'"),
        ({"config": {"media_type": "video"}}, "media_type='video'"),
        ({"config": {"image_process_mode": "padd"}}, "image_process_mode='padd'; did you mean 'pad'"),
        ({"config": {"missing_image": "drop"}}, "missing_image='drop'"),
        ({"config": {"reset_position_ids": True}}, "reset_position_ids=True"),
    ],
)
def test_a_wrong_setting_fails_at_construction(
    folder: Path, tokenizer: Any, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        module(folder, tokenizer, "first", "second", **changes).val_dataloader()


def test_paths_that_cannot_be_used(folder: Path, tokenizer: Any, tmp_path: Path) -> None:
    first = folder / "first.json"
    for paths, words in (
        ({"train": first, "validation": folder / "images" / ".." / "first.json"}, "is in 'train' and in 'val'"),
        ({"validation": first}, "no 'train'"),
        ({"train": first, "dev": first}, "unknown split 'dev'"),
        ([first, first], "is given twice"),
        ([], "no file for 'train'"),
        (tmp_path / "x.json", "does not exist"),
    ):
        with pytest.raises(ConfigError, match=words):
            lazy(paths, tokenizer, folder / "images")
    with pytest.raises(ConfigError, match="give one of the two"):
        lazy({"train": first, "val": folder / "second.json"}, tokenizer, folder / "images", split="0.9,0.1")
    with pytest.raises(ConfigError, match=r"image_folder=.*does not exist"):
        lazy(first, tokenizer, tmp_path / "nowhere")


def test_files_of_one_name_are_told_apart(folder: Path, tokenizer: Any, tmp_path: Path) -> None:
    records = json.loads((folder / "third.json").read_text())
    paths = [write_records(tmp_path / part / "data.json", records) for part in ("x", "y")]
    found = Counter(s for s, _ in keys(batches(lazy(paths, tokenizer, folder / "images", repeat=False))))
    assert found == {"data": 15, "y/data": 15}


def test_a_state_of_other_data_is_refused(folder: Path, tokenizer: Any) -> None:
    data = module(folder, tokenizer)
    next(iter(data.train_dataloader()))
    for changes, words in (({"seed": 1}, "data.seed: saved 1234, now 1"), ({"seq_length": 100}, "limit.seq_length")):
        with pytest.raises(StateError, match=words):
            module(folder, tokenizer, **changes).load_state_dict(data.state_dict())
    with pytest.raises(StateError, match="data: saved"):
        module(folder, tokenizer, "second").load_state_dict(data.state_dict())


def test_no_class_of_another_library_is_changed(folder: Path, tokenizer: Any) -> None:
    import torch.utils.data

    classes = [torch.utils.data.DataLoader, torch.utils.data.Sampler, torch.utils.data.DistributedSampler]
    before = [dict(vars(cls)) for cls in classes]
    batches(module(folder, tokenizer, packed_sequence=True), 2)
    assert [dict(vars(cls)) for cls in classes] == before
