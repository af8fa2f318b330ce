"""What recovery concludes from topic, records and positions."""

import sys

import pytest

from sla_pipeline.errors import FailClosed
from sla_pipeline.kafka.progress import Progress
from sla_pipeline.outbox import BreachRecord
from sla_pipeline.recovery.diagnosis import Diagnosis, State, compare
from sla_pipeline.recovery.topic_contents import TopicContents, published_record


def digest(seq: int, timeline: str = "a") -> str:
    return f"{seq:031x}{timeline}"


def topic(*sequences: int, timeline: str = "a", expired_below: int = 0) -> TopicContents:
    """Whole unless events are ``expired_below`` a sequence; ``ALL`` when the topic has lost everything it ever held."""
    return TopicContents({seq: digest(seq, timeline) for seq in sequences}, expired_below=expired_below)


def rows(*sequences: int, timeline: str = "a") -> dict[int, str]:
    return {seq: digest(seq, timeline) for seq in sequences}


def at(seq: int) -> Progress:
    return Progress.without_events(seq, digest(seq) if seq else "", "run")


def outcome(diagnosis: Diagnosis) -> tuple[State, int, int]:
    return diagnosis.state, diagnosis.common_seq, diagnosis.position


ALL = sys.maxsize
_FIVE, _NINE = range(1, 6), range(1, 10)


def test_all_agrees() -> None:
    assert outcome(compare(topic(*_FIVE), rows(*_NINE), last_seq=9, published_seq=5, progress=at(5))) == (
        State.AGREED,
        5,
        5,
    )


def test_a_copy_that_lags_is_no_fault() -> None:
    assert outcome(compare(topic(*_FIVE), rows(*_NINE), last_seq=9, published_seq=3, progress=at(5))) == (
        State.AGREED,
        5,
        5,
    )


def test_a_new_installation_agrees() -> None:
    assert outcome(compare(topic(), {}, last_seq=0, published_seq=0, progress=at(0))) == (State.AGREED, 0, 0)


def test_a_lost_progress_record_is_found_again_on_the_topic() -> None:
    """Even where Postgres does not know the last of it."""
    assert outcome(compare(topic(*_FIVE), rows(*_NINE), last_seq=9, published_seq=3, progress=None)) == (
        State.PROGRESS_LOST,
        5,
        5,
    )


def test_a_progress_record_re_created_at_zero_is_a_lost_one() -> None:
    assert outcome(compare(topic(*_FIVE), rows(*_NINE), last_seq=9, published_seq=5, progress=at(0))) == (
        State.PROGRESS_LOST,
        5,
        5,
    )


def test_where_retention_has_removed_the_event_the_copy_in_postgres_counts() -> None:
    diagnosis = compare(topic(expired_below=ALL), rows(5, 6, 7), last_seq=7, published_seq=5, progress=None)
    assert outcome(diagnosis) == (State.PROGRESS_LOST, 0, 5)
    assert any("rests on Postgres alone" in line for line in diagnosis.lines())


def test_events_that_have_expired_do_not_undo_a_progress_record_that_postgres_confirms() -> None:
    assert outcome(
        compare(topic(expired_below=ALL), rows(5, 6, 7, 8), last_seq=8, published_seq=5, progress=at(7))
    ) == (
        State.AGREED,
        0,
        7,
    )


def test_records_that_housekeeping_deleted_are_not_lost() -> None:
    assert outcome(compare(topic(*_FIVE), rows(4, 5, 6), last_seq=6, published_seq=5, progress=at(5))) == (
        State.AGREED,
        5,
        5,
    )
    assert outcome(
        compare(topic(*_FIVE, expired_below=ALL), rows(9, 10), last_seq=10, published_seq=9, progress=at(9))
    ) == (
        State.AGREED,
        5,
        9,
    )


def test_a_database_behind_the_topic_gets_its_records_back() -> None:
    diagnosis = compare(topic(*_NINE), rows(*_FIVE), last_seq=5, published_seq=5, progress=at(9))
    assert outcome(diagnosis) == (State.DATABASE_REWOUND, 5, 9)
    assert diagnosis.lost_count == 4
    assert any("write 4 records back from their events (sequences 6 to 9)" in line for line in diagnosis.lines())


