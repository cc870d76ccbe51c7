"""The real vLLM: where it is installed, a model for it, and a server that comes and goes.

vLLM lives in an environment of its own (`scripts/install-vllm`). It neither removes its socket when
it ends nor replaces one that is there: each server gets a path of its own. Standard library only: a
machine with a GPU has vLLM and little else.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

VLLM_VERSION = "0.32.0"
MODEL = "tiny"
BLOCK_TOKENS = 32
START_SECONDS = 400.0
"""An engine starts in 30 to 60 s on two idle cores."""
STOP_SECONDS = 60.0
TINY_MODEL = Path(__file__).with_name("tiny_model.py")
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",  # more threads spin for each other when the machine is busy
}
"""Of vLLM on a CPU."""
_ANSWER_SECONDS = 30.0


class VllmError(RuntimeError):
    """vLLM is not here, or does not run, and why."""


def vllm_python() -> Path:
    """The Python with vLLM in it; VllmError where it is not installed."""
    cache = os.environ.get("TIDEGATE_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "tidegate"
    )
    folder = Path(cache, f"vllm-{VLLM_VERSION}")
    if not (folder / ".complete").exists():
        raise VllmError(f"vLLM {VLLM_VERSION} is not installed; run scripts/install-vllm")
    return folder / "bin" / "python"


def make_tiny_model(python: Path, folder: Path) -> Path:
    """The tiny model, written into `folder` by vLLM's own Python; VllmError: that failed."""
    made = subprocess.run(
        [python, TINY_MODEL, folder],
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        check=False,
        timeout=START_SECONDS,
    )
    if made.returncode:
        raise VllmError(f"the tiny model could not be made: {made.stderr.strip()[-300:]}")
    return folder


def serve_tiny(python: Path, model: Path, uds: Path, *flags: str) -> list[str]:
    """The command that serves the tiny model on a Unix socket, with `flags` besides."""
    return [
        str(python.with_name("vllm")), "serve", str(model), "--uds", str(uds),
        "--served-model-name", MODEL, "--block-size", str(BLOCK_TOKENS), "--enforce-eager", *flags,
    ]  # fmt: skip


@contextlib.contextmanager
def started(
    command: Sequence[str], log: Path, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """A server that starts; gone on exit, with its engine and workers in whatever state."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def until_healthy(
    process: subprocess.Popen[bytes], uds: Path, log: Path, seconds: float = START_SECONDS
) -> None:
    """Until it answers on its socket; VllmError: it has ended, or does not in so long."""
    deadline = time.monotonic() + seconds
    while not _answers(uds):
        if process.poll() is not None or time.monotonic() > deadline:
            lines = log.read_text(errors="replace").splitlines()
            said = [line for line in lines if "Error" in line][-1:] or lines[-1:]
            error = VllmError(f"vLLM did not start: {' '.join(said)[:300]}")
            error.add_note("\n".join(lines[-30:]))
            raise error
        time.sleep(0.2)


def _answers(uds: Path) -> bool:
    connection = http.client.HTTPConnection("engine", timeout=_ANSWER_SECONDS)
    with contextlib.closing(connection), socket.socket(socket.AF_UNIX) as connection.sock:
        try:
            connection.sock.connect(str(uds))
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
