"""What can go wrong, in a few kinds, and the closed list of reasons for which a sample is left out.

* `ConfigError`  the request is wrong: raised when an object is built, before any data is read.
* `SampleError`  one sample is wrong: counted under its `Reason`, never stops a run by itself.
* `StateError`   a checkpoint does not fit the run that wants to resume from it.
* `DataError`    the data cannot be read on: a damaged or missing shard.
* `StorageError` remote storage does not answer, or holds something else than before; no sample is to blame.
* `WorkerError`  a worker process died or met an error of its own.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import StrEnum
from operator import index


class Reason(StrEnum):
    """Why a sample is left out or changed. The value is what reports, counters and JSON print."""

    # the record itself
    NOT_A_RECORD = "not_a_record"  # not a JSON object
    BROKEN_JSON = "broken_json"  # a JSONL line that cannot be parsed
    MISSING_FIELD = "missing_field"
    WRONG_TYPE = "wrong_type"
    EMPTY_CONVERSATION = "empty_conversation"
    UNKNOWN_ROLE = "unknown_role"
    ROLE_ORDER = "role_order"  # a system turn that is not the first
    NO_ANSWER = "no_answer"  # nothing to learn from: no assistant turn, or only blank ones
    PLACEHOLDER_COUNT = "placeholder_count"  # number of image marks differs from number of images
    BAD_TEXT = "bad_text"  # text that cannot be written as UTF-8 (a lone surrogate)
    # its pictures
    IMAGE_MISSING = "image_missing"  # file or tar member is not there
    NOT_AN_IMAGE = "not_an_image"
    IMAGE_TRUNCATED = "image_truncated"
    IMAGE_TOO_LARGE = "image_too_large"
    IMAGE_ZERO_SIZE = "image_zero_size"
    IMAGE_ASPECT = "image_aspect"
    IMAGE_UNSUPPORTED = "image_unsupported"
    VIDEO_FRAMES_UNSET = "video_frames_unset"  # a video, and no setting for its frames: not a fault of the data
    # its place in a pack
    OVERSIZE = "oversize"  # longer than the limit and the policy is to drop
    TRUNCATED = "truncated"  # cut to the limit (kept, but changed)
    FEWER_TILES = "fewer_tiles"  # its pictures got fewer tiles to meet the limit (kept, but changed)
    LENGTH_CHANGED = "length_changed"  # re-read at resume with another length
    UNREADABLE = "unreadable"  # the shard could not give the sample


class MmpackError(Exception):
    """Base of all errors that mmpack raises on purpose."""


class ConfigError(MmpackError, ValueError):
    """A setting that cannot work. The text says what was met, what is allowed and what to change."""


class StateError(MmpackError):
    """A saved state that does not fit this run. The text names each difference."""


class DataError(MmpackError):
    """A part of the data that cannot be read, and not one sample only. The text names what was met."""


class StorageError(DataError):
    """Remote storage that does not answer after all attempts, or has changed. No sample is counted as lost for it."""


class WorkerError(MmpackError):
    """A worker process died, or raised something that is a defect rather than bad data."""


class SampleError(MmpackError):
    """One bad sample.

    Args:
        reason: the entry of `Reason` to count it under.
        detail: one line for people: what was met and what was allowed. No sample content.
        key: the sample's key, when known where the error is raised.
    """

    def __init__(self, reason: Reason, detail: str, *, key: str | None = None) -> None:
        self.reason = reason
        self.detail = detail
        self.key = key
        super().__init__(str(self))

    def __str__(self) -> str:
        where = f"sample {self.key!r}: " if self.key is not None else ""
        return f"{where}{self.reason.value}: {self.detail}"

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_sample_error, (self.reason, self.detail, self.key))

    def with_key(self, key: str) -> SampleError:
        """The same error, naming the sample it belongs to."""
        return SampleError(self.reason, self.detail, key=key)


def _rebuild_sample_error(reason: Reason, detail: str, key: str | None) -> SampleError:
    return SampleError(reason, detail, key=key)


def nearest(name: str, allowed: Iterable[str]) -> str:
    """A hint such as ``(did you mean 'exact_fill'?)``, or the list of what is allowed.

    >>> nearest("exact_fil", ["exact_fill", "first_fit"])
    "did you mean 'exact_fill'?"
    >>> nearest("V1", ["v1", "mpt"])
    "did you mean 'v1'?"
    >>> nearest("zzz", ["b", "a"])
    'allowed: a, b'
    """
    options = sorted(allowed)
    lower = {option.lower(): option for option in options}
    close = difflib.get_close_matches(str(name).lower(), lower, n=1)
    return f"did you mean {lower[close[0]]!r}?" if close else "allowed: " + ", ".join(options)


def whole_number(value: object) -> int | None:
    """`value` as an int if it is a whole number, numpy's included; None for all else: True and 3.0 are slips.

    >>> whole_number(3), whole_number(True), whole_number(3.0), whole_number("3")
    (3, None, None, None)
    """
    if isinstance(value, bool):
        return None
    try:
        return index(value)  # type: ignore[arg-type]  # anything may come from outside; that is what is tested here
    except TypeError:
        return None


def check_whole(name: str, value: object, least: int = 1) -> int:
    """`value` as an int. Raises ConfigError, naming the setting, unless it is a whole number of at least `least`."""
    if (whole := whole_number(value)) is None or whole < least:
        raise ConfigError(f"{name}={value!r}; give a whole number of at least {least}")
    return whole
