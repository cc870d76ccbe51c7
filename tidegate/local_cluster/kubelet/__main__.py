"""`python -m tidegate.local_cluster.kubelet`: the kubelet as a process of its own."""

import argparse
import asyncio
import ipaddress
import logging
from pathlib import Path

from tidegate.local_cluster.kubelet.kubelet import run_kubelet
from tidegate.local_cluster.kubelet.node_context import KubeletSettings
from tidegate.local_cluster.kubelet.tcp_proxy import allow_open_files

DEFAULT_IMAGES = Path(__file__).parent.parent / "images.toml"


def _settings() -> KubeletSettings:
    parser = argparse.ArgumentParser(prog="tidegate.local_cluster.kubelet", description=__doc__)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--state", type=Path, required=True, help="folder for pods, kept")
    parser.add_argument("--node-name", required=True)
    parser.add_argument("--node-ip", required=True, help="loopback address of the log server")
    parser.add_argument("--port", type=int, default=10250)
    parser.add_argument("--pod-range", type=ipaddress.IPv4Network, required=True)
    parser.add_argument(
        "--images", type=Path, action="append", default=[], help="further image tables"
    )
    parser.add_argument("--volume-refresh-seconds", type=float, default=2.0)
    parser.add_argument("--restart-backoff-seconds", type=float, default=10.0)
    parser.add_argument("--gpus", type=int, required=True)
    given = parser.parse_args()
    return KubeletSettings(
        kubeconfig=given.kubeconfig,
        state=given.state.absolute(),
        node_name=given.node_name,
        node_ip=given.node_ip,
        port=given.port,
        pod_range=given.pod_range,
        image_files=(DEFAULT_IMAGES, *given.images),
        volume_refresh_seconds=given.volume_refresh_seconds,
        restart_backoff_seconds=given.restart_backoff_seconds,
        gpus=given.gpus,
    )


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    settings = _settings()
    allow_open_files()
    asyncio.run(run_kubelet(settings))


if __name__ == "__main__":
    main()
