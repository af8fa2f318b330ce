"""A new asset, check, sensor or schedule is a new file under ``defs/``; nothing else is edited."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import sla_pipeline

_DAILY_REPORT = """
import dagster as dg


@dg.asset(group_name="reporting", description="Breaches of one day.")
def breaches_daily() -> int:
    return 0


@dg.sensor(asset_selection=[breaches_daily], description="A rule.")
def a_rule(context: dg.SensorEvaluationContext) -> None: ...
"""
_LIST = """
from sla_pipeline.definitions import defs
print(sorted(key.to_user_string() for key in defs.resolve_asset_graph().get_all_asset_keys()))
print(sorted(sensor.name for sensor in defs.sensors))
print(defs.resolve_implicit_global_asset_job_def().executor_def.name)
"""


def test_a_file_dropped_into_a_folder_is_found_where_the_package_is_installed_without_its_project(
    tmp_path: Path,
) -> None:
    """The copy has no pyproject.toml beside it, as an installed wheel has none."""
    site = tmp_path / "site"
    shutil.copytree(Path(sla_pipeline.__file__).parent, site / "sla_pipeline", ignore=shutil.ignore_patterns("*.pyc"))
    reporting = site / "sla_pipeline" / "defs" / "reporting"
    reporting.mkdir()
    (reporting / "breaches_daily.py").write_text(_DAILY_REPORT)
    listed = subprocess.run(
        [sys.executable, "-c", _LIST],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert listed.returncode == 0, listed.stderr[-2000:]
    assert listed.stdout.splitlines() == ["['breaches_daily', 'sla_breaches']", "['a_rule']", "in_process"]
