"""Schedules on real MPI processes, bit for bit beside the numpy reference."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

import meshmend as mm
from tests.processes import run_mpi

RANKS = 9


def cases() -> list[tuple[str, str, int, int, str]]:
    """Meshes and graphs with and without holes, up to nine live chips, every algorithm that exists there."""
    random = np.random.default_rng(7)
    meshes = [
        "1x1",
        "1x2",
        "2x2",
        "3x3",
        "1x9",
        "3x3 wrap=xy",
        "3x3 -chip@1,1",
        "3x3 -link@0,0:0,1",
        "4x4 -2x2@1,1 -2x2@2,2",
        "2x2x2",
        "2x2x2 -chip@0,1,0",
        "1x3x3 wrap=yz ~0.5@0,0,0:0,1,0",
        "3x3 ~0.75@0,0:0,1",
        "0-1-2-3-0 0-2",
        "0-1-2-3-4-5-6-7-0-4 1-5 2-6 3-7 -chip@5 ~0.5@0:4",
    ]
    meshes += [str(mm.Mesh(4, 3).fail_random(seed, chips=3).largest()) for seed in range(4)]
    found = []
    for mesh in meshes:
        for algorithm in ("trees", "ring", "rowpair", "rowcol"):
            try:
                flows = len(mm.plan(mesh, algorithm=algorithm))
            except mm.PlanError:
                continue
            chunks = int(random.integers(1, 4)) * flows
            size = int(random.choice([0, 1, 5, 1000, 40_001]))
            found.append((mesh, algorithm, chunks, size, str(random.choice(["int32", "int64", "float32"]))))
    return found


def test_sums_are_those_of_the_reference(tmp_path: Path) -> None:
    every = cases()
    assert len(every) > 20
    member = [sys.executable, "-m", "tests.mesh.executors.mpi_member", str(tmp_path), json.dumps(every)]
    run_mpi(RANKS, member, tmp_path)
    for rank in range(RANKS):
        wrong = json.loads((tmp_path / f"{rank}.json").read_text())
        assert not wrong, [every[number] for number, _ in wrong]


COLLECTIVES = [
    (mesh, what, size, dtype)
    for mesh, size, dtype in [
        ("1x2", 3, "int64"),
        ("3x3 -chip@1,1", 1000, "float32"),
        ("2x2x2 -chip@0,1,0", 0, "float32"),
        ("1x3x3 wrap=yz ~0.5@0,0,0:0,1,0", 77, "float64"),
        ("0-1-2-3-0 0-2", 50, "float32"),
    ]
    for what in ("reduce_scatter", "all_gather", "broadcast", "all_to_all")
] + [
    ("2x4", "1x2", 501, "float32"),
    ("3x3", "1x3", 40, "int32"),
    ("4x2", "2x1", 0, "int8"),
    ("2x4 -chip@0,0", "1x2", 9, "float32"),
    ("3x3 wrap=xy", "staged 1 1", 1000, "float32"),
    ("3x3 wrap=x", "staged 3 2", 4001, "float64"),
    ("2x2x2", "staged 1 2 1", 77, "float32"),
    ("1x4", "staged 2", 0, "int32"),
]


def test_collectives_groups_and_stages_are_those_of_the_reference(tmp_path: Path) -> None:
    """To the last bit, floats too: every chunk has the same history."""
    member = [sys.executable, "-m", "tests.mesh.executors.mpi_collectives_member", str(tmp_path)]
    run_mpi(RANKS, [*member, json.dumps(COLLECTIVES)], tmp_path)
    for rank in range(RANKS):
        wrong = json.loads((tmp_path / f"{rank}.json").read_text())
        assert not wrong, [(COLLECTIVES[number], what) for number, _, what in wrong]
