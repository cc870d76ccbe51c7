"""Switches a ServingPool's scheduling mode with kubectl, and waits until its sidecars obey."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
from pathlib import Path
from typing import Any

import aiohttp

from tidegate.cli.errors import CommandError
from tidegate.scheduling.contracts import ContractError, SchedulingMode, SidecarStatus, loads

_SWITCH_SECONDS = 90.0
_POLL_SECONDS = 0.3
_ADMIN_PORT = 8001
_KIND = "servingpools.tidegate.io"
_PODS = "tidegate.io/pool={pool},tidegate.io/component=engine"


class PoolMode:
    """The scheduling mode of one pool of a cluster whose pod addresses can be reached from here."""

    def __init__(self, kubeconfig: Path | None, namespace: str, pool: str, kubectl: str) -> None:
        self._kubeconfig = kubeconfig
        self._namespace = namespace
        self._pool = pool
        self._kubectl = kubectl
        self._before: str | None = None
        self._changed = False

    async def model(self) -> str:
        """Name of the model that the pool serves."""
        return str((await self._read_pool())["spec"]["model"]["name"])

    async def set(self, mode: SchedulingMode) -> None:
        """Patch the pool; return once each ready sidecar reports the mode."""
        if not self._changed:
            self._before = (await self._read_pool())["spec"].get("schedulingMode")
            self._changed = True
        await self._patch(mode)
        try:
            async with asyncio.timeout(_SWITCH_SECONDS):
                while True:
                    if await self._in_force(mode):
                        return
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise CommandError(
                f"pool {self._namespace}/{self._pool}: its sidecars do not report schedulingMode "
                f"{mode} after {_SWITCH_SECONDS:.0f} s; is the operator running?"
            ) from None

    async def restore(self) -> None:
        """The mode that the pool had, unset where it had none."""
        if self._changed:
            await self._patch(self._before)
            self._changed = False

    async def _patch(self, mode: str | None) -> None:
        patch = json.dumps({"spec": {"schedulingMode": mode}})
        await self._run(
            "patch", "servingpools.tidegate.io", self._pool, "--type=merge", "-p", patch
        )

    async def _read_pool(self) -> dict[str, Any]:
        return await self._json("get", _KIND, self._pool)

    async def _in_force(self, mode: SchedulingMode) -> bool:
        token = await self._admin_token()
        pods = await self._json("get", "pods", "-l", _PODS.format(pool=self._pool))
        addresses = [pod["status"]["podIP"] for pod in pods["items"] if _is_ready(pod)]
        modes = [await _reported_mode(address, token) for address in addresses]
        return bool(modes) and all(reported is mode for reported in modes)

    async def _admin_token(self) -> str:
        secret = await self._json("get", "secret", f"{self._pool}-admin")
        return base64.b64decode(secret["data"]["token"]).decode().strip()

    async def _json(self, *arguments: str) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(await self._run(*arguments, "-o", "json"))
        return answer

    async def _run(self, *arguments: str) -> bytes:
        where = [f"--kubeconfig={self._kubeconfig}"] if self._kubeconfig else []
        process = await asyncio.create_subprocess_exec(
            self._kubectl, *where, f"--namespace={self._namespace}", *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # a ^C is ours: the pool's mode must still be restored
        )  # fmt: skip
        try:
            out, err = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            reason = err.decode(errors="replace").strip().splitlines()
            raise CommandError(f"kubectl {arguments[0]}: {reason[-1] if reason else 'failed'}")
        return out


def find_kubectl(*folders: Path) -> str:
    """kubectl of the local cluster, else of the machine."""
    search = os.pathsep.join([*map(str, folders), os.environ.get("PATH", "")])
    found = shutil.which("kubectl", path=search)
    if found is None:
        raise CommandError("kubectl was found neither in the local cluster nor in PATH")
    return found


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


async def _reported_mode(address: str, token: str) -> SchedulingMode | None:
    """What a sidecar says is in force; None where it can't be asked."""
    url = f"http://{address}:{_ADMIN_PORT}/status"
    headers = {"Authorization": f"Bearer {token}"}
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session,
            session.get(url, headers=headers) as response,
        ):
            if response.status != 200:
                return None
            return loads(SidecarStatus, await response.read()).scheduling_mode
    except (aiohttp.ClientError, OSError, TimeoutError, ContractError):
        return None
