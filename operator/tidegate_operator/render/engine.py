"""The engine's container: ``vllm serve`` on a Unix socket that only the sidecar can reach."""

from __future__ import annotations

import json
import math
from typing import Any

from tidegate.scheduling.contracts import Task
from tidegate_operator.api.common import ResourceRequirements
from tidegate_operator.api.engine import EngineSpec, EnvVar
from tidegate_operator.api.engine_groups import VLLM_METHODS, Draft
from tidegate_operator.api.model import AccessMode, ModelSpec, Retention
from tidegate_operator.api.serving_pool import ServingPool
from tidegate_operator.engine_args import complete, media_domains
from tidegate_operator.engine_groups import Group
from tidegate_operator.names import ADMIN_PORT
from tidegate_operator.render.plugin import (
    ON_PYTHON_PATH,
    SHARED_DIRECTORY,
    has_plugin,
    plugin_arguments,
    plugin_mount,
)

Json = dict[str, Any]

SOCKET_DIRECTORY = SHARED_DIRECTORY
SOCKET_PATH = f"{SOCKET_DIRECTORY}/engine.sock"
"""vLLM refuses paths of 100 bytes and more."""
MODEL_DIRECTORY = "/model"
CACHE_DIRECTORY = "/cache"
CACHE = "cache"
"""Name of the cache's volume, and of the claim of each pod."""
GPU = "nvidia.com/gpu"
ENGINE_SHUTDOWN_SECONDS = 20
"""What vLLM gives its last requests after SIGTERM, when the drain has run out of time; below the
margin that the pod's grace period has beyond the drain."""

_REMOVE, _SERVE = 'rm -f "$0"', 'exec vllm serve "$@"'
"""vLLM leaves its socket behind and refuses to start where one lies; the pod's volume outlives a
container that crashed."""

_PROBE_SECONDS = 5


def engine_container(pool: ServingPool, group: Group) -> Json:
    """The container, by the pool's model and engine, and the group's draft."""
    spec, plugin = pool.spec.engine, has_plugin(pool)
    steps = [_REMOVE, ON_PYTHON_PATH, _SERVE] if plugin else [_REMOVE, _SERVE]
    container: Json = {
        "name": "engine",
        "image": spec.image,
        "command": ["sh", "-c", " && ".join(steps), SOCKET_PATH],
        "args": _arguments(pool, group),
        "env": _environment(pool.spec.model, spec),
        "volumeMounts": _mounts(pool.spec.model) + ([plugin_mount()] if plugin else []),
        "lifecycle": {"preStop": {"httpGet": _admin("/drained")}},
        "startupProbe": {
            "httpGet": _admin("/engine/startupz"),
            "periodSeconds": _PROBE_SECONDS,
            "timeoutSeconds": 5,
            "failureThreshold": max(1, math.ceil(spec.startup_timeout_seconds / _PROBE_SECONDS)),
        },
        "livenessProbe": {
            "httpGet": _admin("/engine/livez"),
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 6,
        },
        "securityContext": restricted(),
    }
    if resources := _resources(spec):
        container["resources"] = resources
    return container


def restricted() -> Json:
    """What the pod security standard ``restricted`` asks of a container, and a read-only root."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def resource_requirements(given: ResourceRequirements | None) -> Json:
    """Limits and requests as given; an empty one is left out."""
    if given is None:
        return {}
    both = {"limits": given.limits, "requests": given.requests}
    return {name: dict(amounts) for name, amounts in both.items() if amounts}


def model_volumes(model: ModelSpec) -> list[Json]:
    """Where the model is, and a place to write for what vLLM downloads and compiles.

    A cache with a volume for each pod is not among them: the StatefulSet adds it.
    """
    volumes: list[Json] = []
    cache, source = model.cache, model.source
    if cache is None or cache.empty_dir:
        limit = cache and cache.empty_dir and cache.empty_dir.size_limit
        volumes.append({"name": CACHE, "emptyDir": {"sizeLimit": limit} if limit else {}})
    elif shared := cache.persistent_volume_claim:
        claim_source = {"claimName": shared.claim_name}
        volumes.append({"name": CACHE, "persistentVolumeClaim": claim_source})
    if claim := source.persistent_volume_claim:
        volumes.append(
            {
                "name": "model",
                "persistentVolumeClaim": {"claimName": claim.claim_name, "readOnly": True},
            }
        )
    elif image := source.image:
        volumes.append({"name": "model", "image": {"reference": image.reference}})
    return volumes


def cache_claims(model: ModelSpec) -> list[Json]:
    """The StatefulSet's ``volumeClaimTemplates``: at most one, for the cache."""
    template = model.cache and model.cache.volume_claim_template
    if not template:
        return []
    spec: Json = {
        "accessModes": [(template.access_mode or AccessMode.READ_WRITE_ONCE).value],
        "resources": {"requests": {"storage": template.size}},
    }
    if template.storage_class_name:
        spec["storageClassName"] = template.storage_class_name
    return [{"metadata": {"name": CACHE}, "spec": spec}]


def claim_retention(model: ModelSpec) -> Json:
    """What becomes of the cache's claims. Always said, so that taking it back takes it back."""
    template = model.cache and model.cache.volume_claim_template
    deleted = template.when_deleted if template else None
    scaled = template.when_scaled if template else None
    return {
        "whenDeleted": (deleted or Retention.RETAIN).value,
        "whenScaled": (scaled or Retention.RETAIN).value,
    }


