"""Weights that change while the engine runs."""

from __future__ import annotations

import math

import pytest

from radixserve_runtime.scheduler.accounts import Accounts
from radixserve_runtime.scheduler.config import SchedulerConfig


def test_weights_hold_from_now_on_and_what_was_charged_stays() -> None:
    accounts = Accounts(SchedulerConfig(tenants={"a": 2.0}))
    tenant = accounts.enter("a")
    tenant.counter = 7.0
    accounts.set_weights({"a": 4.0, "b": 3.0})
    assert (tenant.weight, tenant.counter) == (4.0, 7.0)
    assert accounts.enter("b").weight == 3.0
    assert accounts.enter("c").weight == 1.0
    accounts.set_weights({"b": 5.0})
    assert tenant.weight == 1.0, "who is not named has weight 1"


@pytest.mark.parametrize("weight", [0.0, -1.0, math.inf, math.nan])
def test_weights_that_are_none_change_nothing(weight: float) -> None:
    accounts = Accounts(SchedulerConfig(tenants={"a": 2.0}))
    with pytest.raises(ValueError, match="'b' must be a positive number"):
        accounts.set_weights({"a": 1.0, "b": weight})
    assert accounts.enter("a").weight == 2.0
