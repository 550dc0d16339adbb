"""How long 1,000 job-weeks of 4096 chips take to simulate, the holes solved and planned included: at most 60 s.

python benchmarks/fleet.py [--sweep]        --sweep: the sweep over 512 to 65,536 chips too
"""

from __future__ import annotations

import sys
import time

from meshmend import Mesh, plan
from meshmend.base.terminal import Progress
from meshmend.simulator.fleet import Fleet, study, sweep, text

LIMIT = 60.0
"""Seconds on two cores."""


def main() -> int:
    plan("4x4 -chip@1,1", algorithm="trees")  # loads what is compiled
    fleet = Fleet(mesh=Mesh.parse("tpu-v3-multipod"))
    begin = time.perf_counter()
    with Progress() as progress:
        done = study(fleet, progress)
    took = time.perf_counter() - begin
    print(text.describe(done))
    met = "met" if took <= LIMIT else "MISSED"
    print(f"\n{fleet.jobs * fleet.weeks:,g} job-weeks under {len(fleet.policies)} policies in {took:.1f} s ({met})")
    if "--sweep" in sys.argv:
        begin = time.perf_counter()
        with Progress() as progress:
            swept = sweep(Fleet(mesh=fleet.mesh, jobs=40), tell=progress)
        print(f"\n{text.describe_sweep(swept)}\n\nswept in {time.perf_counter() - begin:.0f} s")
    return took > LIMIT


if __name__ == "__main__":
    sys.exit(main())
