"""What the conversion tests share: converting into a temporary folder, and looking at what came out."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

from PIL import Image

from mmpack.convert import ConvertConfig, ConvertReport, convert

CASES = Path(__file__).parents[1] / "cases"
PICTURES = CASES / "llava" / "images"


def run(src: Path, dst: Path, **options: Any) -> ConvertReport:
    return convert(ConvertConfig(src=src, dst=dst, **options))


def members(dataset: Path) -> list[tuple[str, bytes]]:
    """Names and contents of all tar members, shard after shard."""
    found = []
    for shard in sorted(dataset.glob("*.tar")):
        with tarfile.open(shard) as tar:
            found += [(m.name, tar.extractfile(m).read()) for m in tar.getmembers()]  # type: ignore[union-attr]
    return found


def samples(dataset: Path) -> dict[str, tuple[dict[str, Any], list[bytes]]]:
    """Record and pictures of each sample by key, in the order of the keys."""
    content = dict(members(dataset))
    found = {}
    for name in sorted(content):
        key, _, part = name.partition(".")
        if part == "json":
            record = json.loads(content[name])
            names = record.get("image", [])
            found[key] = record, [content[f"{key}.{picture}"] for picture in names]
    return found


def jpeg(colour: str = "red", size: tuple[int, int] = (24, 18)) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, colour).save(out, "JPEG")
    return out.getvalue()


def turns(question: str = "<image>\nWhat?", answer: str = "That.") -> list[dict[str, str]]:
    return [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]


def tar_of(*named: tuple[str, bytes | dict[str, Any] | list[Any]]) -> bytes:
    """An archive of these members in this order."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in named:
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()
