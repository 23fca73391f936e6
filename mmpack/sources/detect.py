"""Which format a record has, by its fields alone."""

from __future__ import annotations

from collections.abc import Mapping

_SHAREGPT_ROLES = frozenset({"tool", "observation", "function_call"})


def detect(record: object) -> str | None:
    """The name in `SOURCES` of the format that fits `record`, or None if none does.

    The fields that a format must have decide, in the order below; a field that is null counts as missing. A picture
    with a ``"text"`` is a caption: records for reading text need ``"lines_text"`` or ``"words_text"`` to be told from
    one, or their format named.

    >>> detect({"messages": []}), detect({"image": "a.png", "question": "?", "answer": "!"})
    ('openai', 'vqa')
    >>> detect({"text": "a"}), detect({"image": "a.png", "text": "a"}), detect({"id": 3})
    ('text', 'captioning', None)
    """
    if not isinstance(record, Mapping):
        return None
    has = {name for name, value in record.items() if value is not None}
    if "conversations" in record:
        return _kind_of_conversation(record, has)
    if "messages" in record:
        return "openai"
    if has & {"sequence", "texts"}:
        return "interleaved"
    if "choices" in has or (record.get("options") and has & {"question", "context"}):  # of open questions it is empty
        return "multi_choice"
    if has & {"question", "context"} and has & {"answer", "answers"}:
        return "vqa"
    if has & {"lines_text", "words_text"}:
        return "ocr"
    if has & {"instruction", "prompt", "input"} and has & {"response", "output", "completion"}:
        return "prompt_response"
    if "caption" in has:
        return "captioning"
    if "text" in has:
        return "captioning" if has & {"image", "images"} else "text"
    return None


def _kind_of_conversation(record: Mapping[object, object], has: set[object]) -> str:
    conversations = record["conversations"]
    entries = [e for e in conversations if isinstance(e, Mapping)] if isinstance(conversations, list) else []
    if entries and all("role" in entry for entry in entries):
        return "openai"
    roles = {role.strip().lower() for entry in entries if isinstance(role := entry.get("from"), str)}
    if roles & _SHAREGPT_ROLES or has & {"system", "tools"} or ("images" in has and "image" not in has):
        return "sharegpt"
    return "llava"
