"""How image-text samples are encoded and packed, under NeMo's names: the pieces of a multimodal data module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from mmpack.collate import Collator
from mmpack.datamodules.kinds import check_fields
from mmpack.encode import LengthLimit, SampleEncoder, check_tokenizer
from mmpack.errors import ConfigError
from mmpack.images import check_video_frames
from mmpack.layout import Layout, round_up
from mmpack.model.spec import check_embeddings_per_tile, embeddings_per_tile
from mmpack.sample import IGNORE_INDEX, IMAGE_MARK, IMAGE_TOKEN_INDEX
from mmpack.templates import Template, make_template
from mmpack.tiling import Decode, TileSpec, TilingPolicy, check_follows, make_tiling, tiling_from_processor
from mmpack.tiling.processor import policy_of


@dataclass(frozen=True, slots=True)
class ImageToken:
    """The mark of a picture in a record's text, and the token id of its placeholder in a batch."""

    token_str: str = IMAGE_MARK
    token_id: int = IMAGE_TOKEN_INDEX

    def __post_init__(self) -> None:
        if self.token_str != IMAGE_MARK or self.token_id != IMAGE_TOKEN_INDEX:
            raise ConfigError(
                f"image_token={self.token_str!r}, {self.token_id}: mmpack's datasets mark pictures with "
                f"{IMAGE_MARK!r} and its batches with {IMAGE_TOKEN_INDEX}; leave both, and map the id with "
                "batch.to_transformers(image_token_id=...)"
            )


@dataclass(frozen=True, slots=True)
class LLaVATemplateConfig:
    """The conversation template: LLaVA-1.5's (``v1``) unless `chat_template` names another.

    Args:
        system: prompt for conversations without a system turn; None for the template's own, ``""`` for none.
        roles: NeMo's names of the two speakers; only the usual ones.
        stop_string: the token that ends an answer; None for the template's own.
        chat_template: a name of `mmpack.templates.TEMPLATES`, or "hf" for the tokenizer's own chat template.
    """

    system: str | None = None
    roles: Sequence[str] = ("user", "assistant")
    stop_string: str | None = None
    chat_template: str = "v1"

    def __post_init__(self) -> None:
        check_fields(self)
        if not isinstance(self.roles, Sequence) or tuple(self.roles) != ("user", "assistant"):
            raise ConfigError(f"roles={self.roles!r}; templates name the speakers themselves: leave roles out")

    def build(self, tokenizer: Any = None) -> Template:
        """The template for `tokenizer`. Raises ConfigError if there is none of that name."""
        return make_template(self.chat_template, tokenizer=tokenizer, system=self.system, stop_string=self.stop_string)


@dataclass(frozen=True, slots=True)
class MultiModalSampleConfig:
    """What is the same for every sample: the image token, the ignored label, the template."""

    image_token: ImageToken = field(default_factory=ImageToken)
    ignore_place_holder: int = IGNORE_INDEX
    conversation_template_config: LLaVATemplateConfig = field(default_factory=LLaVATemplateConfig)

    def __post_init__(self) -> None:
        for name, kind in (("image_token", ImageToken), ("conversation_template_config", LLaVATemplateConfig)):
            if not isinstance(getattr(self, name), kind):
                raise ConfigError(f"{name}={getattr(self, name)!r}; give a vlm.{kind.__name__}")
        if self.ignore_place_holder != IGNORE_INDEX:
            raise ConfigError(f"ignore_place_holder={self.ignore_place_holder}; mmpack's batches use {IGNORE_INDEX}")


