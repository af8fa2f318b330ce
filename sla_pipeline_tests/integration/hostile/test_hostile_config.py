"""Hostile settings and inputs: each is accepted or refused with our message, without a secret (SPEC 3.2, 4.2, 4.3)."""

import os
import re
from typing import Any
from unittest import mock
from urllib.parse import quote

import dagster as dg
import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sla_pipeline.cycle import BATCH_SIZE, MAX_BATCHES_PER_CYCLE, CycleInput, IntegerRange
from sla_pipeline.defs.resources import cycle_values, kafka, postgres
from sla_pipeline.defs.sla_monitor.assets import sla_breaches
from sla_pipeline.defs.sla_monitor.jobs import ticket_sla_monitor
from sla_pipeline.errors import ConfigurationError, InputError, PostgresSetupError, PostgresUnavailable
from sla_pipeline.kafka.clients import ClientReports, TransactionalProducer, open_admin, open_consumer
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.postgres.session import PostgresSettings
from sla_pipeline_tests.integration.hostile.log_capture import everything_logged
from sla_pipeline_tests.integration.hostile.odd_values import CANARY, odd_text, odd_values
from sla_pipeline_tests.tickets import make_ticket, row_versions

Support = psycopg.Connection[Any]
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LONGEST_MESSAGE = 1_000
_quick = settings(derandomize=True, database=None, deadline=None, print_blob=True, max_examples=300)


def _allowed(value: object, allowed: IntegerRange) -> bool:
    return type(value) is int and allowed.low <= value <= allowed.high


def _assert_refused(error: Exception, *parts: str) -> None:
    message = str(error)
    assert all(word in message for word in parts), message
    assert message.isprintable()
    assert len(message) < _LONGEST_MESSAGE
    assert CANARY not in message
    assert error.__cause__ is None
    # Python prints the handled exception, with its secrets, along with ours, unless it is suppressed.
    assert error.__context__ is None or error.__suppress_context__


@_quick
@given(field=st.sampled_from(["batch_size", "max_batches_per_cycle", "tenant_id"]), value=odd_values)
@example(field="batch_size", value=10**5_000)
@example(field="tenant_id", value=10**5_000)
def test_a_cycle_takes_a_value_or_refuses_it_by_name(field: str, value: Any) -> None:
    try:
        given_input = CycleInput(**{field: value})
    except InputError as error:
        _assert_refused(error, f"{field} is ", "it must be a ")
        assert field == "tenant_id" or not _allowed(
            value, BATCH_SIZE if field == "batch_size" else MAX_BATCHES_PER_CYCLE
        )
        assert field != "tenant_id" or value is not None
    else:
        assert _allowed(given_input.batch_size, BATCH_SIZE)
        assert _allowed(given_input.max_batches_per_cycle, MAX_BATCHES_PER_CYCLE)
        assert given_input.tenant_id is None or _UUID.fullmatch(given_input.tenant_id)


# Dagster's own storage cannot hold a number of more digits than Python prints.
_typed_values = odd_values.filter(lambda value: not isinstance(value, int) or abs(value) < 10**1_000)


@pytest.mark.timeout(600)
def test_the_launchpad_takes_a_value_or_touches_nothing(
    support: Support, worker_url: str, kafka_settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLA_POSTGRES_URL", worker_url)
    monkeypatch.setenv("SLA_KAFKA_BOOTSTRAP_SERVERS", kafka_settings.bootstrap_servers)
    monkeypatch.setenv("SLA_KAFKA_TOPIC", kafka_settings.topic)
    definitions = dg.Definitions(
        assets=[sla_breaches],
        jobs=[ticket_sla_monitor],
        resources={"postgres": postgres, "kafka": kafka, "cycle_values": cycle_values},
    )
    job = definitions.resolve_job_def("ticket_sla_monitor")
    make_ticket(support, first_response_due_at="2999-01-01T00:00:00Z")

    def written() -> tuple[Any, ...]:
        cycles = support.execute("select count(*) from support.ticket_sla_cycles").fetchone()
        assert cycles is not None
        return row_versions(support), cycles[0]

    @settings(_quick, max_examples=15, suppress_health_check=[HealthCheck.too_slow])
    @given(
        field=st.sampled_from(["batch_size", "max_batches_per_cycle", "tenant_id", "now_utc", "batchsize"]),
        value=_typed_values,
    )
    @example(field="batch_size", value=10**30)
    @example(field="max_batches_per_cycle", value=200)
    @example(field="tenant_id", value="'; drop table support.tickets; --")
    @example(field="tenant_id", value="0a11ce00-0000-4000-8000-000000000001")
    def check(field: str, value: Any) -> None:
        rows, cycles = written()
        config = {"ops": {"sla_breaches": {"config": {field: value}}}}
        with dg.DagsterInstance.ephemeral() as instance:
            try:
                assert job.execute_in_process(instance=instance, run_config=config).success
            except dg.DagsterInvalidConfigError as error:
                accepted, message = 0, str(error)
            else:
                accepted, message = 1, ""
        assert accepted or field in message
        assert written() == (rows, cycles + accepted)
        assert accepted <= (field not in ("now_utc", "batchsize"))

    check()


# Texts that the environment can hold: no NUL; Python reads a byte that is not UTF-8 as half of a surrogate pair.
_environment_text = st.one_of(
    odd_text,
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=60),
    st.sampled_from(
        ["\udcff", "%ff", "%00", "%", "%zz", "@", ":", "/", "?", "#", "[", "]", ",", "=", "&", "\udc80\udcff"]
    ),
)
_secrets = st.tuples(_environment_text, _environment_text).map(lambda around: f"{around[0]}{CANARY}{around[1]}")
_postgres_urls = st.one_of(
    _environment_text,
    st.builds(
        "{}://{}@{}/{}".format, st.sampled_from(["postgresql", "postgres", "mysql", ""]), *[_environment_text] * 3
    ),
    st.builds("postgresql://worker:{}@db-1/support".format, _secrets),
    st.builds(
        "postgresql://worker:{}@db-1/support".format, _secrets.map(lambda text: quote(text, errors="surrogateescape"))
    ),
    st.builds("postgresql://worker:{}@{}:{}/{}".format, st.just(CANARY), *[_environment_text] * 3),
    st.builds("postgresql://db-1/support?password={}&{}={}".format, st.just(CANARY), *[_environment_text] * 2),
)