def test_a_database_that_went_on_after_a_restore_shares_only_what_came_before() -> None:
    went_on = rows(*_FIVE) | rows(*range(6, 13), timeline="b")
    assert outcome(compare(topic(*_NINE), went_on, last_seq=12, published_seq=5, progress=at(9))) == (
        State.DATABASE_REWOUND,
        5,
        9,
    )


def test_an_empty_database_gets_all_back_when_the_topic_goes_back_to_the_first_event() -> None:
    assert outcome(compare(topic(*_NINE), {}, last_seq=0, published_seq=0, progress=at(9))) == (
        State.DATABASE_REWOUND,
        0,
        9,
    )
    other = rows(*range(1, 4), timeline="b")
    assert outcome(compare(topic(*_NINE), other, last_seq=3, published_seq=0, progress=None)) == (
        State.DATABASE_REWOUND,
        0,
        9,
    )


def test_new_records_under_old_sequences_are_not_taken_for_published_when_those_events_have_expired() -> None:
    diagnosis = compare(
        topic(*range(8, 21), expired_below=8),
        rows(5) | rows(6, 7, timeline="b"),
        last_seq=7,
        published_seq=5,
        progress=at(20),
    )
    assert diagnosis.state is State.UNDECIDABLE


def test_a_database_restored_to_just_before_the_oldest_event() -> None:
    assert outcome(
        compare(topic(6, 7, 8, 9, expired_below=6), rows(), last_seq=5, published_seq=5, progress=at(9))
    ) == (
        State.DATABASE_REWOUND,
        5,
        9,
    )


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (
            compare(topic(7, 8, 9), rows(), last_seq=5, published_seq=5, progress=at(9)),
            "events from sequence 6 on are missing from the topic",
        ),
        (
            compare(topic(4, 5, 6, 8, 9), rows(4, 5), last_seq=5, published_seq=5, progress=at(9)),
            "complete from 8 on only",
        ),
        (
            compare(
                topic(*range(3, 10)), rows(*range(3, 8), timeline="b"), last_seq=7, published_seq=2, progress=at(9)
            ),
            "no record in Postgres matches an event on the topic, which goes back to sequence 3 only",
        ),
        (
            compare(topic(*_FIVE), rows(*_FIVE, 7), last_seq=7, published_seq=5, progress=at(5)),
            "record 6 is missing from Postgres",
        ),
        (
            compare(topic(*_FIVE), rows(6, 7), last_seq=7, published_seq=5, progress=at(5)),
            "record 5 is missing from Postgres",
        ),
        (compare(topic(*_FIVE), {}, last_seq=7, published_seq=5, progress=at(5)), "record 6 is missing from Postgres"),
        (
            compare(topic(), rows(*_FIVE), last_seq=5, published_seq=5, progress=at(9)),
            "states that 9 is published, but no event and no record",
        ),
        (
            compare(topic(*_FIVE), rows(*_FIVE) | {2: "other"}, last_seq=5, published_seq=5, progress=at(5)),
            "record 2 differs from its event, but record 5, which came later, does not",
        ),
        (
            compare(
                TopicContents(topic(*_FIVE).digests, faults=["ticket t is on the topic twice"]),
                rows(*_FIVE),
                last_seq=5,
                published_seq=5,
                progress=None,
            ),
            "ticket t is on the topic twice",
        ),
    ],
)
def test_what_cannot_be_determined_is_not_guessed(found: Diagnosis, reason: str) -> None:
    assert found.state is State.UNDECIDABLE
    assert reason in "; ".join(found.reasons)
    assert found.lines()[-1] == "repair: not possible; a person must decide by hand"


# --- missing events


def test_a_re_created_topic_lacks_what_was_published_before() -> None:
    """All of it, or all but what was published since; in both cases the positions agree."""
    diagnosis = compare(topic(), rows(*_NINE), last_seq=9, published_seq=5, progress=at(5))
    assert outcome(diagnosis) == (State.EVENTS_MISSING, 0, 5)
    assert (diagnosis.missing, diagnosis.missing_count) == ((range(1, 6),), 5)
    diagnosis = compare(topic(6, 7), rows(*_NINE), last_seq=9, published_seq=7, progress=at(7))
    assert (outcome(diagnosis), diagnosis.missing) == ((State.EVENTS_MISSING, 7, 7), (range(1, 6),))


