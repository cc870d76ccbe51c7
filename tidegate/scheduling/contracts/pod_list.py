"""``pods.json``: the pods that a router may send requests to, where no cluster tells it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tidegate.scheduling.contracts.codec import ContractError, described

POD_LIST_VERSION = 1
MAIN_GROUP = "main"
"""The engine group of pods in a pool without groups."""
GROUP_LABEL = "tidegate.io/engine-group"
"""Of a pod in a cluster: its engine group. It feeds selectors that cannot change: it never does."""
_ADDRESS = re.compile(r"http://[^/:\s]+:\d{1,5}/?\Z|http://\[[0-9a-fA-F:.]+\]:\d{1,5}/?\Z")


@dataclass(frozen=True, slots=True)
class ServingPod:
    """One pod: a sidecar and its engine."""

    name: str = described("Unique in the list, and stable: affinity follows it.", high=253)
    address: str = described("Of its tenants' port: `http://host:port`.")
    admin_address: str = described("Of its admin port: `http://host:port`.")
    group: str = described("Engine group that it is in.", default=MAIN_GROUP, low=1, high=63)

    def __post_init__(self) -> None:
        for field in ("address", "admin_address"):
            if not _ADDRESS.match(getattr(self, field)):
                raise ContractError(f"{field} of {self.name!r}: expected http://host:port")


@dataclass(frozen=True, slots=True)
class PodList:
    """All pods of a pool."""

    version: int = described("Version of this contract.", low=POD_LIST_VERSION, high=1)
    pods: tuple[ServingPod, ...] = described("The pods, in any order.", default=(), high=1_000)

    def __post_init__(self) -> None:
        names = [pod.name for pod in self.pods]
        if len(set(names)) != len(names):
            raise ContractError("pods: two have the same name")
