"""Records and events side by side, without a server: every comparison, its count and its example."""

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sla_pipeline.audit import reconcile
from sla_pipeline.audit.contract import RecordRow, TopicEvent
from sla_pipeline.audit.findings import Check, Example, Tally
from sla_pipeline.audit.reconcile import open_reconciliation
from sla_pipeline.errors import ConfigurationError
from sla_pipeline_tests.unit.audit.rows import event_of, record, with_headers, without_header

ONE, TWO, THREE = record(1), record(2), record(3)
STRANGER = record(900)
CONSTANT_HEADERS = ("event_type", "contract_version", "content_type")
NO_EVENTS = (None, b"", b"null", b"[]", b"\xff", b"{", b"[" * 100_000)


def audited(
    records: Iterable[RecordRow],
    events: Iterable[TopicEvent],
    *,
    published: int | None = None,
    last_seq: int | None = None,
    expired_below: int = 0,
) -> Tally:
    """The whole comparison. The default of ``published`` and ``last_seq`` is the last record's sequence."""
    tally = Tally()
    rows = list(records)
    last = rows[-1].seq if rows else 0
    published = last if published is None else published
    with open_reconciliation() as reconciliation:
        reconciliation.load_records(rows)
        reconciliation.load_events(events)
        reconciliation.compare(
            tally,
            published_seq=published,
            last_seq=last if last_seq is None else last_seq,
            claimed_published=published,
            expired_below=expired_below,
        )
    return tally


def found(tally: Tally) -> dict[Check, int]:
    return {finding.check: finding.count for finding in tally.findings({}) if finding.count}


def test_records_and_their_events_agree() -> None:
    assert found(audited([ONE, TWO, THREE], map(event_of, [ONE, TWO, THREE]))) == {}


def test_nothing_agrees_with_nothing() -> None:
    assert found(audited([], [])) == {}


@pytest.mark.parametrize(
    ("seqs", "published", "last_seq", "missing"),
    [
        ([1, 2, 3], 3, 3, {}),
        ([1, 3], 0, 3, {2: 1}),
        ([1, 5, 9], 0, 9, {2: 3, 6: 3}),
        ([1, 2], 0, 4, {3: 2}),
        ([3, 4], 0, 4, {1: 2}),
        # housekeeping may have removed what is older than the published one
        ([3, 4], 3, 4, {}),
        ([4, 5], 3, 5, {3: 1}),
        ([], 0, 0, {}),
        ([], 0, 2, {1: 2}),
        ([], 2, 2, {2: 1}),
        ([], 5, 8, {5: 4}),
    ],
)
def test_the_sequence_must_be_whole(seqs: list[int], published: int, last_seq: int, missing: dict[int, int]) -> None:
    records = [record(seq) for seq in seqs]
    tally = audited(records, map(event_of, records), published=published, last_seq=last_seq)
    finding = tally.findings({})[list(Check).index(Check.RECORD_GAP)]
    assert finding.count == sum(missing.values())
    assert {example.seq for example in finding.examples} == set(missing)


def test_records_beyond_the_sequence_are_found() -> None:
    tally = audited([ONE, TWO, THREE], map(event_of, [ONE, TWO, THREE]), published=1, last_seq=1)
    assert found(tally) == {Check.RECORD_BEYOND_SEQUENCE: 2}
    tally = audited([STRANGER], [event_of(STRANGER)], published=0, last_seq=3)
    assert found(tally) == {Check.RECORD_BEYOND_SEQUENCE: 1, Check.RECORD_GAP: 3}


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (event_of(TWO, value=b"{}"), {Check.EVENT_PAYLOAD_DIFFERS: 1, Check.EVENT_INVALID: 1}),
        (event_of(TWO, value=None), {Check.EVENT_PAYLOAD_DIFFERS: 1, Check.EVENT_INVALID: 1}),
        (event_of(TWO, value=b"[" * 100_000), {Check.EVENT_PAYLOAD_DIFFERS: 1, Check.EVENT_INVALID: 1}),
        (event_of(TWO, value=TWO.payload.replace(",", ", ").encode()), {Check.EVENT_PAYLOAD_DIFFERS: 1}),
        (event_of(TWO, key=ONE.ticket_id.encode()), {Check.EVENT_KEY_DIFFERS: 1}),
        (event_of(TWO, key=TWO.ticket_id.upper().encode()), {Check.EVENT_KEY_DIFFERS: 1}),
        (event_of(TWO, key=None), {Check.EVENT_KEY_DIFFERS: 1}),
        (with_headers(event_of(TWO), correlation_id=b"run-2"), {Check.EVENT_HEADERS_DIFFER: 1}),
        (with_headers(event_of(TWO), correlation_id=None), {Check.EVENT_HEADERS_DIFFER: 1}),
        (with_headers(event_of(TWO), contract_version=b"2"), {Check.EVENT_HEADERS_DIFFER: 1}),
        (without_header(event_of(TWO), "event-type"), {Check.EVENT_HEADERS_DIFFER: 1}),
        (without_header(event_of(TWO), "correlation-id"), {Check.EVENT_HEADERS_DIFFER: 1}),
        (with_headers(event_of(TWO), traceparent=b"00-ab"), {}),
    ],
)
def test_an_event_is_compared_with_its_record_part_by_part(event: TopicEvent, expected: dict[Check, int]) -> None:
    tally = audited([ONE, TWO], [event_of(ONE), event])
    assert found(tally) == expected
    for finding in tally.findings({TWO.ticket_id: TWO.number}):
        assert [example.seq for example in finding.examples] == [2] * finding.count


