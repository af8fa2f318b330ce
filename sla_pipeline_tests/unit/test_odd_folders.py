"""Unusable folders: one line with path, cause and remedy."""

import tempfile
from pathlib import Path

import pytest

from sla_pipeline.demo.replay import replay_on_embedded_servers
from sla_pipeline.embedded import ServiceError, unprivileged
from sla_pipeline.embedded.kafka import _as_properties
from sla_pipeline.embedded.supervision import User
from sla_pipeline_tests.unit.test_architecture import REPOSITORY

NOBODY = User(65534, 65534)


@pytest.fixture
def occupied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a folder that every user can enter: a file has its name."""
    file = tmp_path / "tmp"
    file.touch()
    monkeypatch.setattr(unprivileged, "_OPEN_TO_ALL", file)
    monkeypatch.setattr(unprivileged, "_can_enter", lambda folder, user: False)
    return file


def test_roots_postgres_without_a_folder_for_its_data(occupied: Path, tmp_path: Path) -> None:
    with pytest.raises(ServiceError) as raised:
        unprivileged.reachable_folder(tmp_path / "state", NOBODY)
    assert str(raised.value).startswith(f"PostgreSQL does not run as root, and {occupied}/sla-pipeline-")
    assert str(raised.value).endswith(
        f", its folder for user nobody, cannot be used: Not a directory; make room for it below {occupied}, or run "
        "as another user"
    )


def test_roots_postgres_without_a_folder_for_its_programs(occupied: Path) -> None:
    with pytest.raises(
        ServiceError, match="its folder for user nobody, cannot be used: Not a directory; make room for it below "
    ):
        unprivileged.reachable_copy([REPOSITORY], "postgres", NOBODY)


def test_a_machine_without_a_user_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> None:
        raise KeyError(name)

    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("pwd.getpwnam", unknown)
    with pytest.raises(ServiceError, match="this machine has no user nobody for it; run as another user"):
        unprivileged.unprivileged_user()


def test_no_folder_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    with pytest.raises(
        ServiceError, match=r"the folder for temporary files: .*/nowhere/.*; make room there, or name .* in TMPDIR"
    ):
        replay_on_embedded_servers(REPOSITORY / "sla_pipeline" / "demo" / "data" / "incident_log_2016.csv")


def test_a_folder_whose_name_has_a_line_break() -> None:
    assert _as_properties({"log.dirs": "/a\nb/é"}) == "log.dirs=/a\\u000ab/\\u00e9\n"
