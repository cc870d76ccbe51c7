"""What calls cost: the engine time that they took, at the price of the GPUs that gave it. Pure.

The time that a step takes is shared out among the requests in it and charged to them, so the
charges of all tiers sum to the time in which the engines were busy; nobody pays for idle time here,
and a reservation is not bought but used. ``busyPercent`` says how much was idle.
"""

from __future__ import annotations

from decimal import Decimal

from tidegate_operator.api.serving_pool import ServingPool
from tidegate_operator.engine_args import flag_integer
from tidegate_operator.quantity import amount
from tidegate_operator.render.engine import GPU

_PIPELINE = ("--pipeline-parallel-size", "-pp")


def gpus_used(pool: ServingPool) -> int:
    """GPUs that one engine uses: one for each rank."""
    engine = pool.spec.engine
    arguments = engine.args or ()
    pipeline = next((found for flag in _PIPELINE if (found := flag_integer(arguments, flag))), 1)
    return engine.tensor_parallel_size * pipeline


def gpus_asked(pool: ServingPool) -> Decimal | None:
    """GPUs that one engine pod asks for; None: the spec does not say."""
    resources = pool.spec.engine.resources
    limits = (resources and resources.limits) or {}
    requests = (resources and resources.requests) or {}
    return amount(limits.get(GPU, requests.get(GPU)))


def pod_hour_price(pool: ServingPool) -> float | None:
    """Of an hour of one engine pod; None: the pool names no price."""
    if pool.spec.price is None:
        return None
    return float(pool.spec.price.gpu_hour) * float(gpus_asked(pool) or gpus_used(pool))


def price_per_1000_calls(pod_hour: float | None, engine_time_ms: float, calls: int) -> str | None:
    """To two digits, as more would be noise; None: no price, or no call lately."""
    if pod_hour is None or calls <= 0:
        return None
    price = 1000.0 * pod_hour * engine_time_ms / 3_600_000.0 / calls
    return f"{float(f'{price:.2g}'):f}".rstrip("0").rstrip(".")