@_quick
@given(url=_postgres_urls)
@example(url=f"postgresql://worker:{CANARY}%ff@db-1/support")
@example(url=f"postgresql://worker:{CANARY}\udcff@db-1/support")
@example(url=f"postgresql://worker:{CANARY}@db..1/support")
@example(url=f"postgresql://worker:{CANARY}@{'d' * 300}/support")
def test_the_databases_url_is_taken_or_refused_and_never_shown(url: str) -> None:
    with mock.patch.dict(os.environ, {"SLA_POSTGRES_URL": url}):
        try:
            accepted = PostgresSettings.from_environment()
        except ConfigurationError as error:
            _assert_refused(error, "SLA_POSTGRES_URL ", "; ")
        else:
            assert accepted.url == url.strip()
            assert CANARY not in repr(accepted)
            # A text in the password's place is a password, or the URL is refused.
            if url.startswith("postgresql://worker:") and url.endswith("@db-1/support"):
                assert CANARY not in accepted.place
            assert accepted.place.isprintable()


def test_a_url_with_a_nul_is_refused_instead_of_cut_off() -> None:
    with pytest.raises(ConfigurationError) as raised:
        PostgresSettings(f"postgresql://worker:{CANARY}\0@db-1/support")
    _assert_refused(raised.value, "SLA_POSTGRES_URL cannot be parsed")


@pytest.mark.parametrize(
    "query",
    [
        *(f"port={port}" for port in ("0", "-1", "abc", "65536", "9" * 30)),
        *(f"host={host}" for host in ("%2Fnowhere", "a%20b", "nowhere.invalid", "ex%C3%A4mple.invalid")),
        *(f"dbname={name}" for name in ("d" * 10_240, "support%0aFATAL", "%27%3B--", "%F0%9F%98%80")),
        "user=%F0%9F%98%80",
        "options=-c%20nonsense",
        "sslmode=bogus",
        "sslmode=require",
        "service=nowhere",
        "keepalives=abc",
        "connect_timeout=abc",
        "hostaddr=abc",
        "target_session_attrs=standby",
        f"password={CANARY}",
        f"password={CANARY}%0a%00",
    ],
)
def test_a_url_that_cannot_be_used_is_refused_with_our_message(
    query: str, worker_url: str, worker_login: tuple[str, str]
) -> None:
    _, password = worker_login
    with pytest.raises((ConfigurationError, PostgresUnavailable, PostgresSetupError)) as raised:
        PostgresSettings(f"{worker_url}?{query}").connect(purpose="test")
    message = str(raised.value)
    assert "SLA_POSTGRES_URL" in message
    assert message.isprintable()
    assert len(message) < _LONGEST_MESSAGE
    assert CANARY not in message
    assert password not in message


@pytest.mark.parametrize(
    "query",
    ["connect_timeout=-1", "connect_timeout=1", "options=-c%20statement_timeout%3D0", "client_encoding=klingon"],
)
def test_a_url_cannot_undo_what_the_job_relies_on(query: str, worker_url: str) -> None:
    with PostgresSettings(f"{worker_url}?{query}").connect(purpose="test") as connection:
        assert connection.execute("show statement_timeout").fetchone() == ("10s",)
        assert connection.info.encoding == "utf-8"


_json_values = st.sampled_from(["1", '"x"', "true", "null", "[]", "1e999", "NaN", "9" * 5_000])
_kafka_environment = st.fixed_dictionaries(
    {"SLA_KAFKA_BOOTSTRAP_SERVERS": st.one_of(_environment_text, st.just("kafka-1:9092"))},
    optional={
        "SLA_KAFKA_TOPIC": _environment_text,
        "SLA_KAFKA_CLIENT_CONFIG": st.one_of(
            _environment_text,
            _json_values.map(lambda value: f"[{value}]"),
            st.builds('{{"sasl.password": "{}{}'.format, st.just(CANARY), _environment_text),
            st.builds(
                '{{"{}": {}}}'.format,
                _environment_text,
                st.sampled_from(["1", '"x"', "true", "null", "[]", "1e999", "NaN", "9" * 5_000]),
            ),
        ),
    },
)


