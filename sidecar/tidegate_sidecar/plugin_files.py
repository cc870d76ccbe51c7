"""What the engine's plug-in needs on disk: its code, brought by an init container, and the policy.

The code is the part of this package that runs inside vLLM: pure Python, standard library alone. The
policy is the one that this sidecar has in force, without the tenants: the plug-in knows none.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import tidegate
from tidegate.scheduling.contracts import Policy, dumps

_PARTS = ("scheduling", "vllm_plugin")


def copy_plugin(target: Path) -> None:
    """Put the package ``tidegate``, as far as the plug-in needs it, into a folder that is to be on
    PYTHONPATH; what is there of an earlier try is replaced."""
    source = Path(tidegate.__file__).parent
    package = target / "tidegate"
    package.mkdir(parents=True, exist_ok=True)
    shutil.copy(source / "__init__.py", package)
    for part in _PARTS:
        shutil.copytree(
            source / part,
            package / part,
            ignore=shutil.ignore_patterns("__pycache__"),
            dirs_exist_ok=True,
        )


def write_policy(path: Path, policy: Policy) -> None:
    """Replace the plug-in's policy at once, so that no reader sees a part of it."""
    scratch = path.with_suffix(".new")
    scratch.write_text(dumps(replace(policy, tenants=(), shard=None)))
    scratch.replace(path)
