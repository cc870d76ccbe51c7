"""ServingPool's `price`: what a call costs."""

from __future__ import annotations

from typing import Annotated

from pydantic import StringConstraints

from tidegate_operator.api.fields import ApiModel, described


class PriceSpec(ApiModel):
    """What the pool's GPUs cost."""

    gpu_hour: Annotated[
        str, StringConstraints(min_length=1, max_length=16, pattern=r"^[0-9]{1,9}(\.[0-9]{1,6})?$")
    ] = described(
        'An hour of one GPU, in a currency of your choice, such as "2.50". The status then says '
        "what 1,000 calls of each tier cost."
    )
