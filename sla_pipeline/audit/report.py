"""The report for people: a table. Programs read ``AuditReport.as_dict``."""

from rich.table import Table
from rich.text import Text

from sla_pipeline.audit.findings import AuditReport, Example, Finding, Severity
from sla_pipeline.quoting import named

__all__ = ["as_table"]

_STYLES = {Severity.FAULT: "bold red", Severity.WARNING: "yellow", Severity.INFORMATION: "cyan"}


def as_table(report: AuditReport) -> Table:
    """Return the report as a table: every fault and warning with its count, and the information that was found."""
    table = Table(
        "severity",
        "check",
        "count",
        "first cases",
        title=f"audit at {report.now_utc:%Y-%m-%d %H:%M:%S} UTC",
        caption=_summary(report),
    )
    for finding in report.findings:
        if finding.count or finding.check.severity is not Severity.INFORMATION:
            table.add_row(
                finding.check.severity.value,
                finding.check.title,
                f"{finding.count:,}",
                _cases(finding),
                style=_STYLES[finding.check.severity] if finding.count else "dim",
            )
    return table


def _summary(report: AuditReport) -> str:
    positions = report.positions
    read = (
        f"{report.marked_count:,} marked tickets, {report.record_count:,} breach records, {report.event_count:,} "
        f"events; published: {positions.published_seq} by Postgres, {positions.progress_seq} by Kafka, of "
        f"{positions.last_seq}; {report.proven_count:,} marks checked against the unchanged ticket"
    )
    return f"{'they agree' if report.clean else 'they DO NOT agree'}: {read}"


def _cases(finding: Finding) -> Text:
    """Return one case per line. A number comes from another system, so rich must not interpret markup in it."""
    lines = [_case(example) for example in finding.examples]
    if lines and finding.count > len(lines):
        lines.append("...")
    return Text("\n".join(lines))


def _case(example: Example) -> str:
    parts = {
        "": example.number,
        "id ": example.ticket_id,
        "seq ": example.seq,
        "partition ": example.partition,
        "offset ": example.offset,
    }
    return " ".join(f"{name}{named(str(value))}" for name, value in parts.items() if value is not None)
