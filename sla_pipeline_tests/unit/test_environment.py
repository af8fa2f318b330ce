"""Variables from shells, env files and mounted secrets.

A value is accepted, or refused with the variable's name in one line. The value itself is never shown.
"""

import re

import pytest

from sla_pipeline import cli
from sla_pipeline.environment import variable
from sla_pipeline.errors import ConfigurationError

_CANARY = "sw0rdf1sh"
# Every command with the variables that it reads. `replay` and `demo` read no setting of a deployment.
_COMMANDS = {
    "cycle": (
        "SLA_POSTGRES_URL",
        "SLA_KAFKA_BOOTSTRAP_SERVERS",
        "SLA_KAFKA_TOPIC",
        "SLA_KAFKA_CLIENT_CONFIG",
        "SLA_SINGLE_RUNNER",
    ),
    "preview": ("SLA_POSTGRES_URL",),
    "tail": ("SLA_KAFKA_BOOTSTRAP_SERVERS", "SLA_KAFKA_TOPIC", "SLA_KAFKA_CLIENT_CONFIG"),
    "verify": ("SLA_POSTGRES_URL", "SLA_KAFKA_BOOTSTRAP_SERVERS", "SLA_KAFKA_TOPIC", "SLA_KAFKA_CLIENT_CONFIG"),
    "migrate": ("SLA_POSTGRES_OWNER_URL", "SLA_KAFKA_BOOTSTRAP_SERVERS", "SLA_KAFKA_TOPIC", "SLA_KAFKA_CLIENT_CONFIG"),
    "recover": ("SLA_POSTGRES_OWNER_URL", "SLA_KAFKA_BOOTSTRAP_SERVERS", "SLA_KAFKA_TOPIC", "SLA_KAFKA_CLIENT_CONFIG"),
}
_GOOD = {
    # Nothing listens on port 1: a command that accepts a wrong value ends with 75.
    "SLA_POSTGRES_URL": f"postgresql://worker:{_CANARY}@127.0.0.1:1/support",
    "SLA_POSTGRES_OWNER_URL": f"postgresql://owner:{_CANARY}@127.0.0.1:1/support",
    "SLA_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1",
    "SLA_KAFKA_TOPIC": "tickets.breached",
    "SLA_KAFKA_CLIENT_CONFIG": f'{{"sasl.password": "{_CANARY}"}}',
    "SLA_SINGLE_RUNNER": "0",
}
_REQUIRED = ("SLA_POSTGRES_URL", "SLA_POSTGRES_OWNER_URL", "SLA_KAFKA_BOOTSTRAP_SERVERS")


@pytest.mark.parametrize("text", ["a value\n", "a value\r\n", "\n a value \n\n", "a value", "\ta value"])
def test_white_space_around_a_value_is_no_part_of_it(text: str) -> None:
    assert variable("X", {"X": text}) == "a value"


@pytest.mark.parametrize("environment", [{}, {"X": ""}, {"X": " \n"}])
def test_an_empty_variable_equals_one_that_is_not_set(environment: dict[str, str]) -> None:
    assert variable("X", environment) == ""


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (f"{_CANARY}\nb", "holds a line break; write the value as plain text on one line"),
        (f"{_CANARY}\rb", "holds a line break; write"),
        (f"{_CANARY}\0b", "holds a control character"),
        (f"{_CANARY}\x1b[2J", "holds a control character"),
        (f"\ufeff{_CANARY}", "holds a control character, or another one that cannot be printed; write"),
        (f"{_CANARY}\udcff", "holds bytes that are not UTF-8; write"),
        (
            f'"{_CANARY}"',
            'is enclosed in quotation marks ("), which are part of its value; write the value without them',
        ),
        (f"'{_CANARY}'\n", "is enclosed in quotation marks ('), which are part of its value"),
    ],
)
def test_a_text_that_no_setting_can_have_is_refused_by_name_and_not_shown(text: str, fault: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(f"X {fault}")) as raised:
        variable("X", {"X": text})
    assert _CANARY not in str(raised.value)


@pytest.mark.parametrize("text", ['a"b', "'", "\"a'", "été 東京", '"a" "b'])
def test_other_text_is_returned_unchanged(text: str) -> None:
    assert variable("X", {"X": text}) == text


def test_json_may_stand_on_several_lines() -> None:
    assert variable("X", {"X": '{\n\t"a": 1\r\n}\n'}, several_lines=True) == '{\n\t"a": 1\r\n}'
    with pytest.raises(ConfigurationError, match="X holds a control character"):
        variable("X", {"X": "{\n\x07}"}, several_lines=True)


@pytest.mark.parametrize(
    ("command", "name", "fault"),
    [
        (command, name, fault)
        for command, names in _COMMANDS.items()
        for name in names
        for fault in ("missing", "line break", "not UTF-8", "quotation marks")
        if fault != "missing" or name in _REQUIRED
    ],
)
def test_each_command_refuses_each_of_its_variables_in_one_line(
    command: str, name: str, fault: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for good, value in _GOOD.items():
        monkeypatch.setenv(good, value)
    value = _GOOD[name]
    middle = len(value) // 2
    malformed = {
        "missing": "",
        # JSON allows line breaks, but not inside a text.
        "line break": f"{value[:middle]}\n{value[middle:]}x",
        "not UTF-8": f"{value}\udcff",
        "quotation marks": f"'{value}'",
    }
    monkeypatch.setenv(name, malformed[fault])
    monkeypatch.setattr("sys.argv", ["sla-pipeline", command])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    printed = capsys.readouterr().err
    assert ended.value.code == 2
    assert re.fullmatch(rf"sla-pipeline: .*{name}.*\n", printed)
    assert _CANARY not in printed.replace("\\n", "")
