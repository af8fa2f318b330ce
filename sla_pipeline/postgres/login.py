"""Diagnosis of a failed login, from the wire protocol: the server's text may be in any language.

libpq reports a refused login as text alone, without an SQLSTATE. So one more attempt is made under libpq's protocol
trace, which holds the code of the server's refusal. The trace goes to memory and is never shown: it may hold a
password.
"""

import contextlib
import os
import re
import select
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psycopg
from psycopg.pq import ConnStatus, PGconn, PollingStatus, Trace, abc

__all__ = ["LoginRefusal", "refusal_of"]

# Bounds the diagnosis. A server that refuses does so in milliseconds, and the first attempt has waited already.
_DIAGNOSIS_SECONDS = 3.0
# the server writes the fields up to the code itself, and none of them can hold a line break
_REFUSAL = re.compile(rb'^B\t\d+\tErrorResponse\t S "[^"\n]*"(?: V "[A-Z]+")? C "([0-9A-Z]{5})" M "(.*)', re.MULTILINE)
# Bounds the memory that the text of a trace takes, in bytes.
_LONGEST_TRACE = 100_000
# libpq prints a server's answer, in any language, as severity, a colon and two blanks
_ANSWER_IN_TEXT = re.compile(r"failed: [^\s:]+:  ")
# SQLSTATEs of resources, shutdown and start-up, a lost connection, a timeout, the operating system
_PASSING_CLASSES = ("08", "40", "53", "55P03", "57", "58")
_DATABASE_DROPPED, _PROTOCOL_VIOLATION = "57P04", "08P01"
_NO_ENTRY = b"28000"
# PgBouncer up to 1.18 has one code for all its refusals. Its texts, which are never translated, show the temporary
# ones.
_PASSING_WORDS_OF_A_POOLER = (
    "pgbouncer cannot connect to server",
    "server login has been failing",
    "server conn crashed",
    "client_login_timeout",
    "query_wait_timeout",
    "no more connections allowed",
)


@dataclass(frozen=True, slots=True)
class LoginRefusal:
    """Permanent refusal of a login by a server; ``sqlstate`` is None where the driver ended the attempt."""

    sqlstate: str | None


def refusal_of(error: psycopg.Error, attempts: Sequence[str]) -> LoginRefusal | None:
    """Return the permanent refusal behind a failed login, or None when a later attempt may succeed.

    ``attempts`` are the connection strings, one for each server. One refusal with a code suffices: the servers share
    their logins. Without a code (no TLS there, a standby) another server may accept, so all of them must have refused.
    """
    # no server answered, or the host does not exist: a second attempt would wait as long
    if len(attempts) == 1 and error.pgconn is None:
        return None
    deadline = time.monotonic() + _DIAGNOSIS_SECONDS
    refusals = [_refusal_by(conninfo, deadline, str(error)) for conninfo in attempts]
    with_code = [refusal for refusal in refusals if refusal and refusal.sqlstate]
    if with_code:
        return with_code[0]
    return refusals[0] if all(refusals) else None


def _refusal_by(conninfo: str, deadline: float, text: str) -> LoginRefusal | None:
    connection = PGconn.connect_start(conninfo.encode())
    try:
        with _traced(connection) as trace:
            driver_gave_up = _driver_gives_up(connection, deadline)
            if connection.status == ConnStatus.OK:
                return None
    finally:
        connection.finish()
    if not trace.supported and _ANSWER_IN_TEXT.search(text):
        return LoginRefusal(None)
    if codes := _REFUSAL.findall(trace.text):
        # libpq tries with TLS and without: pg_hba.conf refuses one attempt, the other one has the cause
        code = next((found for found in codes if found[0] != _NO_ENTRY), codes[0])
        sqlstate, words = (found.decode(errors="replace") for found in code)
        return None if _may_pass(sqlstate, words) else LoginRefusal(sqlstate)
    return LoginRefusal(None) if driver_gave_up else None


def _driver_gives_up(connection: abc.PGconn, deadline: float) -> bool:
    """Log in; return True when the driver ends the attempt after an answer (no TLS there, a password is required)."""
    status, answered, hung_up = PollingStatus.WRITING, False, False
    while connection.status != ConnStatus.BAD and status not in (PollingStatus.OK, PollingStatus.FAILED):
        reading = status == PollingStatus.READING
        # select() takes no descriptor above 1023
        waiting = select.poll()
        waiting.register(connection.socket, select.POLLIN if reading else select.POLLOUT)
        if not waiting.poll(max(0.0, deadline - time.monotonic()) * 1000):
            return False
        if reading:
            try:
                with socket.socket(fileno=os.dup(connection.socket)) as peer:
                    hung_up = not peer.recv(1, socket.MSG_PEEK)
            except OSError:
                hung_up = True
            answered = answered or not hung_up
        status = PollingStatus(connection.connect_poll())
    return answered and not hung_up


@dataclass(slots=True)
class _TraceText:
    supported: bool
    text: bytes = b""


@contextlib.contextmanager
def _traced(connection: abc.PGconn) -> Iterator[_TraceText]:
    """Trace the protocol's messages during the block; the text is complete afterwards."""
    # libpq traces on Linux only; elsewhere an error text in the form of a server's answer counts as a refusal
    if not sys.platform.startswith("linux") or connection.status == ConnStatus.BAD:
        yield _TraceText(supported=sys.platform.startswith("linux"))
        return
    memory = os.memfd_create("login")
    trace = _TraceText(supported=True)
    try:
        connection.trace(memory)
        connection.set_trace_flags(Trace.SUPPRESS_TIMESTAMPS)
        try:
            yield trace
        finally:
            # untrace writes the buffer; the driver must not use the descriptor after it is closed
            connection.untrace()
        trace.text = os.pread(memory, _LONGEST_TRACE, 0)
    finally:
        os.close(memory)


def _may_pass(sqlstate: str, words: str) -> bool:
    """Return whether the server may accept the login later without any change."""
    if sqlstate == _PROTOCOL_VIOLATION:
        return words.startswith(_PASSING_WORDS_OF_A_POOLER)
    return sqlstate.startswith(_PASSING_CLASSES) and sqlstate != _DATABASE_DROPPED
