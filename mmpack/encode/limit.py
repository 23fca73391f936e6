"""How long a sample may be, and what becomes of a longer one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from mmpack.errors import ConfigError, Reason, SampleError, nearest
from mmpack.sample import IMAGE_TOKEN_INDEX, EncodedSample, PlannedPicture
from mmpack.tiling import TilingPolicy

OVERSIZE_POLICIES = ("raise", "drop", "truncate", "fewer_tiles", "own_pack")


@dataclass(frozen=True, kw_only=True, slots=True)
class LengthLimit:
    """How long one sample may be, and what becomes of a longer one.

    * ``raise`` stops the run and says what to change.
    * ``drop`` leaves the sample out and counts it.
    * ``truncate`` cuts its end off, never inside a picture. A sample that would keep no token to learn is left out.
    * ``fewer_tiles`` cuts its pictures into fewer tiles, the largest first, by the same rule. A sample that is too
      long even so is left out.
    * ``own_pack`` gives it a pack of its own, longer than the others if need be.

    Args:
        seq_length: most tokens of one sample, pictures counted in full.
        oversize: the policy; or policies by dataset, as counters name them (the folder's name), ``"*"`` for the others
            (without it, they raise).
        setting: the name of the setting that `seq_length` came from, for the error text.

    Raises:
        ConfigError: a limit below 1, or an unknown policy.
    """

    seq_length: int
    oversize: str | Mapping[str, str] = "raise"
    setting: str = "seq_length"

    def __post_init__(self) -> None:
        if self.seq_length < 1:
            raise ConfigError(f"{self.setting}={self.seq_length}; it must be at least 1")
        for policy in [self.oversize] if isinstance(self.oversize, str) else self.oversize.values():
            if policy not in OVERSIZE_POLICIES:
                raise ConfigError(f"oversize={policy!r} is unknown; {nearest(str(policy), OVERSIZE_POLICIES)}")

    def policy_of(self, source: str) -> str:
        """What becomes of long samples of a dataset.

        >>> limit = LengthLimit(seq_length=8, oversize={"books": "truncate", "*": "drop"})
        >>> limit.policy_of("books"), limit.policy_of("chats")
        ('truncate', 'drop')
        """
        if isinstance(self.oversize, str):
            return self.oversize
        return self.oversize.get(source, self.oversize.get("*", "raise"))

    def check_sources(self, names: Iterable[str]) -> None:
        """Raises ConfigError for a policy of a dataset that is not among `names`: it would never apply.

        >>> LengthLimit(seq_length=8, oversize={"boks": "drop"}).check_sources(["books", "chats"])
        Traceback (most recent call last):
        mmpack.errors.ConfigError: oversize names 'boks', which is no dataset here; did you mean 'books'?
        """
        if isinstance(self.oversize, str):
            return
        known = {"*", *names}
        for name in self.oversize:
            if name not in known:
                raise ConfigError(f"oversize names {name!r}, which is no dataset here; {nearest(name, known)}")

    def apply(self, sample: EncodedSample, tiling: TilingPolicy) -> EncodedSample:
        """The sample as it may be packed: itself, or changed by its source's policy.

        Raises:
            SampleError: it is left out.
            ConfigError: the policy is to raise.
        """
        if sample.num_tokens <= self.seq_length:
            return sample
        policy = self.policy_of(sample.source)
        if policy == "own_pack":
            return _replaced(sample, own_pack=True)
        fitting: EncodedSample | None = None
        if policy == "truncate":
            fitting = truncated(sample, self.seq_length)
        elif policy == "fewer_tiles":
            fitting = with_fewer_tiles(sample, self.seq_length, tiling)
        if fitting is not None:
            return fitting
        in_pictures = sum(p.num_tokens for p in sample.pictures)
        in_text = sample.num_tokens - in_pictures
        needs = f"{sample.num_tokens} tokens ({sample.num_tiles} tiles = {in_pictures}, text {in_text})"
        if policy == "raise":
            raise ConfigError(
                f"{self.setting}={self.seq_length}: sample {sample.key!r} of {sample.source!r} needs {needs}; "
                f"raise {self.setting} or set oversize='drop'"
            )
        why = {"truncate": ", and cut to that it teaches nothing", "fewer_tiles": ", even with the fewest tiles"}
        detail = f"needs {needs}, allowed {self.seq_length}{why.get(policy, '')}"
        raise SampleError(Reason.OVERSIZE, detail, key=sample.key)


def truncated(sample: EncodedSample, seq_length: int) -> EncodedSample | None:
    """The longest beginning of at most `seq_length` tokens that ends in no picture; None if it teaches nothing."""
    costs = np.ones(len(sample.token_ids_n), dtype=np.int64)
    is_picture = sample.token_ids_n == IMAGE_TOKEN_INDEX
    costs[is_picture] = [picture.num_tokens for picture in sample.pictures]
    ends = np.cumsum(costs)
    num_kept = int(np.searchsorted(ends, seq_length, side="right"))
    if not np.count_nonzero(sample.trained_n[1:num_kept]):
        return None
    return _replaced(
        sample,
        token_ids_n=sample.token_ids_n[:num_kept],
        trained_n=sample.trained_n[:num_kept],
        pictures=sample.pictures[: int(np.count_nonzero(is_picture[:num_kept]))],
        num_tokens=int(ends[num_kept - 1]),
        changed=Reason.TRUNCATED,
    )


def with_fewer_tiles(sample: EncodedSample, seq_length: int, tiling: TilingPolicy) -> EncodedSample | None:
    """The sample with its largest pictures cut into fewer tiles until it fits; None if that is not enough."""
    pictures = list(sample.pictures)
    excess = sample.num_tokens - seq_length
    fixed: set[int] = set()  # pictures that cannot get smaller
    while excess > 0 and len(fixed) < len(pictures):
        largest = max((i for i in range(len(pictures)) if i not in fixed), key=lambda i: pictures[i].num_tokens)
        # down to the next largest at most, so that no picture pays alone for all
        others = [pictures[i].num_tokens for i in range(len(pictures)) if i not in fixed and i != largest]
        old = pictures[largest]
        target = max(old.num_tokens - excess, min(max(others, default=0), old.num_tokens - 1))
        new = _smaller(old, target, tiling)
        if new is None:
            new = _smaller(old, old.num_tokens - 1, tiling)
        if new is None:
            fixed.add(largest)
            continue
        excess -= old.num_tokens - new.num_tokens
        pictures[largest] = new
    if excess > 0:
        return None
    num_tokens = sample.num_tokens - sum(p.num_tokens for p in sample.pictures) + sum(p.num_tokens for p in pictures)
    return _replaced(sample, pictures=tuple(pictures), num_tokens=num_tokens, changed=Reason.FEWER_TILES)


def _smaller(picture: PlannedPicture, max_tokens: int, tiling: TilingPolicy) -> PlannedPicture | None:
    grid = tiling.smaller(picture.width_px, picture.height_px, max_tokens)
    if grid is None:
        return None
    return PlannedPicture(
        picture=picture.picture,
        width_px=picture.width_px,
        height_px=picture.height_px,
        grid=grid,
        num_tokens=tiling.num_tokens(grid, picture.width_px, picture.height_px),
    )


def _replaced(sample: EncodedSample, **changes: object) -> EncodedSample:
    fields = {name: getattr(sample, name) for name in EncodedSample.__dataclass_fields__}
    return EncodedSample(**{**fields, **changes})
