"""`tidegate keys new`."""

import hashlib
import re
import subprocess
import sys

import pytest
import yaml
from tidegate_operator import api
from typer.testing import CliRunner

from tidegate.cli import keys


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from tidegate.cli.main import main; main()", "keys", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )


def printed_keys(output: str) -> dict[str, str]:
    return dict(re.findall(r"^# (\S+): (\S+)$", output, re.M))


def test_printed_yaml_holds_the_hashes_of_the_printed_keys_and_fits_a_tenant() -> None:
    result = CliRunner().invoke(keys.keys, ["new", "--count", "3", "--name", "ci"])
    assert result.exit_code == 0
    shown = printed_keys(result.stdout)
    entries = yaml.safe_load(result.stdout)["apiKeys"]
    assert [entry["name"] for entry in entries] == ["ci-1", "ci-2", "ci-3"] == list(shown)
    for entry in entries:
        assert entry["sha256"] == hashlib.sha256(shown[entry["name"]].encode()).hexdigest()
    spec = {"tierRef": {"name": "t0"}, "apiKeys": entries}
    assert isinstance(api.parse(api.Tenant, {"metadata": {}, "spec": spec}), api.Tenant)


def test_keys_have_256_bits_of_their_own_and_the_prefix() -> None:
    made = {keys.make_key("demo") for _ in range(100)}
    assert len(made) == 100
    for key in made:
        prefix, _, random_part = key.partition("-")
        assert prefix == "demo"
        assert len(random_part) * 6 >= 256
        assert re.fullmatch(r"[A-Za-z0-9_-]+", random_part)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--prefix", "a b"], "--prefix takes"),
        (["--prefix", ""], "--prefix takes"),
        (["--name", "Upper"], "--name takes"),
        (["--count", "0"], "--count"),
    ],
)
def test_wrong_arguments_end_with_2_and_a_message(arguments: list[str], said: str) -> None:
    result = run("new", *arguments)
    assert result.returncode == 2
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_the_command_is_in_the_table() -> None:
    result = run("new", "--prefix", "demo")
    assert result.returncode == 0
    assert result.stderr == ""
    assert printed_keys(result.stdout)["key"].startswith("demo-")
