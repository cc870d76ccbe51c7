"""What every pod worker shares: the API, the node's settings, addresses and tables."""

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tidegate.local_cluster.kubelet.api import Api, Object
from tidegate.local_cluster.kubelet.backoff import RestartBackoff
from tidegate.local_cluster.kubelet.events import EventRecorder
from tidegate.local_cluster.kubelet.images import ImageTable


@dataclass(frozen=True, slots=True)
class KubeletSettings:
    """A kubelet's settings. Folders must exist; times in seconds."""

    kubeconfig: Path
    state: Path
    node_name: str
    node_ip: str
    port: int
    pod_range: ipaddress.IPv4Network
    image_files: tuple[Path, ...]
    volume_refresh_seconds: float
    restart_backoff_seconds: float
    gpus: int

    @property
    def pods_folder(self) -> Path:
        return self.state / "pods"

    def backoff(self) -> RestartBackoff:
        return RestartBackoff(initial_seconds=self.restart_backoff_seconds)


class PodAddressPool:
    """Hands out pod addresses; one in use is not given twice, a free one comes back last."""

    def __init__(self, network: ipaddress.IPv4Network) -> None:
        self._network = network
        self._used: set[str] = set()
        # The first addresses are the node's own.
        self._next = 2

    def claim(self, address: str) -> bool:
        """Takes a given address, of a pod that had it before; False when it is in use."""
        if address in self._used or ipaddress.ip_address(address) not in self._network:
            return False
        self._used.add(address)
        return True

    def take(self) -> str:
        usable = self._network.num_addresses - 3
        for _ in range(usable):
            address = str(self._network[self._next])
            self._next = 2 + (self._next - 1) % usable
            if self.claim(address):
                return address
        raise RuntimeError(f"no free pod address in {self._network}")

    def release(self, address: str) -> None:
        self._used.discard(address)


@dataclass(frozen=True, slots=True)
class NodeContext:
    """Shared by all pod workers of a kubelet."""

    settings: KubeletSettings
    api: Api
    images: ImageTable
    events: EventRecorder
    addresses: PodAddressPool
    hosts_lines: Callable[[str], list[str]]
    """The lines of /etc/hosts that name the Services, as seen from a namespace."""
    resources: Object
    """The node's allocatable resources."""
