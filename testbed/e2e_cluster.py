"""What the end-to-end tests do to a cluster, the way a user would: with kubectl and HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import yaml

NAMESPACE_LABEL = "tidegate.io/e2e"
OPERATOR_USER = "system:serviceaccount:tidegate-system:tidegate-operator"


@dataclass(slots=True)
class Cluster:
    """A cluster with Tidegate on it."""

    kubectl_command: list[str]

    def try_kubectl(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess:
        command = [*self.kubectl_command, *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        done = self.try_kubectl(*arguments, stdin=stdin)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def apply(self, *objects: dict[str, Any]) -> None:
        self.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(objects))

    def get(self, *arguments: str) -> dict[str, Any]:
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def until(self, what: str, condition: Callable[[], Any], timeout_seconds: float) -> Any:
        """The first truthy value of `condition`; an AssertionError that says what did not come."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            if value := condition():
                return value
            assert time.monotonic() < deadline, f"{what}: not within {timeout_seconds:.0f} s"
            time.sleep(0.2)

    def endpoint(self, namespace: str, pool: str) -> str:
        """The URL of the pool's Service of type LoadBalancer."""

        def address() -> str | None:
            status = self.get("service", pool, "-n", namespace)["status"]
            for ingress in status.get("loadBalancer", {}).get("ingress", []):
                port = (ingress.get("ports") or [{"port": 80}])[0]["port"]
                return f"http://{ingress.get('ip') or ingress['hostname']}:{port}"
            return None

        return self.until(f"address of {namespace}/{pool}", address, 60)

    def pods(self, namespace: str, selector: str) -> list[dict[str, Any]]:
        return self.get("pods", "-n", namespace, "-l", selector)["items"]

    def tidegate(self, *arguments: str) -> str:
        """What a command of `tidegate` prints of this cluster, on a terminal wide enough for it."""
        program = [sys.executable, "-c", "from tidegate.cli.main import main; main()"]
        kubeconfig = next(a for a in self.kubectl_command if a.startswith("--kubeconfig="))
        done = subprocess.run(
            [*program, *arguments, kubeconfig],
            env=os.environ | {"COLUMNS": "250"},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, f"tidegate {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def engine_log(self, namespace: str, pod: str) -> list[dict[str, Any]]:
        """The engine's request log: the pools of these tests write it to standard output."""
        said = self.kubectl("logs", pod, "-n", namespace, "-c", "engine")
        return [json.loads(line) for line in said.splitlines() if line.startswith('{"event"')]


def key_of(tenant: str) -> str:
    """A key for a test tenant; long enough to be one, and no secret."""
    return "demo-" + sha256(f"e2e {tenant}".encode()).hexdigest()


def condition(obj: dict[str, Any], kind: str) -> dict[str, Any]:
    conditions = obj.get("status", {}).get("conditions", [])
    return next((c for c in conditions if c["type"] == kind), {})


@dataclass(slots=True)
class Scene:
    """A namespace with tiers, tenants and one pool in front of fake engines."""

    cluster: Cluster
    namespace: str
    tiers: dict[str, dict[str, Any]]
    tenants: dict[str, dict[str, Any]]
    engine_args: list[str] = field(default_factory=list)
    engine_env: dict[str, str] = field(default_factory=dict)
    replicas: int = 1
    pool_spec: dict[str, Any] = field(default_factory=dict)

    model = "test-model"

    def objects(self) -> list[dict[str, Any]]:
        tiers = (self.tier(name) for name in self.tiers)
        return [*tiers, *(self.tenant(name) for name in self.tenants), self.pool()]

    def namespace_object(self) -> dict[str, Any]:
        labels = {
            NAMESPACE_LABEL: self.namespace,
            "pod-security.kubernetes.io/enforce": "restricted",
        }
        return {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": self.namespace, "labels": labels},
        }

    def tier(self, name: str) -> dict[str, Any]:
        label = {NAMESPACE_LABEL: self.namespace}
        return {
            "apiVersion": "tidegate.io/v1alpha1",
            "kind": "TenantTier",
            "metadata": {"name": f"{self.namespace}-{name}"},
            "spec": {"allowedNamespaces": {"matchLabels": label}, **self.tiers[name]},
        }

    def tenant(self, name: str, **changes: Any) -> dict[str, Any]:
        spec = {**self.tenants[name], **changes}
        tier = spec.pop("tier")
        digest = sha256(key_of(f"{self.namespace}/{name}").encode()).hexdigest()
        return {
            "apiVersion": "tidegate.io/v1alpha1",
            "kind": "Tenant",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "tierRef": {"name": f"{self.namespace}-{tier}"},
                "apiKeys": [{"name": "main", "sha256": digest}],
                **spec,
            },
        }

    def pool(self, **changes: Any) -> dict[str, Any]:
        environment = {
            "TIDEGATE_FAKE_CALIBRATION": "test",
            "TIDEGATE_FAKE_REQUEST_LOG": "/dev/stdout",
            **self.engine_env,
        }
        return {
            "apiVersion": "tidegate.io/v1alpha1",
            "kind": "ServingPool",
            "metadata": {"name": "pool", "namespace": self.namespace},
            "spec": {
                "model": {
                    "name": self.model,
                    "source": {"huggingFace": {"repo": "example/test-model"}},
                    "maxModelLen": 32768,
                },
                "tiers": [{"name": f"{self.namespace}-{name}"} for name in self.tiers],
                "engine": {
                    "image": "vllm/vllm-openai:v0.32.0",
                    "args": self.engine_args,
                    "env": [{"name": k, "value": v} for k, v in environment.items()],
                    "drainTimeout": "20s",
                },
                "replicas": self.replicas,
                "service": {"type": "LoadBalancer"},
                **self.pool_spec,
                **changes,
            },
        }

    def up(self) -> None:
        self.cluster.apply(self.namespace_object())
        self.cluster.apply(*self.objects())
        self.cluster.until(f"pool {self.namespace}/pool Ready", self.ready, 120)

    def pool_object(self) -> dict[str, Any]:
        return self.cluster.get("servingpool", "pool", "-n", self.namespace)

    def ready(self) -> bool:
        pool = self.pool_object()
        done = pool.get("status", {}).get("observedGeneration") == pool["metadata"]["generation"]
        replicas = pool.get("status", {}).get("readyReplicas") == self.replicas
        return done and replicas and condition(pool, "Ready").get("status") == "True"

    def policy_generation(self) -> int:
        """Of the policy of the pool as it is, in force in every ready sidecar; 0: not yet."""
        pool = self.pool_object()
        status = pool.get("status", {})
        judged = status.get("observedGeneration") == pool["metadata"]["generation"]
        return int(status.get("policyGeneration", 0)) if judged else 0

    def change(self, **spec: Any) -> None:
        """The pool's spec (None: without that field), until all sidecars have it in force."""
        merged = self.pool_spec | spec
        self.pool_spec = {field: value for field, value in merged.items() if value is not None}
        self.put_in_force(self.pool())

    def put_in_force(self, obj: dict[str, Any]) -> None:
        """Apply what changes the pool's policy, until all sidecars have it in force."""
        before = self.cluster.until("policy in force", self.policy_generation, 25)
        self.cluster.apply(obj)
        name = f"{obj['kind']} {obj['metadata']['name']} in force"
        self.cluster.until(name, lambda: self.policy_generation() > before, 25)

    def down(self, *, wait: bool = True) -> None:
        """``wait`` False: its pods drain while the next test runs."""
        how = "--timeout=120s" if wait else "--wait=false"
        self.cluster.kubectl("delete", "namespace", self.namespace, how)
        names = [f"{self.namespace}-{name}" for name in self.tiers]
        self.cluster.kubectl("delete", "tenanttier", *names, "--ignore-not-found", how)

    def key(self, tenant: str) -> str:
        return key_of(f"{self.namespace}/{tenant}")

    @property
    def endpoint(self) -> str:
        return self.cluster.endpoint(self.namespace, "pool")

    def pods(self) -> list[dict[str, Any]]:
        selector = self.pool_object()["status"]["selector"]
        return self.cluster.pods(self.namespace, selector)

    def engine_events(self) -> list[dict[str, Any]]:
        """Of every engine pod, in the order of their times."""
        logs = [self.cluster.engine_log(self.namespace, p["metadata"]["name"]) for p in self.pods()]
        return sorted((event for log in logs for event in log), key=lambda event: event["time"])

    def evict(self, pod: str) -> str:
        """Ask for its eviction; what the API server objects, empty: it goes."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": self.namespace},
        }
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/eviction"
        done = self.cluster.try_kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(body))
        return "" if done.returncode == 0 else done.stderr

    def container_restarts(self) -> dict[str, int]:
        """Restarts of every container, by pod uid and container."""
        return {
            f"{pod['metadata']['uid']}/{status['name']}": status["restartCount"]
            for pod in self.pods()
            for status in pod["status"].get("containerStatuses", [])
            + pod["status"].get("initContainerStatuses", [])
        }
