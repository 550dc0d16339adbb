"""Events become JSON that people can read, and events again; epochs are ordered as things happen."""

from __future__ import annotations

import json

import pytest

from meshmend.telemetry import (
    Began,
    Committed,
    Component,
    Died,
    Differed,
    Ended,
    Epoch,
    Evaluated,
    Event,
    Formed,
    Halting,
    How,
    Opened,
    Raised,
    Repaired,
    Saved,
    SingleCopies,
    Skipped,
    Started,
    Steps,
    Struck,
    Why,
    parse,
)

EPOCH = Epoch(1, 2, 3)
ONE_OF_EACH = [
    Began(epoch=EPOCH, workers=4, spares=1, on_failure="replace"),
    Formed(epoch=EPOCH, ranks=[0, 1], why=Why.JOIN, joined=[1]),
    Died(epoch=EPOCH, what=Component.WORKER, how=How.SIGNAL, value=9, rank=2, process=812, step=7),
    Died(epoch=EPOCH, what=Component.HOST, how=How.LOST, host="b", ranks=[2, 3]),
    Started(epoch=EPOCH, rank=2, process=813, host="b"),
    Halting(epoch=EPOCH, reason="BadStart", details={"ranks": [1], "workers": 2}, writer=0),
    Ended(epoch=EPOCH, status=0),
    Repaired(epoch=EPOCH, was=Epoch(1, 2, 2), rank=0, round=6, noticed=1.5, times={"shrink": 0.1}, active=[0, 1]),
    SingleCopies(epoch=EPOCH, rank=0, round=6, slices=505, of=1024),
    Differed(epoch=EPOCH, rank=0, step=5, leaves={"w": "f00", "b": "ba2"}),
    Opened(epoch=EPOCH, rank=0, step=5, size=40, batch=8, lanes=4, seed=0, reduction="exact"),
    Committed(epoch=EPOCH, rank=0, step=5, by=[[0, 2], [1, 2]], digest="f00", metrics={"loss": 1.0}),
    Evaluated(epoch=EPOCH, rank=0, step=4, round=9, size=50, chunk=8, by=[[0, 4], [1, 3]], digest="a" * 12),
    Skipped(epoch=EPOCH, rank=0, step=5, by=[[0, 4]], why="NaN"),
    Saved(epoch=EPOCH, step=5, path="step-5", seconds=0.1, nbytes=9),
    Raised(epoch=EPOCH, rank=0, step=5, error="ValueError", trace="…"),
    Struck(epoch=EPOCH, what=Component.COURIER, fault="courier", rank=1, point="allreduce", step=5),
    Steps.gather(
        [
            Committed(epoch=EPOCH, rank=0, step=step, by=[[0, 4]], digest=f"{step:012x}", metrics={"loss": 1.0})
            for step in range(3)
        ]
    ),
]


@pytest.mark.parametrize("event", ONE_OF_EACH, ids=lambda event: type(event).__name__)
def test_events_are_read_as_they_were_written(event: Event) -> None:
    written = json.loads(event.line())
    assert parse(written).values() == event.values()
    assert parse({**written, "of a later version": 1}).values() == event.values()


def test_every_kind_is_tried() -> None:
    assert {type(event).__name__ for event in ONE_OF_EACH} == {*Event.kinds}


def test_names_are_readable() -> None:
    values = json.loads(ONE_OF_EACH[2].line())
    assert (values["what"], values["how"], values["value"], values["epoch"]) == ("WORKER", "SIGNAL", 9, [1, 2, 3])


def test_epochs_are_ordered() -> None:
    ordered = [Epoch(0), Epoch(0, 1), Epoch(0, 1, 1), Epoch(0, 2), Epoch(1), Epoch(1, 1)]
    assert sorted(ordered, reverse=True) == ordered[::-1]
    assert str(EPOCH) == "1.2.3"