def _arguments(pool: ServingPool, group: Group) -> list[str]:
    model, engine = pool.spec.model, pool.spec.engine
    arguments = [model_location(model)]
    arguments += [f"--uds={SOCKET_PATH}", f"--served-model-name={model.name}"]
    if (hub := model.source.hugging_face) and hub.revision:
        arguments.append(f"--revision={hub.revision}")
    if model.max_model_len is not None:
        arguments.append(f"--max-model-len={model.max_model_len}")
    if model.task is Task.EMBED:
        arguments.append("--runner=pooling")
    arguments += [
        f"--tensor-parallel-size={engine.tensor_parallel_size}",
        # Always, so that the scheduling mode stays hot: without priorities it is first come, first
        # served.
        "--scheduling-policy=priority",
        f"--shutdown-timeout={ENGINE_SHUTDOWN_SECONDS}",
    ]
    if (prefill := pool.spec.prefill) and prefill.chunk_tokens:
        arguments.append(f"--long-prefill-token-threshold={prefill.chunk_tokens}")
    draft = [] if group.draft is None else [_speculative_config(group.draft)]
    if has_plugin(pool):
        arguments += plugin_arguments([*draft, *(engine.args or ())])
    arguments += [*draft, *complete(engine.args or (), model.task)]
    return [literal(argument) for argument in arguments]


def _speculative_config(draft: Draft) -> str:
    config: Json = {"method": VLLM_METHODS[draft.method], "num_speculative_tokens": draft.tokens}
    if draft.model is not None:
        config["model"] = draft.model
    return f"--speculative-config={json.dumps(config, sort_keys=True, separators=(',', ':'))}"


def model_location(model: ModelSpec) -> str:
    """What vLLM is told to serve: a name, an address, or a folder in the pod."""
    source = model.source
    if source.hugging_face:
        return source.hugging_face.repo
    if source.uri:
        return source.uri
    mounted = source.persistent_volume_claim or source.image
    path = mounted.path if mounted else None
    return f"{MODEL_DIRECTORY}/{path}".rstrip("/") if path else MODEL_DIRECTORY


def _environment(model: ModelSpec, engine: EngineSpec) -> list[Json]:
    """Ours first; the pool's win where a name is in both."""
    ours: list[Json] = [
        {"name": "HOME", "value": CACHE_DIRECTORY},
        # The image has no account of our number, and torch asks for its name.
        {"name": "USER", "value": "vllm"},
        {"name": "HF_HOME", "value": f"{CACHE_DIRECTORY}/huggingface"},
        {"name": "VLLM_CACHE_ROOT", "value": f"{CACHE_DIRECTORY}/vllm"},
        {"name": "TMPDIR", "value": "/tmp"},
        {"name": "VLLM_NO_USAGE_STATS", "value": "1"},
    ]
    if (hub := model.source.hugging_face) and (ref := hub.token_secret_ref):
        ours.append(
            {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": ref.name, "key": ref.key}}}
        )
    if media_domains(engine.args or ()):
        # A host that is listed must not lead to one that is not.
        ours.append({"name": "VLLM_MEDIA_URL_ALLOW_REDIRECTS", "value": "0"})
    given = [_variable(variable) for variable in engine.env or ()]
    names = {variable["name"] for variable in given}
    return [variable for variable in ours if variable["name"] not in names] + given


def _variable(variable: EnvVar) -> Json:
    source = variable.value_from
    if source is None:
        return {"name": variable.name, "value": literal(variable.value or "")}
    if ref := source.secret_key_ref:
        return {
            "name": variable.name,
            "valueFrom": {"secretKeyRef": {"name": ref.name, "key": ref.key}},
        }
    config = source.config_map_key_ref
    assert config is not None  # CEL lets no other through, and the model has only these two
    return {
        "name": variable.name,
        "valueFrom": {"configMapKeyRef": {"name": config.name, "key": config.key}},
    }


def _mounts(model: ModelSpec) -> list[Json]:
    mounts: list[Json] = [
        {"name": "socket", "mountPath": SOCKET_DIRECTORY},
        {"name": CACHE, "mountPath": CACHE_DIRECTORY},
        {"name": "shared-memory", "mountPath": "/dev/shm"},
        {"name": "engine-tmp", "mountPath": "/tmp"},
    ]
    if model.source.persistent_volume_claim or model.source.image:
        mounts.append(model_mount())
    return mounts


def model_mount() -> Json:
    """Of a model that is on a volume or in an image."""
    return {"name": "model", "mountPath": MODEL_DIRECTORY, "readOnly": True}


def _resources(engine: EngineSpec) -> Json:
    """As given; with tensor parallelism asked for, at least that many GPUs."""
    resources = resource_requirements(engine.resources)
    tensor = engine.parallelism.tensor if engine.parallelism else None
    named = any(GPU in amounts for amounts in resources.values())
    if tensor and not named:
        resources.setdefault("limits", {})[GPU] = tensor
    return resources


def literal(text: str) -> str:
    """Text that Kubernetes hands on as it is: it would expand ``$(NAME)``."""
    return text.replace("$(", "$$(")


def _admin(path: str) -> Json:
    return {"path": path, "port": ADMIN_PORT, "scheme": "HTTP"}
