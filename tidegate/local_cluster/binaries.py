"""The control plane's programs: built once from the Go module proxy into the user's cache.

`controlplane/go.mod` names them as tools and pins every dependency; the folder they land in is
named after that file's and go.sum's content, so another version is another folder. A build works in
a folder of its own (module and build caches too, gigabytes that are worthless afterwards) and
appears by one rename: an interrupted one leaves nothing that looks finished, and what a killed one
left is removed by the next. A lock lets two `up` at once build it once.

`KUBEBUILDER_ASSETS`, if set, names a folder that holds all of them instead. A cluster keeps that
name in a file of its own, so that later commands find them where the variable is not set.
"""

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from tidegate.local_cluster.errors import LocalClusterError
from tidegate.local_cluster.files import write_atomically
from tidegate.local_cluster.go_toolchain import ensure_go

KUBERNETES_VERSION = "1.36.3"
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
_REMEMBERED = "programs"
_STAMPED = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """How far a build is: a step in words, and packages compiled of all (0 of 0: not yet known)."""

    step: str
    done: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class Binaries:
    """A folder with all of PROGRAMS in it."""

    directory: Path

    def path(self, program: str) -> str:
        return str(self.directory / program)


def find_binaries(cache: Path, state: Path | None = None) -> Binaries | None:
    """The programs if they are there already; never builds, needs no network.

    `state` is the folder of the cluster that they are for, which may remember its own.
    Raises LocalClusterError when KUBEBUILDER_ASSETS is set to a folder that lacks some.
    """
    if assets := os.environ.get("KUBEBUILDER_ASSETS"):
        if missing := _missing(Path(assets)):
            raise LocalClusterError(
                f"KUBEBUILDER_ASSETS={assets} lacks {', '.join(missing)}: add them, or unset it to "
                "have the whole control plane built"
            )
        return Binaries(Path(assets).absolute())
    if state is not None and (remembered := _remembered(state)):
        return remembered
    directory = _target(cache)
    # os.path, since Path.exists raises where a folder above may not be looked into.
    return Binaries(directory) if os.path.exists(directory) else None


def remember_binaries(state: Path, binaries: Binaries, cache: Path) -> None:
    """Has `find_binaries` find these for the cluster of that folder from now on.

    Those that were built into the cache are not remembered: a newer version brings newer ones.
    """
    file = state / _REMEMBERED
    if binaries.directory.is_relative_to(cache):
        file.unlink(missing_ok=True)
    else:
        write_atomically(file, str(binaries.directory))


def _remembered(state: Path) -> Binaries | None:
    file = state / _REMEMBERED
    if not os.path.exists(file):
        return None
    directory = Path(file.read_text())
    return None if _missing(directory) else Binaries(directory)


def _missing(directory: Path) -> list[str]:
    return [name for name in PROGRAMS if not os.path.exists(directory / name)]


def ensure_binaries(
    cache: Path, on_progress: Callable[[BuildProgress], None] = lambda progress: None
) -> Binaries:
    """The programs, built first where they are missing (about 5 minutes on 2 cores).

    Needs the Go module proxy and up to 6 GB of disk while it builds; 0.3 GB stay. Raises
    LocalClusterError with the compiler's last lines when the build fails.
    """
    if found := find_binaries(cache):
        return found
    with _build_lock(cache, on_progress):
        if found := find_binaries(cache):
            return found
        for left_over in cache.glob("build-*"):
            shutil.rmtree(left_over, ignore_errors=True)
        work = Path(tempfile.mkdtemp(prefix="build-", dir=cache))
        try:
            _build(work, ensure_go(cache), on_progress)
            target = _target(cache)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.rename(work / "bin", target)
        except BaseException as error:
            # Gigabytes are removed: on a slow disk that takes half a minute.
            why = "failed" if isinstance(error, LocalClusterError) else "interrupted"
            on_progress(BuildProgress(f"{why}; cleaning up"))
            raise
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return Binaries(target)


def _target(cache: Path) -> Path:
    source = resources.files(__package__) / "controlplane"
    digest = hashlib.sha256()
    for name in ("go.mod", "go.sum"):
        digest.update((source / name).read_bytes())
    return cache / "bin" / f"kubernetes-{KUBERNETES_VERSION}-{digest.hexdigest()[:12]}"


@contextmanager
def _build_lock(cache: Path, on_progress: Callable[[BuildProgress], None]) -> Iterator[None]:
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "build.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_progress(BuildProgress("waiting for another build of the control plane"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(work: Path, go: Path, on_progress: Callable[[BuildProgress], None]) -> None:
    source = resources.files(__package__) / "controlplane"
    for name in ("go.mod", "go.sum"):
        (work / name).write_bytes((source / name).read_bytes())
    (work / "tmp").mkdir()
    environment = os.environ | {
        "CGO_ENABLED": "0",
        "GOCACHE": str(work / "gocache"),
        "GOMODCACHE": str(work / "gomodcache"),
        "GOTMPDIR": str(work / "tmp"),
        # Module files are read-only by default, which would keep the folder from being deleted.
        "GOFLAGS": "-mod=readonly -modcacherw -buildvcs=false",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
    }
    on_progress(BuildProgress("fetching the control plane's Go modules"))
    packages = _run([str(go), "list", "-deps", "tool"], work, environment).splitlines()
    output = work / "bin"
    command = [str(go), "build", "-v", "-trimpath", "-ldflags", _linker_flags(), "-o", f"{output}/"]
    _compile([*command, "tool"], work, environment, len(packages), on_progress)
    # A main package is named after its folder, and etcd's is called `server`.
    os.rename(output / "server", output / "etcd")
    if missing := _missing(output):
        raise LocalClusterError(f"the build made no {', '.join(missing)}")


def _linker_flags() -> str:
    """Without a stamped version `kubectl version` fails and user agents say v0.0.0."""
    major, minor, _ = KUBERNETES_VERSION.split(".")
    values = {
        "gitVersion": f"v{KUBERNETES_VERSION}",
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
    }
    stamps = [
        f"-X {package}.{key}={value}" for package in _STAMPED for key, value in values.items()
    ]
    return " ".join(["-s", "-w", *stamps])


def _run(command: list[str], work: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise LocalClusterError(f"{' '.join(command[:2])} failed: {_last_lines(done.stderr)}")
    return done.stdout


def _compile(
    command: list[str],
    work: Path,
    environment: dict[str, str],
    total: int,
    on_progress: Callable[[BuildProgress], None],
) -> None:
    """Runs `go build -v`, which names each package on standard error as it compiles it."""
    said: list[str] = []
    process = subprocess.Popen(
        command,
        cwd=work,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
        start_new_session=True,  # so that the compilers it started can be ended with it
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            said.append(line.rstrip())
            on_progress(BuildProgress("building the control plane", min(len(said), total), total))
        if process.wait() != 0:
            raise LocalClusterError(f"go build failed: {_last_lines(chr(10).join(said))}")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.stderr is not None:
            process.stderr.close()


def _last_lines(text: str) -> str:
    return " / ".join(text.strip().splitlines()[-3:]) or "no output"
