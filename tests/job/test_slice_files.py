"""Checkpoints of slices: written by owners, resumed with any number of workers, refused where they do not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from meshmend.errors import FormatError, JobError
from meshmend.job.holder import Holder, SliceOptimizer
from meshmend.job.sharding import Holdings, placed
from meshmend.job.slice_files import folder_of, resume, write_index, write_slices
from tests.job.test_holder import ADAM, LEAVES, start, update

SLICES, STEP = 4, 7


def group(workers: int, optimizer: SliceOptimizer = ADAM, leaves: list[int] = LEAVES) -> list[Holder]:
    """Workers that hold what they should, with one buddy each."""
    made = [Holder(leaves, start()[: sum(leaves)], optimizer, 1, SLICES) for _ in range(workers)]
    holdings = Holdings(placed(made[0].slicing.count, range(workers), 1))
    for rank, holder in enumerate(made):
        holder.hold(holdings.held_by(rank))
    return made


def train(holders: list[Holder], rounds: range, first: int = 0) -> None:
    """Rounds in which nobody dies."""
    for number in rounds:
        wire = holders[0].exact.wire()
        gradient = np.random.default_rng(first + number).standard_normal(holders[0].exact.size).astype(np.float32)
        holders[0].exact.add(wire, gradient)
        for holder in holders:
            holder.scatter(number, [wire], holder.copies.keys())
            holder.update(number, holder.copies.keys())
        digests = {n: holder.digests(n) for holder in holders for n in holder.copies}
        for holder in holders:
            holder.agree(digests)
            for n in range(holder.slicing.count):
                if n not in holder.copies:
                    holder.receive(n, next(other.of(n) for other in holders if n in other.copies))


def write(tmp_path: Path, holders: list[Holder]) -> Path:
    """Each slice by its owner, and then the index."""
    digests = {}
    for rank, holder in enumerate(holders):
        owned = [n for n, ranks in enumerate(placed(holder.slicing.count, range(len(holders)), 1)) if ranks[0] == rank]
        digests |= write_slices(tmp_path, STEP, holder, owned)
    write_index(tmp_path, STEP, holders[0], digests)
    return folder_of(tmp_path, STEP)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_a_run_resumes_with_any_number_of_workers_bit_for_bit(tmp_path: Path, workers: int) -> None:
    before = group(3)
    train(before, range(4))
    folder = write(tmp_path, before)
    after = group(workers)
    for rank, holder in enumerate(after):
        assert resume(folder, holder) == STEP
        holder.hold(Holdings(placed(holder.slicing.count, range(workers), 1)).held_by(rank))
    train(before, range(4, 7))
    train(after, range(3), first=4)
    assert {holder.weights.tobytes() for holder in [*before, *after]} == {before[0].weights.tobytes()}


def test_without_an_index_there_is_no_checkpoint(tmp_path: Path) -> None:
    holders = group(2)
    digests = write_slices(tmp_path, STEP, holders[0], [0, 1])
    with pytest.raises(JobError):
        write_index(tmp_path, STEP, holders[0], digests)
    with pytest.raises((FormatError, JobError)):
        resume(folder_of(tmp_path, STEP), holders[1])


def test_checkpoints_of_another_state_or_optimizer_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, group(2))
    with pytest.raises(JobError):
        resume(folder, group(1, leaves=[3000, 5])[0])
    with pytest.raises(JobError):
        resume(folder, Holder(LEAVES, start(), ADAM, 1, slices=2))
    momentum = SliceOptimizer(lambda weights: {"m": np.zeros_like(weights)}, update)
    with pytest.raises(JobError):
        resume(folder, group(1, momentum)[0])


@pytest.mark.parametrize("harm", ["missing", "damaged", "another"])
def test_slices_that_are_not_what_the_index_says_are_refused(tmp_path: Path, harm: str) -> None:
    holders = group(2)
    train(holders, range(2))
    folder = write(tmp_path, holders)
    victim = folder / "slice-0001.safetensors"
    if harm == "missing":
        victim.unlink()
    elif harm == "damaged":
        data = bytearray(victim.read_bytes())
        data[-1] ^= 1
        victim.write_bytes(data)
    else:
        train(holders, range(2, 3))
        write_slices(tmp_path, STEP, next(holder for holder in holders if 1 in holder.copies), [1])
    with pytest.raises(FormatError):
        resume(folder, group(1)[0])
