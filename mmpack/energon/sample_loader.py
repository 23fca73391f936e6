"""How energon makes samples of this dataset's tar members. Copied into the dataset; needs nothing but Python.

A sample is ``KEY.json`` (the record; its "image" lists the picture parts) and ``KEY.0.jpg``, ``KEY.1.png``, ...
Decoded parts become one interleaved sequence of texts and pictures in reading order. If decoding is switched off, the
sequence holds the parts as (name, value), so that a reader may plan before it decodes. A decoder that reads texts only
says so with "__undecoded__".
"""


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


def sample_loader(raw: dict) -> dict:  # type: ignore[type-arg]
    parts = {name: value for name, value in raw.items() if not name.startswith("__")}
    record = parts.get("json")
    if record is None or isinstance(record, (bytes, bytearray)) or raw.get("__undecoded__"):
        return {"sequence": list(parts.items())}
    pictures = iter(record.get("image") or [])
    sequence = []
    for turn in record["conversations"]:
        text = turn["from"] + ": "
        for i, piece in enumerate(turn["value"].split("<image>")):
            if i:
                if text:
                    sequence.append(text)
                sequence.append(decoded(parts[next(pictures)]))
                text = ""
            text += piece
        sequence.append(text + "\n")
    return {"sequence": sequence}
