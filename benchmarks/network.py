"""How long the event engine takes: 4096 chips, from one to ten million transfers.

    python benchmarks/network.py

Processor time and peak memory of one flight, schedules made before; and the same flight first come, first served.
"""

from __future__ import annotations

import resource
import time

import meshmend as mm
from meshmend.mesh.schedule import schedule

MESH = "128x32 wrap=y -host@32,4 -host@64,16"
CHUNKS = (125, 320, 640, 1250)


def main() -> None:
    plan = mm.plan(MESH, algorithm="trees")
    for order in ("schedule", "first-come"):
        mm.simulate(mm.plan("3x3"), 1e6, order=order)  # compiled now
    print(f"{plan.mesh}, {len(plan.mesh.live)} live chips, {len(plan)} flows, 102 MB over tpu-v3 links\n")
    print(f"{'transfers':>12}{'order':>12}{'simulated':>12}{'processor':>12}{'a million':>12}{'peak memory':>13}")
    for chunks in CHUNKS:
        table = schedule(plan, chunks, nbytes=102e6)
        for order in ("schedule", "first-come"):
            begin = time.process_time()
            flight = mm.simulate(table, 102e6, order=order)
            seconds = time.process_time() - begin
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
            print(
                f"{len(table):12,}{order:>12}{1e3 * flight.seconds:9.3f} ms{seconds:10.2f} s"
                f"{1e6 * seconds / len(table):10.2f} s{peak:10.2f} GB",
                flush=True,
            )


if __name__ == "__main__":
    main()
