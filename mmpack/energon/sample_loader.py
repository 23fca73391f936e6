"""How energon makes samples of this dataset's tar members. Copied into the dataset; needs nothing but Python.

A sample is ``KEY.json`` (the record; its "image" lists the picture parts) and ``KEY.0.jpg``, ``KEY.1.png``, ...
Decoded parts become one interleaved sequence of texts and pictures in reading order. If decoding is switched off, the
sequence holds the raw parts as (name, bytes), so that a reader may plan before it decodes.
"""


def part_filter(part: str) -> bool:
    return True


def sample_loader(raw: dict) -> dict:  # type: ignore[type-arg]
    parts = {name: value for name, value in raw.items() if not name.startswith("__")}
    record = parts.get("json")
    if record is None or isinstance(record, (bytes, bytearray)):
        return {"sequence": list(parts.items())}
    pictures = iter(record.get("image") or [])
    sequence = []
    for turn in record["conversations"]:
        text = turn["from"] + ": "
        for i, piece in enumerate(turn["value"].split("<image>")):
            if i:
                if text:
                    sequence.append(text)
                sequence.append(parts[next(pictures)])
                text = ""
            text += piece
        sequence.append(text + "\n")
    return {"sequence": sequence}
