"""The servers' part: Kafka is killed, Postgres stopped or killed, both started again on their data; a session is cut.

What belongs here: what is done to servers. What does not: what is done to workers (``seats.py``).
"""

import contextlib
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

import psycopg

from sla_pipeline.embedded import EmbeddedKafka, EmbeddedPostgres
from sla_pipeline_tests.chaos.chronicle import Chronicle
from sla_pipeline_tests.chaos.disruptions import Outage

__all__ = ["Outages", "Servers", "cut_lock_holder"]

_LOCK_NAME = "Pin:lock:relay:support-ticket-sla-monitor"
_CUT = """
select pg_terminate_backend(pid) from pg_locks
where locktype = 'advisory' and granted and objsubid = 1 and database = (select oid from pg_database where datname = current_database())
    and (classid::bigint << 32) | objid::bigint = hashtextextended(%s, 0)
"""
_POLL_SECONDS = 0.05


class Servers(NamedTuple):
    """The harness's own servers, durable, since they are to be killed."""

    postgres: EmbeddedPostgres
    kafka: EmbeddedKafka


def cut_lock_holder(owner_url: str, chronicle: Chronicle) -> None:
    """End the session that holds the relay's lock, if there is one and Postgres is there."""
    with (
        contextlib.suppress(psycopg.OperationalError),
        psycopg.connect(owner_url, autocommit=True, connect_timeout=2) as connection,
    ):
        if connection.execute(_CUT, (_LOCK_NAME,)).fetchall():
            chronicle.cut_off()


class Outages(threading.Thread):
    """Carries out outages one after the other, each at its time or as soon as the one before is over."""

    def __init__(self, outages: Sequence[Outage], servers: Servers, chronicle: Chronicle) -> None:
        super().__init__(name="outages", daemon=True)
        self._outages = outages
        self._servers = servers
        self._chronicle = chronicle
        self._stopping = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        """Until the last one is over. A server that does not come back ends it, and is told in ``error``."""
        try:
            for outage in self._outages:
                while self._chronicle.played < outage.at:
                    if self._stopping.wait(_POLL_SECONDS):
                        return
                self._carry_out(outage)
        except BaseException as error:  # noqa: BLE001 - told to the thread that waits for this one
            self.error = error

    def stop(self) -> None:
        """Begin no further one."""
        self._stopping.set()

    def _carry_out(self, outage: Outage) -> None:
        self._chronicle.went_away(outage.server, outage.how)
        postgres, kafka = self._servers
        if outage.server == "kafka":
            kafka.kill()
        else:
            postgres.stop(immediate=outage.how == "immediate")
        time.sleep(outage.down_seconds)
        (kafka if outage.server == "kafka" else postgres).start()
        self._chronicle.back_again(outage.server, outage.how)
