"""`tidegate up`, `down`, `status`, `logs` and `kubectl`: the local cluster by command."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from typer.core import TyperCommand

from tidegate.cli.cluster_output import moved_services, next_steps, print_status
from tidegate.cli.errors import CommandError
from tidegate.cli.existing_cluster import (
    Name,
    answering_cluster,
    existing_cluster,
    find_cluster,
    told,
)
from tidegate.cli.interruption import interruptible, removed_when_interrupted
from tidegate.local_cluster.binaries import Binaries, BuildProgress, ensure_binaries, find_binaries
from tidegate.local_cluster.cluster import KubeletOptions, LocalCluster
from tidegate.local_cluster.deploy import Kubectl, deploy, find_source
from tidegate.local_cluster.errors import LocalClusterError
from tidegate.local_cluster.kubelet.images import load as load_images
from tidegate.local_cluster.paths import DEFAULT_CLUSTER, cache_directory, cluster_directory
from tidegate.local_cluster.preflight import missing_for_cluster
from tidegate.local_cluster.status import cluster_status, not_ready

_console = Console(stderr=True, highlight=False)
_PARTS = {"operator": "kopf", "sidecar": "httptools", "simulator": "matplotlib"}
"""Extras that a cluster with Tidegate on it needs, and a module by which each is known."""


def up(
    name: Name = DEFAULT_CLUSTER,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Use this cluster; start none."),
    ] = None,
    bare: Annotated[
        bool, typer.Option("--bare", help="Stop when the node is Ready: apply nothing.")
    ] = False,
    wait: Annotated[
        float, typer.Option(min=0, max=86_400, help="Seconds to wait for the quickstart's pools.")
    ] = 180.0,
    images: Annotated[
        list[Path] | None,
        typer.Option(exists=True, dir_okay=False, help="Further image tables (TOML)."),
    ] = None,
    volume_refresh: Annotated[
        float | None,
        typer.Option(min=0.1, help="Seconds until a changed ConfigMap shows in a volume [2]."),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(min=0, max=1024, help="GPUs that the node says to have [8].")
    ] = None,
) -> None:
    """Start a local cluster with Tidegate on it; where one runs already, bring it up to date."""
    with told(), interruptible():
        if kubeconfig is not None:
            _bring_to(kubeconfig, wait)
            return
        options = _kubelet_options(images, volume_refresh, gpus)
        if not bare:
            _check_parts()
            find_source()
        cluster = LocalCluster(name, _binaries(name), cache_directory())
        with cluster.locked(), removed_when_interrupted(cluster, _console.print):
            ports = cluster.service_ports()
            if cluster.running and options is None:
                _console.print(f"cluster {name!r} is up already")
            else:
                _start(cluster, options)
            if not bare:
                with _blamed_on_pods(cluster):
                    _deploy(cluster.kubectl, wait)
                for line in moved_services(ports, cluster.service_ports()):
                    _console.print(line, soft_wrap=True)
        if bare:
            typer.echo(f"export KUBECONFIG={shlex.quote(str(cluster.kubeconfig))}")
        else:
            services = cluster_status(cluster)["services"]
            program = "kubectl" if shutil.which("kubectl") else cluster.binaries.path("kubectl")
            _print_next_steps(cluster.kubeconfig, cluster.kubectl, program, services)


def _bring_to(kubeconfig: Path, wait: float) -> None:
    """Tidegate, to a cluster that is not ours to start or stop."""
    program = _kubectl_program()
    run = _kubectl_of(kubeconfig, program)
    _deploy(run, wait)
    _print_next_steps(kubeconfig.absolute(), run, program, [])


def down(
    name: Name = DEFAULT_CLUSTER,
    purge: Annotated[bool, typer.Option("--purge", help="Remove all it stored, too.")] = False,
) -> None:
    """Stop a local cluster: no process and no port is left; with --purge no file either."""
    with told():
        cluster = find_cluster(name)
        if cluster is None:
            _console.print(f"there is no cluster {name!r}")
            return
        with cluster.locked():
            if purge:
                cluster.purge()
            else:
                cluster.stop()
    _console.print(f"cluster {name!r} is {'removed' if purge else 'down'}")


def status(
    name: Name = DEFAULT_CLUSTER,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Show what runs, where Services listen, and the end of the log of what failed.

    Exit code 0 when all is well, 3 when something failed or the cluster is down.
    """
    with told():
        found = cluster_status(existing_cluster(name))
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        print_status(found)
    if found["state"] != "up":
        raise typer.Exit(3)


