"""NeMo's names for vision-language data: change the import line of a NeVA script to ``from mmpack import vlm``."""

from mmpack.datamodules import (
    EnergonMultiModalDataModule,
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
