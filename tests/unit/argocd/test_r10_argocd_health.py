"""Case R10: Argo CD sees each object as it is, and none as progressing for ever.

Runs the health scripts as Argo CD does: Lua 5.1 with the base and table libraries alone, the object
as the global ``obj``, the answer a table of status and message.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import lupa.lua51
import pytest
import yaml
from tidegate_operator import api
from tidegate_operator.api.crd import KINDS

ROOT = Path(__file__).resolve().parents[3] / "manifests/argocd"
SCRIPTS = ROOT / "resource_customizations/tidegate.io"
MODELS = {"TenantTier": api.TenantTier, "Tenant": api.Tenant, "ServingPool": api.ServingPool}
NOT_IN_ARGO_CD = ("string", "math", "io", "os", "debug", "require", "dofile", "python")


def health(kind: str, obj: dict[str, Any]) -> dict[str, str]:
    lua = lupa.lua51.LuaRuntime(register_eval=False, unpack_returned_tuples=True)
    for name in NOT_IN_ARGO_CD:
        lua.globals()[name] = None
    lua.globals()["obj"] = lua.table_from(obj, recursive=True)
    return dict(lua.execute((SCRIPTS / kind / "health.lua").read_text()))


def cases() -> list[Any]:
    return [
        pytest.param(kind, case, id=f"{kind}-{Path(case['inputPath']).stem}")
        for kind in KINDS
        for case in yaml.safe_load((SCRIPTS / kind / "health_test.yaml").read_text())["tests"]
    ]


@pytest.mark.parametrize(("kind", "case"), cases())
def test_health(kind: str, case: dict[str, Any]) -> None:
    obj = yaml.safe_load((SCRIPTS / kind / case["inputPath"]).read_text())
    assert obj["kind"] == kind
    assert health(kind, obj) == case["healthStatus"]


@pytest.mark.parametrize("kind", KINDS)
def test_all_test_data_is_used_and_is_what_the_api_serves(kind: str) -> None:
    listed = yaml.safe_load((SCRIPTS / kind / "health_test.yaml").read_text())["tests"]
    files = {f"testdata/{path.name}" for path in (SCRIPTS / kind / "testdata").iterdir()}
    assert {case["inputPath"] for case in listed} == files
    for name in files:
        read = api.parse(MODELS[kind], yaml.safe_load((SCRIPTS / kind / name).read_text()))
        assert isinstance(read, MODELS[kind]), (name, read)


@pytest.mark.parametrize("kind", KINDS)
def test_new_object_as_the_api_server_seeds_it_is_progressing(kind: str) -> None:
    obj = {
        "metadata": {"name": "new", "generation": 1},
        "spec": {},
        "status": {"conditions": api.conditions.pending_conditions()},
    }
    assert health(kind, obj)["status"] == "Progressing"


def test_component_names_the_script_of_every_kind() -> None:
    (generator,) = yaml.safe_load((ROOT / "kustomization.yaml").read_text())["configMapGenerator"]
    assert sorted(generator["files"]) == sorted(
        f"resource.customizations.health.tidegate.io_{kind}"
        f"=resource_customizations/tidegate.io/{kind}/health.lua"
        for kind in KINDS
    )


@pytest.mark.parametrize("kind", KINDS)
def test_scripts_compare_with_reasons_that_exist(kind: str) -> None:
    compared = re.findall(r'reason == "(\w+)"', (SCRIPTS / kind / "health.lua").read_text())
    assert {*compared} <= {*api.Reason}
    assert len(compared) == (0 if kind == "TenantTier" else 1)
