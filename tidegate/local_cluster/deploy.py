"""Puts Tidegate onto a cluster as a user would: with kubectl, from folders of manifests.

In this order, since each needs the one before: `crds/` (until Established), `manifests/` (the
operator, with its own account and rights), `examples/quickstart/` (tiers, tenants, pools), then a
wait until every pool is Ready. Everything is applied server-side, so doing it again changes
nothing that did not differ. What somebody else has changed of the examples since is theirs: it is
kept, and said.
"""

import json
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate.local_cluster.errors import LocalClusterError

FIELD_MANAGER = "tidegate-up"
_POLL_SECONDS = 1.0
_CONFLICT = re.compile(r"Apply failed with \d+ conflicts?: (.*)")

Kubectl = Callable[..., "subprocess.CompletedProcess[str]"]
"""kubectl on some cluster: arguments in, the finished process out."""


@dataclass(frozen=True, slots=True)
class Source:
    """The folders that are applied."""

    root: Path

    @property
    def crds(self) -> Path:
        return self.root / "crds"

    @property
    def manifests(self) -> Path:
        return self.root / "manifests"

    @property
    def quickstart(self) -> Path:
        return self.root / "examples" / "quickstart"


def find_source() -> Source:
    """The checkout that this package runs from, else what was installed beside the package."""
    beside = Path(__file__).resolve().parents[2]
    for source in (Source(beside), Source(beside / "tidegate_deploy")):
        folders = (source.crds, source.manifests, source.quickstart)
        if all((folder / "kustomization.yaml").exists() for folder in folders):
            return source
    raise LocalClusterError(
        f"{beside} holds neither a checkout of Tidegate nor tidegate_deploy/: install the package "
        "again, or use `tidegate up --bare` for an empty cluster"
    )


def deploy(
    kubectl: Kubectl,
    source: Source,
    on_step: Callable[[str], None],
    *,
    wait_seconds: float,
) -> None:
    """Applies everything and waits for the pools. Raises LocalClusterError with kubectl's words."""
    on_step("applying crds/")
    apply_crds(kubectl, source)
    on_step("applying manifests/")
    _apply(kubectl, source.manifests)
    on_step("applying examples/quickstart/")
    if changed := _apply_example(kubectl, source.quickstart):
        on_step(f"applied examples/quickstart/ but for what was changed since: {changed}")
    _wait_for_pools(kubectl, on_step, time.monotonic() + wait_seconds)


def apply_crds(kubectl: Kubectl, source: Source) -> None:
    """Applies the CRDs and waits until they are Established."""
    _apply(kubectl, source.crds)
    names = _checked(kubectl("get", "-k", str(source.crds), "-o", "name")).split()
    # `wait` fails on a CRD so young that its conditions are null.
    _checked(_patiently(kubectl, "wait", "--for=condition=Established", "--timeout=60s", *names))


def _apply_example(kubectl: Kubectl, folder: Path) -> str:
    """What others have changed of it, in kubectl's words; empty: nothing."""
    done = _patiently(kubectl, *_apply_arguments(folder))
    conflicts = _CONFLICT.findall(done.stderr)
    errors = [line for line in done.stderr.splitlines() if line.lower().startswith("error")]
    if done.returncode != 0 and conflicts and len(conflicts) == len(errors):
        return "; ".join(conflicts)
    _checked(done)
    return ""


def _apply(kubectl: Kubectl, folder: Path) -> None:
    # A namespace, a CRD or a quota that was made a moment ago may not be known everywhere yet.
    _checked(_patiently(kubectl, *_apply_arguments(folder)))


def _apply_arguments(folder: Path) -> tuple[str, ...]:
    return ("apply", "--server-side", f"--field-manager={FIELD_MANAGER}", "-k", str(folder))


def _patiently(kubectl: Kubectl, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """The first success of three, else the last failure."""
    for pause in (0.5, 2.0):
        done = kubectl(*arguments)
        if done.returncode == 0:
            return done
        time.sleep(pause)
    return kubectl(*arguments)


def _checked(done: "subprocess.CompletedProcess[str]") -> str:
    if done.returncode != 0:
        raise LocalClusterError(f"{' '.join(done.args[2:])} failed: {done.stderr.strip()}")
    return done.stdout


def _wait_for_pools(kubectl: Kubectl, on_step: Callable[[str], None], deadline: float) -> None:
    said = ""
    while True:
        answer = json.loads(
            _checked(kubectl("get", "servingpools.tidegate.io", "-A", "-o", "json"))
        )
        waiting = {pool_name(pool): why_not_ready(pool) for pool in answer["items"]}
        waiting = {name: why for name, why in waiting.items() if why}
        if answer["items"] and not waiting:
            return
        text = "; ".join(f"{name}: {why}" for name, why in waiting.items()) or "no pool yet"
        if text != said:
            on_step(f"waiting for the pools ({text})")
            said = text
        if time.monotonic() > deadline:
            raise LocalClusterError(
                f"pools are not Ready in time ({text}); see `tidegate status` and "
                "`tidegate kubectl describe servingpools -A`"
            )
        time.sleep(_POLL_SECONDS)


def pool_name(pool: dict[str, Any]) -> str:
    return f"{pool['metadata']['namespace']}/{pool['metadata']['name']}"


def why_not_ready(pool: dict[str, Any]) -> str:
    """Empty for a pool whose Ready condition is True for its newest generation."""
    status = pool.get("status", {})
    ready = next((item for item in status.get("conditions", []) if item["type"] == "Ready"), None)
    if ready is None:
        return "no status yet"
    generation = pool["metadata"].get("generation")
    current = status.get("observedGeneration", generation) == generation
    if ready["status"] == "True" and current:
        return ""
    return str(ready.get("reason") or ready["status"])
