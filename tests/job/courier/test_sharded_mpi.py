"""Sharded rounds on real Open MPI processes, really killed: Adam on exact sums, bit for bit the unsharded loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.job.courier.sharded_member import ROUNDS, alone
from tests.job.courier.test_mpi import run


@pytest.mark.parametrize(
    ("members", "wanted", "kills", "survivors"),
    [
        pytest.param(3, 3, [], {0, 1, 2}, marks=pytest.mark.jobs),
        pytest.param(4, 4, ["2:Prepare:3"], {0, 1, 3}, marks=pytest.mark.jobs),
        pytest.param(4, 4, ["2:Scatter:3"], {0, 1, 3}, marks=pytest.mark.jobs),
        pytest.param(4, 4, ["0:Meet:2"], {1, 2, 3}, marks=pytest.mark.jobs),
        pytest.param(4, 4, ["1:Meet:2+"], {0, 2, 3}, marks=pytest.mark.jobs),
        pytest.param(4, 4, ["3:Update:2+"], {0, 1, 2}, marks=pytest.mark.jobs),
        pytest.param(4, 4, ["2:Compare:2+"], {0, 1, 3}, marks=pytest.mark.jobs),
        pytest.param(4, 4, ["0:Give:3+"], {1, 2, 3}, marks=pytest.mark.jobs),
        pytest.param(4, 4, ["2:Give:1", "1:Prepare:5"], {0, 3}, marks=pytest.mark.jobs),
        (4, 3, ["1:Meet:2+"], {0, 2, 3}),
        pytest.param(2, 2, ["0:Compare:0"], {1}, marks=pytest.mark.jobs),
    ],
)
def test_survivors_have_the_weights_of_one_worker_alone(
    tmp_path: Path, members: int, wanted: int, kills: list[str], survivors: set[int]
) -> None:
    results = run(tmp_path, members, wanted, kills, "courier.sharded_member")
    assert set(results) == survivors
    for weights in results.values():
        assert weights.tobytes() == alone(ROUNDS)[0].tobytes()
