"""Code location of the project: loads everything under ``defs/``."""

import warnings
from pathlib import Path

import dagster as dg

import sla_pipeline.defs
from sla_pipeline.telemetry.logs import configure_logging

__all__ = ["defs"]

configure_logging()

# Not `load_from_defs_folder`: it requires a pyproject.toml beside the package, which an installed wheel does not have.
_tree = dg.ComponentTree.from_module(defs_module=sla_pipeline.defs, project_root=Path(__file__).parents[1])
with warnings.catch_warnings():
    # that function ignores the warnings of the loader, too
    warnings.simplefilter("ignore", dg.PreviewWarning)
    defs = _tree.build_defs()
