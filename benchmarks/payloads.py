"""What `auto` takes for payloads of 1 KB to 1 GB: simulated, predicted, and compared with the least that is possible.

    python benchmarks/payloads.py                 all meshes and payloads (half an hour)
    python benchmarks/payloads.py --quick         8x8 and 8x8x8, up to 4 MB
    python benchmarks/payloads.py --trees         without plans in stages, as before they existed
    python benchmarks/payloads.py --mesh "8x8x8 wrap=xyz" --most 1e6

For each mesh and payload: the plan, its simulated time on tpu-v3's links, the predicted one over that, the floor
(`planners/floor.py`), the older and lower floor max(diameter x latency, payload / bound), and the simulated time over
each of them. A star marks what is over 1.3 times the floor, or predicted more than 5 % off, or slower than a larger
payload. Planning times are in seconds of one processor, of `auto` and of `trees` alone.
"""

from __future__ import annotations

import argparse
import statistics
import time

import meshmend as mm
from meshmend.mesh.planners.cost import diameter, link_speed
from meshmend.mesh.planners.cost import seconds as tree_seconds
from meshmend.mesh.planners.floor import floor
from meshmend.mesh.staged.plan import StagedPlan
from meshmend.mesh.staged.plan import seconds as staged_seconds

MESHES = (
    "8x8", "16x16", "16x32", "16x32 -4x2@6,12", "32x32 wrap=xy", "8x8x8 wrap=xyz", "16x16x16 wrap=xyz",
)  # fmt: skip
PAYLOADS = (1e3, 4e3, 16e3, 64e3, 256e3, 1e6, 2e6, 4e6, 8e6, 16e6, 32e6, 64e6, 256e6, 1e9)
QUICK = ("8x8", "8x8x8 wrap=xyz")
MOST_RATIO, MOST_ERROR = 1.3, 0.05


def row(mesh: mm.Mesh, nbytes: float, in_stages: bool) -> tuple[float, float, float]:
    begin = time.process_time()
    plan = mm.plan(mesh, nbytes, staged=True) if in_stages else mm.plan(mesh, nbytes)
    planned = time.process_time() - begin
    begin = time.process_time()
    mm.plan(mesh, algorithm="trees")
    alone = time.process_time() - begin
    simulated = mm.simulate(plan, nbytes).seconds
    in_time = staged_seconds(plan, nbytes) if isinstance(plan, StagedPlan) else tree_seconds(plan, nbytes)
    link = link_speed("tpu-v3")
    older = max(diameter(mesh) * link.latency, nbytes / link.bandwidth / plan.bound.value)
    least = floor(mesh, nbytes).seconds
    name = plan.label if isinstance(plan, StagedPlan) else f"{plan.algorithm}, {len(plan)}"
    ratio, predicted = simulated / least, in_time / simulated
    star = "*" if ratio > MOST_RATIO or abs(predicted - 1) > MOST_ERROR else ""
    print(
        f"| {mesh} | {nbytes / 1e3:,.0f} kB | {name} | {simulated * 1e6:,.1f} | {predicted:.3f} | {least * 1e6:,.1f} | "
        f"{ratio:.2f}{star} | {simulated / older:.2f} | {planned:.2f} s | {alone:.2f} s |",
        flush=True,
    )
    return simulated, ratio, predicted


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--trees", action="store_true")
    parser.add_argument("--mesh", action="append")
    parser.add_argument("--least", type=float, default=0.0)
    parser.add_argument("--most", type=float, default=1e9)
    given = parser.parse_args()
    meshes = given.mesh or (QUICK if given.quick else MESHES)
    mm.simulate(mm.plan("4x4 wrap=xy", 1e3, staged=True), 1e3)  # loads what is compiled
    mm.simulate(mm.plan("4x4 -chip@0,0"), 1e6)
    print("| mesh | payload | plan | simulated, µs | predicted | floor, µs | ratio | to the older | auto | trees |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    ratios, errors, jumps = [], [], 0
    for text in meshes:
        mesh, last = mm.Mesh.parse(text), 0.0
        for nbytes in PAYLOADS:
            if given.least <= nbytes <= min(given.most, 4e6 if given.quick else 1e9):
                simulated, ratio, predicted = row(mesh, nbytes, not given.trees)
                jumps += simulated < 0.99 * last
                last = simulated
                ratios.append(ratio)
                errors.append(abs(predicted - 1))
    print(
        f"\n{len(ratios)} rows: ratio median {statistics.median(ratios):.2f}, most {max(ratios):.2f}, "
        f"{sum(ratio > MOST_RATIO for ratio in ratios)} over {MOST_RATIO}; predicted off by "
        f"{statistics.median(errors):.3f} (median), {max(errors):.3f} (most); {jumps} faster than a smaller payload"
    )


if __name__ == "__main__":
    main()
