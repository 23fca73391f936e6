"""NeMo-RL's keys under ``policy``, accepted as they are: what they say of batching becomes settings of ``data``.

``policy.sequence_packing`` and ``policy.dynamic_batching`` exclude each other. A key that both documents and loaders
know is obeyed; `logprob_mb_tokens` is the budget of an inference pass, which a training run does not have: it is
checked and handed on (`Config.policy`), no more.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from mmpack.dynamic.batches import check_order
from mmpack.errors import ConfigError
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


class PolicySection(_Part):
    """``policy``: only what concerns batches."""

    sequence_packing: SequencePacking = SequencePacking()
    dynamic_batching: DynamicBatchingKeys = DynamicBatchingKeys()
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
        multiple = self.sequence_length_pad_multiple or self.make_sequence_length_divisible_by
        layout = dict(given.get("layout") or {})
        if packing.enabled:
            settings |= self._packing(packing)
            multiple = max(multiple or 1, packing.sequence_length_round)
            settings["layout"] = {"sequence_multiple": multiple} | layout
        elif dynamic.enabled:
            if layout.get("fixed_total"):
                raise ConfigError(
                    "policy.dynamic_batching with layout.fixed_total (pipeline parallelism) cannot be: rows would "
                    "differ in length; use policy.sequence_packing"
                )
            settings |= self._dynamic(dynamic)
        elif self.train_micro_batch_size is not None:
            settings |= {"batching": "padding", "packed_sequence": False, "sequence_length_round": multiple or 1}
            settings["micro_batch_size"] = self.train_micro_batch_size
        return {name: value for name, value in settings.items() if name == "layout" or name not in given}

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
