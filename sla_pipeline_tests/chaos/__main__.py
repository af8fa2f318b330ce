"""``python -m sla_pipeline_tests.chaos``: run the chaos test, print the outcome, write it to ``build/chaos.json``.

Exit code 0 only if the outcome is clean.
"""

import json
import random
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sla_pipeline.embedded import embedded_kafka, embedded_postgres
from sla_pipeline_tests.chaos.broken import Build
from sla_pipeline_tests.chaos.disruptions import Scenario
from sla_pipeline_tests.chaos.outages import Servers
from sla_pipeline_tests.chaos.outcome import as_json, as_table
from sla_pipeline_tests.chaos.runner import run

console = Console(stderr=True, highlight=False, soft_wrap=True)


def main(
    kills: Annotated[int, typer.Option(help="SIGKILLs of workers.")] = 240,
    tickets: Annotated[int, typer.Option(help="Least number of breaches.")] = 100_000,
    seconds: Annotated[float, typer.Option(help="Length of the disrupted part of the run.")] = 240.0,
    seed: Annotated[int | None, typer.Option(help="Seed of all random decisions; a new one by default.")] = None,
    broken: Annotated[Build, typer.Option(help="Run a wrong build; the expected exit code is 1.")] = Build.SOUND,
    outages: Annotated[bool, typer.Option(help="Stop and restart the servers too.")] = True,
    output: Annotated[Path, typer.Option(help="Result file; history and workers' logs go beside it.")] = Path(
        "build/chaos.json"
    ),
) -> None:
    """Run workers and operators amid kills, pauses and outages; then compare every ticket, record and event."""
    scenario = Scenario(
        seed=random.SystemRandom().randrange(1_000_000) if seed is None else seed,
        seconds=seconds,
        kills=kills,
        tickets=tickets,
        build=broken,
        outages=outages,
    )
    folder = output.parent / output.stem
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="sla-chaos-") as name:
        state = Path(name)
        # started by root, PostgreSQL runs as nobody and must reach the folder
        state.chmod(0o755)
        with embedded_postgres(state) as postgres, embedded_kafka(state) as kafka:
            outcome = run(scenario, Servers(postgres, kafka), folder, console.print)
    output.write_text(json.dumps(as_json(outcome), indent=2) + "\n")
    console.print(as_table(outcome))
    for kind, examples in outcome.findings.examples.items():
        console.print(f"{kind}:", *examples, sep="\n  ")
    for error, count in outcome.event_log.unexpected.items():
        console.print(f"{count} times: {error}")
    console.print(f"result: {output}; history: {folder}")
    raise typer.Exit(0 if outcome.clean else 1)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command()(main)

if __name__ == "__main__":
    app()
