"""``GET /v1/models``: what the key can really use, with the engine's own fields kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from tidegate_sidecar.errors import no_such_model

MODELS_PATH = "/v1/models"


def models_answer(
    engine_models: Sequence[dict[str, Any]],
    usable: str | None,
    wanted: str,
    most_tokens: int | None = None,
) -> bytes:
    """The list (``wanted`` empty) or one model, as JSON; 404 for a model that is not ``usable``.

    ``most_tokens`` is the policy's context length, told where the engine's is not shorter still.
    """
    models = [model for model in engine_models if usable is not None and model.get("id") == usable]
    if most_tokens is not None:
        models = [_bounded(model, most_tokens) for model in models]
    if not wanted:
        return orjson.dumps({"object": "list", "data": models})
    for model in models:
        if model.get("id") == wanted:
            return orjson.dumps(model)
    raise no_such_model(wanted)


def _bounded(model: dict[str, Any], most_tokens: int) -> dict[str, Any]:
    length = max_model_len([model], str(model.get("id")))
    return model | {"max_model_len": most_tokens if length is None else min(length, most_tokens)}


def max_model_len(engine_models: Sequence[dict[str, Any]], served: str) -> int | None:
    """The context length that the engine reports; None where it does not."""
    for model in engine_models:
        length = model.get("max_model_len")
        if model.get("id") == served and type(length) is int and length > 0:
            return length
    return None
