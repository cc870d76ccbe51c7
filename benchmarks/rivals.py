"""The proxies that are measured side by side, each on one core before one upstream.

A rival that is not installed, or does not start, is missing with a reason; the others go on.
Rivals live in environments of their own (scripts/lib/rivals), at pinned versions.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from canned_engine import MODEL

from tidegate.scheduling import contracts

HERE = Path(__file__).resolve().parent
START_SECONDS = 120.0
_STOP_SECONDS = 10.0
KEY = f"tg-{secrets.token_urlsafe(32)}"
_TENANT = "bench/tenant"


class MissingError(Exception):
    """A proxy that cannot be measured here, and why."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a proxy listens, what it stands in front of, and a folder for its files."""

    port: int
    upstream_port: int
    folder: Path

    @property
    def upstream(self) -> str:
        return f"http://127.0.0.1:{self.upstream_port}"


@dataclass(frozen=True, slots=True)
class Command:
    """How to start a proxy."""

    arguments: list[str]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Proxy:
    """A contestant. `command` raises MissingError where it cannot be started."""

    name: str
    command: Callable[[Place], Command]


def _bare(place: Place) -> Command:
    script = str(HERE / "bare_proxy.py")
    return Command(
        [sys.executable, script, "--upstream", place.upstream, "--port", str(place.port)]
    )


def _policy_and_keys(place: Place) -> list[str]:
    """Their flags, for a pool of one tier and tenant."""
    tier = contracts.TierPolicy(name="standard")
    tenant = contracts.TenantPolicy(name=_TENANT, tier=tier.name)
    policy = contracts.Policy(
        version=contracts.POLICY_VERSION,
        generation=1,
        pool="bench/pool",
        model=contracts.ModelPolicy(name=MODEL),
        tiers=(tier,),
        tenants=(tenant,),
    )
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    keys = contracts.KeySet(version=contracts.KEYS_VERSION, generation=1, keys={digest: _TENANT})
    for name, document in (("policy.json", policy), ("keys.json", keys)):
        (place.folder / name).write_text(contracts.dumps(document))
    folder = place.folder
    return [f"--policy={folder / 'policy.json'}", f"--keys={folder / 'keys.json'}"]


def _sidecar(place: Place) -> Command:
    return Command(
        [
            sys.executable, "-m", "tidegate_sidecar", *_policy_and_keys(place),
            f"--engine={place.upstream}", f"--port={place.port}", f"--admin-port={free_port()}",
        ]
    )  # fmt: skip


def _router(place: Place) -> Command:
    pod = contracts.ServingPod("pod", address=place.upstream, admin_address=place.upstream)
    pods, secrets_file = place.folder / "pods.json", place.folder / "identity-keys"
    pods.write_text(contracts.dumps(contracts.PodList(contracts.POD_LIST_VERSION, (pod,))))
    secrets_file.write_text(secrets.token_hex(32))
    return Command(
        [
            sys.executable, "-m", "tidegate_sidecar.router", *_policy_and_keys(place),
            f"--pods={pods}", f"--identity-keys={secrets_file}", f"--port={place.port}",
            f"--admin-port={free_port()}",
        ]
    )  # fmt: skip


def _vllm_router(place: Place) -> Command:
    return Command(
        [
            _rival("vllm-router", "vllm-router"), "--worker-urls", place.upstream, "--host",
            "127.0.0.1", "--port", str(place.port), "--policy", "round_robin",
            "--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port()),
            "--log-level", "warning",
        ]
    )  # fmt: skip


def _litellm(place: Place) -> Command:
    config = {
        "model_list": [
            {
                "model_name": MODEL,
                "litellm_params": {
                    "model": f"openai/{MODEL}",
                    "api_base": f"{place.upstream}/v1",
                    "api_key": "not-checked",
                },
            }
        ],
        "litellm_settings": {"telemetry": False},
        "general_settings": {"master_key": KEY},
    }
    path = place.folder / "litellm.yaml"
    path.write_text(json.dumps(config))  # JSON is YAML
    return Command(
        [
            _rival("litellm", "litellm"), "--config", str(path), "--host", "127.0.0.1", "--port",
            str(place.port), "--num_workers", "1", "--telemetry", "False",
        ],
        # its price list comes from the package, not from the network
        {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"},
    )  # fmt: skip


BARE, SIDECAR, ROUTER, VLLM_ROUTER, LITELLM = (
    Proxy("bare aiohttp", _bare),
    Proxy("sidecar", _sidecar),
    Proxy("router", _router),
    Proxy("vllm-router", _vllm_router),
    Proxy("LiteLLM", _litellm),
)
PROXIES = (BARE, SIDECAR, ROUTER, VLLM_ROUTER, LITELLM)


def install_rivals() -> str:
    """Installs what is missing; what the installer said. Quick when all is there."""
    done = subprocess.run(
        [HERE.parent / "scripts/lib/rivals", "vllm-router", "litellm"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr.strip()


def _rival(environment: str, program: str) -> str:
    cache = os.environ.get("TIDEGATE_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "tidegate"
    )
    folder = Path(cache, "rivals", environment)
    if not (folder / ".complete").exists():
        raise MissingError(f"not installed (scripts/lib/rivals {environment})")
    return str(folder / "bin" / program)


def free_port() -> int:
    """A port of loopback that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def started(command: Command, core: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process and all its children on one core, gone on exit."""
    mine = os.sched_getaffinity(0)
    with log.open("wb") as output:
        # inherited, so that no thread of the child ever runs elsewhere
        os.sched_setaffinity(0, {core})
        try:
            process = subprocess.Popen(
                command.arguments,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **command.environment},
                start_new_session=True,
            )
        finally:
            os.sched_setaffinity(0, mine)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def running(proxy: Proxy, upstream_port: int, core: int) -> Iterator[tuple[int, int]]:
    """The proxy, answering; its port and process id. MissingError where it cannot be had."""
    with tempfile.TemporaryDirectory(prefix="tg-bench-") as folder:
        place = Place(free_port(), upstream_port, Path(folder))
        log = place.folder / "log"
        with started(proxy.command(place), core, log) as process:
            deadline = time.monotonic() + START_SECONDS
            while not _answers(place.port):
                if process.poll() is not None or time.monotonic() > deadline:
                    tail = log.read_text(errors="replace").strip().splitlines()[-1:]
                    raise MissingError(f"did not start: {' '.join(tail)[:200]}")
                time.sleep(0.1)
            yield place.port, process.pid


def processor_seconds(pid: int) -> float:
    """What a process and its children have used, user and system."""
    parent = psutil.Process(pid)
    used = 0.0
    for process in (parent, *parent.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            used += times.user + times.system
    return used


def _answers(port: int) -> bool:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "?"}],
        "max_tokens": 1,
    }
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
