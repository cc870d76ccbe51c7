"""ServingPool's `autoscaling`: pods by what tiers are promised."""

from __future__ import annotations

from tidegate_operator.api.fields import (
    ApiModel,
    described,
    duration,
    duration_seconds,
    rule,
    rules,
)
from tidegate_operator.autoscale.policy import (
    DOWN,
    UP,
    Pace,
    PoolScaling,
    ScalingPolicy,
    ScalingSignal,
)

MOST_PODS = 1000


class ScaleUp(ApiModel):
    """How fast more pods come."""

    window: str | None = duration(
        "How long more must have been asked for without a break.",
        low="0s",
        high="1h",
        unset=f"{UP.window_seconds:g}s, at once",
    )
    cooldown: str | None = duration(
        "Pause after any step before the next of this direction.",
        low="0s",
        high="24h",
        unset=f"{UP.cooldown_seconds:g}s",
    )
    max_step: int | None = described(
        "Most pods added at once.", unset="as many as the demand needs", ge=1, le=MOST_PODS
    )


class ScaleDown(ApiModel):
    """How fast pods go. Each drains before it does."""

    window: str | None = duration(
        "How long every signal must have been calm without a break; one pod less must hold the "
        "highest demand of that time.",
        low="1m",
        high="24h",
        unset=f"{DOWN.window_seconds:g}s",
    )
    cooldown: str | None = duration(
        "Pause after any step before the next of this direction.",
        low="0s",
        high="24h",
        unset=f"{DOWN.cooldown_seconds:g}s",
    )
    max_step: int | None = described(
        "Most pods removed at once.", unset=f"{DOWN.max_step}", ge=1, le=MOST_PODS
    )


class AutoscalingSpec(ApiModel):
    """Bounds and pace; the operator decides within them, for each engine group by itself."""

    model_config = rules(
        rule(
            "!has(self.minPerGroup) || self.minPerGroup <= self.maxPerGroup",
            "minPerGroup must not be above maxPerGroup",
            field_path=".minPerGroup",
        )
    )

    min_per_group: int | None = described(
        "Fewest pods of each engine group.", unset="1", ge=1, le=MOST_PODS
    )
    max_per_group: int = described("Most pods of each engine group.", ge=1, le=MOST_PODS)
    max_replicas: int | None = described(
        "Most pods of all engine groups together, though each keeps minPerGroup.",
        unset="as many as each group may have",
        ge=1,
        le=MOST_PODS,
    )
    signals: list[ScalingSignal] | None = described(
        "What asks for more pods, and must be calm before one goes. Alerts: alerts of the pool's "
        "PrometheusRule that fire. BurnRate: an error budget spent faster than it lasts, over five "
        "minutes and an hour. QueueWait: requests of a tier that is promised a TimeToFirstToken or "
        "EndToEnd wait in the sidecars' queues for over half of it, or are refused more often than "
        "promised since they would wait too long. Where data of a signal are missing, no pod goes.",
        unset="QueueWait and, where observability.prometheus is set, Alerts and BurnRate",
        min_length=1,
        max_length=len(ScalingSignal),
        list_type="set",
    )
    scale_up: ScaleUp | None = described(
        "How fast more pods come.", unset="as if all its fields were unset"
    )
    scale_down: ScaleDown | None = described(
        "How fast pods go.", unset="as if all its fields were unset"
    )

    def resolved(self, *, prometheus: bool) -> PoolScaling:
        """With every default; ``prometheus``: there is one to be asked."""
        asked = self.signals or [
            signal for signal in ScalingSignal if prometheus or signal is ScalingSignal.QUEUE_WAIT
        ]
        group = ScalingPolicy(
            minimum=self.min_per_group or 1,
            maximum=self.max_per_group,
            signals=tuple(asked),
            up=_pace(self.scale_up, UP),
            down=_pace(self.scale_down, DOWN),
        )
        return PoolScaling(group, self.max_replicas)


def _pace(spec: ScaleUp | ScaleDown | None, default: Pace) -> Pace:
    if spec is None:
        return default
    return Pace(
        duration_seconds(spec.window) if spec.window else default.window_seconds,
        duration_seconds(spec.cooldown) if spec.cooldown else default.cooldown_seconds,
        spec.max_step or default.max_step,
    )