def test_an_event_that_is_its_record_s_and_no_event_by_the_contract_is_invalid() -> None:
    broken = TWO._replace(payload=TWO.payload.replace('"High"', '""'))
    tally = audited([ONE, broken], [event_of(ONE), event_of(broken)])
    assert found(tally) == {Check.RECORD_MALFORMED: 1, Check.EVENT_INVALID: 1}
    # the payload may be valid by the contract and still differ from the record's columns
    tally = audited([ONE, TWO._replace(number="TCK-9")], [event_of(ONE), event_of(TWO)])
    assert found(tally) == {Check.RECORD_MALFORMED: 1}


def test_a_record_that_was_not_due_is_found() -> None:
    assert found(audited([ONE._replace(was_due=False)], [event_of(ONE)])) == {Check.RECORD_NOT_DUE: 1}


def test_an_event_of_another_ticket_in_a_record_s_place_is_found_by_ticket_too() -> None:
    """The payloads of two events were swapped, keys and headers were not."""
    tally = audited([ONE, TWO], [event_of(ONE, value=TWO.payload.encode()), event_of(TWO, value=ONE.payload.encode())])
    assert found(tally) == {Check.EVENT_PAYLOAD_DIFFERS: 2}
    tally = audited([ONE, TWO], [event_of(ONE, value=TWO.payload.encode()), event_of(TWO)])
    assert found(tally) == {Check.EVENT_PAYLOAD_DIFFERS: 1, Check.EVENT_TICKET_TWICE: 1}


def test_a_foreign_event_is_found_by_sequence_and_by_ticket() -> None:
    tally = audited([ONE], [event_of(ONE), event_of(STRANGER)])
    assert found(tally) == {Check.EVENT_WITHOUT_RECORD: 1, Check.EVENT_TICKET_WITHOUT_RECORD: 1}
    finding = tally.findings({})[list(Check).index(Check.EVENT_WITHOUT_RECORD)]
    assert finding.examples == (Example(STRANGER.ticket_id, None, 900, 0, 900),)


@pytest.mark.parametrize(
    ("event", "is_invalid"),
    [
        (event_of(STRANGER), False),
        (with_headers(event_of(STRANGER), traceparent=b"00-ab"), False),
        (event_of(STRANGER, key=ONE.ticket_id.encode()), True),
        *((without_header(event_of(STRANGER), name.replace("_", "-")), True) for name in CONSTANT_HEADERS),
        *((with_headers(event_of(STRANGER), **{name: b"other"}), True) for name in CONSTANT_HEADERS),
        *((event_of(STRANGER, value=value), True) for value in NO_EVENTS),
    ],
)
def test_an_event_without_a_record_is_valid_by_the_contract_alone(event: TopicEvent, is_invalid: bool) -> None:
    assert found(audited([ONE], [event_of(ONE), event])) == {
        Check.EVENT_WITHOUT_RECORD: 1,
        Check.EVENT_TICKET_WITHOUT_RECORD: 1,
        **({Check.EVENT_INVALID: 1} if is_invalid else {}),
    }


@pytest.mark.parametrize("text", [None, b"one", b"01"])
def test_an_event_without_a_usable_sequence_still_has_a_ticket(text: bytes | None) -> None:
    again = (
        without_header(event_of(ONE, offset=2), "outbox-seq")
        if text is None
        else with_headers(event_of(ONE, offset=2), outbox_seq=text)
    )
    assert found(audited([ONE], [event_of(ONE), again])) == {
        Check.EVENT_WITHOUT_SEQUENCE: 1,
        Check.EVENT_TICKET_TWICE: 1,
    }


