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
from rich.table import Table

from sla_pipeline.embedded import embedded_kafka, embedded_postgres
from sla_pipeline_tests.chaos.broken import Build
from sla_pipeline_tests.chaos.conductor import Outcome, run
from sla_pipeline_tests.chaos.disruptions import Scenario
from sla_pipeline_tests.chaos.outages import Servers

console = Console(stderr=True, highlight=False, soft_wrap=True)

FAULTS = ("duplicates", "losses", "false_breaches", "missed", "order_inversions", "unrecorded", "altered", "strays", "sequence gaps")


def main(
    kills: Annotated[int, typer.Option(help="SIGKILLs of workers.")] = 240,
    tickets: Annotated[int, typer.Option(help="Breaches that there should be at least.")] = 100_000,
    seconds: Annotated[float, typer.Option(help="Length of the disrupted part of the run.")] = 240.0,
    seed: Annotated[int | None, typer.Option(help="Draws everything that can be drawn; a new one when left out.")] = None,
    broken: Annotated[Build, typer.Option(help="Run a wrong build, which must be caught: exit code 1.")] = Build.SOUND,
    outages: Annotated[bool, typer.Option(help="End and restart servers, too.")] = True,
    output: Annotated[Path, typer.Option(help="The result; the history and the workers' logs go beside it.")] = Path("build/chaos.json"),
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


def as_json(outcome: Outcome) -> dict[str, object]:
    """The outcome for machines."""
    chronicle, findings = outcome.chronicle, outcome.findings
    return {
        "clean": outcome.clean,
        "seed": outcome.scenario.seed,
        "seconds": round(outcome.seconds, 1),
        "build": outcome.scenario.build.value,
        "kills": chronicle.kills.total(),
        "kills_by_moment": dict(sorted(chronicle.kills.items())),
        "restarts": dict(sorted(chronicle.restarts.items())),
        "freezes": chronicle.freezes.total(),
        "freezes_by_moment": dict(sorted(chronicle.freezes.items())),
        "encounters": chronicle.encounters,
        "cuts": chronicle.cuts,
        "tickets": outcome.ticket_count,
        "changes": outcome.change_count,
        "breaches": findings.breaches,
        "events": findings.events,
        **{fault.replace(" ", "_"): findings.faults[fault] for fault in FAULTS},
        "drained": outcome.drained,
        "cycles": dict(sorted(chronicle.cycles.items())),
        "unexpected_errors": dict(chronicle.unexpected),
        "longest_recovery_s": round(chronicle.longest_recovery_s, 2),
        "longest_recovery_after": chronicle.slowest_to_recover,
    }


def as_table(outcome: Outcome) -> Table:
    """The outcome for people."""
    table = Table("", "", title=f"chaos, seed {outcome.scenario.seed}", show_header=False)
    for name, value in as_json(outcome).items():
        told = ", ".join(f"{key} {count}" for key, count in value.items()) if isinstance(value, dict) else str(value)
        bad = (name in {fault.replace(" ", "_") for fault in FAULTS} and value) or (name == "unexpected_errors" and value)
        table.add_row(name.replace("_", " "), told or "none", style="bold red" if bad or value is False else None)
    table.caption = "clean" if outcome.clean else "NOT clean"
    return table


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command()(main)

if __name__ == "__main__":
    app()
