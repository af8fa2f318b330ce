"""Fetching over real HTTP, from a Maven repository that the test itself serves: the tests need no network."""

import hashlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sla_pipeline.embedded import ServiceError
from sla_pipeline.embedded.jars import Jar, cache_folder, fetch_jars, locked_jars


def published(repository: Path, artifact: str, content: bytes) -> Jar:
    """Put a jar into the repository's folder, in Maven's layout."""
    folder = repository / "org" / "example" / artifact / "1.0"
    folder.mkdir(parents=True)
    (folder / f"{artifact}-1.0.jar").write_bytes(content)
    return Jar("org.example", artifact, "1.0", hashlib.sha256(content).hexdigest(), len(content))


class Repository(ThreadingHTTPServer):
    """A server of a folder that records the jars requested."""

    def __init__(self, folder: Path) -> None:
        self.requested: list[str] = []
        super().__init__(("127.0.0.1", 0), partial(_Handler, directory=str(folder)))


class _Handler(SimpleHTTPRequestHandler):
    server: Repository

    def do_GET(self) -> None:
        if self.path.endswith(".jar"):
            self.server.requested.append(self.path.rpartition("/")[2])
        super().do_GET()

    def log_message(self, *_: object) -> None:
        """Silent."""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    with Repository(tmp_path) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("SLA_EMBEDDED_MAVEN_REPOSITORY", f"http://127.0.0.1:{server.server_port}")
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "a cache"


def test_jars_are_fetched_once_and_returned_in_the_order_of_the_lock(
    tmp_path: Path, cache: Path, repository: Repository
) -> None:
    jars = (published(tmp_path, "zebra", b"zzz"), published(tmp_path, "ant", b"a"))
    for _ in range(2):
        paths = fetch_jars(cache, jars)
        assert [path.name for path in paths] == ["zebra-1.0.jar", "ant-1.0.jar"]
        assert [path.read_bytes() for path in paths] == [b"zzz", b"a"]
    assert repository.requested == ["zebra-1.0.jar", "ant-1.0.jar"]


@pytest.mark.parametrize("found", [b"zzy", b"", b"zzzz"], ids=["altered", "empty", "longer"])
def test_a_jar_that_is_not_as_locked_is_fetched_again(
    found: bytes, tmp_path: Path, cache: Path, repository: Repository
) -> None:
    jar = published(tmp_path, "zebra", b"zzz")
    (path,) = fetch_jars(cache, (jar,))
    path.write_bytes(found)
    assert fetch_jars(cache, (jar,)) == [path]
    assert path.read_bytes() == b"zzz"
    assert repository.requested == ["zebra-1.0.jar"] * 2


def test_a_jar_that_arrives_with_another_hash_is_refused_by_name_and_not_kept(
    tmp_path: Path, cache: Path, repository: Repository
) -> None:
    jar = published(tmp_path, "zebra", b"not what was locked")
    locked = replace(jar, sha256=hashlib.sha256(b"zzz").hexdigest())
    with pytest.raises(
        ServiceError,
        match=f"org.example:zebra:1.0 has SHA-256 {jar.sha256}, but kafka.lock.toml requires {locked.sha256}: the "
        "file is not used",
    ):
        fetch_jars(cache, (locked,))
    assert [path.name for path in cache.iterdir()] == [".lock"]


@pytest.mark.usefixtures("repository")
def test_a_jar_that_cannot_be_fetched_is_named(cache: Path) -> None:
    with pytest.raises(
        ServiceError, match=r"org.example:nowhere:1.0 cannot be fetched \(.*\); the first run needs the network"
    ):
        fetch_jars(cache, (Jar("org.example", "nowhere", "1.0", "0" * 64, 1),))


def test_processes_that_fetch_at_the_same_time_fetch_each_jar_once(
    tmp_path: Path, cache: Path, repository: Repository
) -> None:
    jars = tuple(published(tmp_path, name, name.encode()) for name in ("ant", "bee", "cow"))
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: fetch_jars(cache, jars), range(4)))
    assert results == [[cache / "ant-1.0.jar", cache / "bee-1.0.jar", cache / "cow-1.0.jar"]] * 4
    assert sorted(repository.requested) == ["ant-1.0.jar", "bee-1.0.jar", "cow-1.0.jar"]


def test_the_lock_names_the_broker_and_its_logging_back_end() -> None:
    names = {jar.file_name for jar in locked_jars()}
    assert len(names) == 46
    assert {"kafka_2.13-4.3.1.jar", "log4j-slf4j-impl-2.25.4.jar"} < names


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"SLA_EMBEDDED_CACHE": "/a/b", "XDG_CACHE_HOME": "/c"}, "/a/b/kafka-4.3.1"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/sla-pipeline/kafka-4.3.1"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/ivan/.cache/sla-pipeline/kafka-4.3.1"),
        ({}, "/home/ivan/.cache/sla-pipeline/kafka-4.3.1"),
    ],
)
def test_the_cache_is_the_users_unless_the_environment_names_another(
    environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLA_EMBEDDED_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"HOME": "/home/ivan"} | environment).items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(expected)
