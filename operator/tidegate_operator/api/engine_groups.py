"""ServingPool's `engineGroups`: engines with drafts of their own, each the home of some tiers.

vLLM takes one draft per engine, so tiers whose traffic differs (conversation, code) need engines of
their own to be drafted for well (source 000, incident C). A group is a StatefulSet; what the pool
says of model, engine and sidecar holds for all of them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import StringConstraints, model_validator

from tidegate.scheduling.contracts import Spill
from tidegate_operator.api.fields import ApiModel, KindName, described, rule, rules

MAX_GROUP_TIERS = 32
GROUP_NAME_LENGTH = 20
RESERVED_GROUP_NAMES = ("main", "engines", "router", "fallback")
"""Of the pods of a pool without groups, and of children that are named after the pool."""
MAX_DRAFT_TOKENS = 64

GroupName = Annotated[
    str,
    StringConstraints(
        min_length=1, max_length=GROUP_NAME_LENGTH, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
    ),
]
DraftModel = Annotated[
    str,
    StringConstraints(min_length=1, max_length=512, pattern=r"^[A-Za-z0-9/][^\s]*$"),
]


class DraftMethod(StrEnum):
    """How drafts are made."""

    NGRAM = "Ngram"
    EAGLE = "Eagle"
    EAGLE3 = "Eagle3"
    MEDUSA = "Medusa"
    MTP = "Mtp"
    DRAFT_MODEL = "DraftModel"


VLLM_METHODS = {
    DraftMethod.NGRAM: "ngram",
    DraftMethod.EAGLE: "eagle",
    DraftMethod.EAGLE3: "eagle3",
    DraftMethod.MEDUSA: "medusa",
    DraftMethod.MTP: "mtp",
    DraftMethod.DRAFT_MODEL: "draft_model",
}
"""As vLLM's --speculative-config spells them."""

_NEEDS_MODEL = "this method needs model: the head or the small model that drafts"
_HAS_MODEL = "Ngram drafts from the prompt itself and takes no model"


class Draft(ApiModel):
    """What drafts for the engines of a group (speculative decoding)."""

    model_config = rules(
        rule("self.method in ['Ngram', 'Mtp'] || has(self.model)", _NEEDS_MODEL),
        rule("self.method != 'Ngram' || !has(self.model)", _HAS_MODEL),
    )

    method: DraftMethod = described(
        "Ngram: what followed the same words in the prompt. Eagle, Eagle3, Medusa: a head trained "
        "for the model. Mtp: the heads that the model itself brings. DraftModel: a small model of "
        "the same vocabulary."
    )
    model: DraftModel | None = described(
        "Where the head or the small model comes from: a repository, a folder of the engine's "
        "volumes, or an address.",
        unset="none, as Ngram wants it, or the model's own, as Mtp does",
    )
    tokens: int = described("Tokens drafted in a step.", ge=1, le=MAX_DRAFT_TOKENS)

    @model_validator(mode="after")
    def _model_where_needed(self) -> Self:
        if self.method is DraftMethod.NGRAM and self.model is not None:
            raise ValueError(_HAS_MODEL)
        if self.method not in (DraftMethod.NGRAM, DraftMethod.MTP) and self.model is None:
            raise ValueError(_NEEDS_MODEL)
        return self


class EngineGroup(ApiModel):
    """Engines of one kind, and the tiers whose home they are."""

    model_config = rules(
        rule(
            "!has(self.noDraftTiers) || size(self.noDraftTiers) == 0 || has(self.draft)",
            "noDraftTiers is for groups with a draft",
            field_path=".noDraftTiers",
        ),
        rule(
            "!has(self.noDraftTiers) || self.noDraftTiers.all(tier, "
            "has(self.tiers) && self.tiers.exists(name, name == tier))",
            "noDraftTiers names a tier that is not in tiers of the same group",
            field_path=".noDraftTiers",
        ),
    )

    name: GroupName = described(
        "Names the group's StatefulSet and Service, <pool>-<name>.",
        cel=[
            rule(
                f"!(self in {list(RESERVED_GROUP_NAMES)})",
                f"{', '.join(RESERVED_GROUP_NAMES)} name other children of a pool; take another",
            )
        ],
    )
    tiers: list[KindName] | None = described(
        "TenantTiers whose home it is; each is in at most one group. Tiers in none are at home "
        "in the first group; without a router, where the pool's own Service leads.",
        unset="none",
        empty="the same",
        max_length=MAX_GROUP_TIERS,
        list_type="set",
    )
    draft: Draft | None = described("What drafts for its engines.", unset="nothing")
    no_draft_tiers: list[KindName] | None = described(
        "Those of its tiers whose requests are not drafted for, as their text is too different. "
        "Needs engine.plugin: Enabled.",
        unset="none",
        empty="the same",
        max_length=MAX_GROUP_TIERS,
        list_type="set",
    )
    spill: Spill | None = described(
        "Never: requests of its tiers wait for it as long as it has a pod. WhenIdle: while it is "
        "busy they are served by another group that has idle capacity, without a draft where "
        "engine.plugin is Enabled (stock vLLM drafts for all), and what is served elsewhere says "
        "where in the header x-tidegate-engine-group. While it has no pod that serves, every other "
        "group serves them either way. Needs a router.",
        unset="WhenIdle",
    )
    share: int | None = described(
        "Its part of the pool's replicas, as a weight among the groups. Each has at least one pod, "
        "and one pod more never takes one away from a group.",
        unset="1",
        ge=1,
        le=1000,
    )
