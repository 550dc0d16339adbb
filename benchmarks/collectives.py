"""What groups and the other collectives reach: speed against their bounds, planning time, simulated payloads.

    python benchmarks/collectives.py            all tables (some minutes)
    python benchmarks/collectives.py --quick    without the 4096-chip meshes
    python benchmarks/collectives.py --at-once  only the table of all groups at once, and one after another

Times are in seconds of one processor, for plan and verify together, in a warm process.
"""

from __future__ import annotations

import sys
import time

import numpy as np

import meshmend as mm
from meshmend.mesh.collectives.group_sums import pack_groups

MESHES = (
    "8x8", "8x8 -2x2@2,2", "16x32 -4x2@6,12", "16x16 wrap=xy", "16x16 wrap=xy -2x2@4,4", "galaxy ~0.5@3,1:3,2",
    "8x8x8 wrap=xyz -2x2x1@0,0,3",
)  # fmt: skip
GROUPS = (
    ("8x8", (2, 2)), ("32x32", (4, 1)), ("16x16 wrap=xy", (2, 2)), ("8x8x8 wrap=xyz", (2, 2, 1)),
    ("32x32 -4x2@12,14", (4, 1)), ("128x32 wrap=y", (4, 1)), ("128x32 wrap=y -host@60,12", (4, 1)),
    ("128x32 wrap=y -2x4@60,12", (4, 1)),
)  # fmt: skip
AT_ONCE = (
    ("32x32", (4, 1), 512), ("128x32 wrap=y", (4, 1), 64), ("128x32 wrap=y -host@60,12", (4, 1), 64),
    ("128x32 wrap=y -2x4@60,12", (4, 1), 64),
)  # fmt: skip
"""Mesh, tile and chunks of a payload: few enough that a schedule of 4096 chips is made in a minute."""
LARGE = 2000
NBYTES = 64e6


def collectives() -> None:
    print("## Collectives\n")
    print("| mesh | collective | algbw in B | of the bound | flows | hops | plan + verify |")
    print("|---|---|---|---|---|---|---|")
    for text in MESHES:
        for name in mm.COLLECTIVES:
            if name == "all_reduce":
                continue
            begin = time.process_time()
            plan = mm.plan(text, collective=name)
            mm.verify(plan)
            spent = time.process_time() - begin
            part = f"{100 * plan.efficiency:.1f} % of {plan.bound.value:.3f}"
            print(
                f"| {text} | {name} | {plan.algbw:.3f} | {part} | {len(plan)} | {plan.hops} | {spent:.2f} s |",
                flush=True,
            )


def groups(quick: bool) -> None:
    print("\n## Groups, all at once\n")
    print("| mesh | tile | groups of | algbw in B | of the bound | flows | hops | plan + verify |")
    print("|---|---|---|---|---|---|---|---|")
    for text, dims in GROUPS:
        mesh, tile = mm.Mesh.parse(text), mm.tile(*dims)
        if quick and mesh.size > LARGE:
            continue
        begin = time.process_time()
        plan = mm.plan(mesh, groups=tile)
        mm.verify(plan)
        spent = time.process_time() - begin
        part = f"{100 * plan.efficiency:.1f} % of {plan.bound.value:.3f}"
        print(
            f"| {text} | {tile} | {plan.groups} of {len(plan.members) // plan.groups} | {plan.algbw:.3f} | {part} | "
            f"{len(plan)} | {plan.hops} | {spent:.2f} s |",
            flush=True,
        )


def one_after_another(quick: bool) -> None:
    print("\n## All groups at once, and one after another\n")
    print("Each group by itself is planned in the same way, with all links for itself.\n")
    print(f"| mesh | tile | of large payloads | {NBYTES / 1e6:g} MB at once, simulated | one after another | ratio |")
    print("|---|---|---|---|---|---|")
    for text, dims, chunks in AT_ONCE:
        mesh, tile = mm.Mesh.parse(text), mm.tile(*dims)
        if quick and mesh.size > LARGE:
            continue
        plan, label = mm.plan(mesh, groups=tile), tile.groups(mesh)
        alone = [
            pack_groups(mesh, np.where(label == group, 0, -1).astype(np.int32), plan.bound)
            for group in range(tile.size)
        ]
        for other in alone:
            mm.verify(other)
        large = sum(1 / other.algbw for other in alone) * plan.algbw
        schedule = plan.schedule(chunks, nbytes=NBYTES)
        mm.verify(schedule)
        at_once = mm.simulate(schedule, NBYTES).seconds
        total = sum(mm.simulate(other.schedule(schedule.cut, nbytes=NBYTES), NBYTES).seconds for other in alone)
        print(
            f"| {text} | {tile} | {large:.2f} | {1e3 * at_once:.2f} ms, {len(schedule):,} transfers | "
            f"{1e3 * total:.2f} ms | {total / at_once:.2f} |",
            flush=True,
        )


def main() -> None:
    quick = "--quick" in sys.argv
    if "--at-once" not in sys.argv:
        collectives()
        groups(quick)
    one_after_another(quick)


if __name__ == "__main__":
    main()
