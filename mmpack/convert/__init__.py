"""Records with pictures -> an Energon dataset, in parallel, whole or not at all.

Everything is written into a hidden folder beside the destination, which takes its place at the very end. The source is
read twice: once to check each record's text and note where it stands, then in pieces by the processes that write the
shards. No record is held longer than that takes, and what is known of it is kept on disk, so memory does not grow with
the source. Which sample goes to which shard depends on its position and the seed alone, so any number of workers
writes the same bytes.

Pictures are probed by their headers. One that does not end as its format says is decoded, to tell what is cut from
what is merely odd; damage in the middle is not looked for.
"""

from __future__ import annotations

from mmpack.convert.config import REPORT_NAME, ConvertConfig, ConvertReport, SampleReport
from mmpack.convert.run import convert

__all__ = ["REPORT_NAME", "ConvertConfig", "ConvertReport", "SampleReport", "convert"]
