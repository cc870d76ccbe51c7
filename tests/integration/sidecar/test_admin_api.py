"""The admin ports against their own OpenAPI documents: route by route, and by schemathesis.

Real processes without an engine. What is sent is anything, also what the document forbids; what
comes back must be an answer that the document names, of the form that it gives. Bounded: a few
drawn requests for each operation, the same at every run.
"""

from __future__ import annotations

import json
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.generation import GenerationMode
from support.sidecar import keys_document, policy_document, write
from tidegate_sidecar.admin import MAX_HANDED_BACK, MAX_PODS
from tidegate_sidecar.openapi import router_document, sidecar_document

pytestmark = pytest.mark.integration

TOKEN = secrets.token_urlsafe(24)
CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
DOCUMENTS: dict[str, dict[str, Any]] = {
    "sidecar": sidecar_document(MAX_PODS, MAX_HANDED_BACK),
    "router": router_document(),
}
DESCRIBED = {name: schemathesis.openapi.from_dict(each) for name, each in DOCUMENTS.items()}
START_SECONDS = 60.0
DRAWN = 8
"""Requests for each operation, of those that fit the document and of those that do not."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("admin")
    write(folder / "policy.json", policy_document())
    write(folder / "keys.json", keys_document())
    write(folder / "pods.json", {"version": 1, "pods": []})
    (folder / "token").write_text(TOKEN)
    (folder / "identity").write_text(secrets.token_hex(32))
    return folder


@pytest.fixture(scope="module")
def admin_urls(folder: Path) -> Iterator[dict[str, str]]:
    """Of a sidecar and of a router, each in a process of its own."""
    common = [
        f"--policy={folder / 'policy.json'}", f"--keys={folder / 'keys.json'}", "--port=0",
        "--admin-port=0", f"--admin-token-file={folder / 'token'}",
    ]  # fmt: skip
    commands = {
        "sidecar": ["tidegate_sidecar", *common, "--engine=http://127.0.0.1:1"],
        "router": [
            "tidegate_sidecar.router", *common, f"--pods={folder / 'pods.json'}",
            f"--identity-keys={folder / 'identity'}",
        ],
    }  # fmt: skip
    started = {}
    for name, (module, *flags) in commands.items():
        with (folder / f"{name}.log").open("wb") as log:
            started[name] = subprocess.Popen(
                [sys.executable, "-m", module, *flags], stdout=log, stderr=log
            )
    try:
        yield {name: _admin_url(folder / f"{name}.log", started[name]) for name in started}
    finally:
        for process in started.values():
            process.send_signal(signal.SIGKILL)
            process.wait()


def _admin_url(log: Path, process: subprocess.Popen[bytes]) -> str:
    told = re.compile(r"admin on \D*(?:127\.0\.0\.1:)?(\d+)")
    deadline = time.monotonic() + START_SECONDS
    while not (found := told.search(log.read_text())):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    return f"http://127.0.0.1:{found[1]}"


def operations() -> Iterator[tuple[str, str, str]]:
    for name, document in DOCUMENTS.items():
        for path, methods in document["paths"].items():
            for method in methods:
                yield name, method.upper(), path


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_document_is_served_and_names_every_route(
    admin_urls: dict[str, str], name: str
) -> None:
    url = admin_urls[name] + "/openapi.json"
    answer = requests.get(url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=30)
    assert answer.json() == json.loads(json.dumps(DOCUMENTS[name]))
    assert requests.get(url, timeout=30).status_code == 401
    folder = Path(sys.modules["tidegate_sidecar"].__file__ or "").parent
    sources = (folder / "admin_port.py", folder / ("router" * (name == "router")) / "admin.py")
    text = "".join(source.read_text() for source in sources)
    routes = re.findall(r'add_(get|put|post|delete)\(\s*"([^"]+)"', text)
    documented = {(method.lower(), path) for which, method, path in operations() if which == name}
    assert {(method, path) for method, path in routes} == documented


def cases() -> Iterator[Any]:
    """Each operation, and once more with what cannot be where something can be wrong about it."""
    for name, method, path in operations():
        raw = DOCUMENTS[name]["paths"][path][method.lower()]
        takes = "parameters" in raw or "requestBody" in raw
        modes = [GenerationMode.POSITIVE, *([GenerationMode.NEGATIVE] if takes else [])]
        for mode in modes:
            drawn = DRAWN if takes else 1
            label = f"{name} {method} {path} {mode.value}"
            yield pytest.param(name, method, path, mode, drawn, id=label)


@pytest.mark.parametrize(("name", "method", "path", "mode", "drawn"), list(cases()))
def test_anything_sent_is_answered_as_the_document_says(
    admin_urls: dict[str, str],
    name: str,
    method: str,
    path: str,
    mode: GenerationMode,
    drawn: int,
) -> None:
    described = DESCRIBED[name][path][method]

    @settings(
        max_examples=drawn,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=described.as_strategy(generation_mode=mode))
    def send(case: schemathesis.Case) -> None:
        answer = case.call(
            base_url=admin_urls[name],
            session=session,
            headers={"Authorization": f"Bearer {TOKEN}"},
            timeout=30,
        )
        assert answer.status_code != 500
        case.validate_response(answer, checks=CHECKS)

    with requests.Session() as session:
        send()
