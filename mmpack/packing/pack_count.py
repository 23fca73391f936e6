"""A number of packs that ranks can share: at least so many, and a multiple of something."""

from __future__ import annotations

from collections.abc import Sequence

from mmpack.errors import ConfigError


def with_pack_count(packs: Sequence[Sequence[int]], *, at_least: int = 0, multiple: int = 1) -> list[list[int]]:
    """The same packs, and new ones of one sample each, up to the next number that is wanted.

    A new pack gets the last sample of the pack with the most samples; of equals the last such pack gives, and gives
    on until it has one left. That is what NeMo-RL does to make bins a multiple of the ranks: simple, and wasteful
    (the vector of fourteen lengths falls from 94 % to 59 % fill when its 5 packs become 8).

    Raises:
        ConfigError: more packs wanted than there are samples.

    >>> with_pack_count([[0, 1, 2], [3]], multiple=3)
    [[0, 1], [3], [2]]
    """
    wanted = -(-max(len(packs), at_least) // multiple) * multiple
    grown = [list(pack) for pack in packs]
    if wanted == len(packs):
        return grown
    num_samples = sum(map(len, packs))
    if num_samples < wanted:
        raise ConfigError(
            f"{num_samples} samples cannot fill {wanted} packs (at least {at_least}, a multiple of {multiple}); "
            "use fewer ranks, or more samples a global batch"
        )
    givers = iter(sorted(range(len(packs)), key=lambda p: (len(packs[p]), p), reverse=True))
    giver = next(givers)
    while len(grown) < wanted:
        while len(grown[giver]) == 1:
            giver = next(givers)
        grown.append([grown[giver].pop()])
    return grown
