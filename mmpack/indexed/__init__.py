"""Data sets with random access: LLaVA files through an index, and mock samples. Where they stand is two numbers."""

from mmpack.indexed.contract import IndexedDataset, Part
from mmpack.indexed.lengths import make_lengths
from mmpack.indexed.llava_file import MISSING_IMAGE_POLICIES, LlavaFile
from mmpack.indexed.mock import Count, MockSamples, shortest_sample
from mmpack.indexed.mock_tiles import CellTiles
from mmpack.indexed.permutation import Permutation
from mmpack.indexed.pictures import PictureStore, open_pictures
from mmpack.indexed.source import IndexedSource, OpenIndexed

__all__ = [
    "MISSING_IMAGE_POLICIES", "CellTiles", "Count", "IndexedDataset", "IndexedSource", "LlavaFile", "MockSamples",
    "OpenIndexed", "Part", "Permutation", "PictureStore", "make_lengths", "open_pictures", "shortest_sample",
]  # fmt: skip
