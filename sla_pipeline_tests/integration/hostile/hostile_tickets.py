"""Hostile rows of ``support.tickets``, and the expected outcome of each, computed without the product's code."""

import unicodedata
import uuid
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

from hypothesis import strategies as st

from sla_pipeline.breach import Priority
from sla_pipeline_tests.integration.hostile.odd_values import CANARY, odd_text
from sla_pipeline_tests.tickets import MICROSECOND, NOW, QUEUE, TENANT

__all__ = ["HostileTicket", "Outcome", "hostile_tickets"]

_NUMBER_MAX_LENGTH = 64
_PRIORITY_MAX_LENGTH = 32


class Moment(NamedTuple):
    """A time: its text for Postgres, whether it is before ``NOW``, and its text in an event, None if it has none."""

    written: str
    has_passed: bool
    in_event: str | None


def _near(offset: timedelta) -> Moment:
    in_event = (NOW + offset).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return Moment((NOW + offset).isoformat(), offset < timedelta(), in_event)


_MOMENTS = [
    Moment("-infinity", True, None),
    Moment("4713-01-01 00:00:00+00 BC", True, None),
    Moment("0001-12-31 23:59:59.999999+00 BC", True, None),
    Moment("0001-01-01 00:00:00.000001+00", True, "0001-01-01T00:00:00.000001Z"),
    Moment("0999-06-05 04:03:02.000001+00", True, "0999-06-05T04:03:02.000001Z"),
    Moment("1883-11-18 12:03:57 America/New_York", True, "1883-11-18T17:03:57.000000Z"),
    Moment("1969-12-31 23:59:59.999999+00", True, "1969-12-31T23:59:59.999999Z"),
    Moment("2026-10-25 02:30:00 Europe/Berlin", True, "2026-10-25T01:30:00.000000Z"),
    # The same day by their local clocks; in UTC, one is before NOW and one after.
    Moment("2026-11-30 23:59:59+12", True, "2026-11-30T11:59:59.000000Z"),
    Moment("2026-11-30 00:00:01-12", False, "2026-11-30T12:00:01.000000Z"),
    _near(-MICROSECOND),
    _near(timedelta()),
    _near(MICROSECOND),
    Moment("9999-12-31 23:59:59.999999+00", False, "9999-12-31T23:59:59.999999Z"),
    Moment("10000-01-01 00:00:00+00", False, None),
    Moment("294276-12-31 23:59:59.999999+00", False, None),
    Moment("infinity", False, None),
]
_moments = st.one_of(st.sampled_from(_MOMENTS), st.sampled_from(_MOMENTS), st.none())


class Outcome(NamedTuple):
    """``state`` is marked, set aside or untouched; kind and deadline are those of the breach, if there is one."""

    state: str
    kind: str = ""
    due_at: Moment | None = None


@dataclass(frozen=True)
class HostileTicket:
    """A row; its id is not drawn, so that a second try of an example does not find the records of the first."""

    number: str
    tenant_id: str | None
    queue_id: str | None
    requester_user_id: str | None
    assignee_user_id: str | None
    priority: str | None
    status: str
    first_response_due_at: Moment | None
    first_response_at: Moment | None
    resolution_due_at: Moment | None
    resolved_at: Moment | None
    sla_breached: bool
    id: str = field(default_factory=lambda: str(uuid.uuid4()), compare=False)

    @property
    def columns(self) -> dict[str, Any]:
        """The row's values by column, as they are inserted."""
        return {name: value.written if isinstance(value, Moment) else value for name, value in vars(self).items()}

    @property
    def expected(self) -> Outcome:
        """Outcome at ``NOW`` by SPEC 1.1 and 5.4, and by the contract of SPEC 5.6."""
        first, resolution = self.first_response_due_at, self.resolution_due_at
        if self.sla_breached or self.status not in ("New", "InWork"):
            return Outcome("untouched")
        if self.first_response_at is None and first is not None and first.has_passed:
            return self._breach("FirstResponse", first)
        if self.status == "InWork" and self.resolved_at is None and resolution is not None and resolution.has_passed:
            return self._breach("Resolution", resolution)
        return Outcome("untouched")

    def _breach(self, kind: str, due_at: Moment) -> Outcome:
        fits_the_contract = (
            due_at.in_event is not None
            and self.priority is not None
            and 0 < len(self.priority) <= _PRIORITY_MAX_LENGTH
            and all(unicodedata.category(character) != "Cc" for character in self.priority)
            and None not in (self.tenant_id, self.queue_id, self.requester_user_id)
            and 0 < len(self.number) <= _NUMBER_MAX_LENGTH
        )
        return Outcome("marked" if fits_the_contract else "set aside", kind, due_at)


# A text that no log may hold carries the canary at its beginning or its end.
_private_text = st.one_of(odd_text.map(lambda text: f"{CANARY}{text}"), odd_text.map(lambda text: f"{text}{CANARY}"))
hostile_tickets = st.builds(
    HostileTicket,
    number=odd_text,
    tenant_id=st.sampled_from([TENANT, TENANT, TENANT, "00000000-0000-0000-0000-000000000000", None]),
    queue_id=st.sampled_from([QUEUE, QUEUE, QUEUE, "ffffffff-ffff-ffff-ffff-ffffffffffff", None]),
    requester_user_id=st.sampled_from([TENANT, TENANT, TENANT, None]),
    assignee_user_id=st.sampled_from([TENANT, None]),
    # A text that fits a priority is published and may be logged; any other text is private.
    priority=st.one_of(
        st.sampled_from([priority.value for priority in Priority]),
        st.none(),
        odd_text,
        _private_text.filter(lambda text: len(text) > _PRIORITY_MAX_LENGTH),
        _private_text.map(lambda text: f"{text[:16]}\x1b{CANARY}"),
    ),
    status=st.one_of(
        st.sampled_from(["New", "InWork", "New", "InWork", "Resolved", "new", "New ", "InWork\n"]), _private_text
    ),
    first_response_due_at=_moments,
    first_response_at=st.one_of(st.none(), _moments),
    resolution_due_at=_moments,
    resolved_at=st.one_of(st.none(), st.none(), _moments),
    sla_breached=st.sampled_from([False, False, False, True]),
)