@_quick
@given(environment=_kafka_environment)
@example(environment={"SLA_KAFKA_BOOTSTRAP_SERVERS": "k:9092", "SLA_KAFKA_CLIENT_CONFIG": "[" * 100_000})
@example(environment={"SLA_KAFKA_BOOTSTRAP_SERVERS": "k:9092", "SLA_KAFKA_CLIENT_CONFIG": '{"a": ' + "9" * 5_000 + "}"})
@example(
    environment={
        "SLA_KAFKA_BOOTSTRAP_SERVERS": "k:9092",
        "SLA_KAFKA_CLIENT_CONFIG": '{"batch.size": "' + "9" * 5_000 + '"}',
    }
)
@example(environment={"SLA_KAFKA_BOOTSTRAP_SERVERS": "k\udcff:9092"})
@example(environment={"SLA_KAFKA_BOOTSTRAP_SERVERS": "k:٩٠٩٢"})
def test_kafkas_settings_are_taken_or_refused_by_the_variables_name(environment: dict[str, str]) -> None:
    try:
        accepted = KafkaSettings.from_environment(environment)
    except ConfigurationError as error:
        _assert_refused(error, "SLA_KAFKA_")
    else:
        assert re.fullmatch(r"[A-Za-z0-9._-]{1,200}", accepted.topic)
        assert accepted.bootstrap_servers.isascii()
        assert CANARY not in repr(accepted)


_SECRET_SETTINGS = [
    "https.ca.pem",
    "sasl.jaas.config",
    "sasl.oauthbearer.config",
    "sasl.password",
    "sasl.username",
    "ssl.ca.pem",
    "ssl.certificate.pem",
    "ssl.key.password",
    "ssl.key.pem",
    "ssl.keystore.password",
]
_OTHER_SETTINGS = [
    "batch.size",
    "broker.address.family",
    "client.id",
    "compression.type",
    "debug",
    "linger.ms",
    "message.max.bytes",
    "metadata.max.age.ms",
    "plugin.library.paths",
    "queue.buffering.max.kbytes",
    "queue.buffering.max.messages",
    "sasl.kerberos.service.name",
    "sasl.mechanisms",
    "security.protocol",
    "socket.timeout.ms",
    "ssl.ca.location",
    "ssl.cipher.suites",
    "ssl.keystore.location",
    "",
    "no.such.setting",
    "Transactional.Id",
    "topic.acks",
]
_KEYWORDS = [
    "true",
    "SSL",
    "SASL_SSL",
    "SASL_PLAINTEXT",
    "PLAIN",
    "OAUTHBEARER",
    "SCRAM-SHA-512",
    "lz4",
    "inf",
    "nan",
    "1e9",
    "4294967297",
]
_client_values = st.one_of(
    odd_text, st.integers().map(str), st.sampled_from(_KEYWORDS), st.sampled_from(["a\0b", "\ud800"])
)
_client_secrets = st.one_of(
    _client_values.map(lambda text: f"{text}{CANARY}"),
    st.just(f"-----BEGIN CERTIFICATE-----\n{CANARY}\n-----END CERTIFICATE-----"),
)


@pytest.mark.timeout(600)
@settings(_quick, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(
    secrets=st.dictionaries(st.sampled_from(_SECRET_SETTINGS), _client_secrets, max_size=2),
    others=st.dictionaries(st.one_of(st.sampled_from(_OTHER_SETTINGS), odd_text), _client_values, max_size=2),
)
@example(secrets={}, others={"\ud800": "x"})
@example(secrets={"sasl.password": f"{CANARY}\0"}, others={})
@example(secrets={"sasl.password": f"{CANARY}\ud800"}, others={})
@example(secrets={}, others={"queue.buffering.max.kbytes": "4294967297"})
@example(secrets={"ssl.key.pem": CANARY}, others={"security.protocol": "SSL"})
def test_a_client_is_made_of_further_settings_or_they_are_refused(
    secrets: dict[str, str], others: dict[str, str]
) -> None:
    """Nothing listens on the port, so a client has no time to log anything else."""
    with everything_logged() as logged:
        try:
            kafka = KafkaSettings("127.0.0.1:1", client_config={**others, **secrets})
            reports = ClientReports()
            TransactionalProducer(kafka).drop()
            open_admin(kafka, reports)
            open_consumer(kafka, reports, isolation_level="read_committed").close()
        except ConfigurationError as error:
            message = str(error)
        else:
            message = f"SLA_KAFKA_CLIENT_CONFIG is accepted: {kafka!r}"
    assert "SLA_KAFKA_CLIENT_CONFIG" in message
    assert not any(CANARY in line for line in (message, *logged))
