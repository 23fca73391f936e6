"""Conversations of every format in `mmpack.sources`, through a template, as image-text samples are encoded."""

from __future__ import annotations

from typing import Any

import numpy as np

from mmpack.encode import LengthLimit, SampleEncoder
from mmpack.errors import Reason, SampleError
from mmpack.offline.records import TextLimit
from mmpack.offline.tokens import TextRow, text_row
from mmpack.sample import Conversation, EncodedSample
from mmpack.sources import SOURCES
from mmpack.templates import Template
from mmpack.tiling import TileSpec, make_tiling


class ConversationEncoder:
    """Encodes records of one format of `SOURCES`. Records with pictures are left out; a longer one is cut at its end.

    Args:
        tokenizer: a fast tokenizer of transformers.
        source_format: a name in `SOURCES`, such as ``"openai"`` or ``"sharegpt"``.
        template: renders the turns.
        limit: how long a sequence may be.
        add_bos: begin with the tokenizer's bos token, if it has one and the template does not write it.

    Raises:
        ConfigError: unknown format, or a tokenizer that is missing or slow.
    """

    def __init__(
        self,
        tokenizer: Any,
        source_format: str,
        template: Template,
        limit: TextLimit | None = None,
        *,
        add_bos: bool = True,
    ) -> None:
        self.parse = SOURCES.get(source_format)
        self.limit = limit or TextLimit()
        self.encoder = SampleEncoder(
            tokenizer=tokenizer,
            template=template,
            tiling=make_tiling("single", TileSpec(tile_size_px=1, embeddings_per_tile=1)),  # never asked: no pictures
            limit=LengthLimit(seq_length=2**31 - 1),
            add_bos=add_bos and not template.renders_bos,
        )

    def describe(self) -> str:
        """All that the template decides, as one line: a part of the cache key."""
        return self.encoder.template.describe()

    def encode(self, record: object) -> TextRow:
        """The row of one record; see `RecordEncoder`."""
        parsed = self.parse(record)
        if parsed.image_names:
            raise SampleError(
                Reason.IMAGE_UNSUPPORTED, f"{len(parsed.image_names)} pictures; text packing takes records without"
            )
        return self.limit.cut_end(row_of(self.encoder.encode(Conversation(key="", turns=parsed.turns))))


def row_of(sample: EncodedSample) -> TextRow:
    """An encoded sample without pictures as a row."""
    assert not sample.pictures, "a row of text has no pictures"
    return text_row(sample.token_ids_n.astype(np.int32).tolist(), sample.trained_n.tolist())
