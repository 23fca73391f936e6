"""Records with pictures -> an Energon dataset, in parallel, whole or not at all.

Everything is written into a hidden folder beside the destination, which takes its place at the very end. Which sample
goes to which shard depends on its position in the file and the seed alone, so any number of workers writes the same
bytes. Pictures are probed by their headers; decoding every one to find those that are damaged further in is not done.
"""

from __future__ import annotations

from mmpack.convert.config import REPORT_NAME, ConvertConfig, ConvertReport, SampleReport
from mmpack.convert.run import convert

__all__ = ["REPORT_NAME", "ConvertConfig", "ConvertReport", "SampleReport", "convert"]