@dataclass(frozen=True)
class MultiModalTaskEncoder:
    """Encodes samples and says how long a pack is.

    Args:
        tokenizer: a fast tokenizer of transformers.
        image_processor: of transformers (size, mean, std and resampling are read from it), or a `TileSpec`.
        multimodal_sample_config: image token and template.
        packed_sequence: pack samples into rows of `packed_sequence_size`; False leaves a sample a row of its own.
        packed_sequence_size: positions of a row.
        num_image_embeddings_per_tile: what the vision tower gives for one tile.
        tiling: a name of `mmpack.tiling.TILINGS`; None for what the image processor does (anyres for LLaVA-NeXT's,
            native for Qwen2-VL's, else one padded tile). `tiling_options` are that policy's own.
        decode: how pixels are made: "exact" as image processors do it, or "fast": large JPEGs are decoded at a half,
            quarter or eighth of their size, and torch resizes (`TileSpec` has the details). None for the `TileSpec`'s
            own, which is "exact" unless it says otherwise.
        oversize: what becomes of a sample that is too long: "raise", "drop", "truncate", "fewer_tiles" or "own_pack",
            or one of these by dataset (see `mmpack.encode.LengthLimit`); None means "raise", and that
            `packed_sequence_size` must not be below the module's `seq_length`.
        loss_weight: "token", "sample" or "sqrt".
        video_frames: which frames of a video become pictures: "first", "middle", "last", or so many, evenly spread
            (extra ``video``); None leaves samples with videos out.
        layout: multiples and fixed length of a row.
        vision_config: the vision tower's config (``image_size``, ``patch_size``), or the whole model's, to check
            `num_image_embeddings_per_tile` against; optional.
        vision_feature_select_strategy: LLaVA's: "default" leaves the tower's class token out, "full" keeps it.

    Raises:
        ConfigError: pieces that are missing or do not go together.
    """

    tokenizer: Any
    image_processor: Any
    multimodal_sample_config: MultiModalSampleConfig = field(default_factory=MultiModalSampleConfig)
    packed_sequence: bool = True
    packed_sequence_size: int | None = None
    num_image_embeddings_per_tile: int = 576
    tiling: str | None = None
    tiling_options: Mapping[str, Any] = field(default_factory=dict)
    decode: Decode | None = None
    oversize: str | Mapping[str, str] | None = None
    loss_weight: str = "token"
    video_frames: int | str | None = None
    layout: Layout = field(default_factory=Layout)
    vision_config: Any = None
    vision_feature_select_strategy: str = "default"

    def __post_init__(self) -> None:
        if not isinstance(self.multimodal_sample_config, MultiModalSampleConfig):
            raise ConfigError(
                f"multimodal_sample_config={self.multimodal_sample_config!r}; give a vlm.MultiModalSampleConfig"
            )
        check_fields(self)
        if self.tokenizer is None:
            raise ConfigError("tokenizer is None; pass one, e.g. transformers.AutoTokenizer.from_pretrained(folder)")
        check_tokenizer(self.tokenizer)
        if self.image_processor is None:
            raise ConfigError(
                "image_processor is None; pass one, e.g. transformers.CLIPImageProcessorPil(size=..., crop_size=...), "
                "or an mmpack.tiling.TileSpec"
            )
        if self.packed_sequence and (self.packed_sequence_size is None or self.packed_sequence_size < 1):
            raise ConfigError(
                f"packed_sequence_size={self.packed_sequence_size}: the length of a pack is not set; "
                "give it in tokens, e.g. packed_sequence_size=8192"
            )
        if self.num_image_embeddings_per_tile < 1:
            raise ConfigError(f"num_image_embeddings_per_tile={self.num_image_embeddings_per_tile}; at least 1")
        if self.vision_feature_select_strategy not in ("default", "full"):
            raise ConfigError(
                f"vision_feature_select_strategy={self.vision_feature_select_strategy!r}; allowed: default, full"
            )
        if self.packed_sequence_size is not None:
            self._check_row(self.packed_sequence_size)
        self._check_vision_tower()
        tiling = self.build_tiling()
        if self.tiling is None and not self.tiling_options and not isinstance(self.image_processor, TileSpec):
            check_follows(self.image_processor, tiling, square_only=policy_of(self.image_processor) == "single")
        self.multimodal_sample_config.conversation_template_config.build(self.tokenizer)
        check_video_frames(self.video_frames)

    def _check_row(self, size: int) -> None:
        layout = self.layout
        if layout.capacity(size) < 1:
            raise ConfigError(
                f"packed_sequence_size={size} has no room for a segment of layout.sequence_multiple="
                f"{layout.sequence_multiple}; raise packed_sequence_size"
            )
        if size % layout.total_multiple:
            raise ConfigError(
                f"packed_sequence_size={size} is not a multiple of layout.total_multiple={layout.total_multiple}, so "
                f"full packs would grow beyond it; set {round_up(size, layout.total_multiple)}"
            )
        if layout.fixed_total is not None and layout.fixed_total < layout.capacity(size):
            raise ConfigError(
                f"layout.fixed_total={layout.fixed_total} is below the {layout.capacity(size)} positions that samples "
                f"may fill; set it to packed_sequence_size={size}"
            )

    def _check_vision_tower(self) -> None:
        if self.vision_config is None:
            return
        config = getattr(self.vision_config, "vision_config", self.vision_config)  # the whole model's has the tower's
        tiling = self.build_tiling()
        if tiling.kind == "patches":
            _check_has(config, "patch_size")
            merge = getattr(config, "spatial_merge_size", None)
            ours, wanted = (tiling.spec.tile_size_px, getattr(tiling, "merge_size", None)), (config.patch_size, merge)
            if ours != wanted:
                raise ConfigError(
                    f"the image processor makes patches of {ours[0]} px, {ours[1]} a side merged; the tower wants "
                    f"{wanted[0]} and {wanted[1]}; use the tower's own image processor"
                )
            return
        if not any(tower in str(getattr(config, "model_type", "clip")) for tower in ("clip", "siglip")):
            return  # towers that merge embeddings are checked by the model itself
        _check_has(config, "image_size", "patch_size")
        full = self.vision_feature_select_strategy == "full"
        keeps_class_token = full and "siglip" not in str(getattr(config, "model_type", ""))  # only CLIP has one
        from_tower = embeddings_per_tile(config.image_size, config.patch_size, keeps_class_token=keeps_class_token)
        check_embeddings_per_tile(from_tower, self.num_image_embeddings_per_tile)
        size = tiling.spec.tile_size_px
        if size != config.image_size:
            raise ConfigError(
                f"the image processor makes tiles of {size} px, the vision tower wants {config.image_size}; "
                "use the tower's own image processor"
            )

    def build_tiling(self) -> TilingPolicy:
        """The tiling policy, with the image processor's numbers."""
        tiling: Any = self._tiling()
        if self.decode is None:
            return cast(TilingPolicy, tiling)
        return cast(TilingPolicy, replace(tiling, spec=replace(tiling.spec, decode=self.decode)))

    def _tiling(self) -> TilingPolicy:
        processor, embeddings = self.image_processor, self.num_image_embeddings_per_tile
        if not isinstance(processor, TileSpec):
            name = self.tiling or policy_of(processor)
            return tiling_from_processor(processor, embeddings_per_tile=embeddings, name=name, **self.tiling_options)
        name = self.tiling or "single"
        if name != "native" and processor.embeddings_per_tile != embeddings:
            raise ConfigError(
                f"num_image_embeddings_per_tile={embeddings}, but the TileSpec says "
                f"{processor.embeddings_per_tile}; make them equal"
            )
        return make_tiling(name, processor, **self.tiling_options)

    def build_encoder(self, seq_length: int) -> SampleEncoder:
        """The encoder for samples of at most `seq_length` tokens, or one pack if that is less.

        Raises:
            ConfigError: a pack is shorter than `seq_length` and no oversize policy is set.
        """
        capacity = seq_length
        if self.packed_sequence and self.packed_sequence_size is not None:
            capacity = self.layout.capacity(self.packed_sequence_size)
        if capacity < seq_length and self.oversize is None:
            raise ConfigError(
                f"packed_sequence_size={self.packed_sequence_size} holds {capacity} tokens, below "
                f"seq_length={seq_length}: samples between the two would fit no pack; raise packed_sequence_size to "
                "at least seq_length, or say what becomes of them with oversize='drop' or oversize='raise'"
            )
        by_pack = capacity < seq_length
        return SampleEncoder(
            tokenizer=self.tokenizer,
            template=self.multimodal_sample_config.conversation_template_config.build(self.tokenizer),
            tiling=self.build_tiling(),
            limit=LengthLimit(
                seq_length=min(seq_length, capacity),
                oversize="raise" if self.oversize is None else self.oversize,
                setting="packed_sequence_size" if by_pack else "seq_length",
            ),
            video_frames=self.video_frames,
        )

    def build_collator(self) -> Collator:
        """The collator that goes with `build_encoder`."""
        pad = getattr(self.tokenizer, "pad_token_id", None)
        return Collator(
            tiling=self.build_tiling(),
            layout=self.layout,
            pad_token_id=0 if pad is None else int(pad),
            loss_weight=self.loss_weight,
        )


def _check_has(config: Any, *names: str) -> None:
    for name in names:
        if not isinstance(getattr(config, name, None), int):
            raise ConfigError(
                f"vision_config={type(config).__name__} has no whole number {name!r}; give the vision tower's config, "
                "such as model.config.vision_config, or leave it out"
            )
