"""The wire protocol distinguishes a refused login from an unreachable server, in any language of the server."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from sla_pipeline.errors import PostgresSetupError, PostgresUnavailable, SlaPipelineError
from sla_pipeline.postgres.session import PostgresSettings

Talk = Callable[[socket.socket], None]
Server = Callable[[Talk], int]
_SSL_REQUEST_LENGTH = 8
# the text of a Russian server for each refusal
_WORDS = "вход запрещён"


@pytest.fixture
def server() -> Iterator[Server]:
    """Starts a server that runs ``talk`` with each client; returns its port."""
    listeners = []

    def start(talk: Talk) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def serve() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                    with peer:
                        talk(peer)
                except OSError:
                    return

        threading.Thread(target=serve, daemon=True).start()
        return int(listener.getsockname()[1])

    yield start
    for listener in listeners:
        # wakes the thread that waits for a client
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _error(sqlstate: str, *, pooler: bool = False, words: str = _WORDS) -> bytes:
    severity = ["SFATAL"] if pooler else ["SВАЖНО", "VFATAL"]  # noqa: RUF001  Russian
    fields = "".join(f"{field}\0" for field in [*severity, f"C{sqlstate}", f"M{words}"]).encode() + b"\0"
    return b"E" + struct.pack("!i", len(fields) + 4) + fields


def _refuses(answer: bytes) -> Talk:
    def talk(peer: socket.socket) -> None:
        # the client asks for TLS, is refused it, then sends the names of user and database
        peer.recv(_SSL_REQUEST_LENGTH)
        peer.sendall(b"N")
        peer.recv(1_000)
        peer.sendall(answer)

    return talk


def _fault(port: int, query: str = "") -> SlaPipelineError:
    with pytest.raises((PostgresSetupError, PostgresUnavailable)) as raised:
        PostgresSettings(f"postgresql://worker:s3cr3t@127.0.0.1:{port}/support{query}").connect(purpose="test")
    assert "s3cr3t" not in str(raised.value)
    assert str(raised.value).isprintable()
    return raised.value


@pytest.mark.parametrize(
    "sqlstate", ["28000", "28P01", "3D000", "42501", "55000", "0A000", "22023", "42704", "57P04", "P0001", "08P01"]
)
def test_a_lasting_refusal_needs_a_person(sqlstate: str, server: Server) -> None:
    fault = _fault(server(_refuses(_error(sqlstate))))
    assert type(fault) is PostgresSetupError
    assert str(fault).startswith("cannot log in to database 'support' at 127.0.0.1:")
    assert f"ВАЖНО:  {_WORDS}; " in str(fault)
    assert "SLA_POSTGRES_URL" in str(fault) or sqlstate in ("42501", "55000")


@pytest.mark.parametrize("sqlstate", ["53300", "57P01", "57P02", "57P03", "58030", "08006"])
def test_a_refusal_that_passes_is_tried_again(sqlstate: str, server: Server) -> None:
    fault = _fault(server(_refuses(_error(sqlstate))))
    assert type(fault) is PostgresUnavailable
    assert f"ВАЖНО:  {_WORDS}; check the server, the network and SLA_POSTGRES_URL" in str(fault)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("no such database: support", PostgresSetupError),
        ("no such user: worker", PostgresSetupError),
        ("unsupported startup parameter: options", PostgresSetupError),
        ("pgbouncer cannot connect to server", PostgresUnavailable),
        ("no more connections allowed (max_client_conn)", PostgresUnavailable),
        ("query_wait_timeout", PostgresUnavailable),
    ],
)
def test_a_pooler_has_one_code_for_all_and_words_that_nobody_translates(
    words: str, kind: type[Exception], server: Server
) -> None:
    assert type(_fault(server(_refuses(_error("08P01", pooler=True, words=words))))) is kind


def test_a_server_without_tls_where_it_is_demanded_needs_a_person(server: Server) -> None:
    fault = _fault(server(_refuses(b"")), "?sslmode=require")
    assert type(fault) is PostgresSetupError
    assert str(fault).endswith(
        "the driver goes no further: check password, port and parameters such as sslmode in SLA_POSTGRES_URL"
    )


def test_something_else_on_the_port_needs_a_person(server: Server) -> None:
    def talk(peer: socket.socket) -> None:
        peer.recv(_SSL_REQUEST_LENGTH)
        peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        peer.recv(1)

    assert type(_fault(server(talk))) is PostgresSetupError


@pytest.mark.parametrize("talk", [lambda _: None, lambda peer: peer.recv(_SSL_REQUEST_LENGTH), _refuses(b"")])
def test_a_connection_closed_without_an_answer_is_tried_again(talk: Talk, server: Server) -> None:
    assert type(_fault(server(talk))) is PostgresUnavailable


def test_one_servers_refusal_counts_whatever_the_others_do(server: Server) -> None:
    refusing, closing = server(_refuses(_error("28P01"))), server(lambda _: None)
    for ports in ((refusing, closing), (closing, refusing)):
        with pytest.raises(PostgresSetupError) as raised:
            PostgresSettings("postgresql://worker@127.0.0.1:{},127.0.0.1:{}/support".format(*ports)).connect(
                purpose="test"
            )
        assert _WORDS in str(raised.value)
        assert "server closed the connection unexpectedly" in str(raised.value)


def test_a_server_that_is_not_the_right_one_does_not_hide_one_that_is_away(server: Server) -> None:
    without_tls, closing = server(_refuses(b"")), server(lambda _: None)
    with pytest.raises(PostgresUnavailable):
        PostgresSettings(
            f"postgresql://worker@127.0.0.1:{without_tls},127.0.0.1:{closing}/support?sslmode=require"
        ).connect(purpose="test")
