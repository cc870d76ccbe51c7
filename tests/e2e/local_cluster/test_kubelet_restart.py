"""A kubelet killed with SIGKILL leaves its containers running, and the next takes them over."""

import pytest
from support.cluster_objects import Namespace, pod_spec, shell, until

pytestmark = pytest.mark.e2e

_WAIT = "trap 'exit 0' TERM; sleep 1000 & wait"


def test_containers_are_taken_over_and_what_changed_meanwhile_is_done(space: Namespace) -> None:
    cluster = space.cluster
    probe = {"exec": {"command": ["true"]}, "periodSeconds": 1}
    for name in ("stays", "deleted", "forgotten"):
        script = f"echo {name} $$;" + _WAIT
        space.pod(name, pod_spec(shell(script, readinessProbe=probe)))
    space.pod("ends", pod_spec(shell("sleep 4; exit 5"), restartPolicy="Never"))
    space.wait_ready("stays", "deleted", "forgotten")
    before = space.container("stays")
    said = space.log("stays")
    until("it runs", lambda: space.container("ends").get("state", {}).get("running"))

    cluster.stop_kubelet(kill=True)
    space.kubectl("delete", "pod", "deleted", "--wait=false")
    space.kubectl("delete", "pod", "forgotten", "--force", "--grace-period=0", "--wait=false")
    assert space.is_ready("stays")
    cluster.start_kubelet()

    until("the deleted pod is gone", lambda: space.find("pod", "deleted") is None)
    until("the ended one is seen", lambda: space.status("ends").get("phase") == "Failed")
    assert space.container("ends")["state"]["terminated"]["exitCode"] == 5
    after = space.container("stays")
    assert after["containerID"] == before["containerID"]
    assert after["restartCount"] == 0
    assert space.is_ready("stays")
    assert space.log("stays") == said
    pods_folder = cluster.state / "kubelet" / "pods"
    kept = {(space.find("pod", name) or {})["metadata"]["uid"] for name in ("stays", "ends")}
    until("folders of the two others are gone", lambda: kept == _of(space, pods_folder))


def _of(space: Namespace, folder) -> set[str]:  # type: ignore[no-untyped-def]
    return {
        entry.name
        for entry in folder.iterdir()
        if f'"{space.name}"' in (entry / "pod.json").read_text()
    }


def test_a_stopped_kubelet_ends_containers_and_starts_them_again(space: Namespace) -> None:
    # The volume covers the folder in which the home lies, where this machine's is below /tmp.
    covering = [{"name": "tmp", "mountPath": "/tmp"}]
    script = "ls $HOME; touch $HOME/mark;" + _WAIT
    spec = pod_spec(shell(script, volumeMounts=covering), volumes=[{"name": "tmp", "emptyDir": {}}])
    space.pod("kept", spec)
    space.wait_ready("kept")
    address = space.status("kept")["podIP"]
    space.cluster.stop_kubelet()
    space.cluster.start_kubelet()
    until("a second start", lambda: space.container("kept").get("restartCount") == 1)
    space.wait_ready("kept")
    assert space.status("kept")["podIP"] == address
    until("what it found there", lambda: space.log("kept").split() == ["mark"])
