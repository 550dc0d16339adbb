"""Each record can be written by its owner alone: the type checker says so, and the memory under it does."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from enum import IntEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshmend.errors import JobError
from meshmend.job.protocol.rounds import MOST_LANES
from meshmend.job.shm import create_as_agent, open_as_agent, open_as_courier, open_as_worker, open_to_read
from meshmend.job.shm import records as module
from meshmend.job.shm.control import ORDER, PLACES
from meshmend.job.shm.records import (
    AgentRecord,
    Assigned,
    CourierPhase,
    CourierRecord,
    FlipWanted,
    Order,
    PartWanted,
    WorkerRecord,
    WritableCourierRecord,
    WritableWorkerRecord,
)
from meshmend.job.shm.segment import Segment, open_for_chaos
from meshmend.job.shm.words import (
    Choice,
    Flag,
    Int,
    Mailbox,
    Process,
    Record,
    Stamp,
    Time,
    pack_lanes,
    unpack_lanes,
)

OPEN = {"agent": open_as_agent, "worker": open_as_worker, "courier": open_as_courier, "chaos": open_for_chaos}
WRITES = {
    "agent": "segment.agent.world = 3",
    "worker": "segment.worker.step = 3",
    "courier": "segment.courier.done = 3",
    "chaos": "segment.chaos.flip_wanted = FlipWanted()",
}


def write(segment: Segment, owner: str) -> None:
    exec(WRITES[owner], {"segment": segment, "FlipWanted": FlipWanted})


@pytest.mark.parametrize("owner", [*OPEN, "reader"])
def test_a_record_is_written_by_its_owner_alone(home: Path, owner: str) -> None:
    del home
    create_as_agent("mine", 0)
    segment = OPEN.get(owner, open_to_read)("mine", 0)
    for other in OPEN:
        if other == owner:
            write(segment, other)
        else:
            with pytest.raises(TypeError, match="read-only"):
                write(segment, other)
    with pytest.raises(AttributeError):
        segment.worker.stepp = 3  # type: ignore[attr-defined]


def test_the_type_checker_rejects_a_write_to_the_record_of_another(tmp_path: Path) -> None:
    opens = {**{owner: f"open_as_{owner}" for owner in ("agent", "worker", "courier")}, "chaos": "open_for_chaos"}
    lines = ["from meshmend.job.shm.segment import *", "from meshmend.job.shm.records import FlipWanted"]
    wrong = []
    for owner, name in {**opens, "reader": "open_to_read"}.items():
        lines += ["", f"def {owner}() -> None:", f"    segment = {name}('', 0)"]
        for other, line in WRITES.items():
            lines.append(f"    {line}")
            if other != owner:
                wrong.append(len(lines))
    script = tmp_path / "writes.py"
    script.write_text("\n".join(lines) + "\n")
    sources = [str(Path(module.__file__).with_name(f"{name}.py")) for name in ("words", "records", "segment")]
    # Other modules are not read: with numpy and the whole package it would take a minute.
    words = ["--follow-imports=skip", "--no-error-summary", "--cache-dir", os.devnull, *sources, str(script)]
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", *words], cwd=tmp_path, capture_output=True, text=True, timeout=250
    )
    found = [int(line.split(":")[1]) for line in ran.stdout.splitlines() if "writes.py" in line and ": error:" in line]
    assert found == wrong, ran.stdout + ran.stderr


def test_records_do_not_overlap_and_every_field_is_explained() -> None:
    tree = ast.parse(Path(module.__file__).read_text())
    bodies = {node.name: node.body for node in tree.body if isinstance(node, ast.ClassDef)}
    for kind in ORDER:
        places = sorted((field.place, field.place + field.size) for field in kind.fields.values())
        assert [begin for begin, _ in places] == [0, *(end for _, end in places[:-1])]
        assert places[-1][1] == kind.size <= PLACES[kind].stop - PLACES[kind].start
        body = bodies[kind.__name__]
        explained = {
            before.targets[0].id
            for before, after in pairwise(body)
            if isinstance(before, ast.Assign) and isinstance(before.targets[0], ast.Name)
            and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        }  # fmt: skip
        assert explained >= set(kind.fields) - {"flip_wanted"}
    ends = [(PLACES[kind].start, PLACES[kind].stop) for kind in ORDER]
    assert all(before[1] == after[0] for before, after in pairwise(ends))
    kinds = {Int, Flag, Time, Choice, Mailbox, Process, Stamp}
    assert {type(f) for kind in ORDER for f in kind.fields.values()} == kinds


def test_a_field_has_its_type() -> None:
    words = WorkerRecord.initial()
    worker = WritableWorkerRecord(words)
    worker.step, worker.saving = 7, True
    assert (worker.step, worker.saving) == (7, True)
    courier = WritableCourierRecord(CourierRecord.initial())
    courier.phase = CourierPhase.REPAIRING
    assert courier.phase is CourierPhase.REPAIRING
    courier.phase = CourierPhase.CARRYING
    assert (courier.done, courier.phase, courier.assigned) == (-1, CourierPhase.CARRYING, None)
    courier.phase_since = 12345.678
    assert courier.phase_since == pytest.approx(12345.678, abs=1e-6)
    with pytest.raises(ValueError, match="9"):
        _ = CourierRecord([9] * CourierRecord.size).phase
    assert issubclass(Order, IntEnum) and AgentRecord.order.kind.kinds == [Order, int]


@given(st.integers(-1, 2**31 - 2), st.integers(0, 2**20 - 1), st.integers(0, 2**12 - 1))
def test_a_stamp_is_one_word(round: int, world: int, shrink: int) -> None:
    courier = WritableCourierRecord(CourierRecord.initial())
    assert courier.met == (-1, 0, 0)
    courier.met = round, world, shrink
    assert courier.met == (round, world, shrink)
    for more in ((2**31 - 1, 0, 0), (0, 2**20, 0), (0, 0, 2**12)):
        with pytest.raises(JobError):
            courier.met = more
    assert courier.met == (round, world, shrink)


@given(st.sets(st.integers(0, MOST_LANES - 1)))
def test_lanes_are_a_bitmap(lanes: set[int]) -> None:
    assert unpack_lanes(pack_lanes(lanes)) == tuple(sorted(lanes))


@given(st.lists(st.tuples(st.integers(-1, 1 << 40), st.sets(st.integers(0, MOST_LANES - 1))), min_size=1, max_size=5))
def test_a_message_is_read_as_it_was_written_and_has_a_number_of_its_own(values: list[tuple[int, set[int]]]) -> None:
    words: Any = CourierRecord.initial()
    courier, numbers = WritableCourierRecord(words), set()
    for round, lanes in values:
        courier.part_wanted = PartWanted(round, bool(round % 2), tuple(sorted(lanes)))
        courier.assigned = Assigned(round, tuple(sorted(lanes)))
        mail, assigned = courier.part_wanted, courier.assigned
        assert mail is not None and assigned is not None
        assert mail.body == PartWanted(round, bool(round % 2), tuple(sorted(lanes)))
        assert assigned.body == Assigned(round, tuple(sorted(lanes)))
        numbers.add(mail.number)
    assert len(numbers) == len(values)


def test_a_message_without_fields_has_a_number() -> None:
    class Only(Record):
        flip = Mailbox(FlipWanted)

    words = [0] * Only.size
    assert Only(words).flip is None
    Only.fields["flip"].store(words, FlipWanted())
    Only.fields["flip"].store(words, FlipWanted())
    mail = Only(words).flip
    assert mail is not None and mail.number == 4
