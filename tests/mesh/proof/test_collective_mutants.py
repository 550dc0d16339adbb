"""Break one thing in a good plan or schedule of a collective: verify must refuse every mutant that is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshmend as mm
from tests.mesh.collectives.checks import is_right

OTHERS = [("3x4 -chip@1,1", name) for name in mm.COLLECTIVES if name != "all_reduce"]


def plans() -> list[mm.CollectivePlan]:
    groups = [mm.plan("4x4", groups=mm.tile(2, 2)), mm.plan("8x3 -chip@3,1", groups=mm.tile(2, 1))]
    return [*groups, *(mm.plan(text, collective=name) for text, name in OTHERS)]


PLANS = plans()
SCHEDULES = [plan.schedule(hop=1 + number % 2) for number, plan in enumerate(PLANS)]


def refusal(thing: mm.CollectivePlan | mm.CollectiveSchedule) -> str:
    """Why verify refuses it; empty if it does not."""
    try:
        mm.verify(thing)
    except mm.VerifyError as error:
        assert "\n" not in str(error)
        return str(error)
    return ""


def rows(schedule: mm.CollectiveSchedule, keep: Any, **values: Any) -> mm.CollectiveSchedule:
    """The schedule with these rows of its table, in this order, and values put into single ones."""
    table = schedule.table
    columns = {name: getattr(table, name)[keep].copy() for name in ("slot", "link", "chunk", "copy")}
    for name, (row, value) in values.items():
        columns[name][row] = value
    order = np.argsort(columns["slot"], kind="stable")
    return replace(schedule, table=replace(table, **{name: column[order] for name, column in columns.items()}))


def test_what_is_not_broken_is_proved() -> None:
    for plan, schedule in zip(PLANS, SCHEDULES, strict=True):
        assert refusal(plan) == refusal(schedule) == ""
        assert is_right(schedule, int(plan.root[0]))


@settings(max_examples=400, deadline=None)
@given(which=st.sampled_from(range(len(SCHEDULES))), data=st.data())
def test_a_mutant_schedule_that_is_wrong_is_refused(which: int, data: st.DataObject) -> None:
    schedule, size = SCHEDULES[which], len(SCHEDULES[which])
    table = schedule.table
    every, row = np.arange(size), data.draw(st.integers(0, size - 1))
    other = data.draw(st.integers(0, size - 1))
    kind = data.draw(
        st.sampled_from(["drop", "twice", "chunk", "link", "copy", "slot", "owner", "group", "to", "swap"])
    )
    if kind == "drop":
        mutant = rows(schedule, np.delete(every, row))
    elif kind == "twice":
        mutant = rows(schedule, np.append(every, row), slot=(size, table.slots + 3))
    elif kind == "swap":
        mutant = rows(schedule, every, slot=(row, table.slot[other]))
        mutant = rows(mutant, every)
    elif kind in ("owner", "group", "to"):
        array = getattr(schedule, kind).copy()
        at = data.draw(st.integers(0, len(array) - 1))
        array[at] = data.draw(st.integers(-2, schedule.mesh.size))
        mutant = replace(schedule, **{kind: array})
        # Who takes part, or whose a chunk is, changes what is asked for: only equal labels ask for the same.
        assert refusal(mutant) or np.array_equal(array, getattr(schedule, kind))
        return
    else:
        most = {"chunk": table.chunks, "link": schedule.mesh.link_numbers, "copy": 2, "slot": table.slots}[kind]
        mutant = rows(schedule, every, **{kind: (row, data.draw(st.integers(0, most - 1)))})
    if not refusal(mutant):
        assert is_right(mutant, int(PLANS[which].root[0]))


@settings(max_examples=300, deadline=None)
@given(which=st.sampled_from(range(len(PLANS))), data=st.data())
def test_a_mutant_plan_is_refused_or_still_right(which: int, data: st.DataObject) -> None:
    plan = PLANS[which]
    name = data.draw(st.sampled_from(["up", "down", "root", "share", "group"]))
    array = getattr(plan, name).copy()
    at = tuple(data.draw(st.integers(0, length - 1)) for length in array.shape)
    top = {"up": 4, "down": 4, "root": plan.mesh.size, "group": plan.groups}.get(name, 0)
    array[at] = data.draw(st.floats(0, 2)) if name == "share" else data.draw(st.integers(-1, top))
    mutant = replace(plan, **{name: array})
    if not refusal(mutant):
        schedule = mutant.schedule()
        assert refusal(schedule) == ""
        assert is_right(schedule, int(mutant.root[0]))


def first_relay(schedule: mm.CollectiveSchedule) -> int:
    """A transfer of a part that reaches a chip of another group."""
    receiver, table = schedule.group[schedule.table.receiver], schedule.table
    return int(np.flatnonzero((receiver != schedule.owner[table.chunk]) & ~table.copy)[0])


def test_a_relay_that_adds_is_refused() -> None:
    schedule = SCHEDULES[0]
    table, row = schedule.table, first_relay(SCHEDULES[0])
    relay, chunk = int(table.receiver[row]), int(table.chunk[row])
    # Its part arrives a second time, from the chip behind it, before it was forwarded: a relay would have to add.
    late = replace(schedule, group=np.where(np.arange(16) == relay, schedule.owner[chunk], schedule.group))
    assert refusal(late)
    again = rows(schedule, np.append(np.arange(len(table)), row), slot=(len(table), table.slots + 5))
    assert "a relay forwards and never adds" in refusal(again)


def test_a_plan_in_which_a_relay_adds_is_refused() -> None:
    plan = PLANS[0]
    up = plan.up.copy()
    flow, mesh = 0, plan.mesh
    relays = np.flatnonzero((up[flow] >= 0) & (plan.group != plan.group[plan.root[flow]]))
    taken = False
    for relay in relays.tolist():
        for way in range(4):
            there = int(mesh.neighbour[relay, way])
            home = int(mesh.link_source(int(mesh.reverse[mesh.link_number(relay, way)]))[1]) if there >= 0 else -1
            if there >= 0 and up[flow, there] < 0 and there != plan.root[flow]:
                up[flow, there] = home  # a chip of another group sends its own part to the relay
                taken = True
                break
        if taken:
            break
    assert taken
    assert "is a relay without exactly one child: it must forward, and never add" in refusal(replace(plan, up=up))


@pytest.mark.parametrize("which", range(len(SCHEDULES)))
def test_a_dead_link_is_refused(which: int) -> None:
    schedule = SCHEDULES[which]
    link = int(schedule.table.link[0])
    ends = schedule.mesh.ends(*schedule.mesh.link_source(link))
    dead = schedule.mesh.fail(links=[ends])
    assert "dead or does not exist" in refusal(replace(schedule, table=replace(schedule.table, mesh=dead)))
    assert "no live link" in refusal(replace(PLANS[which], mesh=dead))


def test_a_part_missing_and_a_part_twice_are_refused() -> None:
    schedule = SCHEDULES[0]
    table = schedule.table
    last = len(table) - 1
    assert "ends without the part of chip" in refusal(rows(schedule, np.arange(last)))
    add = int(np.flatnonzero(~table.copy & (schedule.group[table.receiver] == schedule.owner[table.chunk]))[0])
    again = rows(schedule, np.append(np.arange(len(table)), add), slot=(len(table), table.slots + 5))
    assert "would count twice" in refusal(again)


def test_a_chip_of_the_wrong_group_is_refused() -> None:
    schedule, plan = SCHEDULES[0], PLANS[0]
    swapped = plan.group.copy()
    row = next(row for row in range(0, 16, 2) if not {row, row + 1} & set(plan.root.tolist()))
    swapped[[row, row + 1]] = swapped[[row + 1, row]]
    assert refusal(replace(plan, group=swapped))
    assert refusal(replace(schedule, group=swapped))


def test_an_unknown_collective_and_broken_tables_are_refused() -> None:
    plan, schedule = PLANS[2], SCHEDULES[2]
    assert "is not one of all_reduce" in refusal(replace(plan, collective="gossip"))
    assert "is not one of all_reduce" in refusal(replace(schedule, collective="gossip"))
    assert "share is not an array of numbers" in refusal(replace(plan, share=plan.root))
    assert "owner is not a flat array" in refusal(replace(schedule, owner=schedule.owner[1:]))
    assert "expected" in refusal(replace(schedule, cut=schedule.cut * 2))
