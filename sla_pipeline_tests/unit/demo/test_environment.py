"""Isolation of the demo from a shell's variables, and the file for a second shell."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sla_pipeline.demo.environment import Addresses, isolated_environment, second_shell_file

ADDRESSES = Addresses(
    worker_url="postgresql://worker:a$b'c@127.0.0.1:1/support?options=-c%20x",
    owner_url="postgresql://postgres:p w@127.0.0.1:1/support",
    bootstrap_servers="127.0.0.1:2",
    dagster_home=Path('/tmp/a `folder` of "mine"/dagster'),  # noqa: S108 - only a name, never created
    dagster_url="postgresql://postgres:p w@127.0.0.1:1/dagster",
)


@pytest.mark.parametrize(
    "name",
    [
        "SLA_KAFKA_TOPIC",
        "SLA_POSTGRES_URL",
        "SLA_SINGLE_RUNNER",
        "DAGSTER_HOME",
        "PGHOSTADDR",
        "PGOPTIONS",
        "PGSERVICE",
        "PGSSLMODE",
    ],
)
def test_no_setting_of_the_shell_is_inherited(name: str) -> None:
    assert name not in isolated_environment({name: "x", "LANG": "C"})


def test_everything_else_is_inherited() -> None:
    shell = {
        "LANG": "C",
        "PATH": "/bin",
        "SLA_EMBEDDED_CACHE": "/cache",
        "SLA_EMBEDDED_MAVEN_REPOSITORY": "https://example.org",
    }
    assert isolated_environment(shell).items() >= shell.items()


@pytest.mark.parametrize(
    ("inherited", "expected"),
    [({}, "127.0.0.1,localhost"), ({"no_proxy": "a.example"}, "a.example,127.0.0.1,localhost")],
)
def test_a_proxy_never_gets_what_is_for_this_machine(inherited: dict[str, str], expected: str) -> None:
    shell = {"http_proxy": "http://proxy:3128"} | inherited
    isolated = isolated_environment(shell)
    assert isolated["http_proxy"] == "http://proxy:3128"
    assert isolated["no_proxy"] == expected


def _after_sourcing(file: Path, shell: dict[str, str]) -> dict[str, str]:
    """Return the environment of a program that a POSIX shell starts after sourcing the file."""
    command = ["/bin/sh", "-euc", '. "$1"; env -0', "sh", str(file)]
    printed = subprocess.run(command, env=shell, capture_output=True, text=True, check=True).stdout
    return dict(line.split("=", 1) for line in printed.split("\0") if line)


def test_a_second_shell_reaches_the_demo_whatever_it_had_set_before(tmp_path: Path) -> None:
    file = tmp_path / "env"
    shell = {
        "PATH": os.defpath,
        "SLA_KAFKA_TOPIC": "other",
        "SLA_KAFKA_CLIENT_CONFIG": "{}",
        "SLA_SINGLE_RUNNER": "1",
        "PGHOSTADDR": "10.0.0.1",
        "DAGSTER_HOME": "/other",
    }
    with second_shell_file(file, ADDRESSES):
        sourced = _after_sourcing(file, shell)
    bin_folder = str(Path(sys.executable).parent)
    assert {name: value for name, value in sourced.items() if name.startswith(("SLA_", "PG", "DAGSTER_"))} == {
        "SLA_POSTGRES_URL": ADDRESSES.worker_url,
        "SLA_POSTGRES_OWNER_URL": ADDRESSES.owner_url,
        "SLA_KAFKA_BOOTSTRAP_SERVERS": ADDRESSES.bootstrap_servers,
        "DAGSTER_HOME": str(ADDRESSES.dagster_home),
        "DAGSTER_POSTGRES_URL": ADDRESSES.dagster_url,
    }
    assert sourced["PATH"] == f"{bin_folder}:{os.defpath}"


def test_the_file_is_for_its_owner_only_and_for_the_length_of_the_demo(tmp_path: Path) -> None:
    file = tmp_path / "env"
    file.write_text("export SLA_POSTGRES_URL=of-a-demo-that-was-killed\n")
    with second_shell_file(file, ADDRESSES):
        assert file.stat().st_mode & 0o777 == 0o600
        assert "killed" not in file.read_text()
        assert list(tmp_path.iterdir()) == [file]
    assert list(tmp_path.iterdir()) == []


def test_passwords_are_not_shown() -> None:
    assert "worker:" not in repr(ADDRESSES)
