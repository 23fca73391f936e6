"""How energon makes samples of this dataset's tar members. Copied into the dataset; needs nothing but Python.

A sample is ``KEY.json`` (the record; its "image" lists the picture parts) and ``KEY.0.jpg``, ``KEY.1.png``, ...
Decoded parts become one interleaved sequence of texts and pictures in reading order: a line for each turn, or for each
text of a record without turns, behind all pictures where the texts have no places for them. If decoding is switched
off, the sequence holds the parts as (name, value), so that a reader may plan before it decodes. A decoder that reads
texts only says so with "__undecoded__".
"""

MARK = "<image>"
TEXTS = ["question", "context", "choices", "prompt", "input", "text", "lines_text", "words_text"]
TEXTS += ["answer", "answers", "caption", "response", "output"]


def part_filter(part: str) -> bool:
    return True


def decoded(picture: object) -> object:
    """Energon's decoder leaves formats that it does not know (AVIF, QOI) as bytes; here they become tensors too."""
    if not isinstance(picture, bytes):
        return picture
    import io

    import numpy
    import torch
    from PIL import Image

    with Image.open(io.BytesIO(picture)) as image:
        pixels_HWC = numpy.asarray(image.convert("RGB"), dtype=numpy.float32) / 255.0
    return torch.from_numpy(pixels_HWC.transpose(2, 0, 1).copy())


def content_text(content: object) -> str:
    """A text, or a list of parts as text with marks where pictures stand."""
    if isinstance(content, list):
        return "".join(content_text(part) for part in content)
    if isinstance(content, dict):
        return MARK if "image" in str(content.get("type", "image")) else content_text(content.get("text"))
    return "" if content is None else str(content)


def lines_of(record: dict) -> list:  # type: ignore[type-arg]
    """The record's texts in reading order."""
    turns = record.get("conversations") or record.get("messages")
    if isinstance(turns, list):
        speakers = [str(turn.get("from") or turn.get("role") or "") for turn in turns]
        contents = [content_text(turn.get("value", turn.get("content"))) for turn in turns]
        return [f"{speaker}: {content}\n" for speaker, content in zip(speakers, contents)]  # noqa: B905
    if isinstance(record.get("sequence"), list):
        return [content_text(entry if isinstance(entry, dict) else str(entry)) for entry in record["sequence"]]
    if isinstance(record.get("texts"), list):
        return [MARK if text is None else str(text) for text in record["texts"]]
    return [f"{content_text(record[name])}\n" for name in TEXTS if record.get(name) is not None]


def sample_loader(raw: dict) -> dict:  # type: ignore[type-arg]
    parts = {name: value for name, value in raw.items() if not name.startswith("__")}
    record = parts.get("json")
    if record is None or isinstance(record, (bytes, bytearray)) or raw.get("__undecoded__"):
        return {"sequence": list(parts.items())}
    pictures = [decoded(parts[name]) for name in record.get("image") or []]
    lines = lines_of(record)
    num_marks = sum(line.count(MARK) for line in lines)
    if num_marks != len(pictures):  # the texts have no places for them, or "<image>" is a word in them
        return {"sequence": pictures + lines}
    rest = iter(pictures)
    sequence: list = []  # type: ignore[type-arg]
    for line in lines:
        text = ""
        for i, piece in enumerate(line.split(MARK)):
            if i:
                if text:
                    sequence.append(text)
                sequence.append(next(rest))
                text = ""
            text += piece
        if text:
            sequence.append(text)
    return {"sequence": sequence}
