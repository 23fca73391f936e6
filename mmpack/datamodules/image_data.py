"""How the records and pictures of a LLaVA file are to be read, under NeMo's names."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from mmpack.datamodules.kinds import check_fields
from mmpack.datamodules.multimodal import ImageToken, LLaVATemplateConfig, MultiModalSampleConfig
from mmpack.errors import ConfigError, nearest
from mmpack.images import check_video_frames
from mmpack.indexed import MISSING_IMAGE_POLICIES
from mmpack.tiling.single import Fit


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageDataConfig:
    """Records with pictures.

    Args:
        media_type: "image"; videos are read as pictures, see `video_frames`.
        media_token: the mark of a picture; as it is.
        conv_template: a name of `mmpack.templates.TEMPLATES`, or "hf" for the tokenizer's own chat template.
        reset_position_ids, reset_attention_mask, eod_mask_loss: NeMo's, False; samples of a pack never see each other
            and count their positions from 0 in any case.
        image_folder: folder that the records' picture names are relative to, or an uncompressed tar file of the
            pictures; None for the folder of the records.
        image_process_mode: how a picture becomes a tile, "pad", "square", "crop" or "keep"; see
            `mmpack.tiling.single`. An image processor that cuts pictures into several tiles goes by its own rule.
        system, stop_string: as in `LLaVATemplateConfig`.
        record_format: a name of `mmpack.sources.SOURCES`, "auto" for what each record looks like, or "img_tags" for
            records that name their pictures as ``<img src="...">`` within the text.
        video_frames: which frames of a video become pictures: "first", "middle", "last", or so many, evenly spread
            (extra ``video``); None leaves samples with videos out.
        missing_image: "skip" leaves out a sample whose picture is not there, and counts it; "raise" stops.

    Raises:
        ConfigError: a value that cannot work.
    """

    media_type: str = "image"
    media_token: ImageToken = field(default_factory=ImageToken)
    conv_template: str = "v1"
    reset_position_ids: bool = False
    reset_attention_mask: bool = False
    eod_mask_loss: bool = False
    image_folder: str | Path | None = None
    image_process_mode: Fit = "pad"
    system: str | None = None
    stop_string: str | None = None
    record_format: str = "llava"
    missing_image: str = "skip"
    video_frames: int | str | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if not isinstance(self.media_token, ImageToken):
            raise ConfigError(f"media_token={self.media_token!r}; give a vlm.ImageToken")
        if self.media_type != "image":
            raise ConfigError(f"media_type={self.media_type!r}; it is 'image': videos are read with video_frames=")
        check_video_frames(self.video_frames)
        for name in ("reset_position_ids", "reset_attention_mask", "eod_mask_loss"):
            if getattr(self, name):
                raise ConfigError(
                    f"{name}=True: samples end where they end, so there is nothing to reset; leave it out"
                )
        if self.image_process_mode not in get_args(Fit):
            hint = nearest(str(self.image_process_mode), get_args(Fit))
            raise ConfigError(f"image_process_mode={self.image_process_mode!r}; {hint}")
        if self.missing_image not in MISSING_IMAGE_POLICIES:
            raise ConfigError(
                f"missing_image={self.missing_image!r}; {nearest(self.missing_image, MISSING_IMAGE_POLICIES)}"
            )

    def sample_config(self) -> MultiModalSampleConfig:
        """Image token and template as the encoder takes them."""
        template = LLaVATemplateConfig(
            system=self.system, stop_string=self.stop_string, chat_template=self.conv_template
        )
        return MultiModalSampleConfig(image_token=self.media_token, conversation_template_config=template)
