"""Scenarios as people write them: YAML, read strictly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tidegate.scheduling.contracts import ContractError, Scenario, decode
from tidegate.workload.workload import ScenarioError, Workload

MAX_SCENARIO_BYTES = 4 * 1024 * 1024


_NOT_YAML = (
    yaml.YAMLError,
    RecursionError,
    # What PyYAML's constructors of tagged values (`!!int ""`) let through:
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
)


def read_scenario(path: Path) -> Workload:
    """The workload of a scenario file; its trace paths are relative to the file's folder.

    :class:`ScenarioError` names the file and the place in it.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_SCENARIO_BYTES + 1)
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise ScenarioError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ScenarioError(f"{path}: not UTF-8 text") from None
    if len(content) > MAX_SCENARIO_BYTES:
        raise ScenarioError(f"{path}: larger than {MAX_SCENARIO_BYTES} bytes")
    try:
        data = yaml.load(text, Loader=_StrictLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise ScenarioError(f"{where}: {error.problem}") from None
    except _NOT_YAML:
        raise ScenarioError(f"{path}: not YAML") from None
    try:
        return Workload(decode(Scenario, data, "scenario"), path.resolve().parent)
    except ContractError as error:
        raise ScenarioError(f"{path}: {error}") from None


class _StrictLoader(yaml.SafeLoader):
    """Refuses what YAML would pass over: a key given twice, a key that is no string."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag not in (
                "tag:yaml.org,2002:str",
                "tag:yaml.org,2002:merge",
            ):
                raise yaml.MarkedYAMLError(
                    problem="a key must be a string", problem_mark=key_node.start_mark
                )
            if key_node.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"{key_node.value!r} is given twice", problem_mark=key_node.start_mark
                )
            seen.add(key_node.value)
        return super().construct_mapping(node, deep=deep)