def test_a_foreign_event_that_came_twice_repeats_its_sequence() -> None:
    tally = audited([ONE], [event_of(ONE), event_of(STRANGER), event_of(STRANGER, offset=901)])
    assert found(tally) == {
        Check.EVENT_WITHOUT_RECORD: 2,
        Check.EVENT_TICKET_WITHOUT_RECORD: 2,
        Check.EVENT_SEQUENCE_TWICE: 1,
        Check.EVENT_TICKET_TWICE: 1,
    }


def test_events_older_than_the_records_are_counted_and_still_checked_among_themselves() -> None:
    old = [event_of(ONE), event_of(TWO)]
    assert found(audited([THREE], [*old, event_of(THREE)])) == {Check.RECORD_EXPIRED: 2}
    tally = audited([THREE], [*old, event_of(ONE, offset=9, value=b"{}"), event_of(THREE, offset=10)])
    assert found(tally) == {
        Check.RECORD_EXPIRED: 3,
        Check.EVENT_INVALID: 1,
        Check.EVENT_SEQUENCE_TWICE: 1,
        Check.EVENT_TICKET_TWICE: 1,
        Check.ORDER_IN_PARTITION: 1,
    }


def test_a_record_that_waits_is_not_lost() -> None:
    waiting = [ONE, record(2), record(3, is_old=True)]
    assert found(audited(waiting, [event_of(ONE)], published=1)) == {Check.RECORD_WAITING: 2, Check.RECORD_STUCK: 1}
    lost = found(audited(waiting, [event_of(ONE)], published=3))
    assert lost == {Check.RECORD_WITHOUT_EVENT: 2, Check.RECORD_TICKET_WITHOUT_EVENT: 2}


def test_an_event_without_a_sequence_does_not_hide_a_lost_one() -> None:
    without_sequence = without_header(event_of(STRANGER), "outbox-seq")
    assert found(audited([ONE, TWO], [event_of(ONE), without_sequence])) == {
        Check.RECORD_WITHOUT_EVENT: 1,
        Check.RECORD_TICKET_WITHOUT_EVENT: 1,
        Check.EVENT_WITHOUT_SEQUENCE: 1,
        Check.EVENT_TICKET_WITHOUT_RECORD: 1,
    }
    assert found(audited([ONE], [event_of(ONE)._replace(key=None, value=None, headers={})])) == {
        Check.RECORD_WITHOUT_EVENT: 1,
        Check.RECORD_TICKET_WITHOUT_EVENT: 1,
        Check.EVENT_WITHOUT_SEQUENCE: 1,
        Check.EVENT_INVALID: 1,
    }


def test_a_part_of_a_transaction_that_lies_across_the_end_is_no_loss() -> None:
    assert found(audited([ONE, TWO, THREE], [event_of(ONE), event_of(THREE)], published=1)) == {Check.RECORD_WAITING: 1}


def test_below_the_floor_of_retention_nothing_is_lost() -> None:
    assert found(audited([ONE, TWO, THREE], [event_of(THREE)], expired_below=3)) == {Check.EVENT_EXPIRED: 2}
    for kept in (TWO, THREE):
        found_above = found(audited([ONE, TWO, THREE], [event_of(kept)], expired_below=2))
        assert found_above == {
            Check.EVENT_EXPIRED: 1,
            Check.RECORD_WITHOUT_EVENT: 1,
            Check.RECORD_TICKET_WITHOUT_EVENT: 1,
        }


def first_seqs(records: Iterable[RecordRow], events: Iterable[TopicEvent]) -> dict[int, int]:
    """The first sequence of each partition."""
    with open_reconciliation() as reconciliation:
        reconciliation.load_records(records)
        reconciliation.load_events(events)
        return reconciliation.first_seqs()


def test_the_first_sequence_of_each_partition_is_known() -> None:
    events = [
        event_of(row, partition=partition, offset=offset)
        for offset, (row, partition) in enumerate([(TWO, 0), (ONE, 4), (THREE, 4), (STRANGER, 5)])
    ]
    assert first_seqs([ONE, TWO, THREE], events) == {0: 2, 4: 1}


def test_order_is_checked_within_a_partition_by_the_event_before() -> None:
    rows = [record(seq) for seq in range(1, 7)]
    across = [event_of(row, partition=row.seq % 2, offset=offset) for offset, row in enumerate(reversed(rows))]
    assert found(audited(rows, across)) == {Check.ORDER_IN_PARTITION: 4}
    one_too_high = [event_of(rows[seq - 1], offset=offset) for offset, seq in enumerate([6, 1, 2, 3, 4, 5])]
    assert found(audited(rows, one_too_high)) == {Check.ORDER_IN_PARTITION: 1}


def test_a_forged_sequence_does_not_make_all_that_follows_look_out_of_order() -> None:
    forged = with_headers(event_of(STRANGER, offset=0), outbox_seq=b"999999999999")
    assert Check.ORDER_IN_PARTITION not in found(audited([ONE, TWO], [forged, event_of(ONE), event_of(TWO)]))


