"""What a decoder does where pictures must stay compressed: texts are read, everything else is left as bytes.

Typed datasets need it. Their field maps and sample loaders look into a sample's JSON, so without any decoder energon
cannot make a sample of it; with energon's own, every picture would be decoded before its pack is known.
"""

from __future__ import annotations

import json
from typing import Any

from megatron.energon.flavors.webdataset.sample_decoder import SampleDecoder

UNDECODED = "__undecoded__"  # set in every sample, so that a sample loader can tell that pictures are still bytes
_TEXTS = ("txt", "text", "transcript")
_NUMBERS = ("cls", "class", "count", "index")


def text_part(name: str, value: Any) -> Any:
    """The value of a part by its extension: JSON read, UTF-8 text, class numbers; all else, and what fails, as it is.

    >>> text_part("json", b'{"a": 1}'), text_part("first.TXT", b"hi"), text_part("jpg", b"hi"), text_part("json", b"{")
    ({'a': 1}, 'hi', b'hi', b'{')
    """
    if not isinstance(value, bytes):
        return value
    extension = name.rpartition(".")[2].lower()
    try:
        if extension in ("json", "jsn"):
            return json.loads(value)
        if extension in _TEXTS:
            return value.decode("utf-8")
        if extension in _NUMBERS:
            return int(value)
    except (ValueError, RecursionError):
        pass  # reported where the value is needed: energon gives up after 100 samples that its decoder cannot read
    return value


class TextDecoder(SampleDecoder):  # type: ignore[misc]
    """Energon's decoder without its pictures, sound and films."""

    def __init__(self) -> None:
        """Builds no handlers: energon's would decode pictures."""

    def decode(self, fname: str, raw: bytes) -> Any:
        return text_part(fname, raw)

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        parts = {name: value if name.startswith("__") else text_part(name, value) for name, value in sample.items()}
        return {**parts, UNDECODED: True}

    def config(self) -> dict[str, Any]:
        return {"image_decode": None}
