"""Assertion rewriting for the modules of the state machine, so that pytest explains their failed asserts."""

import pytest

_MODULES = ("machine", "expected_state", "publishers", "support_machine", "topic_consumer", "system_under_test")
pytest.register_assert_rewrite(*(f"{__package__}.{name}" for name in _MODULES))
