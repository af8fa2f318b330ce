"""``python -m sla_pipeline_tests.chaos``: run the chaos, print what became of it, write it to ``build/chaos.json``.

Exit code 0 only if every book balances. What belongs here: options and output. What does not: anything else.
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
from sla_pipeline_tests.chaos.conductor import run
from sla_pipeline_tests.chaos.disruptions import Scenario
from sla_pipeline_tests.chaos.outages import Servers
from sla_pipeline_tests.chaos.report import as_json, as_table

console = Console(stderr=True, highlight=False, soft_wrap=True)


def main(
    kills: Annotated[int, typer.Option(help="SIGKILLs of workers.")] = 240,
    tickets: Annotated[int, typer.Option(help="Breaches that there should be at least.")] = 100_000,
    seconds: Annotated[float, typer.Option(help="Length of the disrupted part of the run.")] = 240.0,
    seed: Annotated[
        int | None, typer.Option(help="Draws everything that can be drawn; a new one when left out.")
    ] = None,
    broken: Annotated[Build, typer.Option(help="Run a wrong build, which must be caught: exit code 1.")] = Build.SOUND,
    outages: Annotated[bool, typer.Option(help="End and restart servers, too.")] = True,
    output: Annotated[Path, typer.Option(help="The result; the history and the workers' logs go beside it.")] = Path(
        "build/chaos.json"
    ),
) -> None:
    """Three workers, operators, kills, freezes, outages; then every ticket, record and event is compared."""
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
        # root's PostgreSQL runs as nobody
        state.chmod(0o755)
        with embedded_postgres(state) as postgres, embedded_kafka(state) as kafka:
            outcome = run(scenario, Servers(postgres, kafka), folder, console.print)
    output.write_text(json.dumps(as_json(outcome), indent=2) + "\n")
    console.print(as_table(outcome))
    for kind, named in outcome.findings.named.items():
        console.print(f"{kind}:", *named, sep="\n  ")
    for told, count in outcome.chronicle.unexpected.items():
        console.print(f"{count} times: {told}")
    console.print(f"written to {output}; history in {folder}")
    raise typer.Exit(0 if outcome.clean else 1)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command()(main)

if __name__ == "__main__":
    app()
