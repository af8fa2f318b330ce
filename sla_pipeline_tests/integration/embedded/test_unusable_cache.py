"""A folder of Kafka's jars that cannot be written.

A complete one is used as it is; for any other the error is one line with folder, cause and variable.
"""

import codecs
import errno
import hashlib
import os
import pwd
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sla_pipeline.embedded import ServiceError, embedded_kafka
from sla_pipeline.embedded.jars import Jar, cache_folder, fetch_jars, locked_cache, locked_jars
from sla_pipeline.embedded.java import startup_cache
from sla_pipeline.embedded.warm_up import warm_up
from sla_pipeline.errors import ConfigurationError, SlaPipelineError
from sla_pipeline_tests.rights import without_rights
from sla_pipeline_tests.shared_servers import server_folder

JAR = Jar("org.example", "zebra", "1.0", hashlib.sha256(b"zzz").hexdigest(), 3)
REMEDY = "name another folder in SLA_EMBEDDED_CACHE"


@pytest.fixture
def cache() -> Iterator[Path]:
    """A cache with one jar, which no user may write."""
    with server_folder() as folder:
        cache = folder / "kafka-4.3.1"
        cache.mkdir()
        (cache / JAR.file_name).write_bytes(b"zzz")
        cache.chmod(0o555)
        yield cache


def test_a_complete_cache_is_used_without_its_lock(cache: Path) -> None:
    with without_rights():
        assert fetch_jars(cache, (JAR,)) == [cache / JAR.file_name]
    assert [path.name for path in cache.iterdir()] == [JAR.file_name]


def test_a_cache_that_lacks_a_jar_and_cannot_be_written(cache: Path) -> None:
    with without_rights(), pytest.raises(ConfigurationError) as raised:
        fetch_jars(cache, (JAR, Jar("org.example", "ant", "1.0", "0" * 64, 1)))
    assert re.fullmatch(
        rf"the folder of Kafka's jars, {cache}, cannot be used: {cache}/\.lock: Permission denied.*; {REMEDY}",
        str(raised.value),
    )


def test_a_lock_file_of_another_user(cache: Path) -> None:
    cache.chmod(0o777)
    (cache / ".lock").touch()
    (cache / ".lock").chmod(0o000)
    (cache / JAR.file_name).unlink()
    with without_rights(), pytest.raises(ConfigurationError, match=rf"{cache}/\.lock: Permission denied.*; {REMEDY}"):
        fetch_jars(cache, (JAR,))


def test_a_jar_that_may_not_be_read(cache: Path) -> None:
    (cache / JAR.file_name).chmod(0o000)
    with (
        without_rights(),
        pytest.raises(ConfigurationError, match=rf"the folder of Kafka's jars, {cache}, cannot be used: .*; {REMEDY}"),
    ):
        fetch_jars(cache, (JAR,))


def test_a_file_in_place_of_the_cache_or_above_it(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for cache, fault in ((file, "File exists"), (file / "kafka-4.3.1", "Not a directory")):
        with pytest.raises(ConfigurationError) as raised:
            fetch_jars(cache, (JAR,))
        assert str(raised.value) == f"the folder of Kafka's jars, {cache}, cannot be used: {fault}; {REMEDY}"


@pytest.mark.parametrize(
    ("number", "kind", "message"),
    [
        (errno.EROFS, ConfigurationError, f"/cache/x: the disk is read-only; {REMEDY}"),
        (errno.ENOSPC, ServiceError, f"/cache/x: the disk is full; free some, or {REMEDY}"),
        (errno.EDQUOT, ServiceError, f"/cache/x: the disk quota is used up; free some, or {REMEDY}"),
    ],
)
def test_a_disk_that_cannot_be_written(number: int, kind: type[SlaPipelineError], message: str, tmp_path: Path) -> None:
    with pytest.raises(kind) as raised, locked_cache(tmp_path, ".lock"):
        raise OSError(number, os.strerror(number), f"{tmp_path}/x")
    assert (
        str(raised.value)
        == f"the folder of Kafka's jars, {tmp_path}, cannot be used: {message.replace('/cache', str(tmp_path))}"
    )


def test_what_is_no_fault_of_the_cache_is_not_blamed_on_it(tmp_path: Path) -> None:
    error = FileNotFoundError(errno.ENOENT, "No such file", "/usr/bin/java")
    with pytest.raises(FileNotFoundError) as raised, locked_cache(tmp_path, ".lock"):
        raise error
    assert raised.value is error


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that is given any user's number."""

    def unknown(uid: int) -> pwd.struct_passwd:
        raise KeyError(uid)

    for name in ("SLA_EMBEDDED_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(
        ConfigurationError, match=r"HOME is not set, and user \d+ has no home; name a folder in SLA_EMBEDDED_CACHE"
    ):
        cache_folder()


@pytest.mark.parametrize("name", ["SLA_EMBEDDED_CACHE", "SLA_EMBEDDED_MAVEN_REPOSITORY"])
def test_a_variable_from_a_file_loses_its_line_break(name: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLA_EMBEDDED_CACHE", f"{cache.parent}\n" if name == "SLA_EMBEDDED_CACHE" else str(cache.parent))
    assert cache_folder() == cache


def test_a_broker_starts_on_jars_alone_and_leaves_nothing_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is formatted in the broker's own folder, and the broker starts without Java's startup cache."""
    jars = fetch_jars()
    # Python loads this codec at its first use, from a folder that nobody may be unable to read.
    codecs.lookup("utf-16-be")
    with server_folder() as folder:
        cache, state = folder / "cache of Ivan Ž" / cache_folder().name, folder / "state"
        cache.mkdir(parents=True)
        state.mkdir()
        state.chmod(0o777)
        for jar in jars:
            shutil.copyfile(jar, cache / jar.name)
        cache.chmod(0o555)
        monkeypatch.setenv("SLA_EMBEDDED_CACHE", str(cache.parent))
        with without_rights():
            warm_up()
            assert not startup_cache().exists()
            with embedded_kafka(state) as broker:
                broker.service.check()
        assert sorted(path.name for path in cache.iterdir()) == sorted(jar.file_name for jar in locked_jars())


@pytest.mark.parametrize("command", ["demo --cycles 1 --state", ""])
def test_each_command_that_needs_the_cache_ends_in_one_line(command: str) -> None:
    module = ["-c", "from sla_pipeline.cli import main; main()"] if command else ["-m", "sla_pipeline.embedded"]
    with server_folder() as folder:
        file = folder / "file"
        file.touch()
        ended = subprocess.run(
            [sys.executable, *module, *command.split(), *([str(folder / "state")] if command else [])],
            env=os.environ | {"SLA_EMBEDDED_CACHE": str(file)},
            capture_output=True,
            text=True,
            check=False,
            timeout=150,
        )
    assert ended.returncode == 2
    assert (
        ended.stderr
        == f"sla-pipeline: the folder of Kafka's jars, {file}/kafka-4.3.1, cannot be used: Not a directory; {REMEDY}\n"
    )