# The same comparison by dictionaries in memory.

RECORDS = [record(seq) for seq in range(1, 9)]
_PARTITIONS = 2

events_of_any_kind = st.lists(
    st.builds(
        lambda row, headers_of, partition: (row, headers_of, partition),
        st.sampled_from([*RECORDS, STRANGER]),
        st.sampled_from([None, None, None, *RECORDS]),
        st.integers(0, _PARTITIONS - 1),
    ),
    max_size=14,
)


def expected_counts(records: Sequence[RecordRow], events: Sequence[TopicEvent]) -> Counter[Check]:
    """The expected counts, for events whose payload and key agree with each other."""
    by_seq = {row.seq: row for row in records}
    tickets = {row.ticket_id for row in records}
    counts: Counter[Check] = Counter()
    seen_seqs: set[int] = set()
    by_ticket: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    previous: dict[int, int] = {}
    for event in events:
        seq, ticket_id = int(event.headers["outbox-seq"] or b""), (event.key or b"").decode()
        by_ticket[ticket_id].append((event.partition, event.offset, seq))
        counts[Check.EVENT_SEQUENCE_TWICE] += seq in seen_seqs
        seen_seqs.add(seq)
        counts[Check.EVENT_TICKET_WITHOUT_RECORD] += ticket_id not in tickets
        if seq not in by_seq:
            counts[Check.EVENT_WITHOUT_RECORD] += 1
            continue
        counts[Check.ORDER_IN_PARTITION] += seq < previous.get(event.partition, 0)
        previous[event.partition] = seq
        counts[Check.EVENT_KEY_DIFFERS] += ticket_id != by_seq[seq].ticket_id
        counts[Check.EVENT_PAYLOAD_DIFFERS] += (event.value or b"").decode() != by_seq[seq].payload
    for places in by_ticket.values():
        counts[Check.EVENT_TICKET_TWICE] += len(places) - 1
        places.sort()
        for before, after in pairwise(places):
            counts[Check.ORDER_OF_TICKET] += before[0] != after[0] or after[2] < before[2]
    for row in records:
        if row.seq not in seen_seqs:
            counts[Check.RECORD_WITHOUT_EVENT] += 1
            counts[Check.RECORD_TICKET_WITHOUT_EVENT] += row.ticket_id not in by_ticket
    return counts


@given(events_of_any_kind)
def test_sql_finds_what_dictionaries_find(
    choices: list[tuple[RecordRow, RecordRow | None, int]],
) -> None:
    events = [
        event_of(row, partition=partition, offset=offset, headers=event_of(headers_of or row).headers)
        for offset, (row, headers_of, partition) in enumerate(choices)
    ]
    assert found(audited(RECORDS, events)) == {
        check: count for check, count in expected_counts(RECORDS, events).items() if count
    }


def test_tickets_that_differ_in_their_last_bit_only_are_distinguished() -> None:
    """Ids that count up share their first bytes."""
    rows = [record(seq, ticket_id=str(uuid.UUID(int=2**127 + seq))) for seq in range(1, 50)]
    assert found(audited(rows, map(event_of, rows))) == {}


def test_a_temporary_file_without_space_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "_SETTINGS", ("pragma max_page_count = 20",))
    with pytest.raises(ConfigurationError, match=r"database or disk is full.*SQLITE_TMPDIR"):
        audited([record(seq) for seq in range(1, 1_000)], [])


def test_an_event_published_again_by_recovery_stands_behind_higher_ones_without_fault() -> None:
    """It is counted and left out of the order of the others; all other checks include it."""
    again = with_headers(event_of(ONE, offset=2), republished_by=b"recover-1")
    events = [event_of(TWO, offset=1), again, event_of(THREE, offset=3)]
    assert found(audited([ONE, TWO, THREE], events)) == {Check.EVENT_REPUBLISHED: 1}
    twice = with_headers(event_of(TWO, offset=4), republished_by=b"recover-1")
    assert found(audited([ONE, TWO, THREE], [*events, twice])) == {
        Check.EVENT_REPUBLISHED: 2,
        Check.EVENT_SEQUENCE_TWICE: 1,
        Check.EVENT_TICKET_TWICE: 1,
    }


def test_an_event_published_again_is_not_the_first_of_its_partition() -> None:
    """Expired events before it may have had any sequence."""
    again = with_headers(event_of(ONE, offset=1), republished_by=b"recover-1")
    assert first_seqs([ONE, TWO], [again]) == {}
    assert list(first_seqs([ONE, TWO], [again, event_of(TWO, offset=2)]).values()) == [2]
