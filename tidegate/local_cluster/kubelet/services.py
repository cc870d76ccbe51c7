"""Services: a user-space TCP proxy in place of kube-proxy and a load balancer.

Each port of a Service is listened on at one local port of 127.0.0.1 (chosen once, kept on disk) and
at ClusterIP:port where this user may bind that. A connection goes to a ready pod, in turn; one that
refuses is passed over for the next. A pod that is terminating or unready gets no new connection,
while the connections it has live on for as long as both ends want.

A Service of type LoadBalancer is told so in `status.loadBalancer`: ingress 127.0.0.1, its `ports`
the local ports in the order of the Service's. One with a `loadBalancerClass` is left to whoever
serves that class, which nobody does here.
"""

import logging
from collections.abc import Callable
from pathlib import Path

from tidegate.local_cluster.files import read_json, write_json
from tidegate.local_cluster.kubelet import pods
from tidegate.local_cluster.kubelet.api import Api, ApiError, Object, Unreachable
from tidegate.local_cluster.kubelet.tcp_proxy import Backend, TcpProxy
from tidegate.local_cluster.ports import bindable, free_ports

log = logging.getLogger(__name__)

LOCAL_ADDRESS = "127.0.0.1"


def backends_of(service: Object, port: Object, all_pods: list[Object]) -> list[Backend]:
    """The ready pods behind one port of a Service, by address."""
    selector = service["spec"].get("selector")
    if not selector:
        return []
    namespace = service["metadata"]["namespace"]
    found = []
    for pod in all_pods:
        labels = pod["metadata"].get("labels", {})
        if pod["metadata"]["namespace"] != namespace or not selector.items() <= labels.items():
            continue
        unready = service["spec"].get("publishNotReadyAddresses")
        if pods.is_terminating(pod) or not (pods.is_ready(pod) or unready):
            continue
        address = pod.get("status", {}).get("podIP")
        number = _target_number(port, pod)
        if address and number is not None:
            found.append((address, number))
    return sorted(found)


def _target_number(port: Object, pod: Object) -> int | None:
    target: int | str = port.get("targetPort") or port["port"]
    for item in pod["spec"]["containers"]:
        try:
            return pods.port_number(item, target)
        except ValueError:
            continue
    return None


class ServiceProxies:
    """Keeps a proxy for every port of every Service; `sync` makes it so."""

    def __init__(self, api: Api, store: Path, list_pods: Callable[[], list[Object]]) -> None:
        self._api = api
        self._store = store
        self._list_pods = list_pods
        self._local_ports: dict[str, int] = read_json(store) or {}
        self._proxies: dict[str, TcpProxy] = {}

    async def sync(self, services: list[Object]) -> None:
        """Opens what is missing, closes what is gone, writes the status of load balancers."""
        wanted: dict[str, tuple[Object, Object]] = {}
        for service in services:
            if service["spec"].get("type") == "ExternalName" or not service["spec"].get("selector"):
                continue
            for port in service["spec"].get("ports", []):
                if port.get("protocol", "TCP") == "TCP":
                    wanted[_key(service, port)] = (service, port)
        for key in self._proxies.keys() - wanted.keys():
            await self._proxies.pop(key).close()
        forgotten = self._local_ports.keys() - wanted.keys()
        for key in forgotten:
            del self._local_ports[key]
        for key, (service, port) in wanted.items():
            if key not in self._proxies:
                self._proxies[key] = await self._open(key, service, port)
            else:
                self._proxies[key].pick = self._picker(service, port)
        write_json(self._store, self._local_ports)
        for service in services:
            await self._publish(service)

    async def close(self) -> None:
        for proxy in self._proxies.values():
            await proxy.close()
        self._proxies.clear()

    def _picker(self, service: Object, port: Object) -> Callable[[], list[Backend]]:
        return lambda: backends_of(service, port, self._list_pods())

    async def _open(self, key: str, service: Object, port: Object) -> TcpProxy:
        proxy = TcpProxy(self._picker(service, port))
        number = self._local_ports.get(key)
        if number is None or not bindable(LOCAL_ADDRESS, number):
            number = free_ports(1, taken=self._local_ports.values())[0]
        await proxy.listen(LOCAL_ADDRESS, number)
        self._local_ports[key] = number
        cluster_ip = service["spec"].get("clusterIP", "None")
        if cluster_ip not in ("None", ""):
            try:
                await proxy.listen(cluster_ip, port["port"])
            except OSError as error:
                log.info("%s:%s is not listened on: %s", cluster_ip, port["port"], error.strerror)
        return proxy

    async def _publish(self, service: Object) -> None:
        spec = service["spec"]
        if spec.get("type") != "LoadBalancer" or spec.get("loadBalancerClass"):
            return
        numbers = [
            self._local_ports[key]
            for port in spec.get("ports", [])
            if (key := _key(service, port)) in self._local_ports
        ]
        ports = [{"port": number, "protocol": "TCP"} for number in numbers]
        wanted = [{"ip": LOCAL_ADDRESS, "ipMode": "Proxy", "ports": ports}]
        status = service.get("status", {}).get("loadBalancer", {})
        if status.get("ingress") == wanted:
            return
        metadata = service["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/services/{metadata['name']}/status"
        try:
            await self._api.patch(path, {"status": {"loadBalancer": {"ingress": wanted}}})
        except (ApiError, Unreachable) as error:
            log.warning("status of service %s: %s", pods.key_of(service), error)


def _key(service: Object, port: Object) -> str:
    return f"{pods.key_of(service)}:{port['port']}"


def hosts_lines(services: list[Object], all_pods: list[Object], namespace: str) -> list[str]:
    """Lines of /etc/hosts for every Service, and for the named pods of headless ones."""
    lines = []
    for service in sorted(services, key=pods.key_of):
        name, home = service["metadata"]["name"], service["metadata"]["namespace"]
        full = f"{name}.{home}.svc"
        names = f"{full}.cluster.local {full} {name}.{home}"
        if home == namespace:
            names += f" {name}"
        cluster_ip = service["spec"].get("clusterIP", "None")
        if (home, name) == ("default", "kubernetes"):
            # The API server listens on its own port of this address, not on 443.
            lines.append(f"127.0.0.1 {names}")
        elif cluster_ip not in ("None", ""):
            lines.append(f"{cluster_ip} {names}")
        else:
            lines += _headless_lines(service, all_pods, full, names)
    return lines


def _headless_lines(service: Object, all_pods: list[Object], full: str, names: str) -> list[str]:
    addresses = [address for address, _ in backends_of(service, {"port": 0}, all_pods)]
    lines = [f"{address} {names}" for address in addresses]
    for pod in all_pods:
        spec = pod["spec"]
        inside = pod["metadata"]["namespace"] == service["metadata"]["namespace"]
        if not inside or spec.get("subdomain") != service["metadata"]["name"]:
            continue
        address, hostname = pod.get("status", {}).get("podIP"), spec.get("hostname")
        if address and hostname:
            lines.append(f"{address} {hostname}.{full}.cluster.local {hostname}.{full}")
    return sorted(lines)
