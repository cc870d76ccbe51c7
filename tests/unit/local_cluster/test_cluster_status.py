"""`tidegate status` of clusters that are neither wholly up nor wholly down."""

import json
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest

from tidegate.cli.cluster_output import next_steps, print_status
from tidegate.local_cluster.cluster import LocalCluster
from tidegate.local_cluster.control_plane import ComponentState
from tidegate.local_cluster.status import cluster_status, not_ready

UNSCHEDULABLE = {
    "metadata": {"namespace": "n", "name": "waits"},
    "spec": {"containers": [{}]},
    "status": {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}],
    },
}


def pod(name: str, state: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    container = {"name": "c", "ready": False, "restartCount": 1, "state": state}
    return {
        "metadata": {"namespace": "n", "name": name, **metadata},
        "spec": {"containers": [{}]},
        "status": {"phase": "Running", "containerStatuses": [container]},
    }


class Cluster:
    """A cluster of the given processes and pods; `pods` None: the API server gives no answer."""

    name = "c"
    kubeconfig = Path("/somewhere/admin.kubeconfig")

    def __init__(self, pids: dict[str, int | None], pods: list[dict[str, Any]] | None) -> None:
        self._pids, self._pods = pids, pods

    def states(self) -> list[ComponentState]:
        return [
            ComponentState(name, pid, bool(pid and pid > 0), Path("/nowhere"))
            for name, pid in self._pids.items()
        ]

    def kubectl(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        if self._pods is None:
            return subprocess.CompletedProcess(arguments, 1, "", "first\nit is away\n")
        if "logs" in arguments:
            return subprocess.CompletedProcess(arguments, 0, f"{arguments[-1]} said this\n", "")
        items = self._pods if "pods" in arguments else []
        return subprocess.CompletedProcess(arguments, 0, json.dumps({"items": items}), "")

    def service_ports(self) -> dict[str, int]:
        return {}


ALL = {"etcd": 1, "kube-apiserver": 2, "kubelet": 3}


def status(pids: dict[str, int | None], pods: list[dict[str, Any]] | None) -> dict[str, Any]:
    return cluster_status(cast(LocalCluster, Cluster(pids, pods)))


def failed(found: dict[str, Any]) -> list[tuple[str, str]]:
    return [(item["what"], item["why"]) for item in found["failed"]]


def test_all_running_is_up_and_none_running_is_down() -> None:
    assert status(dict(ALL), [])["state"] == "up"
    assert status({"etcd": -1, "kube-apiserver": None}, None)["state"] == "down"


def test_a_start_that_was_cut_short_is_not_up() -> None:
    found = status({"etcd": 1, "kube-apiserver": None, "kubelet": None}, None)
    assert found["state"] == "failed"
    assert failed(found) == [
        ("kube-apiserver", "was not started"),
        ("kubelet", "was not started"),
    ]


def test_an_api_server_that_gives_no_answer_is_not_up() -> None:
    found = status(dict(ALL), None)
    assert found["state"] == "failed"
    assert failed(found) == [("kube-apiserver", "gives no answer: it is away")]


def test_a_pod_that_ends_as_it_was_told_did_not_fail() -> None:
    ended = {"terminated": {"exitCode": 143}}
    going = pod("going", ended, deletionTimestamp="2026-01-01T00:00:00Z")
    assert status(dict(ALL), [going])["state"] == "up"
    assert status(dict(ALL), [pod("broken", ended)])["state"] == "failed"


def test_a_pod_that_no_node_takes_says_so() -> None:
    (row,) = status(dict(ALL), [UNSCHEDULABLE])["pods"]
    assert (row["ready"], row["reason"]) == ("0/1", "Unschedulable")


def test_pods_that_are_not_ready_are_named_with_what_they_said_last() -> None:
    waits = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    fine = pod("fine", {"running": {}})
    fine["status"] |= {"conditions": [{"type": "Ready", "status": "True"}]}
    done = pod("done", {"running": {}})
    done["status"]["initContainerStatuses"] = [
        {"name": "init", "ready": False, "state": {"terminated": {"exitCode": 0}}}
    ]
    going = pod("going", waits, deletionTimestamp="2026-01-01T00:00:00Z")
    pods = [UNSCHEDULABLE, pod("broken", waits), fine, done, going]
    assert not_ready(cast(LocalCluster, Cluster(dict(ALL), pods))) == [
        "n/waits: Unschedulable",
        "n/broken/c: CrashLoopBackOff: broken said this",
        "n/done/c: not ready: done said this",
    ]
    assert not_ready(cast(LocalCluster, Cluster(dict(ALL), None))) == []


def test_what_a_container_said_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    why = "cannot start [/bin/none]: [red]x[/red] is away"
    waits = {"waiting": {"reason": "StartError", "message": why}}
    found = status(dict(ALL), [pod("broken" * 20, waits)])
    found["kubeconfig"] = "/cache/" + "long/" * 40 + "admin.kubeconfig"
    print_status(found)
    out = capsys.readouterr().out
    assert why in out
    assert f"KUBECONFIG={found['kubeconfig']}\n" in out
    assert "n/" + "broken" * 20 in out


def test_the_lines_to_paste_are_quoted_and_name_a_model_and_a_program() -> None:
    pool = {
        "metadata": {"namespace": "quickstart", "name": "chat"},
        "spec": {"model": {"name": "m", "task": "Generate"}},
    }
    embed = {
        "metadata": {"namespace": "quickstart", "name": "embeddings"},
        "spec": {"model": {"name": "e", "task": "Embed"}},
    }
    services = [
        {
            "namespace": "quickstart",
            "name": name,
            "portName": "http",
            "type": "LoadBalancer",
            "address": f"127.0.0.1:{port}",
        }
        for name, port in (("chat", 20001), ("embeddings", 20002))
    ]
    lines = next_steps(Path("/a b/kubeconfig"), "/c d/kubectl", [pool, embed], services)
    assert lines[0] == "export KUBECONFIG='/a b/kubeconfig'"
    assert lines[-1] == "'/c d/kubectl' get ttier,tenants.tidegate.io,spool -A"
    chat, embeddings = (line for line in lines if line.startswith("curl"))
    assert chat.startswith("curl http://127.0.0.1:20001/v1/chat/completions")
    assert '"model": "m"' in chat
    assert "Bearer demo-paid" in chat
    assert embeddings.startswith("curl http://127.0.0.1:20002/v1/embeddings")