def test_what_postgres_does_not_know_to_be_published_is_missing_too_when_the_progress_record_shows_it() -> None:
    diagnosis = compare(topic(), rows(*_NINE), last_seq=9, published_seq=0, progress=at(5))
    assert (outcome(diagnosis), diagnosis.missing) == ((State.EVENTS_MISSING, 0, 5), (range(1, 6),))


def test_holes_in_the_middle_are_missing_each() -> None:
    diagnosis = compare(topic(1, 4, 5, 7, 9), rows(*_NINE), last_seq=9, published_seq=9, progress=at(9))
    assert (diagnosis.state, diagnosis.missing) == (State.EVENTS_MISSING, (range(2, 4), range(6, 7), range(8, 9)))
    assert any(
        "4 published records have no event on the topic (sequences 2 to 3, 6, 8)" in line for line in diagnosis.lines()
    )


def test_events_that_may_have_expired_are_not_missing() -> None:
    """Partitions that lost events begin with sequence 4 at most, so 6 is missing and 3 may have expired."""
    diagnosis = compare(
        topic(2, 4, 5, 7, expired_below=4), rows(*range(1, 8)), last_seq=7, published_seq=7, progress=at(7)
    )
    assert (diagnosis.state, diagnosis.missing) == (State.EVENTS_MISSING, (range(6, 7),))
    diagnosis = compare(
        topic(2, 4, 5, 6, 7, expired_below=4), rows(*range(1, 8)), last_seq=7, published_seq=7, progress=at(7)
    )
    assert (diagnosis.state, diagnosis.missing) == (State.AGREED, ())


def test_waiting_records_are_not_missing() -> None:
    assert compare(topic(), rows(*_FIVE), last_seq=5, published_seq=0, progress=at(0)).state is State.AGREED


def test_another_repair_comes_before_the_missing_events() -> None:
    """Both are found at once; the position must be settled before anything is published again."""
    lost = compare(topic(4, 5), rows(*_FIVE), last_seq=5, published_seq=5, progress=None)
    assert (outcome(lost), lost.missing) == ((State.PROGRESS_LOST, 5, 5), (range(1, 4),))
    went_on = rows(*_FIVE) | rows(6, 7, 8, timeline="b")
    rewound = compare(topic(*range(4, 10)), went_on, last_seq=8, published_seq=5, progress=at(9))
    # 6 to 9 come back from their events, so of the rows only 1 to 3 have none
    assert (outcome(rewound), rewound.missing) == ((State.DATABASE_REWOUND, 5, 9), (range(1, 4),))
    assert any("the repair below comes first" in line for line in rewound.lines())


def test_a_record_whose_ticket_has_another_event_is_not_published_again() -> None:
    diagnosis = compare(topic(1, 3), rows(1, 2, 3), last_seq=3, published_seq=3, progress=at(3), elsewhere={2: 3})
    assert diagnosis.state is State.UNDECIDABLE
    assert diagnosis.reasons == ("record 2 has no event, but its ticket has one, under sequence 3",)


def test_the_confirmation_states_what_is_not_proven() -> None:
    diagnosis = compare(topic(), rows(*_FIVE), last_seq=5, published_seq=5, progress=at(5))
    assert any("not that nobody has read them" in line for line in diagnosis.lines())
    assert diagnosis.question == "Publish 5 events again now?"


def test_a_diagnosis_with_other_missing_events_is_another_repair() -> None:
    one, two = (compare(topic(*on), rows(*_FIVE), last_seq=5, published_seq=5, progress=at(5)) for on in ((), (1,)))
    assert one.plan != two.plan


def test_an_event_of_another_contract_is_not_written_back() -> None:
    for payload in ("{}", "[" * 100_000, "null", '{"Number":1,"BreachKind":2,"DueAt":3,"BreachedAt":4}'):
        with pytest.raises(
            FailClosed, match=r"sequence 4 at partition 1, offset 7 .* is not of this contract.*a person must decide"
        ):
            published_record(BreachRecord(4, "ticket", "run", payload), "partition 1, offset 7")
