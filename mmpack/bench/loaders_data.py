"""The forms of the measured data that each loader reads: an Energon dataset, plain files, and the peers' own shards."""

from __future__ import annotations

import json
import os
import shutil
import sys
import types
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from mmpack.convert import ConvertConfig, convert


def records(data: Path) -> list[dict[str, Any]]:
    """The records of the mix."""
    found: list[dict[str, Any]] = json.loads((data / "llava.json").read_text(encoding="utf-8"))
    return found


def prepare(data: Path, subject: str) -> None:
    """Makes what a subject reads, if it is not there. Raises ImportError where that takes a library that is missing."""
    makers: dict[str, tuple[str, Callable[[Path, Path], None]]] = {
        "mmpack": ("energon", _energon),
        "mmpack_plan": ("energon", _energon),
        "energon": ("crude", _crude),
        "energon_pillow": ("crude", _crude),
        "webdataset": ("crude", _crude),
        "streaming": ("mds", _mds),
        "litdata": ("lit", _lit),
    }
    if subject not in makers:
        return
    name, make = makers[subject]
    if not (data / name).exists():
        unfinished = data / f"{name}.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        make(data, unfinished)
        os.replace(unfinished, data / name)


def _energon(data: Path, out: Path) -> None:
    convert(ConvertConfig(src=data / "llava.json", dst=out, image_root=data / "images"))


def _crude(data: Path, out: Path) -> None:
    """The same shards as energon's users keep them: with a cooker in the training script instead of a sample loader."""
    _energon(data, out)
    for leftover in (out / ".nv-meta").glob("sample_loader.py"):
        leftover.unlink()
    text = "__module__: megatron.energon\n__class__: CrudeWebdataset\n"
    (out / ".nv-meta" / "dataset.yaml").write_text(text, encoding="utf-8")


def import_streaming() -> Any:
    """mosaicml-streaming, whose import asks for torchvision for classes that are not used here."""
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):
        for name in list(sys.modules):
            if name.partition(".")[0] == "torchvision":
                del sys.modules[name]
        for part in ("", ".transforms", ".transforms.functional", ".datasets"):
            name = f"torchvision{part}"
            module: Any = types.ModuleType(name)
            module.__path__, module.__spec__ = [], ModuleSpec(name, None)
            module.VisionDataset, module.to_tensor = object, None
            sys.modules[name] = module
    import streaming

    return streaming


def _mds(data: Path, out: Path) -> None:
    streaming = import_streaming()
    with streaming.MDSWriter(out=str(out), columns={"record": "bytes", "picture": "bytes"}) as writer:
        for record in records(data):
            picture = (data / "images" / record["image"]).read_bytes()
            writer.write({"record": json.dumps(record).encode(), "picture": picture})


def _lit(data: Path, out: Path) -> None:
    import litdata

    inputs = [(json.dumps(record), str(data / "images" / record["image"])) for record in records(data)]
    litdata.optimize(
        fn=_lit_item, inputs=inputs, output_dir=str(out), num_workers=1, chunk_bytes="16MB", start_method="fork"
    )


def _lit_item(item: tuple[str, str]) -> dict[str, bytes]:
    return {"record": item[0].encode(), "picture": Path(item[1]).read_bytes()}
