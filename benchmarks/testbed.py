"""Planned sums on a real packet network whose links are the limit, beside Open MPI's own and the simulator's word.

    python benchmarks/testbed.py [--rate 50mbit] [--meshes "4x4,4x4 -2x2@1,1"] [--mb 1,8,64] [--turns 3] [--out FILE]

Chips are network namespaces, links are veth pairs with `tc tbf` (docs/testbed.md); needs root. In every turn each kind
sums the same payload once; the slowest rank's time counts, and every sum is checked. `predicted` is the simulator's
time with the links' speed as measured in the same run, between two neighbours and with nothing else going on: bytes per
second of a long stream, and the time of a small message there and back. `idle` is the part of this machine's processor
time that nobody used meanwhile: where it is near zero, the processor was the limit and not the links (but MPI_Allreduce
spins while it waits). It is summed once in each payload, since it takes so long.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import meshmend as mm
from meshmend.mesh.schedule import schedule
from meshmend.simulator import Network
from meshmend.testbed import Testbed

PROGRAM = Path(__file__).parent / "loops" / "linksums.py"
KINDS = "trees,ring,rowpair,MPI_Allreduce"


def main() -> None:
    parser = argparse.ArgumentParser(description="Planned sums on a network of limited links.")
    parser.add_argument("--rate", default="50mbit")
    parser.add_argument("--meshes", default="4x4,4x4 -1x2@0,0,6x6,6x6 -2x2@0,4")
    parser.add_argument("--mb", default="1,8,64")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--kinds", default=KINDS)
    parser.add_argument("--out", help="write all figures to this JSON file")
    chosen = parser.parse_args()
    found = []
    for mesh in read_meshes(chosen.meshes):
        with Testbed(mesh, chosen.rate) as bed, tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "out.json")
            line = bed.mpirun(
                sys.executable, str(PROGRAM), str(mesh), chosen.mb, str(chosen.turns), chosen.kinds, str(out)
            )
            done = subprocess.run(line, stdin=subprocess.DEVNULL)
            if done.returncode or not out.exists():
                raise SystemExit(f"the sums on {mesh} failed with status {done.returncode}")
            figures = json.loads(out.read_text())
        show(mesh, chosen.rate, figures)
        found.append({"mesh": str(mesh), "rate": chosen.rate, **figures})
    if chosen.out:
        Path(chosen.out).write_text(json.dumps(found, indent=1) + "\n")


def read_meshes(text: str) -> list[mm.Mesh]:
    """Meshes separated by commas; a mesh may have commas of its own, in its holes."""
    words: list[str] = []
    for part in text.split(","):
        begins = part.strip()[:1].isdigit() and "x" in part.split()[0]
        words = [*words, part.strip()] if begins or not words else [*words[:-1], f"{words[-1]},{part}"]
    return [mm.Mesh.parse(word) for word in words]


def show(mesh: mm.Mesh, rate: str, figures: dict) -> None:
    """A table for one mesh."""
    link = figures["link"]
    print(
        f"\n{mesh}, {len(mesh.live)} ranks, {rate} links: measured {link['bandwidth'] / 1e6:.2f} MB/s, "
        f"{1e3 * link['latency']:.2f} ms per hop"
    )
    heads = {"MB": 4, "kind": 15, "chunks": 8, "seconds": 10, "range": 15, "of B": 7, "× ring": 8, "predicted": 11}
    print("".join(f"{name:>{room}}" for name, room in {**heads, "off": 8, "idle": 7}.items()))
    for row in figures["rows"]:
        times = sorted(row["seconds"])
        middle = float(np.median(times))
        ring = next((r for r in figures["rows"] if r["kind"] == "ring" and r["mb"] == row["mb"]), None)
        faster = f"{np.median(ring['seconds']) / middle:.2f}" if ring else "–"
        said, off = "–", "–"
        if row["kind"] != "MPI_Allreduce":
            plan = mm.plan(mesh, algorithm=row["kind"])
            network = Network(bandwidth=link["bandwidth"], latency=link["latency"])
            predicted = mm.simulate(schedule(plan, row["chunks"]), 1e6 * row["mb"], network).seconds
            row["predicted"] = predicted
            said, off = f"{predicted:.3f} s", f"{100 * (predicted / middle - 1):+.1f} %"
        speed = 1e6 * row["mb"] / middle / link["bandwidth"]
        print(
            f"{row['mb']:4g}{row['kind']:>15}{row['chunks']:8}{middle:8.3f} s{f'{times[0]:.2f}–{times[-1]:.2f}':>15}"
            f"{speed:7.2f}{faster:>8}{said:>11}{off:>8}{100 * row['idle']:5.0f} %",
            flush=True,
        )


if __name__ == "__main__":
    main()
