"""Checkpoints of slices: written by owners, resumed with any number of workers, refused where they do not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshmend.errors import FormatError, JobError, MeshmendError
from meshmend.job.sharding import Holdings, placed
from meshmend.job.slices.checkpoints import SliceCheckpoints
from meshmend.job.slices.files import (
    are_there,
    drop_unnamed,
    folder_of,
    resume,
    snapshot,
    weights_in,
    write_index,
    write_slices,
)
from meshmend.job.slices.holder import Holder, SliceOptimizer
from meshmend.job.slices.optimizers import of_slices
from meshmend.job.slices.saving import SliceSaver
from meshmend.job.state.safetensors import latest, load, save
from tests.job.slices.test_holder import ADAM, LEAVES, start, update
from tests.strategies import damaged, misshapen, modest

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


def table(holders: list[Holder]) -> np.ndarray:
    digests = {n: holder.digests(n) for holder in holders for n in holder.copies}
    return np.array([digests[n] for n in range(holders[0].slicing.count)], np.uint64)


def write(tmp_path: Path, holders: list[Holder], name: str = "") -> Path:
    for rank, holder in enumerate(holders):
        owned = [n for n, ranks in enumerate(placed(holder.slicing.count, range(len(holders)), 1)) if ranks[0] == rank]
        write_slices(tmp_path, STEP, snapshot(holder, owned))
    about = {"sharded": {"weights": [["w", [sum(LEAVES)]]]}}
    return write_index(tmp_path, STEP, holders[0], table(holders), holders[0].exact.state(), about, name)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_a_run_resumes_with_any_number_of_workers_bit_for_bit(tmp_path: Path, workers: int) -> None:
    before = group(3)
    train(before, range(4))
    index = write(tmp_path, before)
    after = group(workers)
    for rank, holder in enumerate(after):
        step, _, digests, grid, extras = resume(index, holder)
        assert not extras
        assert step == STEP and digests.tolist() == table(before).tolist()
        holder.exact.restore(grid)
        holder.hold(Holdings(placed(holder.slicing.count, range(workers), 1)).held_by(rank))
    train(before, range(4, 7))
    train(after, range(3), first=4)
    assert {holder.weights.tobytes() for holder in [*before, *after]} == {before[0].weights.tobytes()}


def test_without_an_index_there_is_no_checkpoint(tmp_path: Path) -> None:
    holders = group(2)
    write_slices(tmp_path, STEP, snapshot(holders[0], [0, 1]))
    assert not are_there(tmp_path, STEP, table(holders)) and latest(tmp_path) is None
    with pytest.raises(JobError):
        write_index(tmp_path, STEP, holders[0], table(holders), holders[0].exact.state(), {})
    assert write(tmp_path, holders) == latest(tmp_path)


def test_slices_of_another_attempt_at_the_same_step_are_never_taken_for_its_own(tmp_path: Path) -> None:
    holders = group(2)
    write(tmp_path, holders)
    before = weights_in(latest(tmp_path) or tmp_path)
    train(holders, range(2))
    assert not are_there(tmp_path, STEP, table(holders))
    index = write(tmp_path, holders)
    assert before is not None and before[0][1].tobytes() == start().tobytes()
    found = weights_in(index)
    assert found is not None and found[0][1].tobytes() == holders[0].weights.tobytes()


def test_slices_that_no_index_names_are_removed(tmp_path: Path) -> None:
    holders = group(2)
    write(tmp_path, holders, "best")
    stray = folder_of(tmp_path, STEP - 1)
    stray.mkdir()
    drop_unnamed(tmp_path, STEP)
    assert not stray.exists() and folder_of(tmp_path, STEP).exists()
    (tmp_path / "best.safetensors").unlink()
    drop_unnamed(tmp_path, STEP)
    assert folder_of(tmp_path, STEP).exists()  # it is not older, and may be being written
    drop_unnamed(tmp_path, STEP + 1)
    assert not folder_of(tmp_path, STEP).exists()


def test_checkpoints_of_another_state_or_optimizer_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, group(2))
    plain = save(tmp_path, [("w", start())], step=STEP, about={}, name="plain")
    with pytest.raises(JobError, match=r"without optimizer= in job\.share"):
        resume(plain, group(1)[0])
    with pytest.raises(JobError):
        resume(folder, group(1, leaves=[3000, 5])[0])
    with pytest.raises(JobError):
        resume(folder, Holder(LEAVES, start(), ADAM, 1, slices=2))
    momentum = of_slices(lambda weights: {"m": np.zeros_like(weights)}, update)
    with pytest.raises(JobError):
        resume(folder, group(1, momentum)[0])


@pytest.mark.parametrize("harm", ["missing", "damaged", "another"])
def test_slices_that_are_not_what_the_index_says_are_refused(tmp_path: Path, harm: str) -> None:
    holders = group(2)
    train(holders, range(2))
    index = write(tmp_path, holders)
    (victim,) = folder_of(tmp_path, STEP).glob("0001-*")
    if harm == "missing":
        victim.unlink()
    elif harm == "damaged":
        data = bytearray(victim.read_bytes())
        data[-1] ^= 1
        victim.write_bytes(data)
    else:
        train(holders, range(2, 3))
        write_slices(tmp_path, STEP, snapshot(next(holder for holder in holders if 1 in holder.copies), [1]))
        (other,) = set(folder_of(tmp_path, STEP).glob("0001-*")) - {victim}
        other.replace(victim)
    with pytest.raises(FormatError):
        resume(index, group(1)[0])


def judge(index: Path) -> None:
    for use in (lambda: resume(index, group(1)[0]), lambda: weights_in(index), lambda: drop_unnamed(index.parent, 0)):
        try:
            with modest():
                use()
        except MeshmendError as error:
            assert "\n" not in str(error) and len(str(error)) < 2000


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_an_index_that_is_wrong_is_a_sentence(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Its checksum is right."""
    folder = tmp_path_factory.mktemp("run")
    index = write(folder, group(1))
    leaves, step, about = load(index, None)
    if data.draw(st.booleans()):
        about = data.draw(damaged(about))
    else:
        leaves = data.draw(misshapen(leaves))
    save(folder, leaves, step=step, about=about, sweep=False)
    judge(index)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_slice_that_is_wrong_is_a_sentence(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("run")
    index = write(folder, group(1))
    path = data.draw(st.sampled_from(sorted(folder_of(folder, STEP).iterdir())))
    leaves, step, about = load(path, None)
    save(path.parent, data.draw(misshapen(leaves)), step=step, about=about, name=path.stem, sweep=False)
    judge(index)


class Background:
    """What saves a checkpoint of step 7, which this worker has written its slices of."""

    written = 7

    def found(self, step: int) -> bool:
        return step == 7


@pytest.mark.parametrize(("written", "there"), [(7, True), (6, False)])
def test_a_halt_in_the_next_update_is_saved_if_the_last_commit_is(written: int, there: bool) -> None:
    """A worker that writes the last commit in the background goes on, and may be told to update once more."""
    saver = SliceSaver.__new__(SliceSaver)
    slices = Background()
    slices.written = written
    saver.settled, saver._state = lambda: False, lambda: (None, 7, {})  # type: ignore[assignment, return-value]
    saver.slices = slices  # type: ignore[assignment]
    assert saver.now() is there
    assert not saver.now("best"), "one with a name is of what is here now"


def test_a_checkpoint_that_all_began_is_there_once_its_index_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = SliceCheckpoints.__new__(SliceCheckpoints)
    checkpoints._folder, checkpoints._thread = tmp_path, None
    monkeypatch.setattr("meshmend.job.slices.checkpoints.SLICES_WAIT", 0.0)
    assert not checkpoints.found(STEP)
    write(tmp_path, group(2))
    assert checkpoints.found(STEP)
