"""The larger image-text sets, one function a source: (cache, writer) -> licence text."""

from __future__ import annotations

import json
import random
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from .demo_samples import read_easy_vqa
from .packages import Cache
from .writer import MARK, SetWriter


def debian_licence(folder: Path, package: str, summary: str) -> str:
    """The summary line followed by the package's own copyright file."""
    own = folder / f"usr/share/doc/{package}/copyright"
    return f"{summary}\n\n{own.read_text(encoding='utf-8', errors='replace')}" if own.is_file() else summary


def easyvqa(cache: Cache, writer: SetWriter) -> str:
    """Drawn shapes: all questions about a picture make one conversation."""
    wheel = cache.wheel("easy-vqa")
    for name, questions in read_easy_vqa(wheel).items():
        split, number = name.split("/")
        image = writer.image(f"{split}_{number}.png", wheel.read(f"easy_vqa/data/{split}/images/{number}.png"))
        (question, answer), *rest = questions
        writer.add(f"easyvqa/{name}", [(f"{MARK}\n{question}", answer), *rest], [image])
    member = next(n for n in wheel.namelist() if n.endswith(".dist-info/LICENSE"))
    return "easy-vqa 1.0, MIT\n\n" + wheel.read(member).decode()


def kgeography(cache: Cache, writer: SetWriter) -> str:
    """Maps with quizzes of up to 32 turns, flags with one or two questions, and choices among 2 to 6 flags."""
    folder = cache.debian("kgeography-data")
    root = folder / "usr/share/kgeography"
    rng = random.Random(0)
    flags: dict[Path, tuple[str, str]] = {}
    for path in sorted(root.glob("*.kgm")):
        tree = ET.parse(path).getroot()
        divisions = [d for d in tree.findall("division") if d.findtext("ignore") in (None, "no")]
        for division in divisions:
            flag = root / "flags" / (division.findtext("flag") or "-")
            if flag.is_file():
                flags.setdefault(flag, (division.findtext("name") or "", division.findtext("capital") or ""))
        picture = root / (tree.findtext("mapFile") or "-")
        if picture.is_file():
            _map_quiz(path.stem, tree, divisions, writer.image(f"map_{picture.name}", picture), writer, rng)
    stored = {f: writer.image(f"flag_{f.relative_to(root / 'flags').as_posix()}", f) for f in sorted(flags)}
    for flag, image in stored.items():
        name, capital = flags[flag]
        turns = [(f"{MARK}\nWhose flag is this?", name)] + ([("And its capital?", capital)] if capital else [])
        writer.add(f"kgeography/flag/{flag.relative_to(root / 'flags').with_suffix('').as_posix()}", turns, [image])
    for i in range(400):
        chosen = rng.sample(sorted(flags), rng.randint(2, 6))
        right = rng.randrange(len(chosen))
        question = f"{MARK}\n" * len(chosen) + f"Which of these flags belongs to {flags[chosen[right]][0]}?"
        writer.add(f"kgeography/choose/{i}", [(question, f"Flag number {right + 1}.")], [stored[f] for f in chosen])
    return debian_licence(folder, "kgeography-data", "KGeography's data, GPL-2+")


def _map_quiz(
    stem: str, tree: ET.Element, divisions: list[ET.Element], image: str, writer: SetWriter, rng: random.Random
) -> None:
    kind = (tree.findtext("divisionsName") or "divisions").lower()
    turns = [(f"{MARK}\nWhich place does this map show?", tree.findtext("name") or "")]
    turns.append((f"Which {kind} are on it?", ", ".join(d.findtext("name") or "" for d in divisions)))
    with_capital = [d for d in divisions if d.findtext("capital")]
    asked = rng.sample(with_capital, min(len(with_capital), rng.randint(0, 30)))
    turns += [(f"What is the capital of {d.findtext('name')}?", d.findtext("capital") or "") for d in asked]
    writer.add(f"kgeography/map/{stem}", turns, [image])


LANGUAGES = {
    "de": "German",
    "fr": "French",
    "es": "Spanish",
    "it": "Italian",
    "ja": "Japanese",
    "ru": "Russian",
    "zh_CN": "Simplified Chinese",
    "ar": "Arabic",
    "hi": "Hindi",
    "el": "Greek",
    "ko": "Korean",
    "uk": "Ukrainian",
    "pt_BR": "Brazilian Portuguese",
    "tr": "Turkish",
}


def tuxpaint(cache: Cache, writer: SetWriter) -> str:
    """Stamps (cut-out photos and drawings) with captions in many languages; beside each .png lies a .txt."""
    folder = cache.debian("tuxpaint-stamps-default")
    root = folder / "usr/share/tuxpaint/stamps"
    rng = random.Random(0)
    for png in sorted(root.rglob("*.png")):
        text = png.with_suffix(".txt")
        lines = text.read_text(encoding="utf-8", errors="replace").splitlines() if text.exists() else []
        if not lines or not lines[0].strip():
            continue
        pairs = (line.partition(".utf8=") for line in lines[1:] if ".utf8=" in line)
        captions = {key: value.strip() for key, _, value in pairs if key in LANGUAGES and value.strip()}
        stamp = png.relative_to(root)
        turns = [(f"{MARK}\nWhat does this picture show?", lines[0].strip())]
        spoken = rng.sample(sorted(captions), min(len(captions), rng.choice((0, 0, 1, 2, 4, 8))))
        turns += [(f"Say it in {LANGUAGES[key]}.", captions[key]) for key in spoken]
        if rng.random() < 0.3:
            turns.append(("What kind of thing is it?", " / ".join(stamp.parts[:-1])))
        image = writer.image(stamp.as_posix(), png)
        writer.add(f"tuxpaint/{stamp.with_suffix('').as_posix()}", turns, [image])
    return debian_licence(folder, "tuxpaint-stamps-default", "Tux Paint's stamps, GPL-2")


def wallpapers(cache: Cache, writer: SetWriter) -> str:
    """Plasma's wallpapers: large pictures with title, author and licence of each."""
    folder = cache.debian("plasma-workspace-wallpapers")
    for meta in sorted((folder / "usr/share/wallpapers").glob("*/metadata.json")):
        info: dict[str, Any] = json.loads(meta.read_text(encoding="utf-8"))["KPlugin"]
        for picture in sorted((meta.parent / "contents").glob("images*/*")):
            if picture.suffix not in (".jpg", ".png") or picture.is_symlink():
                continue
            where = f"{meta.parent.name}/{picture.parent.name}/{picture.name}"
            dark = ", in its dark variant" if picture.parent.name.endswith("_dark") else ""
            made = f"It is called {info['Name']}, by {info['Authors'][0]['Name']}{dark}. Licence: {info['License']}."
            turns = [(f"{MARK}\nWhat is this wallpaper called, and who made it?", made)]
            turns.append(("What is its resolution?", f"{picture.stem.replace('x', ' by ')} pixels."))
            writer.add(f"wallpapers/{Path(where).with_suffix('').as_posix()}", turns, [writer.image(where, picture)])
    summary = "Plasma's wallpapers; each names its licence in its metadata: LGPL-3 or CC-BY-SA-4.0"
    return debian_licence(folder, "plasma-workspace-wallpapers", summary)
