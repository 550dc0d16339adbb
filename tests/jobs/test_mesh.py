"""Workers as chips of a mesh: sums over its links, round whoever dies."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from meshmend.testing import Fault
from tests.jobs.facts import one_line
from tests.jobs.jobs import SCRIPT, Job

SHRINK = ["--on-failure", "shrink"]
MESH = ["-n", "6", "--mesh", "2x3"]
Undisturbed = Callable[..., str]


def kill(rank: int, step: int, point: str = "relay", kind: str = "kill") -> Fault:
    return Fault(rank=rank, step=step, point=point, kind=kind)


@pytest.mark.parametrize(
    ("words", "faults", "options", "survivors"),
    [
        pytest.param(MESH, [], [], 6, marks=pytest.mark.jobs),
        ([*SHRINK, *MESH], [kill(1, 5), kill(4, 5, "compute")], ["width=70001"], 4),
        pytest.param(
            [*SHRINK, *MESH, "--algorithm", "ring"],
            [kill(0, 5), kill(3, 9), kill(2, 12, "compute")],
            [],
            3,
            marks=pytest.mark.jobs,
        ),
        ([*SHRINK, *MESH], [kill(1, 4), kill(4, 4)], [], 4),
        pytest.param(MESH, [kill(2, 4)], ["steps=300", "pause=0.05"], 6, marks=pytest.mark.jobs),
    ],
)
def test_weights_are_those_of_an_undisturbed_run(
    job: Job, words: list[str], faults: list[Fault], options: list[str], survivors: int, undisturbed: Undisturbed
) -> None:
    """Also where the hole cuts the mesh in two, which MPI's own way then joins."""
    job.faults = faults
    job.run(*words, script=[SCRIPT, *options])
    assert job.status == 0, job.output
    assert job.weights == [undisturbed(*options)] * survivors, job.output
    assert "sums go over 2x3 by" in job.output
    job.assert_clean()


@pytest.mark.parametrize(
    ("words", "options", "values"),
    [
        (["-n", "4", "--mesh", "2x3"], [], ["--mesh 2x3", "6 live chips", "4 workers", "-n 6"]),
        (["-n", "4", "--mesh", "2x2", "--spares", "1"], [], ["--mesh", "--spares 1"]),
        (["--mesh", "2by2"], [], ["'2by2'"]),
        (["--mesh", "1x3", "--algorithm", "ring"], [], ["ring"]),
    ],
)
def test_a_mistake_is_one_sentence(job: Job, words: list[str], options: list[str], values: list[str]) -> None:
    job.run(*words, script=[SCRIPT, *options])
    assert job.status == 2, job.output
    assert one_line(job, *values) and "Traceback" not in job.output, job.output


@pytest.mark.jobs
def test_bf16_travels_over_the_links_of_a_mesh(job: Job) -> None:
    """The weights depend on who computed what, but all survivors have the same."""
    job.faults = [kill(1, 5), kill(4, 9, "compute")]
    job.run(*SHRINK, *MESH, script=[SCRIPT, "reduction=float", "wire=bf16", "width=3333"])
    assert job.status == 0, job.output
    assert len(job.weights) == 4 and len(set(job.weights)) == 1, job.output
    assert "sums go over 2x3 by" in job.output
    job.assert_clean()
