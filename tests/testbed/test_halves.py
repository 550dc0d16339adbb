"""A mesh that is cut in two under a training run: one half goes on at most, and the other commits nothing more."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from meshmend import Mesh, report, testbed
from meshmend.mesh.grid import Chip
from meshmend.run.console import sentence, world_reason
from meshmend.run.supervisor.messages import Halting, HaltReason, Joined, Message, Split, TooFew, WrongSide
from meshmend.telemetry import Committed, Died, Saved, Started, read
from tests.jobs.conftest import undisturbed as undisturbed
from tests.jobs.jobs import SCRIPT
from tests.testbed.beds import need_testbed
from tests.testbed.test_job import Training

Undisturbed = Callable[..., str]


@pytest.fixture(autouse=True)
def _needed() -> None:
    need_testbed()


def across(mesh: str, column: int) -> str:
    """All links from a column to the next: what cuts a mesh in two."""
    return " ".join(f"link@{row},{column}:{row},{column + 1}" for row in range(Mesh.parse(mesh).rows))


def told(message: Message, at: Chip) -> str:
    """What a launcher on that chip says."""
    return sentence(message).replace(socket.gethostname(), f"chip-{at[0]}-{at[1]}")


def chips(mesh: str, ranks: Sequence[int]) -> tuple[str, ...]:
    """The hosts of these ranks."""
    cols = Mesh.parse(mesh).cols
    return tuple(sorted(f"chip-{rank // cols}-{rank % cols}" for rank in ranks))


def assert_nothing_more(folder: Path, ended: list[int]) -> None:
    """The ledger is right, and these workers have committed nothing after they were given up."""
    events = read(folder / "runs" / "bed")
    assert report.check(events).findings == []
    cut = min(event.time for event in events if isinstance(event, Died))
    again = {event.rank: event.time for event in events if isinstance(event, Started) and event.time > cut}
    late = [event for event in events if isinstance(event, Committed) and event.rank in ended and event.time > cut]
    assert all(event.time > again.get(event.rank, float("inf")) for event in late), late


def test_the_larger_half_goes_on(tmp_path: Path, undisturbed: Undisturbed) -> None:
    """Chips see their links go, so that this takes seconds."""
    with testbed.Testbed(Mesh.parse("1x3"), "50mbit") as bed:
        run = Training(bed, tmp_path, "--mesh", "1x3", str(SCRIPT), "steps=20", "pause=0.1", at=(0, 0))
        run.until(r"step 3\b")
        bed.cut(across("1x3", 1))
        weights = run.finish()
    assert told(Split(("chip-0-2",), far=(2,), near=(0, 1)), (0, 0)) in run.output
    assert weights == [undisturbed("steps=20")] * 2, run.output
    assert_nothing_more(tmp_path, [2])


@pytest.mark.jobs
@pytest.mark.parametrize(
    ("mesh", "column", "words", "at", "near", "far"),
    [
        ("2x3", 1, [], (1, 0), [0, 1, 3, 4], [2, 5]),
        ("2x3", 0, ["--mesh", "2x3"], (1, 2), [1, 2, 4, 5], [0, 3]),
        ("2x2", 0, [], (1, 0), [0, 2], [1, 3]),
    ],
)
def test_one_half_goes_on(
    tmp_path: Path, mesh: str, column: int, words: list[str], at: Chip, near: list[int], far: list[int],
    undisturbed: Undisturbed,
) -> None:  # fmt: skip
    """Of two equal halves, that with worker 0."""
    with testbed.Testbed(Mesh.parse(mesh), "50mbit") as bed:
        run = Training(bed, tmp_path, *words, str(SCRIPT), "steps=60", "pause=0.1", at=at)
        run.until(r"step 5\b")
        bed.cut(across(mesh, column))
        weights = run.finish()
    assert told(Split(chips(mesh, far), far=tuple(far), near=tuple(near)), at) in run.output
    assert weights == [undisturbed("steps=60")] * len(near), run.output
    assert_nothing_more(tmp_path, far)


@pytest.mark.jobs
@pytest.mark.parametrize(
    ("mesh", "at", "words", "why"),
    [
        ("2x3", (0, 2), [], WrongSide(chips("2x3", [0, 1, 3, 4]), near=(2, 5), far=(0, 1, 3, 4))),
        ("2x2", (0, 1), ["--mesh", "2x2"], WrongSide(chips("2x2", [0, 2]), near=(1, 3), far=(0, 2))),
        ("2x2", (0, 0), ["--min-workers", "3"], TooFew(2, 3)),
    ],
)
def test_neither_half_can_go_on(
    tmp_path: Path, mesh: str, at: Chip, words: list[str], why: HaltReason, undisturbed: Undisturbed
) -> None:
    """The launcher is not with the larger half, or too few are left: a checkpoint, and the run can be resumed."""
    with testbed.Testbed(Mesh.parse(mesh), "50mbit") as bed:
        halves = across(mesh, Mesh.parse(mesh).cols - 2)
        run = Training(bed, tmp_path, *words, str(SCRIPT), "steps=60", "pause=0.1", at=at)
        run.until(r"step 5\b")
        bed.cut(halves)
        assert run.finish(status=75) == []
        assert told(Halting(why, checkpoint=True), at) in run.output
        assert [event.step for event in read(tmp_path / "runs" / "bed") if isinstance(event, Saved)][-1] >= 5
        bed.mend(halves)
        again = Training(bed, tmp_path, "--resume", "bed", at=at)
        assert again.finish() == [undisturbed("steps=60")] * len(bed.chips), again.output
    assert report.check(read(tmp_path / "runs" / "bed")).findings == []


@pytest.mark.jobs
def test_chips_that_were_cut_off_join_again(tmp_path: Path, undisturbed: Undisturbed) -> None:
    with testbed.Testbed(Mesh.parse("2x3"), "50mbit") as bed:
        run = Training(bed, tmp_path, "--mesh", "2x3", str(SCRIPT), "steps=300", "pause=0.1", at=(0, 0))
        run.until(r"step 5\b")
        bed.cut(across("2x3", 1))
        run.until("4 workers")
        bed.mend(across("2x3", 1))
        run.until(world_reason(Joined((2, 5))))
        run.until("sums go over 2x3 by")
        weights = run.finish()
    assert weights == [undisturbed("steps=300")] * 6, run.output
    assert_nothing_more(tmp_path, [2, 5])
