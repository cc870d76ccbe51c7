"""The source roots `operator/` and `sidecar/` must not shadow other packages."""

import operator
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_source_roots_are_not_packages() -> None:
    assert not (ROOT / "operator" / "__init__.py").exists()
    assert not (ROOT / "sidecar" / "__init__.py").exists()


def test_operator_is_the_standard_librarys_even_from_the_checkout() -> None:
    assert ROOT not in Path(operator.__file__).parents
    command = [sys.executable, "-c", "import operator; print(operator.itemgetter(0)([7]))"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "7\n"
