"""Writes one data set in three common forms: LLaVA JSON, chat JSONL and prompt-response JSONL."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Turns = Sequence[tuple[str, str]]
MARK = "<image>"


class SetWriter:
    """Collects the records of one source and writes them at `close`; `folder` is where they grow.

    llava.json             the samples with pictures, list of {"id", "image": str | [str],
                           "conversations": [{"from", "value"}]}
    chat.jsonl             {"id", "messages": [{"role", "content"}], "images": [str]}, everything
    prompt_response.jsonl  {"id", "prompt", "response", "images": [str]}, single turns only
    images/                the pictures; every path in the records is relative to it
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.num_images = 0
        self._llava: list[dict[str, Any]] = []
        self._chat: list[dict[str, Any]] = []
        self._single: list[dict[str, Any]] = []
        self._ids: set[str] = set()
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "images").mkdir(parents=True)

    def image(self, name: str, content: bytes | Path) -> str:
        """Stores a picture as `name` ('/' becomes '__') and returns its path; a file is linked where that works."""
        flat = name.replace("/", "__")
        target = self.folder / "images" / flat
        if target.exists():
            raise FileExistsError(f"two pictures of {self.folder.name} would be called {flat}")
        if isinstance(content, bytes):
            target.write_bytes(content)
        else:
            try:
                os.link(content.resolve(), target)
            except OSError:  # another file system
                shutil.copyfile(content, target)
        self.num_images += 1
        return flat

    def add(self, key: str, turns: Turns, images: Sequence[str] = (), system: str | None = None) -> None:
        """Adds a record of (question, answer) turns. Raises ValueError if marks and pictures differ in number."""
        marks = sum(question.count(MARK) for question, _ in turns)
        stray = sum(answer.count(MARK) for _, answer in turns) + (system or "").count(MARK)
        if marks != len(images) or stray or key in self._ids:
            raise ValueError(f"{key}: {marks} marks, {len(images)} pictures, {stray} stray marks, or an id seen before")
        self._ids.add(key)
        pictures = {"images": list(images)} if images else {}
        messages = [{"role": "system", "content": system}] if system else []
        for question, answer in turns:
            messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        self._chat.append({"id": key, "messages": messages, **pictures})
        if images:
            pairs = [({"from": "human", "value": q}, {"from": "gpt", "value": a}) for q, a in turns]
            image = images[0] if len(images) == 1 else list(images)
            self._llava.append({"id": key, "image": image, "conversations": [t for pair in pairs for t in pair]})
        if len(turns) == 1 and system is None:
            self._single.append({"id": key, "prompt": turns[0][0], "response": turns[0][1], **pictures})

    def discard(self) -> None:
        """Removes what has been written so far."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def close(self, licence: str, target: Path) -> str:
        """Writes the files, moves the folder to `target` (replacing it) and returns a line that says what there is."""
        (self.folder / "LICENSE.txt").write_text(licence.strip() + "\n", encoding="utf-8")
        if self._llava:
            rows = ",\n".join(json.dumps(r, ensure_ascii=False) for r in self._llava)
            (self.folder / "llava.json").write_text(f"[\n{rows}\n]\n", encoding="utf-8")
        else:
            (self.folder / "images").rmdir()
        for name, records in (("chat", self._chat), ("prompt_response", self._single)):
            if records:
                rows = "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records)
                (self.folder / f"{name}.jsonl").write_text(rows, encoding="utf-8")
        counts = f"{len(self._chat)} samples ({len(self._llava)} with pictures, {len(self._single)} single turns)"
        shutil.rmtree(target, ignore_errors=True)
        self.folder.rename(target)
        return f"{target.name}: {counts}, {self.num_images} pictures"
