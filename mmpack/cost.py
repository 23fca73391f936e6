"""What a pack costs to train on, and the planner that shares packs out so that no rank waits for another.

`CostModel` is a*tokens + b*sum(len^2) + c*tiles, with coefficients from a file or fitted to measured steps.
`rank_plan` gives finished packs to ranks and steps; `balanced_packs` makes packs of equal cost of a global batch.
Both are pure functions of their numbers, so every rank computes the same plan and nobody has to send one.
"""

from __future__ import annotations

import heapq
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmpack.errors import ConfigError, check_whole

_COEFFICIENTS = ("per_token", "per_len_squared", "per_tile", "per_step")


@dataclass(frozen=True, kw_only=True, slots=True)
class CostModel:
    """Cost of a pack, in any unit: seconds if it was fitted, else in tokens.

    The defaults are those of a transformer of hidden size 4096 without a vision tower: attention does 2 x hidden x
    len^2 operations a layer (causal, forward), everything else 24 x hidden^2 a token.

    Args:
        per_token, per_len_squared, per_tile: of a position, of a squared length, of a tile in the vision tower.
        per_step: what a step costs whatever is in it; it changes no plan.

    Raises:
        ConfigError: a coefficient that is negative or no number, or all of the first three 0.

    >>> CostModel(per_token=1.0, per_len_squared=0.5, per_tile=10.0).cost(lengths=[2, 4], num_tiles=1)
    26.0
    """

    per_token: float = 1.0
    per_len_squared: float = 1 / (12 * 4096)
    per_tile: float = 0.0
    per_step: float = 0.0

    def __post_init__(self) -> None:
        for name in _COEFFICIENTS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise ConfigError(f"cost model: {name}={value!r}; a number of at least 0")
        if not (self.per_token or self.per_len_squared or self.per_tile):
            raise ConfigError("cost model: everything costs nothing; set per_token, per_len_squared or per_tile")

    def cost(self, *, lengths: Iterable[int], num_tiles: int = 0) -> float:
        """Of a pack with samples of these lengths."""
        tokens, squares = 0, 0
        for length in lengths:
            tokens += length
            squares += length * length
        return float(self.costs(tokens, squares, num_tiles))

    def costs(self, tokens: Any, sum_len_squared: Any, num_tiles: Any) -> Any:
        """The same from sums, for one pack or arrays of packs."""
        work = self.per_token * tokens + self.per_len_squared * sum_len_squared + self.per_tile * num_tiles
        return work + self.per_step

    def save(self, path: Path | str) -> None:
        """Writes the coefficients as JSON."""
        Path(path).write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path | str) -> CostModel:
        """Reads what `save` wrote; coefficients that are left out are 0.

        Raises:
            ConfigError: no such file, no JSON object, or an unknown name in it.
        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"cost model {str(path)!r} cannot be read: {error}") from None
        if not isinstance(content, dict) or (unknown := sorted(set(content) - set(_COEFFICIENTS))):
            what = f"unknown names {unknown}" if isinstance(content, dict) else "no JSON object"
            raise ConfigError(f"cost model {str(path)!r}: {what}; allowed: {', '.join(_COEFFICIENTS)}")
        return cls(**{**dict.fromkeys(_COEFFICIENTS, 0.0), **content})


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """A fitted model, and how well it tells the steps it was fitted to."""

    model: CostModel
    num_steps: int
    r_squared: float  # share of the variance of step times that it explains


def fit_cost_model(records: Iterable[Mapping[str, Any]], *, skip_steps: int = 2) -> Fit:
    """Fits non-negative coefficients to steps of `train.jsonl`, by least squares.

    Args:
        records: with num_positions, sum_len_squared, num_tiles, step_s and, if there, wait_s, which was no work;
            others are passed over.
        skip_steps: first steps that are left out; they warm up.

    Raises:
        ConfigError: fewer than 4 steps are left, or nothing in them explains their times.
    """
    steps = [record for record in records if "step_s" in record and "sum_len_squared" in record][skip_steps:]
    if len(steps) < 4:
        raise ConfigError(f"{len(steps)} measured steps after the first {skip_steps}; a fit needs at least 4")
    columns = [[float(step[name]) for step in steps] for name in ("num_positions", "sum_len_squared", "num_tiles")]
    measured = np.array([float(step["step_s"]) - float(step.get("wait_s", 0.0)) for step in steps])
    matrix = np.array([*columns, [1.0] * len(steps)]).T
    coefficients = non_negative_least_squares(matrix, measured)
    if not coefficients[:3].any():
        raise ConfigError(
            f"the times of {len(steps)} steps do not grow with tokens, lengths or tiles; measure more steps of "
            "different packs, on a machine that does nothing else"
        )
    residual = float(((matrix @ coefficients - measured) ** 2).sum())
    spread = float(((measured - measured.mean()) ** 2).sum())
    model = CostModel(**dict(zip(_COEFFICIENTS, map(float, coefficients), strict=True)))
    return Fit(model=model, num_steps=len(steps), r_squared=1 - residual / spread if spread else 1.0)


def non_negative_least_squares(matrix: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    """The x >= 0 that brings matrix @ x closest to target, for the few columns of a cost model.

    One set of columns has the answer as its unconstrained solution, so every set is tried: exact, and 2^columns solves.

    >>> non_negative_least_squares(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([2.0, -1.0])).tolist()
    [2.0, 0.0]
    """
    num_columns = matrix.shape[1]
    scale = np.maximum(np.abs(matrix).max(axis=0), 1e-300)  # lengths squared are millions of times tiles
    best, least = np.zeros(num_columns), float((target**2).sum())
    for size in range(1, num_columns + 1):
        for chosen in map(list, itertools.combinations(range(num_columns), size)):
            solution = np.linalg.lstsq(matrix[:, chosen] / scale[chosen], target, rcond=None)[0]
            residual = float(((matrix[:, chosen] / scale[chosen] @ solution - target) ** 2).sum())
            if (solution >= 0).all() and residual < least * (1 - 1e-12):
                best, least = np.zeros(num_columns), residual
                best[chosen] = solution / scale[chosen]
    return best


@dataclass(frozen=True, kw_only=True, slots=True)
class RankPlan:
    """Which rank runs which pack at which step.

    Args:
        packs: rank -> step -> number of the pack, None for a filler of weight 0.
        step_costs: step -> rank -> cost.
    """

    packs: tuple[tuple[int | None, ...], ...]
    step_costs: tuple[tuple[float, ...], ...]

    @property
    def rank_costs(self) -> tuple[float, ...]:
        """Work of each rank in all steps."""
        return tuple(map(sum, zip(*self.step_costs, strict=True)))

    @property
    def max_rank_cost(self) -> float:
        """Work of the busiest rank: what the batch takes if ranks meet only at its end."""
        return max(self.rank_costs, default=0.0)

    @property
    def lock_step_cost(self) -> float:
        """What the batch takes if ranks wait for each other at every step."""
        return float(sum(map(max, self.step_costs)))

    @property
    def efficiency(self) -> float:
        """Mean work of a rank / `lock_step_cost`, 0 to 1: the share of time that ranks work."""
        costs = self.rank_costs
        return sum(costs) / len(costs) / self.lock_step_cost if self.lock_step_cost else 1.0


def rank_plan(costs: Sequence[float], num_ranks: int, packs_per_rank: int | None = None) -> RankPlan:
    """Shares the packs of a finished global batch out to ranks and steps.

    Packs are sorted by cost and cut into steps of `num_ranks`: no other way to cut them has a smaller lock-step cost.
    Within its step a pack may go to any rank: the dearest goes to the rank that has least so far, and then packs of a
    step change places while that helps the busiest rank.

    Args:
        costs: of each pack.
        num_ranks: data-parallel ranks.
        packs_per_rank: steps; None for as many as are needed. Places that are left over get fillers.

    Raises:
        ConfigError: no rank, more packs than places, or a cost below 0.

    >>> plan = rank_plan([24, 216, 248, 40], num_ranks=2)
    >>> plan.packs, plan.lock_step_cost, plan.max_rank_cost
    (((2, 0), (1, 3)), 288.0, 272)
    """
    check_whole("num_ranks", num_ranks)
    needed = -(-len(costs) // num_ranks) if num_ranks >= 1 else 0
    num_steps = needed if packs_per_rank is None else packs_per_rank
    if num_ranks < 1 or num_steps < needed or any(not 0 <= cost < math.inf for cost in costs):
        raise ConfigError(
            f"{len(costs)} packs for num_ranks={num_ranks} with packs_per_rank={packs_per_rank}; give at least one "
            f"rank, costs of at least 0, and packs_per_rank of at least {needed}"
        )
    dearest = sorted(range(len(costs)), key=lambda pack: (-costs[pack], pack))
    places: list[int | None] = [*dearest, *[None] * (num_steps * num_ranks - len(dearest))]
    loads: list[float] = [0] * num_ranks
    steps: list[list[int | None]] = []
    for start in range(0, len(places), num_ranks):
        step: list[int | None] = [None] * num_ranks
        order = sorted(range(num_ranks), key=lambda rank: (loads[rank], rank))
        for rank, pack in zip(order, places[start : start + num_ranks], strict=True):
            step[rank] = pack
            loads[rank] += _cost_of(pack, costs)
        steps.append(step)
    _relieve_busiest(steps, loads, costs)
    return RankPlan(
        packs=tuple(tuple(step[rank] for step in steps) for rank in range(num_ranks)),
        step_costs=tuple(tuple(_cost_of(pack, costs) for pack in step) for step in steps),
    )


def _cost_of(pack: int | None, costs: Sequence[float]) -> float:
    return 0 if pack is None else costs[pack]


def _relieve_busiest(steps: list[list[int | None]], loads: list[float], costs: Sequence[float]) -> None:
    """Exchanges packs of one step between the busiest rank and others while the larger of both loads falls."""
    for _ in range(4 * len(steps) * len(loads)):
        busiest = max(range(len(loads)), key=lambda rank: (loads[rank], -rank))
        best: tuple[float, int, int] | None = None
        for number, step in enumerate(steps):
            mine = _cost_of(step[busiest], costs)
            for other, pack in enumerate(step):
                gain = mine - _cost_of(pack, costs)
                after = max(loads[busiest] - gain, loads[other] + gain)
                if gain > 0 and after < loads[busiest] and (best is None or after < best[0]):
                    best = (after, number, other)
        if best is None:
            return
        _, number, other = best
        step = steps[number]
        gain = _cost_of(step[busiest], costs) - _cost_of(step[other], costs)
        step[busiest], step[other] = step[other], step[busiest]
        loads[busiest] -= gain
        loads[other] += gain


def balanced_packs(
    lengths: Sequence[int],
    capacity: int,
    num_ranks: int,
    *,
    model: CostModel | None = None,
    num_tiles: Sequence[int] | None = None,
    packs_per_rank: int | None = None,
) -> list[list[int]]:
    """Packs of about equal cost of one global batch, the same number for every rank: indices into `lengths`.

    The sample that costs most goes to the pack that costs least so far and has room ("longest processing time
    first", Graham 1969). As few packs a rank as that finds room in. A batch of fewer samples than ranks leaves packs
    empty, to be filled by fillers.

    Raises:
        ConfigError: a length that is not from 1 to `capacity`, or no room in `packs_per_rank`.

    >>> balanced_packs([13, 120, 64, 33, 90, 7, 55, 128], 256, num_ranks=2)
    [[7, 2, 6, 5], [1, 4, 3, 0]]
    """
    model = model or CostModel()
    check_whole("num_ranks", num_ranks)
    if wrong := [length for length in lengths if not 0 < length <= capacity]:
        raise ConfigError(f"a sample of {wrong[0]} tokens; lengths are from 1 to the capacity of {capacity}")
    tiles = num_tiles if num_tiles is not None else [0] * len(lengths)
    work = [model.costs(n, n * n, t) - model.per_step for n, t in zip(lengths, tiles, strict=True)]
    order = sorted(range(len(lengths)), key=lambda i: (-work[i], -lengths[i], i))
    fewest = max(1, -(-sum(lengths) // (capacity * num_ranks)))
    tries: Iterable[int] = itertools.count(fewest) if packs_per_rank is None else [packs_per_rank]
    for steps in tries:
        packs = _longest_first(order, work, lengths, capacity, steps * num_ranks)
        if packs is not None:
            return packs
    raise ConfigError(
        f"{len(lengths)} samples of {sum(lengths)} tokens do not fit {packs_per_rank} packs of {capacity} on each of "
        f"{num_ranks} ranks; give more packs_per_rank, or None for as many as are needed"
    )


def _longest_first(
    order: Sequence[int], work: Sequence[float], lengths: Sequence[int], capacity: int, num_packs: int
) -> list[list[int]] | None:
    """Packs of the samples in `order`; None if one of them finds no room."""
    packs: list[list[int]] = [[] for _ in range(num_packs)]
    rooms = [capacity] * num_packs
    cheapest = [(0.0, pack) for pack in range(num_packs)]
    for i in order:
        full: list[tuple[float, int]] = []
        while cheapest and rooms[cheapest[0][1]] < lengths[i]:
            full.append(heapq.heappop(cheapest))
        if not cheapest:
            return None
        cost, pack = heapq.heappop(cheapest)
        packs[pack].append(i)
        rooms[pack] -= lengths[i]
        heapq.heappush(cheapest, (cost + work[i], pack))
        for entry in full:
            heapq.heappush(cheapest, entry)
    return packs
