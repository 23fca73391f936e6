"""Readers of sources: any file or folder of records with pictures, as a stream of records that can be read again.

A source is read twice. First in order, one record at a time, to check it and to note where each record stands; then
in any process, by those places, with the pictures. So no reader holds more than a batch of records, whatever the
size of its source, and many processes share one source without sending records to each other.
"""

from __future__ import annotations

from mmpack.readers.contract import FoundSample, Place, Reader
from mmpack.readers.open import Source, find_source
from mmpack.readers.settle import settle

__all__ = ["FoundSample", "Place", "Reader", "Source", "find_source", "settle"]
