"""`GlobalPlanLoader`: the packs of planned epochs on any number of ranks and workers.

Rank r of W takes pack ``base + t * W + r`` at its step t, where `base` is how many packs the job had handed out when it
was (re)started, whatever W was until then. All ranks have equal steps: the last one is filled up with packs of weight
zero, and nobody has to ask anybody.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from mmpack import state as states
from mmpack.batch import B
from mmpack.epoch.packs import GlobalPlan, Lanes
from mmpack.epoch.plan import EpochPlan
from mmpack.errors import ConfigError, StateError
from mmpack.ledger import DropLedger
from mmpack.loader.packs import PackLoader
from mmpack.loader.workers import Feed


class GlobalPlanLoader(PackLoader[B]):
    """Iterates over the packs of one rank; see `mmpack.loader.PackLoader`, whose ways it has.

    Args:
        whole: the data, its length index, and how to plan.
        rank, world_size: data-parallel place of this process; any numbers.
        num_workers: processes that read, encode and decode; 0 reads in this process. Any number.
        prefetch: packs that each worker prepares ahead.
        restart: begin anew at every ``iter()``.

    Raises:
        ConfigError: numbers that cannot be.
    """

    factory: Lanes[B]

    def __init__(
        self,
        whole: GlobalPlan[B],
        *,
        rank: int = 0,
        world_size: int = 1,
        num_workers: int = 0,
        prefetch: int = 2,
        restart: bool = False,
    ) -> None:
        if world_size < 1 or num_workers < 0:
            raise ConfigError(f"world_size={world_size}, num_workers={num_workers}; at least 1 rank and 0 workers")
        self.whole = whole
        self._plan: tuple[int, EpochPlan] | None = None  # of an epoch
        self._told: tuple[EpochPlan, str] | None = None  # the digest of a plan
        self._left_out: DropLedger | None = None  # of every epoch
        self._counted = DropLedger()  # by the ranks of earlier runs
        super().__init__(
            Lanes(whole=whole, num_streams=world_size * max(1, num_workers)),
            rank=rank,
            world_size=world_size,
            num_workers=num_workers,
            prefetch=prefetch,
            restart=restart,
        )

    def plan(self, epoch: int) -> EpochPlan:
        """The plan of an epoch; the one asked for last is kept."""
        if self._plan is None or self._plan[0] != epoch:
            self._plan = None  # not two at once
            self._plan = (epoch, self.whole.plan(epoch))
        return self._plan[1]

    def __len__(self) -> int:
        """Steps of the present epoch from where the loader stands."""
        return max(0, -(-(self.plan(self.epoch).num_packs - self._next_pack()) // self.world_size))

    def prepared(self) -> Lanes[B]:
        """The factory of the present epoch's packs, from where the loader stands."""
        first = self._next_pack()
        end = first + len(self) * self.world_size
        return dataclasses.replace(self.factory, plan=self.plan(self.epoch), first=first, end=end)

    def _open_feed(self) -> Feed[B]:
        self.factory = self.prepared()
        return super()._open_feed()

    @property
    def pack_capacity(self) -> int:
        """Tokens that a pack holds at most."""
        return self.whole.config.capacity

    @property
    def drops(self) -> DropLedger:
        """What this rank has counted so far, as of the packs taken; rank 0 counts what no epoch has, in each epoch."""
        ledger = DropLedger.from_dict(self._counted.to_dict())
        ledger.merge(super().drops)
        if self.rank == 0:
            if self._left_out is None:
                self._left_out = self.whole.left_out()
            for _ in range(self.epoch + (self._next_pack() > 0)):
                ledger.merge(self._left_out)
        return ledger

    def _state(self) -> dict[str, Any]:
        counted = DropLedger.from_dict(self._counted.to_dict())
        counted.merge(super().drops)
        return states.envelope(
            mode="plan",
            settings=self.whole.settings,
            versions=self.whole.versions,
            num_streams=self.world_size,
            epoch=self.epoch,
            next_pack=self._next_pack(),
            shift=self._shift,
            streams={self.rank: {"drops": counted.to_dict(), "plan": self._digest()}},
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on behind the pack that `state` was saved after, also if it was saved by another number of ranks.

        The state of any one rank will do; only the counters of the others are then not known.

        Raises:
            StateError: the state does not fit; each difference is named.
        """
        states.check(state, mode="plan", settings=self.whole.settings, versions=self.whole.versions)
        held = {rank: states.opened(counted) for rank, counted in state["streams"].items()}
        try:
            digests = {counted["plan"] for counted in held.values() if counted is not None} - {None}
            ledgers = {rank: DropLedger.from_dict(counted["drops"]) for rank, counted in held.items() if counted}
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise StateError(
                f"the state is damaged ({type(error).__name__}: {error}); resume from another one"
            ) from error
        self._check_plan(state, digests)
        self._moved_to(state["epoch"], state["next_pack"], state["shift"])
        self._streams = dict.fromkeys(self._own_streams())
        own = str(self.rank)
        if state["num_streams"] == self.world_size and own in ledgers:
            mine = [ledgers[own]]
        else:  # the ranks are others now: the first takes over what all had counted
            mine = list(ledgers.values()) if self.rank == 0 else []
        self._counted = DropLedger()
        for ledger in mine:
            self._counted.merge(ledger)

    def _digest(self) -> str | None:
        """Of the present epoch's plan; None if nothing of it was handed out."""
        if self._next_pack() == 0:
            return None
        plan = self.plan(self.epoch)
        if self._told is None or self._told[0] is not plan:
            self._told = (plan, plan.digest())
        return self._told[1]

    def _check_plan(self, state: Mapping[str, Any], saved: set[str]) -> None:
        """Raises StateError if the epoch that the state stands in would be planned otherwise now."""
        if not saved:
            return
        plan = self.plan(state["epoch"])
        if saved != {plan.digest()}:
            raise StateError(
                f"epoch {state['epoch']} is planned otherwise than when the state was saved, so its rest is not known: "
                f"lengths in {self.whole.index.folder}, or mmpack (saved with {state['versions']}), changed; resume "
                "with what there was, or start the epoch anew"
            )
        if state["next_pack"] >= plan.num_packs + state["num_streams"]:
            raise StateError(
                f"the state is damaged: next_pack={state['next_pack']}, the epoch has {plan.num_packs} packs"
            )
