"""Data modules under NeMo's names: what a training script configures."""

from mmpack.datamodules.energon import EnergonMultiModalDataModule
from mmpack.datamodules.image_data import ImageDataConfig
from mmpack.datamodules.lazy import NevaLazyDataModule, NevaPreloadedDataModule
from mmpack.datamodules.mock import NevaMockDataModule
from mmpack.datamodules.multimodal import (
    ImageToken,
    LLaVATemplateConfig,
    MultiModalSampleConfig,
    MultiModalTaskEncoder,
)

__all__ = [
    "EnergonMultiModalDataModule",
    "ImageDataConfig",
    "ImageToken",
    "LLaVATemplateConfig",
    "MultiModalSampleConfig",
    "MultiModalTaskEncoder",
    "NevaLazyDataModule",
    "NevaMockDataModule",
    "NevaPreloadedDataModule",
]
