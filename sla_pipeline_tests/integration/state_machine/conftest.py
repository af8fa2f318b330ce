"""Lets pytest explain a failed ``assert`` of the machine's modules as it does in a test."""

import pytest

pytest.register_assert_rewrite(*(f"{__package__}.{name}" for name in ("machine", "oracle", "publishers", "witness", "world")))
