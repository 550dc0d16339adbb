"""Break one thing in a good plan or schedule: verify must refuse every mutant that changes the result.

Whether a mutant changes the result is decided by running it (`executors/reference.py`) on integers that are powers of a
base, so that the sum shows which part was counted how often.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshmend import Mesh, Plan, Schedule, VerifyError, plan, verify
from meshmend.mesh.executors.reference import _replay
from tests.strategies import meshes

MESHES = ["4x4", "3x5 -chip@1,1", "4x4 wrap=xy -link@0,0:0,1", "6x6 -2x2@2,2"]


def schedules() -> list[Schedule]:
    made = [plan(text, algorithm="trees").schedule(12 * 9) for text in MESHES]
    made.append(plan("4x4", algorithm="ring").schedule(64, hop=2))
    made.append(plan("4x4", algorithm="rowcol").schedule(64))
    made.append(plan("4x4", algorithm="trees").schedule(40, hop=3))
    return made


def is_right(schedule: Schedule) -> bool:
    """Whether running the table gives every chip every part once; every chip has its own random large number."""
    chips = len(schedule.mesh.live)
    parts = np.random.default_rng(7).integers(1, 2**40, (chips, schedule.chunks))
    return np.array_equal(_replay(schedule, parts), np.broadcast_to(parts.sum(0), parts.shape))


def refused(thing: Plan | Schedule) -> bool:
    try:
        verify(thing)
    except VerifyError as error:
        assert "Traceback" not in str(error)
        return True
    return False


def change(schedule: Schedule, row: int, **values: Any) -> Schedule:
    columns = {name: getattr(schedule, name).copy() for name in ("slot", "link", "chunk", "copy")}
    for name, value in values.items():
        columns[name][row] = value
    return in_order(schedule, columns)


def in_order(schedule: Schedule, columns: dict[str, np.ndarray]) -> Schedule:
    order = np.argsort(columns["slot"], kind="stable")
    return replace(schedule, **{name: column[order] for name, column in columns.items()})


def drop(schedule: Schedule, row: int) -> Schedule:
    return replace(schedule, **{n: np.delete(getattr(schedule, n), row) for n in ("slot", "link", "chunk", "copy")})


def duplicate(schedule: Schedule, row: int, slot: int) -> Schedule:
    columns = {n: np.append(getattr(schedule, n), getattr(schedule, n)[row]) for n in ("slot", "link", "chunk", "copy")}
    columns["slot"][-1] = slot
    return in_order(schedule, columns)


def swap_slots(schedule: Schedule, row: int, other: int) -> Schedule:
    columns = {name: getattr(schedule, name).copy() for name in ("slot", "link", "chunk", "copy")}
    columns["slot"][[row, other]] = columns["slot"][[other, row]]
    return in_order(schedule, columns)


def mutants(schedule: Schedule, random: np.random.Generator, count: int) -> list[tuple[str, Schedule]]:
    out = []
    for _ in range(count):
        row, other = (int(i) for i in random.integers(len(schedule), size=2))
        slot = int(random.integers(schedule.slots + 3))
        live = schedule.mesh.neighbour[schedule.link[row] // 4]
        ways = np.flatnonzero((live >= 0) & (np.arange(4) != schedule.link[row] % 4))
        out += [
            ("drop", drop(schedule, row)),
            ("duplicate", duplicate(schedule, row, slot)),
            ("move", change(schedule, row, slot=slot)),
            ("swap", swap_slots(schedule, row, other)),
            ("other chunk", change(schedule, row, chunk=int(random.integers(schedule.chunks)))),
            ("reduce for copy", change(schedule, row, copy=not schedule.copy[row])),
        ]
        if len(ways):
            link = int(schedule.link[row] // 4 * 4 + random.choice(ways))
            out.append(("redirect", change(schedule, row, link=link)))
    return out


@pytest.mark.parametrize("schedule", schedules(), ids=lambda s: f"{s.mesh} hop {s.hop}")
def test_mutants_of_schedules_are_refused(schedule: Schedule) -> None:
    verify(schedule)
    assert is_right(schedule)
    killed = dict.fromkeys(("drop", "duplicate", "move", "swap", "other chunk", "reduce for copy", "redirect"), 0)
    for kind, mutant in mutants(schedule, np.random.default_rng(1), 60):
        if not is_right(mutant):
            assert refused(mutant), f"a wrong schedule passed: {kind}"
            killed[kind] += 1
    assert all(killed.values()), killed


def test_refusals_name_chip_chunk_and_slot() -> None:
    good = plan("4x4", algorithm="trees").schedule(40)
    late = int(np.argmax(~good.copy))
    with pytest.raises(VerifyError, match=r"slot \d+: chunk \d+ from chip \d,\d [NESW] to chip \d,\d") as caught:
        verify(change(good, late, slot=good.slots + 5))
    assert None not in (caught.value.chip, caught.value.chunk, caught.value.slot)
    with pytest.raises(VerifyError, match=r"chunk \d+: chip \d,\d ends without the part of chip \d,\d"):
        verify(drop(good, int(np.flatnonzero(good.copy)[-1])))


def test_contention_and_dead_links_are_refused() -> None:
    good = plan("4x4 -link@0,0:0,1", algorithm="trees").schedule(40)
    same_slot = np.flatnonzero(good.slot == good.slot[0])
    with pytest.raises(VerifyError, match="carries another chunk in this slot"):
        verify(change(good, int(same_slot[0]), link=good.link[same_slot[1]]))
    with pytest.raises(VerifyError, match="dead or does not exist"):
        verify(change(good, 0, link=1))
    with pytest.raises(VerifyError, match="out of range"):
        verify(change(good, 0, chunk=40))
    with pytest.raises(VerifyError, match="in order"):
        verify(replace(good, slot=good.slot[::-1].copy()))


@settings(max_examples=60, deadline=None)
@given(meshes(7), st.integers(0, 2**32 - 1), st.booleans())
def test_mutants_of_plans_are_refused(mesh: Mesh, seed: int, upward: bool) -> None:
    good = plan(mesh, algorithm="trees")
    verify(good)
    random = np.random.default_rng(seed)
    flow, chip = int(random.integers(len(good))), int(random.choice(mesh.live))
    for way in range(-2, 5):
        trees = (good.up if upward else good.down).copy()
        if trees[flow, chip] == way:
            continue
        trees[flow, chip] = way
        mutant = replace(good, up=trees) if upward else replace(good, down=trees)
        assert refused(mutant) == (not spans(mutant))


def spans(made: Plan) -> bool:
    """A walk from every chip, as plain as can be: does each tree lead all live chips to its root over live links?"""
    for trees in (made.up, made.down):
        for tree, root in zip(trees, made.root, strict=True):
            for start in range(made.mesh.size):
                here, steps = start, 0
                if not made.mesh.alive[start]:
                    if tree[start] != -1:
                        return False
                    continue
                while here != root:
                    if not 0 <= tree[here] <= 3 or made.mesh.neighbour[here, tree[here]] < 0 or steps > made.mesh.size:
                        return False
                    here, steps = int(made.mesh.neighbour[here, tree[here]]), steps + 1
            if tree[root] != -1:
                return False
    return True


@pytest.mark.parametrize(
    ("mutate", "message"),
    [
        (lambda p: replace(p, share=p.share * 1.001), "add up to 1.001"),
        (lambda p: replace(p, share=np.append(-p.share[:1], p.share[1:])), "flow 0 has share -"),
        (lambda p: replace(p, share=p.share[1:]), "has shape"),
        (lambda p: replace(p, root=np.roll(p.root, 1)), "is the root|is cut off|never reaches"),
        (lambda p: replace(p, mesh=p.mesh.fail((0, 0))), "dead"),
        (lambda p: replace(p, mesh=p.mesh.fail(((0, 0), (0, 1)))), "no live link"),
    ],
)
def test_wrong_plans_are_refused_with_a_reason(mutate: Any, message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        verify(mutate(plan("4x4", algorithm="trees")))


def test_verify_takes_plans_and_schedules_only() -> None:
    with pytest.raises(TypeError, match="not Mesh"):
        verify(Mesh(2, 2))  # type: ignore[arg-type]


def test_other_right_forms_pass() -> None:
    """Both ends add at once, as recursive doubling does: unlike any plan here, and right all the same."""
    both = Schedule(
        Mesh(1, 2), 1, 1, np.zeros(2, np.int32), np.array([1, 7], np.int32), np.zeros(2, np.int32), np.zeros(2, bool)
    )
    verify(both)
    assert is_right(both)


@pytest.mark.parametrize("name", ["slot", "link", "chunk", "copy"])
def test_columns_of_other_kinds_are_refused(name: str) -> None:
    good = plan("2x2", algorithm="trees").schedule(8)
    with pytest.raises(VerifyError, match=f"column {name} is not a flat array"):
        verify(replace(good, **{name: getattr(good, name).astype(np.float64)}))
    for field in ("share", "root", "up", "down"):
        made = plan("2x2", algorithm="trees")
        with pytest.raises(VerifyError, match=f"{field} is not an array"):
            verify(replace(made, **{field: getattr(made, field).astype(str)}))


def test_a_plan_on_another_mesh_has_that_mesh_s_bound() -> None:
    made = plan("4x4", algorithm="trees")
    assert made.efficiency == pytest.approx(1)
    moved = replace(made, mesh=Mesh.parse("4x4 wrap=xy"))
    verify(moved)
    assert moved.efficiency == pytest.approx(0.75)
