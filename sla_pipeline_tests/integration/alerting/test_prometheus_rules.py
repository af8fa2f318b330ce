"""The Prometheus rule file: made from the alert rules, and tested by promtool."""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from sla_pipeline.alerting.prometheus import rule_file
from sla_pipeline.alerting.rules import RULES

_FOLDER = Path(__file__).parents[3] / "docker" / "prometheus"
_RULES, _TESTS = "ticket-sla.rules.yml", "ticket-sla.tests.yml"
_PROMTOOL = shutil.which("promtool")
_needs_promtool = pytest.mark.skipif(
    _PROMTOOL is None, reason="promtool is not on PATH; Debian's package prometheus has it"
)


def _promtool(*arguments: str, folder: Path = _FOLDER) -> "subprocess.CompletedProcess[str]":
    assert _PROMTOOL is not None
    return subprocess.run([_PROMTOOL, *arguments], cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def test_the_file_is_made_from_the_rules() -> None:
    assert (_FOLDER / _RULES).read_text() == rule_file()


@_needs_promtool
def test_promtool_accepts_the_rules() -> None:
    checked = _promtool("check", "rules", _RULES)
    assert checked.returncode == 0, checked.stderr
    assert f"{len(RULES)} rules found" in checked.stdout


def test_each_rule_is_shown_pending_firing_and_resolved() -> None:
    shown: dict[str, set[str]] = {}
    for test in yaml.safe_load((_FOLDER / _TESTS).read_text())["tests"]:
        fired = False
        # a pending alert is shown twice: Prometheus counts it as pending, and nobody is called
        pending = {(case["expr"].split('"')[1], case["eval_time"]) for case in test["promql_expr_test"]}
        for case in test["alert_rule_test"]:
            name = case["alertname"]
            if case["exp_alerts"]:
                fired = True
                shown.setdefault(name, set()).add("firing")
            elif (name, case["eval_time"]) in pending:
                pending.remove((name, case["eval_time"]))
                shown.setdefault(name, set()).add("pending")
            elif fired:
                shown.setdefault(name, set()).add("resolved")
        assert not pending, f"{test['name']}: no case expects an empty list of alerts while the alert is pending"
    assert shown == {rule.name: {"pending", "firing", "resolved"} for rule in RULES}


@_needs_promtool
def test_promtool_passes_the_tests_of_the_rules() -> None:
    tested = _promtool("test", "rules", _TESTS)
    assert tested.returncode == 0, tested.stdout + tested.stderr


@_needs_promtool
@pytest.mark.parametrize(
    "changed",
    [
        ("backlog > 100", "backlog > 1000"),
        ("for: 600s", "for: 630s"),
        ("for: 300s", "for: 270s"),
        (" or support_ticket_sla_created_timestamp_seconds", ""),
        (" or absent(support_ticket_sla_up)", ""),
    ],
)
def test_a_changed_rule_fails_the_tests(changed: tuple[str, str], tmp_path: Path) -> None:
    rules = (_FOLDER / _RULES).read_text()
    assert changed[0] in rules
    (tmp_path / _RULES).write_text(rules.replace(*changed))
    shutil.copy(_FOLDER / _TESTS, tmp_path)
    assert _promtool("test", "rules", _TESTS, folder=tmp_path).returncode == 1
