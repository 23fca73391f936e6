"""The global plan mode: whole epochs shuffled, packed and balanced ahead, read by random access.

`build_length_index` measures a data set once, `GlobalPlan` says how its epochs are planned, and `GlobalPlanLoader`
hands their packs out on any number of ranks and workers. Where a run stands is (seed, epoch, packs handed out).
"""

from mmpack.epoch.build import plan_energon
from mmpack.epoch.lengths import LengthIndex, build_length_index, load_length_index
from mmpack.epoch.loader import GlobalPlanLoader
from mmpack.epoch.packs import GlobalPlan
from mmpack.epoch.plan import EpochPlan, PlanConfig, plan_epoch

__all__ = [
    "EpochPlan",
    "GlobalPlan",
    "GlobalPlanLoader",
    "LengthIndex",
    "PlanConfig",
    "build_length_index",
    "load_length_index",
    "plan_energon",
    "plan_epoch",
]
