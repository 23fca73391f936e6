"""Data modules under NeMo's names: what a training script configures."""

from mmpack.datamodules.energon import EnergonMultiModalDataModule
from mmpack.datamodules.multimodal import (
    ImageToken,
    LLaVATemplateConfig,
    MultiModalSampleConfig,
    MultiModalTaskEncoder,
)

__all__ = [
    "EnergonMultiModalDataModule",
    "ImageToken",
    "LLaVATemplateConfig",
    "MultiModalSampleConfig",
    "MultiModalTaskEncoder",
]
