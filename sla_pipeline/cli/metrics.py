"""Command ``metrics``."""

import sys
from typing import Annotated

import typer

from sla_pipeline.cli.output import out
from sla_pipeline.cli.signals import stop_requests
from sla_pipeline.errors import InputError
from sla_pipeline.postgres.session import PostgresSettings
from sla_pipeline.telemetry.logs import configure_logging

__all__ = ["metrics"]

# Below Prometheus' usual 10 s for a scrape: a database that is down gives `up 0`, not a scrape without an answer.
_ANSWER_SECONDS = 5.0


def metrics(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on; 0 chooses a free one.")] = 9464,
    once: Annotated[bool, typer.Option("--once", help="Print one scrape and end.")] = False,
) -> None:
    """Serve Prometheus metrics at /metrics until SIGTERM or Ctrl-C, read from the database at each scrape.

    Runs with the rights of sla_analyst. A database that cannot be read gives support_ticket_sla_up 0.
    """
    from prometheus_client import generate_latest, start_http_server  # noqa: PLC0415

    from sla_pipeline.metrics.exporter import registry_of  # noqa: PLC0415
    from sla_pipeline.postgres.health import read_health_within  # noqa: PLC0415

    settings = PostgresSettings.from_environment()
    configure_logging()
    registry = registry_of(lambda: read_health_within(settings, _ANSWER_SECONDS))
    if once:
        sys.stdout.write(generate_latest(registry).decode())
        return
    with stop_requests() as stop:
        try:
            server, thread = start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            raise InputError(
                f"cannot listen on {host}:{port}: {error.strerror}; pass another --host or --port"
            ) from None
        out.print(f"metrics: http://{host}:{server.server_port}/metrics")
        stop.wait()
        server.shutdown()
        server.server_close()
        thread.join()
