"""Lets pytest explain a failed ``assert`` of the machine's modules as it does in a test."""

import pytest

_MODULES = ("machine", "oracle", "publishers", "support_machine", "witness", "world")
pytest.register_assert_rewrite(*(f"{__package__}.{name}" for name in _MODULES))
