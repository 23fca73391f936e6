"""Which text of a document a picture belongs to, where a document says so by likeness rather than by order."""

from __future__ import annotations

import math
from typing import Any

from mmpack.errors import Reason, SampleError, whole_number
from mmpack.sources import checks

FIELDS = ("matched_text_indices", "similarity_matrix")


def matched_texts(num_images: int, num_texts: int, matched: Any, matrix: Any) -> list[int]:
    """For each picture the number of its text.

    Args:
        num_images, num_texts: I pictures and T texts.
        matched: (I,) numbers of texts; None to take them from the matrix.
        matrix: (I, T) how like each picture is to each text: the greatest of its row wins, of equals the first.

    Raises:
        SampleError: neither is there, or it does not fit the pictures and texts.

    >>> matched_texts(2, 3, None, [[0.1, 0.7, 0.7], [0.9, 0.2, 0.3]])
    [1, 0]
    """
    if matched is not None:
        places = [whole_number(entry) for entry in checks.list_of(matched, "'matched_text_indices'")]
        kept = [place for place in places if place is not None and 0 <= place < num_texts]
        if len(places) != num_images or len(kept) != num_images:
            raise SampleError(
                Reason.PLACEHOLDER_COUNT,
                f"matched_text_indices are not one of {num_texts} texts for each of {num_images} pictures",
            )
        return kept
    if matrix is None:
        raise SampleError(
            Reason.MISSING_FIELD, "no matched_text_indices and no similarity_matrix say where the pictures stand"
        )
    rows = [
        checks.list_of(row, "a row of 'similarity_matrix'") for row in checks.list_of(matrix, "'similarity_matrix'")
    ]
    if len(rows) != num_images or not num_texts or any(len(row) != num_texts for row in rows):
        shape = f"{len(rows)} rows of {sorted({len(row) for row in rows})}"
        raise SampleError(
            Reason.PLACEHOLDER_COUNT, f"similarity_matrix has {shape} for {num_images} pictures and {num_texts} texts"
        )
    for value in (value for row in rows for value in row):
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise SampleError(Reason.WRONG_TYPE, "similarity_matrix holds what is no finite number")
    return [row.index(max(row)) for row in rows]


def in_reading_order(texts: list[str], matched: list[int]) -> list[str | int]:
    """Texts, and before each the numbers of its pictures in their order; texts are sentences, joined by blanks.

    >>> in_reading_order(["One.", "Two."], [1, 0, 1])
    [1, 'One.', 0, 2, ' Two.']
    """
    sequence: list[str | int] = []
    for place, text in enumerate(texts):
        sequence += [picture for picture, own in enumerate(matched) if own == place]
        sequence.append(f" {text}" if place else text)
    return sequence
