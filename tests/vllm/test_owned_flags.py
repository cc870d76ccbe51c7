"""The flags that a ServingPool refuses are flags of the vLLM we test with, and all of a kind."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tidegate_operator.api.engine import OWNED_FLAGS

pytestmark = pytest.mark.vllm

OWNED = {flag for flags, _ in OWNED_FLAGS for flag in flags}
FAMILIES = tuple(flag.removesuffix("*") for flag in OWNED if flag.endswith("*"))
OF_OTHER_VERSIONS = {"--task"}
LIST_FLAGS = """
import json
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make_arg_parser(FlexibleArgumentParser())
flags = sorted(flag for action in parser._actions for flag in action.option_strings)
print(json.dumps({"flags": flags, "abbreviated": parser.allow_abbrev}))
"""


@pytest.fixture(scope="module")
def parser(python: Path) -> dict[str, Any]:
    listed = subprocess.run(
        [python, "-c", LIST_FLAGS], capture_output=True, text=True, timeout=180, check=True
    )
    return dict(json.loads(listed.stdout.splitlines()[-1]))


def is_owned(flag: str) -> bool:
    return flag in OWNED or flag.startswith(FAMILIES)


def test_owned_flags_exist(parser: dict[str, Any]) -> None:
    flags = set(parser["flags"])
    single = {flag for flag in OWNED if not flag.endswith("*")}
    assert single - OF_OTHER_VERSIONS <= flags
    assert all(any(flag.startswith(family) for flag in flags) for family in FAMILIES)


def test_no_flag_of_an_owned_kind_is_left_out(parser: dict[str, Any]) -> None:
    kinds = ("--ssl", "--data-parallel", "--api-key", "--master", "--uds", "--host", "--port")
    of_a_kind = [flag for flag in parser["flags"] if flag.startswith(kinds)]
    assert of_a_kind
    assert [flag for flag in of_a_kind if not is_owned(flag)] == []


def test_flags_may_be_abbreviated_which_is_why_prefixes_are_refused(
    parser: dict[str, Any],
) -> None:
    assert parser["abbreviated"] is True
