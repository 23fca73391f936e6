"""Does a packed step teach the model the same as the samples one by one? Losses and gradients, compared."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmpack.batch import PackedBatch
from mmpack.model.packed import PackedModel, per_sample_loss


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """What a packed step and the unpacked steps gave. Gradients are of the summed, weighted loss."""

    sample_keys: tuple[str, ...]
    packed_losses: tuple[float, ...]  # mean cross entropy of each sample in the pack
    single_losses: tuple[float, ...]  # the same, each sample alone
    gradient_norms: dict[str, float]  # of the unpacked steps' sum, by parameter; parameters without one are absent
    gradient_differences: dict[str, float]  # norm of (packed - unpacked), by parameter
    only_packed: tuple[str, ...]  # parameters that have a gradient on one side only
    only_single: tuple[str, ...]

    @property
    def worst_loss_difference(self) -> float:
        """Largest |packed - alone| over the samples."""
        pairs = zip(self.packed_losses, self.single_losses, strict=True)
        return max((abs(a - b) for a, b in pairs), default=0.0)

    def allowed(self, name: str, *, grad_rtol: float = 1e-5, grad_atol: float = 1e-8) -> float:
        """How much the gradient of parameter `name` may differ: part of its own norm, and of that of all gradients.

        The second term serves parameters whose gradient is zero but for rounding, such as the bias of the keys.
        """
        everything = math.hypot(*self.gradient_norms.values())
        return grad_rtol * self.gradient_norms[name] + grad_atol * everything

    @property
    def worst_gradient_ratio(self) -> float:
        """Largest gradient difference as a part of what is allowed; up to 1 is rounding."""
        differences = self.gradient_differences.items()
        return max((d / (self.allowed(name) or 1.0) for name, d in differences), default=0.0)

    def faults(self, *, loss_atol: float = 1e-5, grad_rtol: float = 1e-5, grad_atol: float = 1e-8) -> list[str]:
        """What differs by more than rounding; empty if the pack is loss-neutral."""
        found = [
            f"sample {key!r}: loss {packed:.7f} packed, {single:.7f} alone"
            for key, packed, single in zip(self.sample_keys, self.packed_losses, self.single_losses, strict=True)
            if not abs(packed - single) <= loss_atol
        ]
        for name, difference in self.gradient_differences.items():
            allowed = self.allowed(name, grad_rtol=grad_rtol, grad_atol=grad_atol)
            if not difference <= allowed:
                found.append(f"{name}: gradients differ by {difference:.3e}, {allowed:.3e} is allowed")
        found += [f"{name}: a gradient in the pack only" for name in self.only_packed]
        found += [f"{name}: no gradient in the pack" for name in self.only_single]
        return found


def compare(model: PackedModel, packed: PackedBatch, singles: Sequence[PackedBatch]) -> Comparison:
    """Runs `packed` once and the samples of `singles` one after the other, forward and backward.

    `singles` hold the samples of the pack in its order, one or more in a batch. The model's gradients are used for
    it and cleared; put it into eval mode first, since dropout would differ.
    """
    packed_losses, packed_grads = _step(model, [packed])
    single_losses, single_grads = _step(model, singles)
    keys = tuple(key for batch in singles for key in batch.sample_keys)
    if keys != packed.sample_keys:
        raise ValueError(f"the pack holds {packed.sample_keys}, the unpacked batches {keys}")
    both = [name for name in single_grads if name in packed_grads]
    return Comparison(
        sample_keys=keys,
        packed_losses=packed_losses,
        single_losses=single_losses,
        gradient_norms={name: float(single_grads[name].norm()) for name in single_grads},
        gradient_differences={name: float((packed_grads[name] - single_grads[name]).norm()) for name in both},
        only_packed=tuple(name for name in packed_grads if name not in single_grads),
        only_single=tuple(name for name in single_grads if name not in packed_grads),
    )


def assert_loss_neutral(model: PackedModel, packed: PackedBatch, singles: Sequence[PackedBatch]) -> Comparison:
    """The comparison; raises AssertionError that lists every fault."""
    comparison = compare(model, packed, singles)
    if faults := comparison.faults():
        raise AssertionError("the packed step differs from the unpacked ones:\n" + "\n".join(faults))
    return comparison


def _step(model: PackedModel, batches: Sequence[PackedBatch]) -> tuple[tuple[float, ...], dict[str, Tensor]]:
    model.zero_grad(set_to_none=True)
    losses: list[float] = []
    for batch in batches:
        output = model(batch)
        losses += per_sample_loss(batch, output).tolist()
        output.loss_sum.backward()
    grads = {name: p.grad.detach().clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return tuple(losses), grads


def unpack(batch: PackedBatch) -> list[PackedBatch]:
    """The samples of a pack as batches of their own, without padding.

    It trusts the pack's labels; a test that judges them must build its single batches from the samples.
    """
    filled = (batch.cu_seqlens.diff() > 0).tolist()
    starts = [start for start, real in zip(batch.cu_seqlens_padded[:-1].tolist(), filled, strict=True) if real]
    lengths = [length for length in batch.cu_seqlens.diff().tolist() if length]
    images = batch.images_per_sample.tolist()
    of_images = {
        name: getattr(batch, name).split_with_sizes(images)
        for name in ("tiles_per_image", "tokens_per_image", "image_sizes", "image_grids")
    }
    tiles_per_image = of_images["tiles_per_image"]
    pixels = batch.pixels.split_with_sizes([int(tiles.sum()) for tiles in tiles_per_image])
    singles = []
    for i, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        row = {
            name: getattr(batch, name)[..., start : start + length]
            for name in ("tokens", "labels", "loss_weight", "position_ids", "padding_mask")
        }
        row |= {name: parts[i] for name, parts in of_images.items()}
        offsets = torch.tensor([0, length], dtype=torch.int32, device=batch.cu_seqlens.device)
        single = dataclasses.replace(
            batch,
            cu_seqlens=offsets,
            cu_seqlens_padded=offsets.clone(),
            max_seqlen=length,
            pixels=pixels[i],
            images_per_sample=batch.images_per_sample[i : i + 1],
            sample_keys=batch.sample_keys[i : i + 1],
            sources=batch.sources[i : i + 1],
            num_loss_tokens=int((row["loss_weight"] > 0).sum()),
            num_samples=1,
            pair_of_sample=(),
            **row,
        )
        singles.append(single)
    return singles
