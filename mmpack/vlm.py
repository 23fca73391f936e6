"""NeMo's names for vision-language data: change the import line of a NeVA script to ``from mmpack import vlm``."""

from mmpack.datamodules import (
    EnergonMultiModalDataModule,
    ImageDataConfig,
    ImageToken,
    LLaVATemplateConfig,
    MultiModalSampleConfig,
    MultiModalTaskEncoder,
    NevaLazyDataModule,
    NevaMockDataModule,
    NevaPreloadedDataModule,
)
from mmpack.energon.cook import register_cooker, register_encoder

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
    "register_cooker",
    "register_encoder",
]
