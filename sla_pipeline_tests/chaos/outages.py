"""Outages: Kafka is killed, Postgres stopped or killed, both are restarted on their data; a session is cut."""

import contextlib
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

import psycopg

from sla_pipeline.embedded import EmbeddedKafka, EmbeddedPostgres
from sla_pipeline_tests.chaos.disruptions import Outage
from sla_pipeline_tests.chaos.event_log import EventLog

__all__ = ["Outages", "Servers", "cut_lock_holder"]

_LOCK_NAME = "Pin:lock:relay:support-ticket-sla-monitor"
_CUT = """
select pg_terminate_backend(pid) from pg_locks
where locktype = 'advisory' and granted and objsubid = 1
    and database = (select oid from pg_database where datname = current_database())
    and (classid::bigint << 32) | objid::bigint = hashtextextended(%s, 0)
"""
_POLL_SECONDS = 0.05


class Servers(NamedTuple):
    """Servers of the harness, durable because they are killed."""

    postgres: EmbeddedPostgres
    kafka: EmbeddedKafka


def cut_lock_holder(owner_url: str, event_log: EventLog) -> None:
    """End the session that holds the relay's lock, if there is one and Postgres is up."""
    with (
        contextlib.suppress(psycopg.OperationalError),
        psycopg.connect(owner_url, autocommit=True, connect_timeout=2) as connection,
    ):
        if connection.execute(_CUT, (_LOCK_NAME,)).fetchall():
            event_log.session_cut()


class Outages(threading.Thread):
    """Thread that executes outages one after the other, each at its time or right after the one before."""

    def __init__(self, outages: Sequence[Outage], servers: Servers, event_log: EventLog) -> None:
        super().__init__(name="outages", daemon=True)
        self._outages = outages
        self._servers = servers
        self._event_log = event_log
        self._stopping = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        """Execute all outages. ``error`` holds the failure when a server does not restart."""
        try:
            for outage in self._outages:
                while self._event_log.timeline_seconds < outage.at:
                    if self._stopping.wait(_POLL_SECONDS):
                        return
                self._carry_out(outage)
        except BaseException as error:  # noqa: BLE001 - raised in the thread that joins this one
            self.error = error

    def stop(self) -> None:
        """Start no further outage."""
        self._stopping.set()

    def _carry_out(self, outage: Outage) -> None:
        self._event_log.server_stopped(outage.server, outage.how)
        postgres, kafka = self._servers
        if outage.server == "kafka":
            kafka.kill()
        else:
            postgres.stop(immediate=outage.how == "immediate")
        time.sleep(outage.down_seconds)
        (kafka if outage.server == "kafka" else postgres).start()
        self._event_log.server_restarted(outage.server, outage.how)
