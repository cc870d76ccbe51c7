"""``GET /v1/models``: what the key can really use, with the engine's own fields kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from tidegate.scheduling.outcomes import Outcome
from tidegate_sidecar.errors import ApiError


def models_answer(engine_models: Sequence[dict[str, Any]], served: str, wanted: str) -> bytes:
    """The list (``wanted`` empty) or one model, as JSON; 404 for a model that is not served."""
    usable = [model for model in engine_models if model.get("id") == served]
    if not wanted:
        return orjson.dumps({"object": "list", "data": usable})
    for model in usable:
        if model.get("id") == wanted:
            return orjson.dumps(model)
    raise ApiError(
        Outcome.MODEL_NOT_FOUND,
        f"The model {wanted[:128]!r} does not exist or you do not have access to it.",
        param="model",
    )


def max_model_len(engine_models: Sequence[dict[str, Any]], served: str) -> int | None:
    """The context length that the engine reports; None where it does not."""
    for model in engine_models:
        length = model.get("max_model_len")
        if model.get("id") == served and type(length) is int and length > 0:
            return length
    return None
