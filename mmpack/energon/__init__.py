"""Everything that touches megatron-energon: the dataset writer, the reader of one logical stream, its packer.

No other package imports megatron.energon. Its reader, splits, blends, shuffling and remote storage are used as
they are; its packing wrapper, loader and checkpoints are not (mmpack plans before it decodes, and its state
travels with the packs).
"""