def logs(
    pod: Annotated[str, typer.Argument(help="Name of the pod.")],
    container: Annotated[str | None, typer.Option("-c", "--container")] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow")] = False,
    previous: Annotated[bool, typer.Option("-p", "--previous")] = False,
    tail: Annotated[int | None, typer.Option(min=0, help="Only the last lines.")] = None,
    namespace: Annotated[
        str | None, typer.Option("-n", "--namespace", help="Its namespace [wherever it is found].")
    ] = None,
    name: Name = DEFAULT_CLUSTER,
) -> None:
    """Print a pod's log."""
    with told():
        cluster = answering_cluster(name)
        arguments = ["logs", pod, f"--namespace={namespace or _namespace_of(cluster, pod)}"]
    if container:
        arguments.append(f"--container={container}")
    if follow:
        arguments.append("--follow")
    if previous:
        arguments.append("--previous")
    if tail is not None:
        arguments.append(f"--tail={tail}")
    _become_kubectl(cluster, arguments)


kubectl = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class _Verbatim(TyperCommand):
    """Every argument is kubectl's but for what stands before the first of them: `--name NAME`,
    `--help`, and the `--` that ends ours."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args[:1] in (["--help"], ["-h"]):
            typer.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()
        ctx.args = list(args)
        return []


@kubectl.command("kubectl", cls=_Verbatim, options_metavar="[--name NAME] [--] ARGUMENTS...")
def run_kubectl(context: typer.Context) -> None:
    """Run kubectl on a local cluster.

    `--name NAME` (or TIDEGATE_CLUSTER) says on which; it stands first.
    All that follows is kubectl's own: `tidegate kubectl --name trial get pods`.
    `tidegate kubectl help` shows what that can do.
    """
    name, arguments = _cluster_and_rest(list(context.args))
    with told():
        cluster = answering_cluster(name)
    _become_kubectl(cluster, arguments)


def _cluster_and_rest(arguments: list[str]) -> tuple[str, list[str]]:
    """The cluster that they name, or the usual one, and what is kubectl's."""
    name = os.environ.get("TIDEGATE_CLUSTER") or DEFAULT_CLUSTER
    if arguments[:1] == ["--name"]:
        if len(arguments) == 1:
            raise CommandError("--name needs the name of a local cluster", 2)
        name, arguments = arguments[1], arguments[2:]
    elif arguments and arguments[0].startswith("--name="):
        name, arguments = arguments[0].removeprefix("--name="), arguments[1:]
    return name, arguments[1:] if arguments[:1] == ["--"] else arguments


def _check_parts() -> None:
    """The pods run as processes of this interpreter: what their images hold must be installed."""
    missing = [extra for extra, module in _PARTS.items() if find_spec(module) is None]
    if missing:
        raise CommandError(
            "tidegate up runs the operator, sidecars and fake engines from this installation: "
            f"pip install 'tidegate[{','.join(missing)}]', or use --bare"
        )


def _binaries(name: str) -> Binaries:
    """The control plane's programs, with all that is missing said at once and a bar while built."""
    cache = cache_directory()
    found = find_binaries(cache, cluster_directory(name, cache))
    if missing := missing_for_cluster(cache, must_build=found is None):
        raise CommandError("this machine lacks:\n" + "\n".join(f"  - {item}" for item in missing))
    if found is not None:
        return found
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, TimeElapsedColumn(), console=_console) as progress:
        task = progress.add_task("building the control plane (once)", total=None)

        said: set[str] = set()

        def show(step: BuildProgress) -> None:
            progress.update(
                task, description=step.step, completed=step.done, total=step.total or None
            )
            tenths = f": {10 * (10 * step.done // step.total)} %" if step.total else ""
            line = step.step + tenths
            if not _console.is_terminal and line not in said:
                said.add(line)
                _console.print(line)

        return ensure_binaries(cache, show)


