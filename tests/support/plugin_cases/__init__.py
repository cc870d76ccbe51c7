"""What the plug-in must do to vLLM's scheduler, case by case, on both of its classes.

Each case gets a :class:`Bench`, makes hosts with it and asserts; importing this lists them all in
``CASES``.
"""

from support.plugin_bench import CASES
from support.plugin_cases import (
    drafts,
    engine_model,
    failures,
    left_alone,
    prefill,
    quotas,
    statistics,
    victims,
)

__all__ = [
    "CASES",
    "drafts",
    "engine_model",
    "failures",
    "left_alone",
    "prefill",
    "quotas",
    "statistics",
    "victims",
]
