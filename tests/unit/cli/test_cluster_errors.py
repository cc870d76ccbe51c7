"""The local cluster's commands where the machine or its files are not as they should be."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tidegate.cli import cluster
from tidegate.cli import main as table
from tidegate.cli.cluster_objects import kubectl_of
from tidegate.cli.cluster_output import moved_services
from tidegate.cli.errors import CommandError
from tidegate.cli.main import main
from tidegate.cli.sidecars import Kubectl
from tidegate.local_cluster.binaries import PROGRAMS


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder whose programs do not work."""
    monkeypatch.setenv("TIDEGATE_CACHE", str(tmp_path / "cache"))
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in PROGRAMS:
        (programs / name).write_text("not a program")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(programs))
    return tmp_path / "cache"


def said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int | str | None, str]:
    monkeypatch.setattr(sys, "argv", ["tidegate", *arguments])
    with pytest.raises(SystemExit) as raised:
        main()
    return raised.value.code, capsys.readouterr().err


def test_programs_that_do_not_start_are_one_line_and_leave_a_cluster_to_purge(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, error = said(monkeypatch, capsys, "up", "--bare")
    assert code == 1
    assert error.splitlines()[-1].startswith("tidegate: ")
    assert "etcd" in error
    code, error = said(monkeypatch, capsys, "kubectl", "get", "pods")
    assert (code, error.count("\n")) == (1, 1)
    monkeypatch.delenv("KUBEBUILDER_ASSETS")  # in the next shell it is not set
    assert kubectl_of("tidegate", None).program == str(cache.parent / "programs" / "kubectl")
    assert said(monkeypatch, capsys, "down", "--purge")[0] == 0
    assert list((cache / "clusters").iterdir()) == []


@pytest.mark.parametrize("folder", ["~nobody-of-this-name/x", "/dev/null/x"])
@pytest.mark.parametrize("command", [["up", "--bare"], ["status"], ["down"], ["logs", "x"]])
def test_an_unfit_cache_folder_is_told(
    command: list[str],
    folder: str,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TIDEGATE_CACHE", folder)
    if command == ["down"] and folder.startswith("/"):
        assert said(monkeypatch, capsys, *command)[0] == 0  # nothing is there
        return
    code, error = said(monkeypatch, capsys, *command)
    assert code == 1
    assert error.startswith("tidegate: ")


def test_a_broken_image_table_is_refused_before_anything_starts(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "images.toml"
    table.write_text('["a"]\ncommand = "sh"\n')
    code, error = said(monkeypatch, capsys, "up", "--bare", "--images", str(table))
    assert code == 2
    assert error.startswith(f"tidegate: {table}: ")
    assert not cache.exists()


@pytest.mark.parametrize("name", ["tidegate", "other"])
@pytest.mark.parametrize(
    "command", [["top"], ["rules"], ["explain", "a/b"], ["logs", "x"], ["kubectl", "get", "pods"]]
)
def test_a_cluster_that_is_down_or_missing_is_told_with_what_starts_it(
    command: list[str],
    name: str,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TIDEGATE_CLUSTER", name)
    up = "tidegate up" if name == "tidegate" else f"tidegate up --name {name}"
    _, error = said(monkeypatch, capsys, *command)
    assert error == f"tidegate: there is no cluster {name!r}: `{up}` makes one\n"
    state = cache / "clusters" / name
    state.mkdir(parents=True)
    (state / "cluster.json").write_text('{"index": 3, "ports": {}}')
    _, error = said(monkeypatch, capsys, *command)
    assert error == f"tidegate: cluster {name!r} is down: `{up}` starts it\n"


@pytest.mark.parametrize(
    ("given", "name", "rest"),
    [
        (["get", "pods"], "tidegate", ["get", "pods"]),
        (["--name", "trial", "get", "pods"], "trial", ["get", "pods"]),
        (["--name=trial", "--", "get", "pods"], "trial", ["get", "pods"]),
        (["--name", "trial", "--", "get", "--name", "x"], "trial", ["get", "--name", "x"]),
        (["--", "exec", "p", "--", "--help"], "tidegate", ["exec", "p", "--", "--help"]),
        (["get", "--help"], "tidegate", ["get", "--help"]),
    ],
)
def test_kubectl_is_given_what_stands_after_our_own_options(
    given: list[str], name: str, rest: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TIDEGATE_CLUSTER", raising=False)
    asked: list[object] = []
    monkeypatch.setattr(cluster, "answering_cluster", lambda name: name)
    monkeypatch.setattr(cluster, "_become_kubectl", lambda *call: asked.extend(call))
    monkeypatch.setattr(sys, "argv", ["tidegate", "kubectl", *given])
    with pytest.raises(SystemExit) as raised:
        main()
    assert (raised.value.code, asked) == (0, [name, rest])


def test_kubectl_tells_of_name_without_a_cluster(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["tidegate", "kubectl", "--help"])
    with pytest.raises(SystemExit) as raised:
        main()
    assert raised.value.code == 0
    assert "--name NAME" in capsys.readouterr().out
    assert said(monkeypatch, capsys, "kubectl", "--name")[0] == 2


@pytest.mark.parametrize("program", ["kubectl", "missing"])
def test_a_kubectl_that_does_not_start_is_an_error_of_one_line(program: str, cache: Path) -> None:
    path = str(cache.parent / "programs" / program)
    with pytest.raises(CommandError, match=f"^{path}: [^\n]*$"):
        Kubectl(path, cache).json("get", "pods")


@pytest.mark.parametrize("place", ["its import", "its beginning", "its work"])
def test_an_interrupt_of_up_is_told(
    place: str, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    where = {
        "its import": (table, "_load"),
        "its beginning": (cluster, "_kubelet_options"),
        "its work": (cluster, "_start"),
    }
    monkeypatch.setattr(*where[place], interrupt)
    code, error = said(monkeypatch, capsys, "up", "--bare")
    assert code == 130
    assert error.endswith("tidegate: interrupted\n")


def test_a_service_that_listens_elsewhere_than_before_is_told() -> None:
    before, after = {"a/x:80": 1, "a/y:80": 2, "a/gone:80": 3}, {"a/x:80": 1, "a/y:80": 5, "b": 6}
    assert moved_services(before, after) == [
        "Service a/y:80 listens on 127.0.0.1:5 from now on: another program has taken its port 2"
    ]