def _kubelet_options(
    images: list[Path] | None, volume_refresh: float | None, gpus: int | None
) -> KubeletOptions | None:
    """None when nothing was asked for: then a cluster keeps what it has."""
    if not images and volume_refresh is None and gpus is None:
        return None
    for table in images or ():
        try:
            load_images(table)
        except ValueError as error:
            raise CommandError(f"{table}: {error}", 2) from None
    defaults = KubeletOptions()
    return KubeletOptions(
        volume_refresh_seconds=volume_refresh or defaults.volume_refresh_seconds,
        images=tuple(str(path.absolute()) for path in images or ()),
        gpus=defaults.gpus if gpus is None else gpus,
    )


def _start(cluster: LocalCluster, options: KubeletOptions | None) -> None:
    if options is not None and cluster.exists:
        cluster.stop_kubelet()  # new settings take a new kubelet
    with _console.status("starting") as line:
        cluster.start(options, on_step=line.update)
    _console.print(f"cluster {cluster.name!r} is up")


def _deploy(run: Kubectl, wait_seconds: float) -> None:
    with _console.status("applying") as line:
        deploy(run, find_source(), _announce(line.update), wait_seconds=wait_seconds)


@contextmanager
def _blamed_on_pods(cluster: LocalCluster) -> Iterator[None]:
    """What failed in it is told with what the pods that are not ready said last."""
    try:
        yield
    except LocalClusterError as error:
        lines = [str(error), *(f"  {line}" for line in not_ready(cluster))]
        raise LocalClusterError("\n".join(lines)) from None


def _announce(update: Callable[[str], None]) -> Callable[[str], None]:
    """Steps on the status line and, where the output is no terminal, as lines."""

    def say(step: str) -> None:
        update(step)
        if not _console.is_terminal:
            _console.print(step)

    return say


def _kubectl_program() -> str:
    """The machine's kubectl, else the local cluster's."""
    if shutil.which("kubectl"):
        return "kubectl"
    own = find_binaries(cache_directory())
    if own is None:
        raise CommandError("kubectl is not on PATH")
    return own.path("kubectl")


def _kubectl_of(kubeconfig: Path, program: str) -> Kubectl:
    def run(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, f"--kubeconfig={kubeconfig}", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=180,
        )

    return run


def _namespace_of(cluster: LocalCluster, pod: str) -> str:
    said = cluster.kubectl(
        "get",
        "pods",
        "-A",
        f"--field-selector=metadata.name={pod}",
        "-o",
        "jsonpath={.items[*].metadata.namespace}",
    )
    if said.returncode != 0:
        raise CommandError(said.stderr.strip())
    namespaces = said.stdout.split()
    if len(namespaces) != 1:
        found = f"in {', '.join(namespaces)}: say which with -n" if namespaces else "nowhere"
        raise CommandError(f"pod {pod!r} is {found}")
    return namespaces[0]


def _become_kubectl(cluster: LocalCluster, arguments: list[str]) -> None:
    """Replaces this process, so that streams, signals and the exit code are kubectl's own."""
    with told():
        environment = os.environ | {"KUBECONFIG": str(cluster.kubeconfig)}
        os.execve(cluster.binaries.path("kubectl"), ["kubectl", *arguments], environment)


def _print_next_steps(
    kubeconfig: Path, run: Kubectl, program: str, services: list[dict[str, Any]]
) -> None:
    answer = run("get", "servingpools.tidegate.io", "-A", "-o", "json")
    pools = json.loads(answer.stdout)["items"] if answer.returncode == 0 else []
    for line in next_steps(kubeconfig, program, pools, services):
        typer.echo(line)
