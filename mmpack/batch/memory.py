"""Where the pixels of a batch are put: in memory of their own, or in a place that the one who wants the batch has."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Allocate = Callable[[int], NDArray[np.uint8]]  # number of bytes -> as many, of any content


def on_heap(num_bytes: int) -> NDArray[np.uint8]:
    """Memory of its own."""
    return np.empty(num_bytes, dtype=np.uint8)
