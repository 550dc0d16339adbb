"""Every staged plan or schedule whose sums are wrong must be refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshmend as mm
from meshmend.errors import VerifyError
from meshmend.mesh.executors.staged import replay
from meshmend.mesh.staged import StagedPlan, StagedSchedule, staged
from meshmend.mesh.staged.plan import ABSENT, ROOT

PLANS = [
    staged(mm.Mesh.parse(text), gaps)
    for text, gaps in (("4x4 wrap=xy", (1, 1)), ("4x4 wrap=xy", (4, 2)), ("3x4", (2, 1)), ("3x3x3 wrap=xyz", (2, 1, 1)))
]
TABLES = [plan.schedule(nbytes=16e3) for plan in PLANS]


def mutant(whole: StagedSchedule, kind: str, draw: np.random.Generator) -> StagedSchedule:
    """The schedule with one thing wrong."""
    table, row, cell = whole.table, int(draw.integers(len(whole))), int(draw.integers(len(whole.chip)))
    keep = np.arange(len(whole)) != row
    arrays = {name: getattr(whole, name).copy() for name in ("take", "put", "source", "flow")}
    columns = {name: getattr(table, name).copy() for name in ("slot", "link", "chunk", "copy")}
    if kind == "drop":
        arrays |= {name: arrays[name][keep] for name in ("take", "put")}
        columns = {name: column[keep] for name, column in columns.items()}
    elif kind == "twice":
        arrays |= {name: np.append(arrays[name], arrays[name][row]) for name in ("take", "put")}
        columns = {name: np.append(column, column[row]) for name, column in columns.items()}
        columns["slot"][-1] = columns["slot"].max() + table.hop
    elif kind == "relabel":
        columns["copy"][row] ^= True
    elif kind == "redirect":
        name = ("take", "put")[int(draw.integers(2))]
        same = np.flatnonzero(whole.chip == whole.chip[arrays[name][row]])
        arrays[name][row] = draw.choice(same)
    elif kind == "source":
        same = np.flatnonzero(whole.chip[:cell] == whole.chip[cell])
        arrays["source"][cell] = draw.choice([-2, -1, *same])
    elif kind == "chunk":
        columns["chunk"][row] = draw.integers(table.chunks)
    else:
        columns["slot"][row] = max(0, columns["slot"][row] - int(draw.integers(1, 4 * table.hop)))
        order = np.argsort(columns["slot"], kind="stable")
        arrays |= {name: arrays[name][order] for name in ("take", "put")}
        columns = {name: column[order] for name, column in columns.items()}
    return replace(whole, table=replace(table, **columns), **arrays)


KINDS = ["drop", "twice", "relabel", "redirect", "source", "chunk", "early"]


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(TABLES), st.sampled_from(KINDS), st.integers(0, 2**32))
def test_mutants_of_schedules_with_wrong_sums_are_refused(whole: StagedSchedule, kind: str, seed: int) -> None:
    changed = mutant(whole, kind, np.random.default_rng(seed))
    parts = 4 ** np.arange(len(whole.mesh.live), dtype=object)[:, None] * np.ones((1, whole.chunks), object)
    right = bool((replay(changed, parts) == parts.sum(0)).all())
    try:
        mm.verify(changed)
    except VerifyError:
        return
    assert right, f"a mutant with wrong sums was accepted: {kind}"


@pytest.mark.parametrize("kind", ["drop", "twice"])
def test_these_mutants_are_always_refused(kind: str) -> None:
    for whole in TABLES:
        with pytest.raises(VerifyError):
            mm.verify(mutant(whole, kind, np.random.default_rng(1)))


def changed_flow(plan: StagedPlan, stage: int, layer: int, chip: int, way: int) -> StagedPlan:
    first, *others = plan.flows
    stages = [array.copy() for array in first.stages]
    stages[stage][layer, chip] = way
    return replace(plan, flows=(replace(first, stages=tuple(stages)), *others))


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(PLANS), st.integers(0, 2**32))
def test_mutants_of_plans_are_refused_or_still_right(plan: StagedPlan, seed: int) -> None:
    draw = np.random.default_rng(seed)
    stage = int(draw.integers(len(plan.flows[0].stages)))
    layer = int(draw.integers(len(plan.flows[0].stages[stage])))
    way = int(draw.integers(ABSENT, len(plan.mesh.ways) + 1))
    changed = changed_flow(plan, stage, layer, int(draw.integers(plan.mesh.size)), way)
    try:
        mm.verify(changed)
    except VerifyError:
        return
    parts = 4 ** np.arange(len(plan.mesh.live), dtype=object)[:, None] * np.ones((1, len(plan)), object)
    schedule = changed.schedule()
    mm.verify(schedule)
    assert (replay(schedule, parts) == parts.sum(0)).all()


def test_plans_are_refused_with_the_reason() -> None:
    plan = PLANS[0]
    with pytest.raises(VerifyError, match="shares add up"):
        mm.verify(replace(plan, flows=plan.flows[:1]))
    with pytest.raises(VerifyError, match=r"without every part|outside its layer"):
        mm.verify(changed_flow(plan, 0, 0, 5, ABSENT))
    with pytest.raises(VerifyError, match="two layers"):
        mm.verify(changed_flow(plan, 0, 0, 5, ROOT))
    first, *others = plan.flows
    with pytest.raises(VerifyError, match=r"gets no result|runs in a circle"):
        mm.verify(replace(PLANS[1], flows=tuple(replace(f, down=np.full_like(f.down, -1)) for f in PLANS[1].flows)))
    line = staged(mm.Mesh.parse("1x4"), [4])
    missing = line.flows[0].down.copy()
    missing[np.flatnonzero(missing >= 0)[-1]] = ABSENT
    with pytest.raises(VerifyError, match="gets no result"):
        mm.verify(replace(line, flows=(replace(line.flows[0], down=missing), *line.flows[1:])))
    with pytest.raises(VerifyError, match="no stages"):
        mm.verify(replace(plan, flows=(replace(first, stages=()), *others)))
