"""A pod's life on the process kubelet: start, volumes, probes, end, restarts, jobs."""

import subprocess
import time

import pytest
from support.cluster_objects import Namespace, http_server, pod_spec, shell, until

pytestmark = pytest.mark.e2e

_WAIT = "trap 'exit 0' TERM; sleep 1000 & wait"


def _volume(name: str, **source: object) -> dict[str, object]:
    return {"name": name, **source}


def _mount(name: str, path: str, **fields: object) -> dict[str, object]:
    return {"name": name, "mountPath": path, **fields}


def test_containers_of_a_pod_share_volumes_and_see_their_own_identity(space: Namespace) -> None:
    space.apply("v1", "ConfigMap", "settings", data={"colour": "green", "deep": "below"})
    space.apply("v1", "Secret", "keys", stringData={"key": "s3cret"})
    volumes = [
        _volume("config", configMap={"name": "settings"}),
        _volume("shared", emptyDir={"medium": "Memory"}),
        _volume(
            "picked", configMap={"name": "settings", "items": [{"key": "deep", "path": "a/b"}]}
        ),
    ]
    mounts = [_mount("config", "/etc/own/config"), _mount("shared", "/dev/shm")]
    mounts += [_mount("picked", "/never/on/this/machine")]
    env = [
        {"name": "COLOUR", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "colour"}}},
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "key"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "CORES", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
        {"name": "BOTH", "value": "$(COLOUR)-$(NODE)-$$(COLOUR)-$(ABSENT)"},
    ]
    script = (
        "echo $BOTH $KEY $CORES; hostname; pwd; cat /etc/own/config/colour"
        " /never/on/this/machine/a/b; echo from-first > /dev/shm/note;"
        " cat /var/run/secrets/kubernetes.io/serviceaccount/namespace;" + _WAIT
    )
    limits = {"limits": {"cpu": "1500m"}}
    first = shell(
        script, "first", env=env, volumeMounts=mounts, workingDir="/usr", resources=limits
    )
    second = shell(
        "until cat /dev/shm/note 2> /dev/null; do sleep 0.5; done;" + _WAIT,
        "second",
        volumeMounts=mounts,
    )
    space.pod("pair", pod_spec(first, second, volumes=volumes))
    space.wait_ready("pair")
    said = until("the first container's words", lambda: space.log("pair", "first").splitlines())
    assert said[0] == "green-tidegate-node-$(COLOUR)-$(ABSENT) s3cret 2"
    assert said[1:3] == ["pair", "/usr"]
    assert said[3] == f"greenbelow{space.name}"
    until("the shared note", lambda: space.log("pair", "second") == "from-first\n")


def test_a_changed_config_map_swaps_all_files_at_once(space: Namespace) -> None:
    space.apply("v1", "ConfigMap", "settings", data={"a": "1", "b": "1"})
    # A folder may be replaced while it is read, and is gone then: such a look counts for nothing.
    script = (
        "last=; while :; do d=$(readlink /conf/..data);"
        ' now="$(cat /conf/$d/a 2>/dev/null)$(cat /conf/$d/b 2>/dev/null)";'
        ' [ "${#now}" = 2 ] && [ "$now" != "$last" ] && echo "$now" && last=$now;'
        " sleep 0.02; done"
    )
    sources = [
        {"configMap": {"name": "settings"}},
        {"configMap": {"name": "later", "optional": True}},
    ]
    volumes = [_volume("conf", projected={"sources": sources})]
    space.pod(
        "reader", pod_spec(shell(script, volumeMounts=[_mount("conf", "/conf")]), volumes=volumes)
    )
    until("the first content", lambda: space.status("reader").get("phase") == "Running")
    until("the first line", lambda: space.log("reader") == "11\n")
    space.apply("v1", "ConfigMap", "settings", data={"a": "2", "b": "2"})
    until("both changed together", lambda: space.log("reader") == "11\n22\n")


def test_a_missing_config_map_keeps_the_pod_waiting_until_it_is_there(space: Namespace) -> None:
    volumes = [_volume("conf", configMap={"name": "absent"})]
    space.pod(
        "waits",
        pod_spec(
            shell("cat /conf/x;" + _WAIT, volumeMounts=[_mount("conf", "/conf")]), volumes=volumes
        ),
    )
    reason = until("a reason", lambda: space.status("waits").get("message"))
    assert reason == 'configmap "absent" not found'
    space.apply("v1", "ConfigMap", "absent", data={"x": "here"})
    space.wait_ready("waits")
    until("its content", lambda: space.log("waits") == "here")


def test_readiness_follows_its_probe(space: Namespace) -> None:
    probe = {"exec": {"command": ["test", "-e", "/flag/up"]}, "periodSeconds": 1}
    probe["failureThreshold"] = 1
    script = "sleep 2; touch /flag/up; sleep 4; rm /flag/up;" + _WAIT
    flag = [_volume("flag", emptyDir={})]
    container = shell(script, readinessProbe=probe, volumeMounts=[_mount("flag", "/flag")])
    space.pod("gated", pod_spec(container, volumes=flag))
    until("it runs", lambda: space.container("gated").get("state", {}).get("running"))
    assert not space.is_ready("gated")
    space.wait_ready("gated")
    until("it is unready again", lambda: not space.is_ready("gated"))
    assert space.container("gated")["restartCount"] == 0


