"""Input of a cycle (SPEC 3.2, 4): each bad value is refused with field, value and range."""

from typing import Any

import pytest

from sla_pipeline.cycle import CycleInput
from sla_pipeline.errors import InputError


def test_the_defaults() -> None:
    defaults = CycleInput()
    assert (defaults.batch_size, defaults.max_batches_per_cycle, defaults.tenant_id, defaults.ceiling) == (
        500,
        20,
        None,
        10_000,
    )


@pytest.mark.parametrize(("batch_size", "max_batches", "ceiling"), [(1, 1, 1), (1000, 200, 200_000)])
def test_the_bounds_are_allowed(batch_size: int, max_batches: int, ceiling: int) -> None:
    assert CycleInput(batch_size, max_batches).ceiling == ceiling


@pytest.mark.parametrize("value", [0, -1, 1001, "many", "500", 2.5, 500.0, True, None, float("nan"), 10**30])
def test_batch_size_out_of_range(value: Any) -> None:
    with pytest.raises(InputError) as raised:
        CycleInput(batch_size=value)
    assert str(raised.value) == f"batch_size is {value!r}; it must be a whole number from 1 to 1000 (default 500)"


@pytest.mark.parametrize("value", [0, -1, 201, "all", 20.0, False, None])
def test_max_batches_per_cycle_out_of_range(value: Any) -> None:
    with pytest.raises(InputError) as raised:
        CycleInput(max_batches_per_cycle=value)
    assert (
        str(raised.value) == f"max_batches_per_cycle is {value!r}; it must be a whole number from 1 to 200 (default 20)"
    )


@pytest.mark.parametrize("value", ["", "all", "0a11ce00-0000-4000-8000", 7, "0a11ce00-0000-4000-8000-00000000000g"])
def test_a_tenant_that_is_no_uuid(value: Any) -> None:
    with pytest.raises(InputError) as raised:
        CycleInput(tenant_id=value)
    assert str(raised.value) == f"tenant_id is {value!r}; it must be a UUID, or be left out for all tenants"


def test_a_tenant_has_one_spelling() -> None:
    assert (
        CycleInput(tenant_id="0A11CE00-0000-4000-8000-00000000000F").tenant_id == "0a11ce00-0000-4000-8000-00000000000f"
    )
