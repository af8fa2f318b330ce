"""Direction of imports (the contracts of pyproject.toml), and modules that must not be loaded at the start of a run."""

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


def test_imports_point_one_way() -> None:
    linted = subprocess.run(
        [Path(sys.executable).with_name("lint-imports")], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert linted.returncode == 0, linted.stdout + linted.stderr
    assert "0 broken" in linted.stdout


@pytest.mark.parametrize("module", ["pandas", "matplotlib", "numpy"])
def test_the_definitions_do_not_load_what_only_analysts_need(module: str) -> None:
    """Every run of the job imports the definitions in a process of its own."""
    code = f"import sys, sla_pipeline.definitions; print({module!r} in sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert loaded.stdout.splitlines()[-1] == "False"
