"""A tokenizer that takes text as it is: no control token in it, no blank that the text does not have."""

from __future__ import annotations

import copy
import json
from typing import Any


def literal_backend(tokenizer: Any) -> Any:
    """A copy of a fast tokenizer's backend that encodes text literally.

    No control token is recognised in text, nothing is cut or filled up, and a byte-level tokenizer puts no blank before
    a text (``add_prefix_space``): with it, an answer that begins a line would be learned as " answer", and its own
    blank at the beginning would be lost. A copy, since switches would change the caller's tokenizer under other
    threads.
    """
    backend = copy.deepcopy(tokenizer.backend_tokenizer)
    backend.encode_special_tokens = True
    backend.no_truncation()
    backend.no_padding()
    step = backend.pre_tokenizer
    if step is not None and '"add_prefix_space"' in (written := step.__getstate__().decode("utf-8")):
        plain = json.loads(written)
        if _without_prefix_space(plain):
            step.__setstate__(json.dumps(plain).encode("utf-8"))
            backend.pre_tokenizer = step
    return backend


def _without_prefix_space(step: Any) -> bool:
    """Switches it off in a pre-tokenizer as plain values, and in those that it is a sequence of; whether it was on."""
    changed = False
    if step.get("type") == "ByteLevel" and step.get("add_prefix_space"):
        step["add_prefix_space"] = False
        changed = True
    for inner in step.get("pretokenizers", []):
        changed = _without_prefix_space(inner) or changed
    return changed
