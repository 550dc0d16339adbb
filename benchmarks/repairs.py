"""How the parts of a repair grow with the workers: detect, revoke, shrink, exchange, as every incident records them.

    python benchmarks/repairs.py                       # 4, 8, 16 and 32 workers, 3 kills each: medians
    python benchmarks/repairs.py --workers 4,8 --kills 5
    python benchmarks/repairs.py --write               # into simulator/papers/measured.json; then `make paper`

Each run kills workers one after the other with the policy `shrink`. The parts are those of the slowest courier. They
hardly depend on the size of the model, so it is small: 0.8 MB of gradients. With more workers than cores, all of them
share the cores, so what is printed is more than a host with a core for each would take.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from meshmend import report
from meshmend.base.terminal import table
from meshmend.report import Incident
from meshmend.telemetry import read

SCRIPT = Path(__file__).parent / "loops" / "recover.py"
FILE = Path(__file__).parents[1] / "src" / "meshmend" / "simulator" / "papers" / "measured.json"
PARTS = ("detect", "revoke", "shrink", "exchange")
EVERY, LANES = 12, 64
"""Steps between two kills, and lanes: enough for 32 workers."""
DEADLINE = 1500.0


def run(workers: int, kills: int, folder: Path) -> list[Incident]:
    """The incidents of one run."""
    faults = [
        {"rank": 1 + number, "step": EVERY * (number + 1), "point": "compute", "kind": "kill"}
        for number in range(kills)
    ]
    environment = {
        **os.environ, "MESHMEND_RUNS": str(folder), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1",
        "MESHMEND_FAULTS": json.dumps(faults),
    }  # fmt: skip
    line = [sys.executable, "-m", "meshmend", "run", "-n", str(workers), "--on-failure", "shrink", "--name", "repairs"]
    words = [*line, str(SCRIPT), "1", str(EVERY * (kills + 1)), "float", str(LANES)]
    with (folder / "log").open("w+") as log:
        if subprocess.run(words, env=environment, stdout=log, stderr=log, timeout=DEADLINE).returncode:
            log.seek(0)
            raise SystemExit(log.read())
    events = read(folder / "repairs")
    account = report.check(events)
    if not account.clean:
        raise SystemExit(report.render(account, report.incidents(events)))
    return [incident for incident in report.incidents(events) if not incident.joins and incident.total is not None]


def medians(found: list[Incident]) -> dict[str, float]:
    """Seconds of each part, of lanes computed again, of the whole and of an ordinary step."""
    parts = {name: statistics.median(incident.times.get(name, 0.0) for incident in found) for name in PARTS}
    return {
        **parts,
        "recompute": statistics.median(incident.times.get("recompute", 0.0) for incident in found),
        "total": statistics.median(incident.total or 0.0 for incident in found),
        "step": statistics.median(incident.ordinary or 0.0 for incident in found),
    }


def write(made: dict[str, dict[str, float]], about: str) -> None:
    """Put them where the table of one failure reads them."""
    data = json.loads(FILE.read_text())
    data["about_repairs"] = about
    data["repairs"] = {name: {part: round(time, 4) for part, time in row.items()} for name, row in made.items()}
    FILE.write_text(json.dumps(data, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="How the parts of a repair grow with the workers.")
    parser.add_argument("--workers", default="4,8,16,32")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--write", action="store_true", help=f"put the medians into {FILE.name}")
    chosen = parser.parse_args()
    made: dict[str, dict[str, float]] = {}
    for workers in map(int, chosen.workers.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            made[str(workers)] = medians(run(workers, chosen.kills, Path(folder)))
        print(f"{workers} workers: done", file=sys.stderr, flush=True)
    busy = f"{os.cpu_count()} cores that all workers share, at a load of {os.getloadavg()[2]:.0f}"
    print(f"medians of {chosen.kills} kills, in ms; {busy}")
    if chosen.write:
        write(made, f"python benchmarks/repairs.py, medians of {chosen.kills} kills on one host of {busy}.")
    names = next(iter(made.values()))
    print(table(("workers", *names), [(name, *(f"{1e3 * x:.1f}" for x in row.values())) for name, row in made.items()]))


if __name__ == "__main__":
    main()
