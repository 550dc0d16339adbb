"""For how long slices had one copy alone."""

from __future__ import annotations

from meshmend.report.copies import CopyCount
from meshmend.telemetry import Committed, Epoch, SingleCopies


def copies(*changes: tuple[float, int], last: float) -> CopyCount:
    found = CopyCount()
    for time, slices in changes:
        found.add(SingleCopies(time=time, epoch=Epoch(0, 1, 1), rank=0, round=3, slices=slices, of=12))
    found.add(Committed(time=last, epoch=Epoch(0, 1, 1), rank=0, step=9, by=[[0, 1]], digest="0", metrics={}))
    return found


def test_times_with_a_single_copy_are_added_up() -> None:
    found = copies((10.0, 5), (10.5, 2), (11.0, 0), (20.0, 7), (20.25, 0), last=30.0)
    assert (found.seconds, found.most, found.of) == (1.25, 7, 12)
    assert copies(last=30.0).seconds == 0


def test_what_lasts_until_the_end_counts_until_the_last_step() -> None:
    assert copies((10.0, 5), last=12.0).seconds == 2.0


def test_events_of_several_writers_may_come_in_another_order() -> None:
    assert copies((11.0, 0), (10.0, 5), last=30.0).seconds == 1.0


def test_the_time_between_two_attempts_does_not_count() -> None:
    """A run that was stopped with single copies, and resumed a day later, has all copies in its checkpoint."""
    found = copies((10.0, 5), last=12.0)
    for event in (
        SingleCopies(time=86_400.0, epoch=Epoch(1, 1, 0), rank=0, round=0, slices=0, of=12),
        SingleCopies(time=86_405.0, epoch=Epoch(1, 1, 1), rank=0, round=4, slices=3, of=12),
        SingleCopies(time=86_406.0, epoch=Epoch(1, 1, 1), rank=0, round=5, slices=0, of=12),
        Committed(time=86_407.0, epoch=Epoch(1, 1, 1), rank=0, step=12, by=[[0, 1]], digest="0", metrics={}),
    ):
        found.add(event)
    assert (found.seconds, found.most) == (3.0, 5)
