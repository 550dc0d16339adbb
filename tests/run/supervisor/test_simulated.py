"""The supervisor and the protocol together, under failures at every point."""

from __future__ import annotations

import pytest

from meshmend.run.supervisor import POLICIES
from tests.simulators.faults import Fault, Kind
from tests.simulators.supervisor import Case, simulate


@pytest.mark.parametrize("policy", POLICIES)
def test_a_worker_that_is_killed_at_any_point_costs_nothing(policy: str) -> None:
    spares = int(policy == "spare")
    for at in range(1, simulate(Case(policy=policy, spares=spares)).moves, 5):
        case = Case(policy=policy, spares=spares, faults=(Fault(Kind.KILL, at, target=1),))
        assert simulate(case).status == 0, case
