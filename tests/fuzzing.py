"""How long property tests look for trouble: briefly in CI, long by hand with HYPOTHESIS_PROFILE=long."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"


def fuzz(num_examples: int) -> settings:
    """Settings for a test that takes `num_examples` examples in CI and a hundred times as many by hand."""
    return settings(
        max_examples=num_examples * (100 if LONG else 1),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
    )
