"""Holds of every test here: no warning leaks, and Pillow's process-wide switches stay as they were."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
from PIL import Image, ImageFile


@pytest.fixture(autouse=True)
def no_warning_and_no_global_change() -> Iterator[None]:
    before = (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    assert before == (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)
