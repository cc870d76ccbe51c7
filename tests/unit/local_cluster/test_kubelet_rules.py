"""The kubelet's pure rules: expansion, images, back-off, probes, quantities, pod phases."""

import os
import subprocess
from pathlib import Path

import pytest

from tidegate.local_cluster.kubelet.backoff import RestartBackoff
from tidegate.local_cluster.kubelet.container_worker import ContainerView, Phase
from tidegate.local_cluster.kubelet.downward import MissingReference, PodAddresses, field_value
from tidegate.local_cluster.kubelet.expansion import expand
from tidegate.local_cluster.kubelet.images import Image, ImageTable, UnmappedImage, load, repository
from tidegate.local_cluster.kubelet.pod_status import pod_phase
from tidegate.local_cluster.kubelet.probes import ProbeSpec, ProbeTally
from tidegate.local_cluster.kubelet.quantity import divide, parse
from tidegate.local_cluster.kubelet.runtime import Exit
from tidegate.local_cluster.kubelet.services import backends_of, hosts_lines


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        pytest.param("$(A)/$(B)", "1/2", id="known"),
        pytest.param("$(C)", "$(C)", id="unknown-stays"),
        pytest.param("$$(A)", "$(A)", id="escaped"),
        pytest.param("$$$(A)", "$1", id="escaped-then-known"),
        pytest.param("$A ${A} $(A", "$A ${A} $(A", id="other-forms-are-text"),
    ],
)
def test_expansion(text: str, wanted: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == wanted


@pytest.mark.parametrize(
    ("image", "wanted"),
    [
        ("busybox", "busybox"),
        ("docker.io/library/busybox:1.36", "busybox"),
        ("localhost:5000/a/b", "localhost:5000/a/b"),
        ("localhost:5000/a/b:tag@sha256:00ff", "localhost:5000/a/b"),
        ("docker.io/vllm/vllm-openai:v0.11", "vllm/vllm-openai"),
    ],
)
def test_repository_of_an_image(image: str, wanted: str) -> None:
    assert repository(image) == wanted


def test_image_table_entrypoint_and_command(tmp_path: Path) -> None:
    table = tmp_path / "images.toml"
    table.write_text(
        '["example.test/engine"]\ncommand = ["serve", "it"]\nenvironment = { LEVEL = "info" }\n'
    )
    image = ImageTable([tmp_path / "absent.toml", table]).find("example.test/engine:1")
    assert image.environment == {"LEVEL": "info"}
    assert image.argv([], ["--x"]) == ["serve", "it", "--x"]
    assert image.argv(["/bin/sh", "-c"], ["y"]) == ["/bin/sh", "-c", "y"]


def test_a_program_of_an_image_is_on_its_path_also_for_a_shell(tmp_path: Path) -> None:
    image = Image(("serve",), {"serve": ("echo", "it's", "real")})
    image.install_programs(tmp_path / "programs")
    done = subprocess.run(
        ["sh", "-c", 'exec serve "$@"', "sh", "a b"],
        env={"PATH": f"{tmp_path / 'programs'}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "it's real a b\n"


def test_a_later_image_table_wins_and_a_mended_one_is_read_again(tmp_path: Path) -> None:
    first, second = tmp_path / "1.toml", tmp_path / "2.toml"
    first.write_text('["a"]\ncommand = ["one"]\n')
    images = ImageTable([first, second])
    assert images.find("a").command == ("one",)
    second.write_text('["a"]\ncommand = ["two"]\n')
    assert images.find("a").command == ("two",)
    second.write_text('["a"]\ncommand = "two"\n')
    with pytest.raises(UnmappedImage, match="a command is a list of words"):
        images.find("a")
    with pytest.raises(UnmappedImage, match='"b" is not mapped'):
        ImageTable([first]).find("b:latest")


def test_the_shipped_image_table_is_well_formed() -> None:
    from tidegate.local_cluster.kubelet.__main__ import DEFAULT_IMAGES

    assert {"ghcr.io/tidegate/operator", "ghcr.io/tidegate/sidecar", "vllm/vllm-openai"} <= set(
        load(DEFAULT_IMAGES)
    )


def test_restarts_back_off_and_start_afresh_after_a_long_run() -> None:
    backoff = RestartBackoff()
    delays = [backoff.next_delay(1.0) for _ in range(8)]
    assert delays == [0, 10, 20, 40, 80, 160, 300, 300]
    assert backoff.next_delay(600.0) == 0
    assert backoff.next_delay(1.0) == 10


def test_a_probe_changes_its_verdict_only_at_a_threshold() -> None:
    spec = ProbeSpec.of({"successThreshold": 2, "failureThreshold": 3})
    tally = ProbeTally(spec)
    answers = [True, True, False, False, True, False, False, False, True, True]
    wanted = [None, True, None, None, None, None, None, False, None, True]
    assert [tally.observe(answer) for answer in answers] == wanted


def test_probe_defaults_are_kubernetes() -> None:
    assert ProbeSpec.of({}) == ProbeSpec(0.0, 10.0, 1.0, 1, 3, None)


@pytest.mark.parametrize(
    ("value", "divisor", "wanted"),
    [
        ("1500m", "1", 2),
        ("1500m", "1m", 1500),
        ("1Gi", "1Mi", 1024),
        ("2", "0", 2),
        ("1e3", "", 1000),
    ],
)
def test_quantities_are_divided_and_rounded_up(value: str, divisor: str, wanted: int) -> None:
    assert divide(value, divisor) == wanted


def test_a_malformed_quantity_is_refused() -> None:
    with pytest.raises(ValueError, match="is no quantity"):
        parse("1.5 GB")


def _pod(**spec: object) -> dict[str, object]:
    metadata = {"name": "p", "namespace": "n", "uid": "u", "labels": {"a": "b"}}
    return {"metadata": metadata, "spec": {"containers": [{"name": "m"}], **spec}}


def test_field_references() -> None:
    addresses = PodAddresses("127.77.0.2", "127.77.0.1")
    pod = _pod()
    assert field_value(pod, "status.podIP", addresses) == "127.77.0.2"
    assert field_value(pod, "metadata.labels['a']", addresses) == "b"
    assert field_value(pod, "metadata.annotations['x/y']", addresses) == ""
    assert field_value(pod, "metadata.labels", addresses) == 'a="b"'
    with pytest.raises(MissingReference, match="not supported"):
        field_value(pod, "status.phase", addresses)


def _ended(code: int) -> ContainerView:
    return ContainerView(phase=Phase.TERMINATED, attempt=1, exit=Exit(code, 0, 1.0, 2.0))


@pytest.mark.parametrize(
    ("policy", "view", "wanted"),
    [
        pytest.param("Always", ContainerView(), "Pending", id="not-started"),
        pytest.param("Always", ContainerView(attempt=3), "Running", id="backing-off"),
        pytest.param("Always", ContainerView(Phase.RUNNING, attempt=1), "Running", id="runs"),
        pytest.param("Always", _ended(0), "Running", id="ended-will-restart"),
        pytest.param("Never", _ended(0), "Succeeded", id="succeeded"),
        pytest.param("Never", _ended(1), "Failed", id="failed"),
        pytest.param("OnFailure", _ended(1), "Running", id="failed-will-restart"),
        pytest.param("OnFailure", _ended(0), "Succeeded", id="on-failure-succeeded"),
    ],
)
def test_pod_phase(policy: str, view: ContainerView, wanted: str) -> None:
    assert pod_phase(_pod(restartPolicy=policy), {"m": view}) == wanted


@pytest.mark.parametrize(
    ("policy", "code", "wanted"), [("Never", 1, "Failed"), ("Always", 1, "Pending")]
)
def test_a_failed_init_container_fails_a_pod_that_never_restarts(
    policy: str, code: int, wanted: str
) -> None:
    pod = _pod(restartPolicy=policy, initContainers=[{"name": "i"}])
    assert pod_phase(pod, {"i": _ended(code), "m": ContainerView()}) == wanted


def _running(name: str, ip: str, *, ready: str = "True", terminating: bool = False) -> dict:  # type: ignore[type-arg]
    metadata = {"name": name, "namespace": "n", "labels": {"app": "w", "more": "x"}}
    if terminating:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    ports = [{"name": "http", "containerPort": 8000}]
    return {
        "metadata": metadata,
        "spec": {"containers": [{"name": "c", "ports": ports}], "hostname": name, "subdomain": "s"},
        "status": {"podIP": ip, "conditions": [{"type": "Ready", "status": ready}]},
    }


def test_backends_are_ready_pods_that_stay() -> None:
    port = {"port": 80, "targetPort": "http"}
    service = {
        "metadata": {"name": "s", "namespace": "n"},
        "spec": {"selector": {"app": "w"}, "ports": [port]},
    }
    pods = [
        _running("b", "127.77.0.3"),
        _running("a", "127.77.0.2"),
        _running("unready", "127.77.0.4", ready="False"),
        _running("leaving", "127.77.0.5", terminating=True),
    ]
    assert backends_of(service, port, pods) == [("127.77.0.2", 8000), ("127.77.0.3", 8000)]
    service["spec"]["selector"] = {}
    assert backends_of(service, port, pods) == []


def test_hosts_lines_name_services_and_the_pods_of_headless_ones() -> None:
    headless = {
        "metadata": {"name": "s", "namespace": "n"},
        "spec": {"clusterIP": "None", "selector": {"app": "w"}},
    }
    plain = {"metadata": {"name": "t", "namespace": "m"}, "spec": {"clusterIP": "127.96.0.9"}}
    lines = hosts_lines([headless, plain], [_running("a", "127.77.0.2")], "n")
    assert lines == [
        "127.96.0.9 t.m.svc.cluster.local t.m.svc t.m",
        "127.77.0.2 a.s.n.svc.cluster.local a.s.n.svc",
        "127.77.0.2 s.n.svc.cluster.local s.n.svc s.n s",
    ]
