"""What plans reach on this machine: speed against the bound, planning time, schedules, predicted times.

    python benchmarks/plans.py            all tables (about three minutes)
    python benchmarks/plans.py --quick    without the 4096-chip mesh and the slow schedules
    python benchmarks/plans.py --large    only meshes of 4,000 to 65,536 chips

Planning times are medians of three runs in a warm process, for `plan` and `verify` together, in seconds of one
processor (on an idle machine the same as on the clock); every mesh has a process of its own, whose peak memory is
shown. The first plan of a fresh process, imports included, is measured apart, on the clock.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time

import numpy as np

import meshmend as mm
from meshmend.mesh.planners import ALGORITHMS

MULTIPOD = "tpu-v3-multipod -host@0,0 -host@60,12 -host@100,30"
MESHES = {
    "16x32": (1.90, 1.0),
    "16x32 -4x2@6,12": (1.878, 2.0),
    "32x32 -4x2@14,15": (1.914, 4.0),
    MULTIPOD: (0.98, 30.0),
    "16x32 --random chips=5% seed 3": (0.97, 4.0),
    "16x32 --random chips=5% seed 6": (0.97, 4.0),
    "16x32 ~0.5@7,15:7,16": (0.99, 2.0),
    "16x32 ~0.75@7,15:7,16": (0.99, 2.0),
    "galaxy ~0.5@3,1:3,2": (0.99, 0.5),
    "trn2-ultra -chip@1,1,1": (0.99, 0.5),
    "8x8x8 wrap=xyz -2x2x1@0,0,3": (0.99, 0.5),
    "16x16x16 wrap=xyz -2x2x1@0,0,3": (0.99, 2.0),
    "tpu7x-pod -host@0,0,0 -host@8,12,5 -host@14,22,23": (0.99, 6.0),
}
"""What must be reached: algbw in B (below 1: the part of the bound) and seconds for plan and verify."""
LARGE = 2000
"""Chips from which on --quick leaves a mesh out."""
PAYLOADS = {
    "8x8": 800, "16x32": 850, "16x32 -4x2@6,12": 700, "32x32 -4x2@14,15": 900, "16x32 ~0.5@7,15:7,16": 850,
    "8x8x8 wrap=xyz -2x2x1@0,0,3": 452,
}  # fmt: skip
"""Microseconds that 64 MiB may take (in three dimensions: 1.08 times the floor)."""
ODD = 500
"""Random meshes with odd holes."""
BIG = {
    "64x64 -4x2@14,15": 6.0,
    "16x16x16 wrap=xyz -2x2x1@0,0,3": 2.0,
    "tpu7x-pod -host@0,0,0 -host@8,12,5 -host@14,22,23": 6.0,
    "128x128 -host@50,50 -host@15,25 -host@100,7": 15.0,
    "32x32x16 wrap=xyz -host@4,4,4": 15.0,
    "256x256 -host@100,100 -host@30,50 -host@200,7": 60.0,
    "64x32x32 wrap=xyz -host@4,4,4 -host@10,10,10 -host@20,30,20": 60.0,
}
"""Large machines, and the seconds that plan and verify may take together."""
SPREAD = ("8x8 -2x2@2,2", "16x32 -4x2@6,12")
FAST = mm.LinkSpeed(50 * 2**30, 0.5e-6)


def mesh_of(text: str) -> mm.Mesh:
    if "--random" not in text:
        return mm.Mesh.parse(text)
    size, _, _, _, seed = text.split()
    return mm.Mesh.parse(size).fail_random(int(seed), chips=0.05).largest()


def one(text: str, algorithm: str) -> dict[str, float | str]:
    """Plan and verify in this process (called in a fresh one)."""
    mesh = mesh_of(text)
    mm.verify(mm.plan("4x4", algorithm=algorithm))  # loads what is compiled
    times = []
    try:
        for _ in range(3):
            begin = time.process_time()
            plan = mm.plan(mesh, algorithm=algorithm)
            mm.verify(plan)
            times.append(time.process_time() - begin)
    except mm.PlanError as error:
        return {"none": str(error).split(":")[0]}
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    return {
        "algbw": plan.algbw,
        "bound": plan.bound.value,
        "flows": len(plan),
        "hops": plan.hops,
        "seconds": statistics.median(times),
        "spread": max(times) - min(times),
        "MiB": memory,
    }


def fresh(*words: str) -> str:
    command = [sys.executable, __file__, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout


def plans(quick: bool) -> None:
    print("## Plans\n")
    print("| mesh | algorithm | algbw in B | of the bound | flows | hops | plan + verify | memory | target |")
    print("|---|---|---|---|---|---|---|---|---|")
    for text, (least, most) in MESHES.items():
        mesh = mesh_of(text)
        if quick and mesh.size > LARGE:
            continue
        for algorithm in mm.ALGORITHMS if len(mesh.dims) == 2 and mesh.even else ("trees",):
            got = json.loads(fresh("--one", text, algorithm))
            if "none" in got:
                print(f"| {text} | {algorithm} | none: {got['none'][:60]} | | | | | | |")
                continue
            goal = ""
            if algorithm == "trees":
                reached = got["algbw"] if least > 1 else got["algbw"] / got["bound"]
                met = reached >= least and got["seconds"] <= most and got["MiB"] < 2048
                goal = f"≥ {least}, ≤ {most:g} s: {'met' if met else 'MISSED'}"
            print(
                f"| {text} | {algorithm} | {got['algbw']:.3f} | {100 * got['algbw'] / got['bound']:.1f} % of "
                f"{got['bound']:.3f} | {got['flows']} | {got['hops']} | {got['seconds']:.2f} s ± {got['spread']:.2f} | "
                f"{got['MiB']:.0f} MiB | {goal} |",
                flush=True,
            )


def large() -> None:
    """Each part once, in a process that has compiled everything."""
    print("## Large machines\n")
    print("| mesh | chips | of the bound | depth | bound | plan | verify | memory so far | target |")
    print("|---|---|---|---|---|---|---|---|---|")
    mm.verify(mm.plan("4x4 -chip@0,0", algorithm="trees"))
    for text, most in BIG.items():
        mesh = mm.Mesh.parse(text)
        marks = [time.process_time()]
        mm.bound(mesh)
        marks.append(time.process_time())
        plan = mm.plan(mesh, algorithm="trees")
        marks.append(time.process_time())
        mm.verify(plan)
        marks.append(time.process_time())
        alone, planned, proved = np.diff(marks)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        met = alone + planned + proved <= most and plan.efficiency >= 0.99 and memory < 4
        goal = f"≤ {most:g} s: {'met' if met else 'MISSED'}"
        print(
            f"| {text} | {len(mesh.live):,} | {100 * plan.efficiency:.1f} % | {plan.depth} | {alone:.2f} s | "
            f"{alone + planned:.2f} s | {proved:.2f} s | {memory:.1f} GiB | {goal} |",
            flush=True,
        )


def roots() -> None:
    """What roots on every chip cost: time of the sum, for the largest share."""
    print("\n## Roots on every chip, 102 MB over links of TPU-v3\n")
    print("| mesh | roots | largest share | hops | time | with a root on every chip: largest share | hops | time |")
    print("|---|---|---|---|---|---|---|---|")
    for text in SPREAD:
        plan = mm.plan(text, algorithm="trees")
        cells = []
        for one in (plan, mm.spread_roots(plan)):
            schedule = one.schedule(nbytes=102e6)
            mm.verify(schedule)
            largest = np.bincount(one.root, one.share).max()
            cells.append(f"{100 * largest:.2f} % | {one.hops} | {1e6 * schedule.seconds(102e6):.0f} µs")
        print(f"| {text} | {len(set(plan.root.tolist()))} | {' | '.join(cells)} |", flush=True)


def odd_holes(quick: bool) -> None:
    """The least part of the bound that is reached on random meshes, and the most hops over twice the least depth."""
    random, reached, deep = np.random.default_rng(1), [], []
    for number in range(ODD // 10 if quick else ODD):
        dims = random.integers(2, 13, 2) if number % 2 else random.integers(2, 7, 3)
        wrap = tuple(bool(side > 2 and random.integers(2)) for side in dims)
        mesh = mm.Mesh(int(dims[0]), int(dims[1]), wrap, layers=int((*dims, 1)[2]))
        mesh = mesh.fail_random(number, chips=float(random.random() / 5), links=float(random.random() / 5)).largest()
        if len(mesh.live) < 2:
            continue
        for chip, way in random.permutation(mesh.links)[: number % 4].tolist():
            a, b = (",".join(map(str, end)) for end in mesh.ends(chip, way))
            mesh = mesh.fail(f"~{('0.5', '0.75', '0.9')[number % 3]}@{a}:{b}")
        plan = mm.plan(mesh, algorithm="trees")
        mm.verify(plan)
        reached.append(plan.efficiency)
        deep.append(plan.hops / max(1, 2 * ALGORITHMS["trees"](mesh, flows=1).depth))
    print(f"\n## {len(reached)} random meshes with odd holes (3 in 4 with slow links)\n")
    print(f"* least part of the bound: {100 * min(reached):.2f} %, median {100 * statistics.median(reached):.2f} %")
    print(f"* hops over those of the shallowest tree: median {statistics.median(deep):.2f}, most {max(deep):.2f}")


def first_plan() -> None:
    code = "import meshmend as mm; mm.verify(mm.plan('16x32', algorithm='trees')); mm.verify(mm.plan('{}'))"
    print("\n## The first plan of a fresh process\n")
    for text in ("16x32", "16x32 -4x2@6,12"):
        times = []
        for _ in range(3):
            begin = time.perf_counter()
            subprocess.run([sys.executable, "-c", code.format(text)], check=True, timeout=120)
            times.append(time.perf_counter() - begin)
        print(f"* {text}, `auto`, imports and verify included: {statistics.median(times):.2f} s (target 3 s)")


def schedules(quick: bool) -> None:
    print("\n## Schedules of 2,048 chunks\n")
    print("| mesh | algorithm | slots | algbw in B | of the plan's | schedule | verify |")
    print("|---|---|---|---|---|---|---|")
    for text in ("16x32", "16x32 -4x2@6,12", "32x32 -4x2@14,15"):
        for algorithm in ("trees",) if quick else mm.ALGORITHMS:
            try:
                plan = mm.plan(text, algorithm=algorithm)
            except mm.PlanError:
                continue
            begin = time.process_time()
            schedule = plan.schedule(2048)
            middle = time.process_time()
            mm.verify(schedule)
            end = time.process_time()
            print(
                f"| {text} | {algorithm} | {schedule.slots} | {schedule.algbw:.3f} | "
                f"{100 * schedule.algbw / plan.algbw:.1f} % | {middle - begin:.2f} s | {end - middle:.2f} s |",
                flush=True,
            )


def payloads(quick: bool) -> None:
    print("\n## 64 MiB over links of 50 GiB/s and 0.5 µs\n")
    print("Times of verified schedules, in µs. The floor is the payload over the bound.\n")
    print("| mesh | floor | auto | chunks | target | ring | rowpair | rowcol |")
    print("|---|---|---|---|---|---|---|---|")
    nbytes = 2.0**26
    for text, most in PAYLOADS.items():
        row = {}
        for algorithm in ("auto",) if quick else ("auto", "ring", "rowpair", "rowcol"):
            try:
                plan = mm.plan(text, nbytes, algorithm, FAST)
            except mm.PlanError:
                continue
            schedule = plan.schedule(nbytes=nbytes, link=FAST)
            mm.verify(schedule)
            row[algorithm] = 1e6 * schedule.seconds(nbytes, FAST)
            if algorithm == "auto":
                chunks, floor = schedule.chunks, 1e6 * nbytes / FAST.bandwidth / plan.bound.value
        others = " | ".join(f"{row[name]:.0f}" if name in row else "" for name in ("ring", "rowpair", "rowcol"))
        goal = f"≤ {most}: {'met' if row['auto'] <= most else 'MISSED'}"
        print(f"| {text} | {floor:.0f} | {row['auto']:.0f} | {chunks} | {goal} | {others} |", flush=True)


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(one(*sys.argv[2:4])))
        return
    if "--large" in sys.argv:
        large()
        return
    quick = "--quick" in sys.argv
    plans(quick)
    roots()
    odd_holes(quick)
    first_plan()
    schedules(quick)
    payloads(quick)


if __name__ == "__main__":
    main()
