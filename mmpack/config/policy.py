"""NeMo-RL's keys under ``policy``, accepted as they are: what they say of batching becomes settings of ``data``.

``policy.sequence_packing`` and ``policy.dynamic_batching`` exclude each other. A key that both documents and loaders
know is obeyed; of ``policy.megatron_cfg`` these are the parallel sizes and ``fp8_cfg``, which decide the multiples that
rows and sequences are padded to. `logprob_mb_tokens` is the budget of an inference pass, which a training run does not
have: it is checked and handed on (`Config.policy`), no more.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from mmpack.dynamic.batches import check_order
from mmpack.errors import ConfigError
from mmpack.layout import FP8_MULTIPLES, Layout
from mmpack.packing import ALGORITHMS

Count = Annotated[int, Field(ge=1)]
WINDOW_SAMPLES = 200  # samples to choose from where NeMo-RL's file names no buffer


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class SequencePacking(_Part):
    """``policy.sequence_packing``."""

    enabled: bool = False
    train_mb_tokens: Count | None = None
    logprob_mb_tokens: Count | None = None
    algorithm: str = "exact_fill"
    microbatch_order: str = "packer"
    sequence_length_round: Count = 1


class DynamicBatchingKeys(_Part):
    """``policy.dynamic_batching``."""

    enabled: bool = False
    train_mb_tokens: Count | None = None
    logprob_mb_tokens: Count | None = None
    microbatch_order: str = "packer"
    sequence_length_round: Count = 64


class Fp8Keys(_Part):
    """``policy.megatron_cfg.fp8_cfg``; `fp8` and `fp8_param` concern the model alone."""

    enabled: bool = False
    fp8: str | None = None
    fp8_recipe: str = "tensorwise"
    fp8_param: bool | None = None


class MegatronKeys(_Part):
    """``policy.megatron_cfg``: what decides how long rows and sequences must be."""

    enabled: bool = True
    tensor_model_parallel_size: Count = 1
    pipeline_model_parallel_size: Count = 1
    context_parallel_size: Count = 1
    sequence_parallel: bool = False
    fp8_cfg: Fp8Keys = Fp8Keys()

    def layout(self) -> Layout:
        """The multiples that the parallel sizes need. Raises ConfigError for an unknown recipe."""
        Layout.for_parallelism(fp8_recipe=self.fp8_cfg.fp8_recipe)  # a wrong name is wrong also where FP8 is off
        return Layout.for_parallelism(
            context_parallel=self.context_parallel_size,
            tensor_parallel=self.tensor_model_parallel_size,
            sequence_parallel=self.sequence_parallel,
            fp8_multiple=FP8_MULTIPLES[self.fp8_cfg.fp8_recipe] if self.fp8_cfg.enabled else 1,
        )


class PolicySection(_Part):
    """``policy``: only what concerns batches."""

    sequence_packing: SequencePacking = SequencePacking()
    dynamic_batching: DynamicBatchingKeys = DynamicBatchingKeys()
    megatron_cfg: MegatronKeys = MegatronKeys()
    max_tokens_per_microbatch: Count | None = None
    sequence_length_pad_multiple: Count | None = None
    make_sequence_length_divisible_by: Count | None = None
    train_global_batch_size: Count | None = None
    train_micro_batch_size: Count | None = None
    max_total_sequence_length: Count | None = None

    def data_settings(self, given: dict[str, Any]) -> dict[str, Any]:
        """Settings of the section ``data`` that the policy decides; those `given` there stay.

        Raises:
            ConfigError: packing and dynamic batching at once, or with a fixed row length; no budget; an unknown
                algorithm or order.
        """
        packing, dynamic = self.sequence_packing, self.dynamic_batching
        if packing.enabled and dynamic.enabled:
            raise ConfigError(
                "policy.sequence_packing and policy.dynamic_batching are both enabled; they exclude each other: "
                "set enabled: false in one of them"
            )
        check_order(packing.microbatch_order)
        check_order(dynamic.microbatch_order)
        ALGORITHMS.get(packing.algorithm)
        settings: dict[str, Any] = {}
        if self.max_total_sequence_length is not None:
            settings["seq_length"] = self.max_total_sequence_length
        if self.train_global_batch_size is not None:
            settings["global_batch_size"] = self.train_global_batch_size
        multiple = math.lcm(self.sequence_length_pad_multiple or 1, self.make_sequence_length_divisible_by or 1)
        needed = self.megatron_cfg.layout() if self.megatron_cfg.enabled else Layout()
        layout = dict(given.get("layout") or {})
        if packing.enabled:
            settings |= self._packing(packing)
            settings["layout"] = self._layout(needed, math.lcm(multiple, packing.sequence_length_round)) | layout
        elif dynamic.enabled:
            if layout.get("fixed_total"):
                raise ConfigError(
                    "policy.dynamic_batching with layout.fixed_total (pipeline parallelism) cannot be: rows would "
                    "differ in length; use policy.sequence_packing"
                )
            settings |= self._dynamic(dynamic)
            settings["sequence_length_round"] = self._width_multiple(needed, multiple, dynamic.sequence_length_round)
        elif self.train_micro_batch_size is not None:
            settings |= {"batching": "padding", "packed_sequence": False}
            settings["sequence_length_round"] = self._width_multiple(needed, multiple)
            settings["micro_batch_size"] = self.train_micro_batch_size
        return {name: value for name, value in settings.items() if name == "layout" or name not in given}

    def _layout(self, needed: Layout, multiple: int) -> dict[str, Any]:
        """Of a packed row: every sequence a multiple of `multiple` too, one length where there is a pipeline."""
        chosen: dict[str, Any] = {"sequence_multiple": math.lcm(needed.sequence_multiple, multiple)}
        if needed.total_multiple > 1:
            chosen["total_multiple"] = needed.total_multiple
        if self.megatron_cfg.enabled and self.megatron_cfg.pipeline_model_parallel_size > 1:
            chosen["fixed_total"] = self._budget("sequence_packing", self.sequence_packing.train_mb_tokens)
        return chosen

    def _width_multiple(self, needed: Layout, *multiples: int) -> int:
        """Of padded rows, which are never longer than a sample may be."""
        longest = self.max_total_sequence_length
        if longest is not None and longest % needed.total_multiple:
            raise ConfigError(
                f"policy.max_total_sequence_length={longest} is no multiple of {needed.total_multiple}, which "
                "policy.megatron_cfg needs; rows of that length could not be cut"
            )
        return math.lcm(needed.total_multiple, *multiples)

    def _packing(self, packing: SequencePacking) -> dict[str, Any]:
        return {
            "batching": "packing",
            "packed_sequence_size": self._budget("sequence_packing", packing.train_mb_tokens),
            "packing_buffer_size": WINDOW_SAMPLES,
        }

    def _dynamic(self, dynamic: DynamicBatchingKeys) -> dict[str, Any]:
        return {
            "batching": "dynamic",
            "packed_sequence": False,
            "tokens_per_microbatch": self._budget("dynamic_batching", dynamic.train_mb_tokens),
            "sequence_length_round": dynamic.sequence_length_round,
            "microbatch_order": dynamic.microbatch_order,
            "packing_buffer_size": self.train_global_batch_size or WINDOW_SAMPLES,
        }

    def _budget(self, part: str, train_mb_tokens: int | None) -> int:
        budget = train_mb_tokens or self.max_tokens_per_microbatch
        if budget is None:
            raise ConfigError(
                f"policy.{part} is enabled without a budget; set policy.{part}.train_mb_tokens, or "
                "policy.max_tokens_per_microbatch for both"
            )
        return budget
