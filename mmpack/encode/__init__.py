"""Conversation -> EncodedSample: the text becomes tokens, every picture becomes a number of tokens. No pixels."""

from mmpack.encode.encoder import SampleEncoder, check_tokenizer
from mmpack.encode.limit import OVERSIZE_POLICIES, LengthLimit

__all__ = ["OVERSIZE_POLICIES", "LengthLimit", "SampleEncoder", "check_tokenizer"]
