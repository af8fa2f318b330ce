"""Moves of ``sla-pipeline recover`` on the model's world, beside the publishers.

Its conclusions are those of ``sla_pipeline.recovery.diagnosis.compare`` itself.
"""

import sys
from functools import cache

from sla_pipeline.kafka.progress import Progress
from sla_pipeline.recovery.diagnosis import Diagnosis, State, compare
from sla_pipeline.recovery.topic_contents import TopicContents
from sla_pipeline_tests.unit.protocol.world import ZERO, Repair, Row, Transaction, World

__all__ = ["begun", "can_go_on", "compared", "noted", "repaired", "sending", "sent"]


@cache
def _diagnosis(
    events: tuple[Row, ...], whole: bool, rows: tuple[Row, ...], published_seq: int, progress: tuple[Row, ...]
) -> Diagnosis:
    topic = TopicContents({row.seq: str(row) for row in events})
    if not whole:
        topic.expired_below = min((row.seq for row in events), default=sys.maxsize)
    from_seq = 1 if whole else max(topic.lowest_seq or published_seq, 1)
    known = {row.seq: str(row) for row in rows if row.seq >= from_seq}
    tickets = {row.ticket: row.seq for row in events}
    elsewhere = {
        row.seq: tickets[row.ticket]
        for row in rows
        if row.seq in known and row.seq not in topic.digests and row.ticket in tickets
    }
    newest = (
        Progress.without_events(progress[-1].seq, str(progress[-1]) if progress[-1].seq else "", "run")
        if progress
        else None
    )
    return compare(topic, known, last_seq=len(rows), published_seq=published_seq, progress=newest, elsewhere=elsewhere)


def begun(world: World) -> World:
    """Return the world after the fence, with the progress read."""
    after = world.fenced()
    return after._replace(repair=Repair(world.era, after.epoch, seen=world.committed_so_far))


def compared(world: World, repair: Repair) -> World | None:
    """Return the world after the comparison of topic and Postgres; None where a person must decide."""
    events = world.topic
    found = _diagnosis(events, not world.expired_seq, world.rows, world.published_seq, repair.seen[1])
    if found.state is State.UNDECIDABLE:
        return None
    lost = tuple(row for row in events if row.seq > found.common_seq) if found.state is State.DATABASE_REWOUND else ()
    wanted = found.missing if found.state is State.EVENTS_MISSING else ()
    missing = tuple(world.rows[seq - 1] for run in wanted for seq in run)
    seen = repair.seen if missing else (0, ())
    return world._replace(
        repair=Repair(
            repair.era, repair.epoch, True, found.common_seq, lost, found.position, missing=missing, seen=seen
        )
    )


def repaired(world: World, repair: Repair) -> World:
    """Return the world after the repair of Postgres.

    Lost records are back under their sequences; later ones of other tickets follow them.
    """
    rows, published_seq = world.rows, max(world.published_seq, repair.position)
    if repair.lost:
        known = {row.ticket for row in repair.lost}
        later = (row for row in rows[repair.common_seq :] if row.ticket not in known)
        behind = (Row(seq, row.ticket, row.era) for seq, row in enumerate(later, start=repair.position + 1))
        rows, published_seq = (*rows[: repair.common_seq], *repair.lost, *behind), repair.position
    target = rows[repair.position - 1] if repair.position else ZERO
    after = world._replace(rows=rows, published_seq=published_seq, repair=repair._replace(target=target))
    return after.taken_for_published(published_seq)


def noted(world: World, target: Row) -> World:
    """Return the world after the commit of the progress record, where it differs from the newest."""
    progress = world.progress if world.progress[-1:] == (target,) else (*world.progress, target)
    return world._replace(progress=progress, repair=None)


def can_go_on(world: World, repair: Repair, *, progress_checked: bool) -> bool:
    """Return whether the recovery can still take its next step: its assumptions have not changed."""
    if repair.sending:
        return repair.epoch == world.epoch
    if repair.target is not None and repair.missing:
        return repair.era == world.era and (repair.seen == world.committed_so_far or not progress_checked)
    return repair.epoch == world.epoch if repair.target is not None else repair.era == world.era


def sending(world: World, repair: Repair, count: int) -> World:
    """Return the world after a further fence, without a commit before it, and the next missing events sent."""
    after = world.fenced()
    return after._replace(
        transaction=Transaction(repair.missing[:count], repair.target),
        repair=repair._replace(epoch=after.epoch, sending=True),
    )


def sent(world: World, repair: Repair, count: int) -> World:
    """Return the world after the commit of this transaction and its reply."""
    after, left = world.committed(), repair.missing[count:]
    return after._replace(
        repair=repair._replace(missing=left, seen=after.committed_so_far, sending=False) if left else None
    )
