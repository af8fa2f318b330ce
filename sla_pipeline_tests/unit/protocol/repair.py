"""What ``sla_pipeline/kafka/recovery.py`` does, on the model's world: one more process that may run at any moment, beside publishers.

What belongs here: its three moves, as values. What does not: when they happen (``model.py``). The topic keeps everything here; what recovery
does when events have expired is not modelled.
"""

from sla_pipeline_tests.unit.protocol.world import ZERO, Repair, Row, World

__all__ = ["diagnosed", "mended", "noted"]


def diagnosed(world: World) -> World | None:
    """After everybody was fenced, and topic and rows were compared behind the fence; None where recovery says that a person must decide."""
    published = {row.seq: row for row in world.visible}
    last = max(published, default=0)
    common = max((row.seq for row in world.rows if published.get(row.seq) == row), default=0)
    newest = world.progress[-1] if world.progress else ZERO
    if common < last:
        position = last
    else:
        position = max(last, world.published_seq)
        if newest.seq > position and newest in world.rows:
            position = newest.seq
    if newest.seq > position or (common == last and position > len(world.rows)):
        return None
    after = world.fenced()
    lost = tuple(row for row in world.visible if row.seq > common)
    return after._replace(repair=Repair(world.era, after.epoch, common, lost, position))


def mended(world: World, repair: Repair) -> World:
    """After the one transaction in Postgres: lost records are back under their sequences, later ones of other tickets stand behind them."""
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
    """After the progress record was committed, where it differs from the newest."""
    progress = world.progress if world.progress[-1:] == (target,) else (*world.progress, target)
    return world._replace(progress=progress, repair=None)