def test_a_failed_liveness_probe_restarts_the_container(space: Namespace) -> None:
    probe = {"httpGet": {"port": "http", "path": "/alive"}, "periodSeconds": 1}
    probe["failureThreshold"] = 1
    startup = {"tcpSocket": {"port": 8000}, "periodSeconds": 1, "failureThreshold": 60}
    space.pod("sick", pod_spec(http_server(livenessProbe=probe, startupProbe=startup)))
    until("a restart", lambda: space.container("sick", "web").get("restartCount", 0) >= 1)
    events = space.kubectl("get", "events", "-o", "jsonpath={.items[*].message}")
    assert "Liveness probe failed: HTTP 404" in events


def test_pre_stop_runs_before_the_signal_and_grace_ends_what_ignores_it(space: Namespace) -> None:
    volumes = [_volume("shared", emptyDir={})]
    mounts = [_mount("shared", "/shared")]
    command = ["sh", "-c", "sleep 1; echo hook >> /shared/order"]
    hook = {"preStop": {"exec": {"command": command}}}
    polite = shell(
        "trap 'echo term >> /shared/order; cat /shared/order; exit 0' TERM; sleep 1000 & wait",
        "polite",
        lifecycle=hook,
        volumeMounts=mounts,
    )
    deaf = shell("trap '' TERM; while :; do sleep 1; done", "deaf", volumeMounts=mounts)
    space.pod("ends", pod_spec(polite, deaf, volumes=volumes, terminationGracePeriodSeconds=4))
    space.wait_ready("ends")
    follower = subprocess.Popen(
        [
            space.cluster.binaries.path("kubectl"),
            f"--kubeconfig={space.cluster.kubeconfig}",
            f"--namespace={space.name}",
            "logs",
            "-f",
            "ends",
            "--container=polite",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    began = time.monotonic()
    space.kubectl("delete", "pod", "ends", "--wait=true")
    took = time.monotonic() - began
    said, _ = follower.communicate(timeout=30)
    assert said == "hook\nterm\n"
    assert 3.5 < took < 20


def test_a_crashing_container_backs_off_and_keeps_its_last_log(space: Namespace) -> None:
    space.pod("crashes", pod_spec(shell("echo attempt; sleep 100 & exit 7")))
    until("two restarts", lambda: space.container("crashes").get("restartCount", 0) >= 2)
    waiting = until(
        "back-off", lambda: space.container("crashes")["state"].get("waiting"), seconds=30
    )
    assert waiting["reason"] == "CrashLoopBackOff"
    assert space.container("crashes")["lastState"]["terminated"]["exitCode"] == 7
    assert space.log("crashes", "main", "--previous") == "attempt\n"


def test_an_unmapped_image_says_where_to_map_it(space: Namespace) -> None:
    container = shell("true") | {"image": "registry.example:5000/some/thing:v1"}
    space.pod("unknown", pod_spec(container))
    waiting = until("waiting", lambda: space.container("unknown").get("state", {}).get("waiting"))
    until(
        "the reason",
        lambda: "ImagePull" in space.container("unknown")["state"]["waiting"]["reason"],
    )
    waiting = space.container("unknown")["state"]["waiting"]
    assert '"registry.example:5000/some/thing" is not mapped' in waiting["message"]
    assert "images.toml" in waiting["message"]


def test_init_containers_run_in_order_and_a_sidecar_goes_on(space: Namespace) -> None:
    volumes = [_volume("shared", emptyDir={})]
    mounts = [_mount("shared", "/shared")]
    inits = [
        shell("echo one > /shared/order", "one", volumeMounts=mounts),
        shell(
            "echo side >> /shared/order;" + _WAIT,
            "side",
            volumeMounts=mounts,
            restartPolicy="Always",
            startupProbe={
                "exec": {"command": ["grep", "side", "/shared/order"]},
                "periodSeconds": 1,
            },
        ),
        shell("echo two >> /shared/order", "two", volumeMounts=mounts),
    ]
    main = shell("cat /shared/order;" + _WAIT, volumeMounts=mounts)
    space.pod("ordered", pod_spec(main, initContainers=inits, volumes=volumes))
    space.wait_ready("ordered")
    assert until("the order", lambda: space.log("ordered")) == "one\nside\ntwo\n"
    assert space.container("ordered", "side")["state"]["running"]
    assert space.container("ordered", "one")["state"]["terminated"]["exitCode"] == 0


def test_jobs_succeed_and_fail(space: Namespace) -> None:
    for name, script in (("good", "exit 0"), ("bad", "exit 3")):
        template = {"spec": pod_spec(shell(script), restartPolicy="Never")}
        space.apply("batch/v1", "Job", name, spec={"backoffLimit": 0, "template": template})
    good = until(
        "the good job", lambda: (space.find("job", "good") or {})["status"].get("succeeded")
    )
    bad = until("the bad job", lambda: (space.find("job", "bad") or {})["status"].get("failed"))
    assert (good, bad) == (1, 1)


def test_the_token_in_a_pod_is_its_service_accounts(space: Namespace) -> None:
    kubectl = space.cluster.binaries.path("kubectl")
    folder = "/var/run/secrets/kubernetes.io/serviceaccount"
    script = (
        f"{kubectl} --server=https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT"
        f" --certificate-authority={folder}/ca.crt --token=$(cat {folder}/token)"
        " auth whoami -o jsonpath={.status.userInfo.username};" + _WAIT
    )
    space.apply("v1", "ServiceAccount", "worker")
    space.pod("asks", pod_spec(shell(script), serviceAccountName="worker"))
    said = until("the answer", lambda: space.is_ready("asks") and space.log("asks"))
    assert said == f"system:serviceaccount:{space.name}:worker"
