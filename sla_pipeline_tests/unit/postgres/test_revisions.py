"""Rules of the revisions: their text is frozen, and each declares the oldest version that works after it."""

import ast
import re
from pathlib import Path

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory

from sla_pipeline.postgres import migrations
from sla_pipeline.postgres.indexes import OUR_INDEXES
from sla_pipeline.postgres.migrations.versions import sla_0002_indexes
from sla_pipeline.postgres.schema import REVISION

_MIGRATIONS = Path(migrations.__file__).parent
_REVISIONS = sorted(_MIGRATIONS.glob("versions/[!_]*.py"))
_FROZEN = ("additive", "index_build", "index_definition")
_ROOM = "sla_pipeline.postgres.migrations"


def _imported(path: Path) -> set[str]:
    """Return the modules that a file imports, ``from package import module`` as ``package.module``."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            base = node.module or ""
            names |= {f"{base}.{alias.name}" for alias in node.names} if base == _ROOM else {base}
    return names


def test_the_revisions_of_both_branches_are_found() -> None:
    assert {path.name.partition("_")[0] for path in _REVISIONS} == {"sla", "support"}


@pytest.mark.parametrize("path", _REVISIONS, ids=lambda path: path.stem)
def test_a_revision_imports_alembic_and_the_frozen_functions_only(path: Path) -> None:
    assert _imported(path) <= {"alembic", *(f"{_ROOM}.{name}" for name in _FROZEN)}


@pytest.mark.parametrize("name", _FROZEN)
def test_a_frozen_module_is_generic_and_its_docstring_says_that_it_is_frozen(name: str) -> None:
    path = _MIGRATIONS / f"{name}.py"
    imported = {module for module in _imported(path) if module.startswith("sla_pipeline")}
    assert imported <= {"sla_pipeline.errors", *(f"{_ROOM}.{other}" for other in _FROZEN)}
    source = path.read_text()
    assert "Frozen interface of the revisions: add functions, never change one." in source
    # every table's name contains one of the two
    assert "ticket" not in source.lower()
    assert "support" not in source.lower()


def test_the_running_code_knows_the_indexes_that_the_revision_builds() -> None:
    assert sla_0002_indexes._INDEXES == OUR_INDEXES


def test_names_sort_in_the_order_of_the_revisions_and_no_compatibility_goes_back() -> None:
    """A worker compares revisions as texts, and reads the newest declaration only."""
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    chain = list(ScriptDirectory.from_config(config).walk_revisions("base", "sla_monitor@head"))[::-1]
    names = [revision.revision for revision in chain]
    assert names == sorted(names)
    assert all(re.fullmatch(r"sla_\d{4}", name) for name in names)
    assert names[-1] == REVISION
    declared = [revision.module.compatible_from for revision in chain]
    assert declared == sorted(declared)
    assert all(oldest in names and oldest <= name for oldest, name in zip(declared, names, strict=True))
