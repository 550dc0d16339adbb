"""One registry of failures: what fail_at and chaos take, and what strikes when."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from meshmend.errors import JobError
from meshmend.job.faults import KINDS, Fault, Faults, Point, Target, chaos_kinds, default_kinds, fail_at
from meshmend.job.faults.base import COURIER_POINTS, WORKER_POINTS
from meshmend.job.faults.inject import VARIABLE
from meshmend.job.faults.kinds import FLIP, RAISE
from meshmend.job.shm import create_as_agent, home, leave, open_as_worker
from meshmend.job.shm.mailbox import WorkerSide
from meshmend.telemetry import Epoch, Log, Struck, read

EPOCH = Epoch(0, 2, 1)
OUTSIDE = ("slow", "courier-stop", "agent", "mpirun-stop", "launcher", "term")
"""What happens at no point of a step in particular."""


def test_every_kind_can_be_brought_about_from_inside_or_outside() -> None:
    assert {kind.name for kind in KINDS.values()} == set(KINDS)
    assert set(chaos_kinds()) == {"kill", "hang", "courier", "mpirun", "flip", *OUTSIDE}
    assert set(default_kinds()) == set(chaos_kinds()) - {"flip", "agent", "launcher", "term"}
    for kind in KINDS.values():
        assert kind.what and (kind.points or kind.outside)
    assert {*WORKER_POINTS, *COURIER_POINTS} == set(Point)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("point", Point)
def test_a_fault_is_possible_where_its_kind_says_so(kind: str, point: Point) -> None:
    if point in KINDS[kind].points:
        assert Fault(rank=0, step=1, point=point.value, kind=kind).kind == kind
    else:
        with pytest.raises(JobError, match=f"kind='{kind}'"):
            Fault(rank=0, step=1, point=point.value, kind=kind)
    in_courier = point in COURIER_POINTS
    assert (point in KINDS[kind].points) == (
        kind in ("kill", "hang", "courier")
        if in_courier
        else kind not in ("mpirun", *OUTSIDE) and (kind != "flip" or point == "commit")
    )


@pytest.mark.parametrize(("point", "kind"), [("lunch", "kill"), ("compute", "flood")])
def test_a_mistake_is_one_sentence_that_names_the_choices(point: str, kind: str) -> None:
    with pytest.raises(JobError, match=r"allreduce.*kill"):
        Fault(rank=0, step=1, point=point, kind=kind)


def test_contexts_nest_and_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with fail_at(rank=1, step=7), fail_at(rank=2, step=7, point="allreduce") as second:
        told = [Fault(**values) for values in json.loads(os.environ[VARIABLE])]
        assert told == [Fault(rank=1, step=7), second]
    assert VARIABLE not in os.environ


def test_a_fault_strikes_once_in_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    log = Log(tmp_path, "worker-1")
    with fail_at(rank=1, step=7, kind=RAISE.name), fail_at(rank=1, step=8, point="commit", kind=FLIP.name):
        faults = Faults(1, tmp_path, log, lambda: EPOCH)
        assert Faults(0, tmp_path, log, lambda: EPOCH).strike(Point.COMPUTE, 7) is None
        assert faults.strike(Point.COMMIT, 7) is None
        with pytest.raises(RuntimeError, match="injected fault"):
            faults.strike(Point.COMPUTE, 7)
        assert Faults(1, tmp_path, log, lambda: EPOCH).strike(Point.COMPUTE, 7) is None  # in the worker's successor
        flip = faults.strike(Point.COMMIT, 8)  # only the caller has the state
        assert flip is not None and flip.kind == FLIP.name
    struck = [event for event in read(tmp_path) if isinstance(event, Struck)]
    assert [(event.fault, event.point) for event in struck] == [("raise", "compute"), ("flip", "commit")]
    assert {event.epoch for event in struck} == {EPOCH}


@pytest.mark.parametrize(
    ("kind", "status"), [("kill", -signal.SIGKILL), ("exit", 3), ("courier", 0)], ids=["kill", "exit", "courier"]
)
def test_what_it_does_to_the_process_that_meets_it(tmp_path: Path, kind: str, status: int) -> None:
    code = f"""
import pathlib
from meshmend.job.faults import Faults, Point
from meshmend.telemetry import Epoch, Log
folder = pathlib.Path({str(tmp_path)!r})
Faults(0, folder, Log(folder, "worker-0"), lambda: Epoch(0)).strike(Point.COMPUTE, 0)
"""
    environment = {**os.environ, VARIABLE: json.dumps([{"rank": 0, "step": 0, "kind": kind}])}
    assert subprocess.run([sys.executable, "-c", code], env=environment, timeout=100).returncode == status


def test_a_flip_from_outside_reaches_the_worker_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "MEMORY", tmp_path)
    create_as_agent("mine", 2)
    worker = WorkerSide(open_as_worker("mine", 2))
    assert not worker.flip()
    for _ in range(2):
        assert FLIP.outside is not None
        FLIP.outside(Target("mine", 2, 0, 0, 0, 0))
        assert [worker.flip(), worker.flip()] == [True, False]
    assert leave("mine")
