"""Blends of Energon datasets by tokens: a metadataset's entries, each read by itself, in exact shares."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from mmpack.convert import ConvertConfig, convert
from mmpack.encode import LengthLimit, SampleEncoder
from mmpack.energon.blend import blended_sources
from mmpack.energon.reader import SourceConfig
from mmpack.energon.source import OpenEnergon
from mmpack.errors import ConfigError
from mmpack.sample import EncodedSample
from mmpack.stream.mixed import OpenMix
from mmpack.templates import TEMPLATES
from mmpack.tiling import make_tiling
from tests.conftest import tile_spec

WEIGHTS = {"short": 3, "long": 1}


@pytest.fixture(scope="module")
def blend(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A metadataset of two text datasets whose samples differ tenfold in length, three parts to one."""
    folder = tmp_path_factory.mktemp("blend")
    for name, num_words in {"short": 5, "long": 50}.items():
        records = [{"text": f"{name} {i} " + "word " * (num_words + i % 4)} for i in range(60)]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
        convert(ConvertConfig(src=folder / f"{name}.jsonl", dst=folder / name, format="auto"))
    entries: list[dict[str, Any]] = [{"path": name, "weight": weight} for name, weight in WEIGHTS.items()]
    entries[0]["subflavors"] = {"kind": "few words"}
    content = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"train": {"blend": entries}}}
    (folder / "blend.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    return folder / "blend.yaml"


def test_tokens_are_shared_by_the_weights(blend: Path, tokenizer: Any) -> None:
    encoder = SampleEncoder(
        tokenizer=tokenizer,
        template=TEMPLATES.get("raw")(),
        tiling=make_tiling("single", tile_spec()),
        limit=LengthLimit(seq_length=1000),
    )
    entries = blended_sources(SourceConfig(path=blend, repeat=True))
    names = [OpenEnergon(config)(stream=0, num_streams=1, on_fault=print).name for config, _ in entries]
    assert names == [
        f"{blend.with_name(name)} (blend[{i}] of {blend})" for i, name in enumerate(WEIGHTS)
    ]  # not those of the files that stand for them
    opener = OpenMix(
        sources=[OpenEnergon(config) for config, _ in entries],
        weights=[weight for _, weight in entries],
        unit="tokens",
        encoder=encoder,
    )
    source = opener(stream=0, num_streams=2, on_fault=lambda error, name: pytest.fail(f"{name}: {error}"))
    tokens = dict.fromkeys(WEIGHTS, 0)
    longest = 0
    for drawn in itertools.islice(source, 400):
        assert isinstance(drawn.sample, EncodedSample)
        tokens[drawn.source] += drawn.sample.num_tokens
        longest = max(longest, drawn.sample.num_tokens)
    assert abs(tokens["short"] - 3 * tokens["long"]) <= 3 * longest
    assert min(tokens.values()) > 1000


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({"path": "short"}, "has no list 'blend'"),
        ({"blend": [{"weight": 1}]}, r"blend\[0\] has no path"),
        ({"blend": [{"path": "short", "weight": 0}]}, r"blend\[0\]: weight=0"),
    ],
)
def test_what_is_no_blend_is_named(blend: Path, split: Any, message: str) -> None:
    other = blend.with_name("other.yaml")
    other.write_text(yaml.safe_dump({"splits": {"train": split}}), encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        blended_sources(SourceConfig(path=other))


def test_a_plain_dataset_is_no_blend(blend: Path) -> None:
    with pytest.raises(ConfigError, match="needs a metadataset"):
        blended_sources(SourceConfig(path=blend.with_name("short")))
