"""Checks data before training: every sample is read, planned and counted as training would; faults by reason."""

from mmpack.check.facts import BadSample, CheckReport, Counts, Fill, histogram
from mmpack.check.quarantine import quarantine
from mmpack.check.read import CheckConfig, check, dataset_splits

__all__ = [
    "BadSample",
    "CheckConfig",
    "CheckReport",
    "Counts",
    "Fill",
    "check",
    "dataset_splits",
    "histogram",
    "quarantine",
]
