"""The scheduler plug-in in the engine's container: how it comes there and how vLLM is told of it.

Stock vLLM images do not have it: an init container of the sidecar's image copies it, pure Python
with no dependencies, into a folder of the pod, which is put before whatever the image or the pool
has on PYTHONPATH. Policy and step statistics go through the folder that engine and sidecar share
anyway: the sidecar writes there the policy that it has in force, so the two never follow different
ones, and none of the tenants' names and keys is in it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tidegate.scheduling.contracts import Task
from tidegate_operator.api.engine import Plugin
from tidegate_operator.api.serving_pool import ServingPool
from tidegate_operator.engine_args import ASYNC_SCHEDULING, async_scheduling

Json = dict[str, Any]

CODE_DIRECTORY = "/opt/tidegate"
SHARED_DIRECTORY = "/run/tidegate"
POLICY_PATH = f"{SHARED_DIRECTORY}/policy.json"
STATISTICS_PATH = f"{SHARED_DIRECTORY}/steps.sock"
VOLUME = "plugin"
ON_PYTHON_PATH = f'export PYTHONPATH="{CODE_DIRECTORY}${{PYTHONPATH:+:$PYTHONPATH}}"'
"""In the engine's shell, before vLLM."""
_REQUESTS = {"cpu": "50m", "memory": "64Mi"}


def has_plugin(pool: ServingPool) -> bool:
    """Whether the pool's engines run it."""
    generates = (pool.spec.model.task or Task.GENERATE) is Task.GENERATE
    return generates and pool.spec.engine.plugin is Plugin.ENABLED


def plugin_arguments(given: Sequence[str]) -> list[str]:
    """Flags of vLLM: the class for its way of scheduling, which depends on those ``given``, and
    where policy and statistics are."""
    is_async, chosen = async_scheduling(given)
    name = "TidegateAsyncScheduler" if is_async else "TidegateScheduler"
    paths = {"policy": POLICY_PATH, "statistics": STATISTICS_PATH}
    flag = ASYNC_SCHEDULING if is_async else f"--no-{ASYNC_SCHEDULING.removeprefix('--')}"
    return [
        f"--scheduler-cls=tidegate.vllm_plugin.{name}",
        f"--additional-config={json.dumps({'tidegate': paths}, separators=(',', ':'))}",
        # Said, so that no default of vLLM's contradicts the class.
        *([] if chosen else [flag]),
    ]


def plugin_container(sidecar_image: str, security: Json) -> Json:
    """The init container that brings the code."""
    return {
        "name": "plugin",
        "image": sidecar_image,
        "args": ["copy-plugin", CODE_DIRECTORY],
        "volumeMounts": [{"name": VOLUME, "mountPath": CODE_DIRECTORY}],
        "resources": {"requests": dict(_REQUESTS)},
        "securityContext": security,
    }


def plugin_mount() -> Json:
    """Of the engine's container."""
    return {"name": VOLUME, "mountPath": CODE_DIRECTORY, "readOnly": True}


def plugin_volume() -> Json:
    return {"name": VOLUME, "emptyDir": {}}
