"""The protocol on real Open MPI processes, really killed."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tests.job.courier.mpi_member import undisturbed
from tests.job.reduction import bf16_member
from tests.processes import run_mpi


def run(
    folder: Path, members: int, wanted: int, kills: list[str], script: str = "courier.mpi_member"
) -> dict[int, np.ndarray]:
    command = [sys.executable, "-m", f"tests.job.{script}", str(folder), str(wanted), *kills]
    output = run_mpi(members, command, folder)
    results = {int(path.stem): np.load(path) for path in folder.glob("*.npy")}
    assert results, output
    return results


@pytest.mark.parametrize(
    ("members", "wanted", "kills", "survivors"),
    [
        (3, 3, [], {0, 1, 2}),
        (4, 4, ["2:Reduce:3"], {0, 1, 3}),
        (4, 4, ["0:Work:2"], {1, 2, 3}),
        (4, 4, ["1:Reduce:2", "3:Reduce:2"], {0, 2}),
        (4, 4, ["1:Reduce:2", "2:Gather:1"], {0, 3}),
        (4, 4, ["3:Reduce:2", "0:Enlist:1", "1:Shrink:1"], {2}),
        (4, 3, ["1:Reduce:2"], {0, 2, 3}),
        (2, 2, ["0:Reduce:0"], {1}),
    ],
)
def test_survivors_end_with_the_state_of_an_undisturbed_run(
    tmp_path: Path, members: int, wanted: int, kills: list[str], survivors: set[int]
) -> None:
    results = run(tmp_path, members, wanted, kills)
    assert set(results) == survivors
    for state in results.values():
        assert np.array_equal(state, undisturbed())


@pytest.mark.parametrize(
    ("members", "kills", "survivors"),
    [
        (1, [], {0}),
        pytest.param(3, [], {0, 1, 2}, marks=pytest.mark.jobs),
        (4, ["2:Reduce:3"], {0, 1, 3}),
        pytest.param(4, ["2:add:7"], {0, 1, 3}, marks=pytest.mark.jobs),
        (4, ["0:added:9"], {1, 2, 3}),
        pytest.param(4, ["0:added:4"], {1, 2, 3}, marks=pytest.mark.jobs),
        (4, ["1:add:0", "3:added:12", "0:add:13"], {2}),
        (4, ["1:add:6", "2:added:6", "3:Shrink:0"], {0}),
    ],
)
def test_bf16_travels_in_slices(tmp_path: Path, members: int, kills: list[str], survivors: set[int]) -> None:
    results = run(tmp_path, members, members, kills, "reduction.bf16_member")
    assert set(results) == survivors
    for state in results.values():
        assert np.array_equal(state, bf16_member.undisturbed())
